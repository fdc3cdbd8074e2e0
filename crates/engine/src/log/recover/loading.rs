//! The map of a family that is being opened: from the checkpoint to the index and the directory.
//! Promises: every copy of a page is tried before it is given up; one that may come back is waited for.
//! Leaves to others: which checkpoint (`recover`), leaf pages, which are fetched when somebody needs them (`map/lookup`).

use super::Stage;
use crate::buffer::Buffer;
use crate::context::{Context, Purpose};
use crate::formats::record::{Checkpoint, IndexPlace, PageKind, PagePlace};
use crate::identity::{DriveId, Seq};
use crate::interface::FamilyTrouble;
use crate::log::layers::Layers;
use crate::map::holes::Holes;
use crate::map::lookup::may_come_back;
use crate::message::{Answer, Question, Refusal, UnitRun};
use crate::volume::Volume;
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages being loaded at once.
const LOADS_MAX: usize = 16;
#[derive(Debug)]
enum Page {
    Chunk(IndexPlace),
    Directory(u64, PagePlace),
}

impl Page {
    fn place(&self) -> PagePlace {
        match self {
            Page::Chunk(named) => named.place,
            Page::Directory(_, place) => *place,
        }
    }
}

#[derive(Debug)]
pub(super) struct Load {
    page: Page,
    tried: Vec<DriveId>,
}

impl Volume {
    pub(super) fn begin_loading(&mut self, seq: Seq, checkpoint: &Arc<Checkpoint>) {
        self.map.map_egroups = checkpoint.map_egroups.iter().map(|named| (named.egroup, *named)).collect();
        self.map.holes = Holes::restore(&checkpoint.holes);
        let (map_to, replay_from) = (checkpoint.map_to, checkpoint.replay_from);
        self.overlay = Layers::new(checkpoint.replay_generation);
        let (snapshots, dropped) = (checkpoint.snapshots.clone(), checkpoint.dropped.clone());
        self.snapshots.restore(checkpoint.generation, snapshots, dropped);
        let recovery = self.recovery();
        recovery.checkpoint = seq;
        recovery.map_to = map_to;
        recovery.replay_from = replay_from;
        recovery.need = replay_from;
        recovery.stage = Stage::Index;
        let loads =
            checkpoint.index.iter().map(|&named| Load { page: Page::Chunk(named), tried: Vec::new() });
        recovery.to_load = loads.collect();
    }

    pub(super) fn load_pages(&mut self, ctx: &mut Context) {
        loop {
            let recovery = self.recovery();
            if recovery.again_at.is_some() {
                return;
            }
            if recovery.loading.len() < LOADS_MAX
                && let Some(load) = recovery.to_load.pop_front()
            {
                recovery.loads += 1;
                let number = recovery.loads;
                let place = load.page.place();
                if let Some(drive) = self.nearest_copy(place.egroup, &load.tried, ctx) {
                    self.recovery().loading.insert(number, load);
                    let runs = vec![UnitRun { first: place.unit, count: place.units }];
                    let question =
                        Question::ReadUnits { egroup: place.egroup, runs, frames: false, behind: false };
                    ctx.ask(self.family, self.epoch, drive, question, Purpose::Load(number));
                } else if may_come_back(self, place.egroup, &load.tried, ctx) {
                    let recovery = self.recovery();
                    recovery.to_load.push_front(Load { tried: Vec::new(), ..load });
                    recovery.again_at = Some(ctx.now.after(100_000));
                } else {
                    let number = match load.page {
                        Page::Chunk(named) => named.number,
                        Page::Directory(number, _) => number,
                    };
                    return self.fail(FamilyTrouble::PageLost(number), ctx);
                }
                continue;
            }
            if !recovery.loading.is_empty() {
                return;
            }
            match recovery.stage {
                Stage::Index => {
                    let pages = self.map.index.iter().filter(|(kind, ..)| *kind == PageKind::Directory);
                    let loads: VecDeque<Load> = pages
                        .map(|(_, number, place)| Load {
                            page: Page::Directory(number, place),
                            tried: Vec::new(),
                        })
                        .collect();
                    let recovery = self.recovery();
                    recovery.to_load = loads;
                    recovery.stage = Stage::Directory;
                }
                _ => {
                    recovery.stage = Stage::Replay;
                    return self.replay(ctx);
                }
            }
        }
    }

    /// A page asked for while opening.
    pub(crate) fn on_loaded(&mut self, number: u64, drive: DriveId, answer: Result<Answer, Refusal>) {
        let family = self.family;
        let Some(mut load) = self.recovery().loading.remove(&number) else { return };
        let is_away = answer == Err(Refusal::DriveGone);
        let page: Option<Buffer> = match answer {
            Ok(Answer::Units(mut results)) => results.pop().and_then(Result::ok),
            _ => None,
        };
        let loaded = page.is_some_and(|page| match &load.page {
            Page::Chunk(named) => self.map.index.load_chunk(named, page.bytes(), family).is_ok(),
            Page::Directory(number, _) => self.map.directory.load_page(page.bytes(), *number, family).is_ok(),
        });
        if !loaded {
            load.tried.extend((!is_away).then_some(drive));
            self.recovery().to_load.push_front(load);
        }
    }
}
