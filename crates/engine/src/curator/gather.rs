//! What is read of an egroup for a copy of it, from whom, and what of it is written.
//! Promises: frames of several sources are put together; who gave something, and who has nothing, is known of each attempt.
//! Leaves to others: which copies are made, whom to ask next, and how long (`copy`).

use crate::buffer::{BLOCK, Buffer, Pages, zeros};
use crate::formats::packing::{Frame, Packing, frame_of, frames_between};
use crate::identity::{DriveId, EgroupId, Time};
use crate::message::{BadUnit, Content, Lacking, UnitRun};
use crate::sabotage::{Bug, planted};
use std::sync::Arc;

/// Units read in one run as long as they are good: of a run with a bad one, each frame is asked for alone.
const RUN_UNITS: u32 = 64;
/// Runs asked for at once: a drive does nothing else while it reads them.
const RUNS_MAX: usize = 4;
/// Frames of all parts of an egroup that are read again to see whether a drive gives anything of it.
const KNOWN_ASKED: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Describing,
    Reading,
    Writing,
}

/// A copy being made.
#[derive(Debug)]
pub(super) struct Copy {
    pub egroup: EgroupId,
    /// The member that lacks it.
    pub drive: DriveId,
    pub attempts: u32,
    pub step: Step,
    pub tried: Vec<DriveId>,
    /// Who was asked what it has, or told that it has nothing, and who gave something sound, in this attempt.
    pub described: Vec<DriveId>,
    pub absent: Vec<DriveId>,
    pub gave: Vec<DriveId>,
    /// It was tried before; and since when everybody is there, and somebody has not given something.
    pub is_again: bool,
    pub since: Option<Time>,
    pub asked_in_vain: u32,
    pub units: u32,
    /// For what they were written: one for each, or none as long as nobody has told.
    pub blocks: Vec<u64>,
    pub packing: Option<Arc<Packing>>,
    /// What was read so far.
    pub frames: Vec<Option<Buffer>>,
    /// What the present source was asked for, in this order.
    pub asked: Vec<UnitRun>,
    /// All of it was lost before it came to an egroup.
    pub is_lost: bool,
    /// What is written is not all of it.
    pub is_partial: bool,
}

impl Copy {
    pub fn new(egroup: EgroupId, drive: DriveId, attempts: u32) -> Self {
        Self {
            egroup,
            drive,
            attempts,
            step: Step::Describing,
            tried: Vec::new(),
            described: Vec::new(),
            absent: Vec::new(),
            gave: Vec::new(),
            is_again: false,
            since: None,
            asked_in_vain: 0,
            units: 0,
            blocks: Vec::new(),
            packing: None,
            frames: Vec::new(),
            asked: Vec::new(),
            is_lost: false,
            is_partial: false,
        }
    }

    pub fn key(&self) -> (EgroupId, DriveId) {
        (self.egroup, self.drive)
    }

