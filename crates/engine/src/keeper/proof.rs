//! Looking at what lies on the drive before somebody refers to it, if nobody has since the drive was opened.
//! Promises: what trailers tell is referred to only when its bytes were read once and are those that were to be written. What is not so is
//! not found any more: so what was found bad is given to nobody, although a trailer may tell of it again.
//! Leaves to others: what is known and found (`share_index`, `sharing`), telling of damage (`egroup_read`, when it is somebody's read).
//!
//! Nothing is held while it is read. Blocks that are freed leave the index, and what is put there is learnt anew: so the same hash in the
//! same place is either what was read, or was written since.

use crate::buffer::{BLOCK, Buffer};
use crate::formats::packing::Frame;
use crate::formats::references::{Reference, References};
use crate::formats::table::Hash;
use crate::interface::Area;
use crate::keeper::desk::{Desk, Work};
use crate::keeper::egroup_read::read_of;
use crate::keeper::egroups::Store;
use crate::keeper::share_index::ShareIndex;
use crate::keeper::sharing::{Hashed, all_frames};
use std::ops::Range;

/// How often an egroup waits for such reads at most. Each time everything that was found is proven or forgotten, and other places are found
/// instead of those: hardly ever twice.
const PROOFS_MAX: u32 = 4;

/// What an egroup may refer to.
pub(super) enum Found {
    Proven(References),
    /// These runs of its frames have to be read before.
    Doubtful(Vec<Reference>),
}

/// An egroup that waits for what it may refer to.
pub(super) struct Proof {
    hashed: Hashed,
    frames: Vec<Frame>,
    /// What is being read: runs of its frames, and where they should be.
    runs: Vec<Reference>,
    /// Reads that have not ended.
    left: usize,
}

impl Store {
    pub fn look_up(&mut self, hashed: &Hashed) -> Found {
        let references = self.found_for(hashed);
        let frames = hashed.frames();
        let index = &self.sharing.index;
        let doubtful = references.iter().filter_map(|run| doubt(index, run, &frames, &hashed.hashes));
        let runs: Vec<Reference> = doubtful.collect();
        if runs.is_empty() {
            return Found::Proven(references);
        }
        if hashed.proofs == PROOFS_MAX {
            return Found::Proven(References::default());
        }
        Found::Doubtful(runs)
    }

    /// Reads these runs; then the egroup is written.
    pub fn prove(&mut self, job: u64, mut hashed: Hashed, runs: Vec<Reference>, desk: &mut Desk) {
        hashed.proofs += 1;
        for (run, reference) in runs.iter().enumerate() {
            desk.submit(Area::Data, read_of(&reference.blocks()), Work::Proof { job, run });
        }
        let proof = Proof { frames: hashed.frames(), left: runs.len(), hashed, runs };
        self.proofs.insert(job, proof);
    }

    /// A run was read; None if it could not be.
    pub fn on_proof_read(&mut self, job: u64, run: usize, bytes: Option<Buffer>, desk: &mut Desk) {
        let Self { proofs, sharing, .. } = self;
        let proof = proofs.get_mut(&job).expect("it waits until all reads have ended");
        proof.judge(run, bytes.as_ref(), &mut sharing.index);
        proof.left -= 1;
        if proof.left == 0 {
            let proof = proofs.remove(&job).expect("just seen");
            self.write_shared(job, proof.hashed, desk);
        }
    }
}

impl Hashed {
    fn frames(&self) -> Vec<Frame> {
        all_frames(self.prepared.packing.as_deref(), self.prepared.units())
    }
}

impl Proof {
    /// Compares what was read with what is to be written, frame by frame.
    fn judge(&self, run: usize, read: Option<&Buffer>, index: &mut ShareIndex) {
        let run = &self.runs[run];
        let blocks = run.blocks();
        let whole = |read: &Buffer| read.len() as u64 == (blocks.end - blocks.start) * BLOCK as u64;
        assert!(read.is_none_or(whole), "a drive reads as much as was asked for");
        let mut bad: Vec<Range<u64>> = Vec::new();
        for number in frames_of(run) {
            let (frame, hash) = (&self.frames[number], &self.hashed.hashes[number]);
            let place = place_of(run, frame);
            let begin = (place - blocks.start * BLOCK as u64) as usize;
            let wanted = self.hashed.prepared.bytes_of(frame);
            if read.is_some_and(|read| read.bytes()[begin..begin + wanted.len()] == *wanted.bytes()) {
                index.prove(place, hash);
            } else if index.is_at(place, hash) {
                let end = place + u64::from(frame.len);
                match bad.last_mut() {
                    Some(last) if last.end == place => last.end = end,
                    _ => bad.push(place..end),
                }
            }
        }
        bad.into_iter().for_each(|bytes| index.forget(bytes));
    }
}

/// The numbers of the frames of a run.
fn frames_of(run: &Reference) -> Range<usize> {
    run.frame as usize..(run.frame + run.frames) as usize
}

fn place_of(run: &Reference, frame: &Frame) -> u64 {
    run.place + u64::from(frame.offset - run.at)
}

/// What of a run nobody has seen, from the first such frame to the last: one read, whatever lies between.
fn doubt(index: &ShareIndex, run: &Reference, frames: &[Frame], hashes: &[Hash]) -> Option<Reference> {
    let is_doubtful = |number: &usize| !index.is_proven(place_of(run, &frames[*number]), &hashes[*number]);
    let first = frames_of(run).find(is_doubtful)?;
    let last = frames_of(run).rfind(is_doubtful)?;
    let at = frames[first].offset;
    Some(Reference {
        frame: first as u32,
        frames: (last - first + 1) as u32,
        at,
        len: frames[last].offset + frames[last].len - at,
        place: place_of(run, &frames[first]),
    })
}