    /// The egroup's frames that these units lie in.
    pub fn frames_of(&self, run: UnitRun) -> impl Iterator<Item = Frame> + '_ {
        frames_between(run.first..run.first + run.count, |unit| frame_of(self.packing.as_deref(), unit))
    }

    /// The frames still lacking, in runs of at most `most` units (or one frame).
    pub fn lacking(&self, most: u32) -> Vec<UnitRun> {
        let mut runs: Vec<UnitRun> = Vec::new();
        let all = UnitRun { first: 0, count: self.units };
        for frame in self.frames_of(all).filter(|frame| self.frames[frame.index as usize].is_none()) {
            match runs.last_mut() {
                Some(run) if run.first + run.count == frame.first && run.count + frame.units <= most => {
                    run.count += frame.units;
                }
                _ => runs.push(UnitRun { first: frame.first, count: frame.units }),
            }
        }
        runs
    }

    /// What is asked for next. Where some source has failed in the middle, each frame counts.
    pub fn next_runs(&self) -> Vec<UnitRun> {
        let had_it = |drive: &DriveId| *drive != self.drive && !self.absent.contains(drive);
        let has_failed = self.is_again || self.tried.iter().any(had_it);
        if has_failed && self.frames.iter().any(Option::is_some) {
            return self.lacking(1);
        }
        let mut runs = self.lacking(RUN_UNITS);
        runs.truncate(RUNS_MAX);
        runs
    }

    /// Takes what is good. False: some was not.
    pub fn take(&mut self, results: Vec<Result<Buffer, BadUnit>>) -> bool {
        assert_eq!(results.len(), self.asked.len(), "each run has a result");
        let mut good = true;
        for (run, result) in std::mem::take(&mut self.asked).into_iter().zip(results) {
            self.is_lost |= result.as_ref().is_err_and(|bad| bad.is_lost);
            let frames: Vec<Frame> = self.frames_of(run).collect();
            let len: usize = frames.iter().map(|frame| frame.len as usize).sum();
            // Copies are alike, so a sound run of another length is of something else.
            let Some(bytes) = result.ok().filter(|bytes| bytes.len() == len) else {
                // What is there already was asked for only to see whether anything comes.
                good &= frames.iter().all(|frame| self.frames[frame.index as usize].is_some());
                continue;
            };
            let mut at = 0;
            for frame in frames {
                let end = at + frame.len as usize;
                self.frames[frame.index as usize] = Some(bytes.slice(at..end));
                at = end;
            }
        }
        good
    }

    /// It is known of what frames it consists.
    pub fn begin_reading(&mut self, packing: Option<Arc<Packing>>) {
        let frames = packing.as_ref().map_or(self.units as usize, |packing| packing.frame_count());
        self.frames = vec![None; frames];
        self.packing = packing;
    }

    /// Every frame is there.
    pub fn is_read(&self) -> bool {
        !self.frames.is_empty() && self.frames.iter().all(Option::is_some)
    }

    /// Nothing more is to be known of it.
    pub fn is_complete(&self) -> bool {
        (self.is_read() || self.is_lost) && !self.blocks.is_empty()
    }

    /// Whether this source is asked what it has before it is asked for that: where something was not given, it counts whether it
    /// gives anything.
    pub fn is_to_be_described(&self, source: DriveId) -> bool {
        let has_failed = self.is_again || !self.tried.is_empty() || self.blocks.is_empty();
        self.frames.is_empty() || has_failed && !self.described.contains(&source)
    }

    /// What is asked of one that could not tell for what its units were written: also something that is there already, so that it is
    /// seen whether it gives anything.
    pub fn next_runs_and_known_ones(&self) -> Vec<UnitRun> {
        let all = UnitRun { first: 0, count: self.units };
        let known = |frame: &Frame| self.frames[frame.index as usize].is_some();
        let step = self.frames_of(all).filter(known).count().div_ceil(KNOWN_ASKED).max(1);
        let known = self.frames_of(all).filter(known).step_by(step);
        let known = known.map(|frame| UnitRun { first: frame.first, count: frame.units });
        self.next_runs().into_iter().chain(known).collect()
    }

    /// Whether the member has nothing of it, so that something is better.
    pub fn takes_what_there_is(&self) -> bool {
        self.absent.contains(&self.drive) && !planted(Bug::PartialCopiesGivenUp)
    }

    /// Whether everybody who has it gives something of it: a drive that gives nothing at all has lost nothing.
    pub fn is_given_something(&self) -> bool {
        let answers = |drive: &DriveId| self.gave.contains(drive) || self.absent.contains(drive);
        !self.frames.is_empty() && (self.tried.iter().all(answers) || planted(Bug::SilentSourceBelieved))
    }

    /// Another attempt, with what is there already.
    pub fn goes_on(self, attempts: u32) -> Self {
        let mut anew = Self::new(self.egroup, self.drive, attempts);
        (anew.is_again, anew.since, anew.asked_in_vain) = (true, self.since, self.asked_in_vain);
        (anew.units, anew.blocks, anew.packing, anew.frames) =
            (self.units, self.blocks, self.packing, self.frames);
        anew
    }

    /// What it lacks when it is written.
    pub fn lacks(&self) -> Lacking {
        let there = self.frames.iter().zip(0..);
        let frames = there.filter(|(frame, _)| frame.is_none() && !self.is_lost).map(|(_, index)| index);
        Lacking { frames: frames.collect(), blocks: self.blocks.is_empty() }
    }

    /// What is written: zeros in place of what is not there.
    pub fn content(&mut self) -> Content {
        if self.is_lost {
            return Content::Lost { units: self.units };
        }
        let frames = std::mem::take(&mut self.frames).into_iter();
        match &self.packing {
            None => Content::Units(frames.map(|unit| unit.unwrap_or_else(|| zeros(BLOCK))).collect()),
            Some(packing) => {
                let mut pages = Pages::zeroed(packing.bytes() as usize);
                for (frame, bytes) in packing.frames().zip(frames) {
                    if let Some(bytes) = bytes {
                        pages.bytes_mut()[frame.bytes()].copy_from_slice(bytes.bytes());
                    }
                }
                Content::Packed { packing: Arc::clone(packing), bytes: pages.freeze() }
            }
        }
    }
}
