//! Snapshots of a vDisk: taking and dropping them, and going back to one.
//! Promises: a snapshot is one place in the log, so taking it stops nothing; what was acknowledged before the order is in it,
//! and what was written after it was told is not (I6); asked for twice, it is taken once.
//! Leaves to others: keeping what a snapshot sees (`log/layers.rs`, `map/merge.rs`), reading it (`map/view.rs`).

use super::{Volume, Waiter};
use crate::context::Context;
use crate::formats::record::{Body, Mark};
use crate::identity::{Generation, SnapshotId, Time};
use crate::interface::{Notice, RollbackTrouble, SnapshotTrouble};
use crate::limits::{GENERATIONS_MAX, SNAPSHOTS_MAX};
use crate::map::lookup::PRESENT;
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Generations that wait for the drain at most; then a snapshot waits until one is in egroups.
pub(crate) const FROZEN_MAX: usize = 8;

/// When a mark waits for room in the log it is asked for so often.
const ROOM_AGAIN_US: u64 = 50_000;

#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// Of what is written now, as far as the log is durable.
    pub present: Generation,
    /// Of the next record.
    next: Generation,
    pub taken: BTreeMap<Generation, SnapshotId>,
    /// Snapshots that are gone, though pages of the past still tell of them.
    pub dropped: BTreeSet<Generation>,
    /// Their marks are on their way into the log.
    taking: BTreeSet<SnapshotId>,
    waiting: VecDeque<SnapshotId>,
    /// Likewise of those that are to go: on their way, and before it.
    dropping: BTreeSet<Generation>,
    to_drop: VecDeque<Generation>,
    /// A mark waits for room in the log: when to look again.
    room_at: Option<Time>,
    pub rollback: Option<Rollback>,
}

/// The way back to a snapshot. Clients are held off all the time, and start over where this one does after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rollback {
    /// Everything is put into pages first, so that these are all there is to change.
    Settling(Generation),
    /// The mark is on its way into the log.
    Marking(Generation),
    /// From here on it is decided; the next checkpoint changes the pages.
    Marked(Generation),
    /// The control plane has been told, and has to write it down before clients are let in. To what it went back, if it did.
    Done(Option<Generation>),
}

impl Snapshots {
    /// Of a record that gets its number now.
    pub fn next(&self) -> Generation {
        self.next
    }

    /// As a checkpoint tells them.
    pub fn restore(
        &mut self,
        present: Generation,
        taken: impl IntoIterator<Item = (Generation, SnapshotId)>,
        dropped: impl IntoIterator<Item = Generation>,
    ) {
        self.present = present;
        self.next = present;
        self.taken = taken.into_iter().collect();
        self.dropped = dropped.into_iter().collect();
    }

    pub fn list(&self) -> Vec<(Generation, SnapshotId)> {
        self.taken.iter().map(|(&generation, &snapshot)| (generation, snapshot)).collect()
    }

    /// This mark gets a number.
    pub fn on_push(&mut self, mark: Mark) {
        match mark {
            Mark::Taken { generation, snapshot } => {
                self.next = self.next.max(generation.next());
                self.taking.insert(snapshot);
            }
            Mark::RolledBack { generation, .. } => self.next = self.next.max(generation.next()),
            Mark::Dropped { generation } => drop(self.dropping.insert(generation)),
        }
    }

    /// Nothing is to be dropped, and no page tells of what was.
    pub fn is_done_dropping(&self) -> bool {
        self.dropped.is_empty() && self.dropping.is_empty() && self.to_drop.is_empty()
    }

    /// When a mark that waits for room looks for it again.
    pub fn wake_at(&self) -> Option<Time> {
        self.room_at
    }

    /// A durable mark.
    fn apply(&mut self, mark: Mark) {
        self.on_push(mark);
        match mark {
            Mark::Taken { generation, snapshot } => {
                self.taking.remove(&snapshot);
                self.present = self.present.max(generation.next());
                self.taken.insert(generation, snapshot);
            }
            Mark::Dropped { generation } => {
                self.dropping.remove(&generation);
                if self.taken.remove(&generation).is_some() {
                    self.dropped.insert(generation);
                }
            }
            Mark::RolledBack { to, generation } => {
                self.present = self.present.max(generation.next());
                self.rollback = Some(Rollback::Marked(to));
            }
        }
    }

    /// Clients have to wait: the vDisk is on its way back to a snapshot.
    pub fn is_rolling_back(&self) -> bool {
        self.rollback.is_some()
    }

    /// Everything has to be in pages before it can go back.
    pub fn wants_pages(&self) -> bool {
        matches!(self.rollback, Some(Rollback::Settling(_)))
    }

    /// The pages have to become what they were for this snapshot.
    pub fn to_roll_back(&self) -> Option<Generation> {
        match self.rollback {
            Some(Rollback::Marked(to)) => Some(to),
            _ => None,
        }
    }
}

impl Volume {
    pub fn take_snapshot(&mut self, snapshot: SnapshotId, ctx: &mut Context) {
        if !self.is_serving() {
            // Asked again when the family is served.
            return;
        }
        if let Some((&generation, _)) = self.snapshots.taken.iter().find(|(_, id)| **id == snapshot) {
            return self.tell_taken(generation, snapshot, ctx);
        }
        // During a rollback it waits: it would be newer than what the vDisk goes back to.
        if !self.snapshots.taking.contains(&snapshot) && !self.snapshots.waiting.contains(&snapshot) {
            self.snapshots.waiting.push_back(snapshot);
        }
    }

    /// Puts marks into the log for those that wait, as far as it has room: what is left of a full ring is for what makes
    /// some. Dropping a snapshot does in the end.
    pub(crate) fn start_snapshots(&mut self, ctx: &mut Context) {
        self.snapshots.room_at = None;
        while let Some(&generation) = self.snapshots.to_drop.front() {
            if !self.may_free(self.room()) {
                self.ask_for_mark_room(ctx);
                break;
            }
            self.snapshots.to_drop.pop_front();
            self.note_freeing();
            self.push_mark(Mark::Dropped { generation });
        }
        while !self.snapshots.is_rolling_back()
            && let Some(&snapshot) = self.snapshots.waiting.front()
        {
            let open = self.snapshots.taking.len();
            let refused = if self.snapshots.taken.len() + open >= SNAPSHOTS_MAX {
                Some(SnapshotTrouble::TooMany)
            } else if self.snapshots.next.0 >= GENERATIONS_MAX {
                Some(SnapshotTrouble::TooManyEver)
            } else {
                None
            };
            if refused.is_none() && self.overlay.frozen() + open >= FROZEN_MAX {
                return;
            }
            if refused.is_none() && self.room() == 0 {
                return self.ask_for_mark_room(ctx);
            }
            self.snapshots.waiting.pop_front();
            if let Some(reason) = refused {
                let (family, epoch) = (self.family, self.epoch);
                ctx.notice(Notice::SnapshotRefused { family, epoch, snapshot, reason });
                continue;
            }
            let mark = Mark::Taken { generation: self.snapshots.next, snapshot };
            self.push_mark(mark);
        }
    }

    fn ask_for_mark_room(&mut self, ctx: &mut Context) {
        self.log.ask_for_room(ROOM_AGAIN_US, ctx);
        self.snapshots.room_at = Some(ctx.now.after(ROOM_AGAIN_US));
    }

    pub fn drop_snapshot(&mut self, generation: Generation, ctx: &mut Context) {
        // What the vDisk is going back to is read until it is there; the order is given again.
        let is_wanted = matches!(
            self.snapshots.rollback,
            Some(Rollback::Settling(to) | Rollback::Marking(to) | Rollback::Marked(to)) if to == generation
        );
        if !self.is_serving() || is_wanted {
            return;
        }
        let Snapshots { taken, dropping, to_drop, .. } = &mut self.snapshots;
        if taken.contains_key(&generation) {
            // Asked for again it is still the same mark.
            if !dropping.contains(&generation) && !to_drop.contains(&generation) {
                to_drop.push_back(generation);
            }
        } else {
            self.tell_dropped(generation, ctx);
        }
    }

    pub fn roll_back(&mut self, to: Generation, ctx: &mut Context) {
        if let Some(Rollback::Done(done)) = self.snapshots.rollback {
            if done == Some(to) {
                // It was not heard. What is done is done, whatever may be in the way since.
                return self.on_rolled_back(to, ctx);
            }
            if let Some(reason) = self.rollback_trouble(to) {
                return self.refuse_rollback(to, reason, ctx);
            }
            // That it was refused was not heard, and what was in the way is gone.
            self.snapshots.rollback = Some(Rollback::Settling(to));
            return;
        }
        if !self.is_serving() || self.snapshots.is_rolling_back() {
            return;
        }
        match self.rollback_trouble(to) {
            None => self.snapshots.rollback = Some(Rollback::Settling(to)),
            Some(reason) => self.refuse_rollback(to, reason, ctx),
        }
    }

    /// Why the vDisk cannot begin to go back to this snapshot.
    fn rollback_trouble(&self, to: Generation) -> Option<RollbackTrouble> {
        let newer = (!self.snapshots.waiting.is_empty()).then_some(RollbackTrouble::NewerSnapshots);
        self.rollback_obstacle(to).or(newer)
    }

    /// Why it cannot go on. Snapshots that wait do so for the rollback, which the owner of before may have done already
    /// without being heard: they are nothing to refuse it for.
    fn rollback_obstacle(&self, to: Generation) -> Option<RollbackTrouble> {
        let Snapshots { taken, taking, dropping, to_drop, .. } = &self.snapshots;
        if !taken.contains_key(&to) || dropping.contains(&to) || to_drop.contains(&to) {
            return Some(RollbackTrouble::NoSnapshot);
        }
        let newer = taken.range(to.next()..).next().is_some() || !taking.is_empty();
        newer.then_some(RollbackTrouble::NewerSnapshots)
    }

    fn refuse_rollback(&self, to: Generation, reason: RollbackTrouble, ctx: &mut Context) {
        let (family, epoch) = (self.family, self.epoch);
        ctx.notice(Notice::RollbackRefused { family, epoch, to, reason });
    }

    /// A record that says so is served only when the rollback is done.
    pub(crate) fn open_rolling_back(&mut self, to: Option<Generation>) {
        self.snapshots.rollback = to.map(Rollback::Settling).filter(|_| !planted(Bug::RollbackNotRepeated));
    }

    pub fn resume(&mut self) {
        if let Some(Rollback::Done(_)) = self.snapshots.rollback {
            self.snapshots.rollback = None;
        }
    }

    pub(crate) fn continue_rollback(&mut self, ctx: &mut Context) {
        let Some(Rollback::Settling(to)) = self.snapshots.rollback else { return };
        let obstacle = if planted(Bug::WaitingSnapshotInTheWay) {
            self.rollback_trouble(to)
        } else {
            self.rollback_obstacle(to)
        };
        if let Some(reason) = obstacle {
            // The record that it was opened with asks for what cannot be; nobody is served until it does not.
            self.snapshots.rollback = Some(Rollback::Done(None));
            return self.refuse_rollback(to, reason, ctx);
        }
        // Copies that are owed go on afterwards: a rebuild may take hours.
        if self.is_in_pages() || planted(Bug::RollbackUnsettled) {
            self.snapshots.rollback = Some(Rollback::Marking(to));
            self.push_mark(Mark::RolledBack { to, generation: self.snapshots.next });
        }
    }

    /// The pages are what they were.
    pub(crate) fn on_rolled_back(&mut self, to: Generation, ctx: &mut Context) {
        self.snapshots.rollback = Some(Rollback::Done(Some(to)));
        let (family, epoch) = (self.family, self.epoch);
        ctx.notice(Notice::RolledBack { family, epoch, to });
    }

    fn push_mark(&mut self, mark: Mark) {
        self.snapshots.on_push(mark);
        let seq = self.log.push(Body::Mark(mark));
        self.waiters.insert(seq, Waiter::Mark(mark));
    }

    /// A durable mark, now or when it is replayed. `known`: the checkpoint has told of it.
    pub(crate) fn apply_mark(&mut self, mark: Mark, known: bool) {
        if planted(Bug::MarkForgotten) && !self.is_serving() {
            return;
        }
        if let Mark::Taken { generation, .. } | Mark::RolledBack { generation, .. } = mark {
            self.overlay.begin(generation.next());
        }
        if !known {
            self.snapshots.apply(mark);
        }
        if let Mark::Dropped { generation } = mark {
            self.forget_views(generation);
        }
    }

    /// The log has it: now the control plane may know.
    pub(crate) fn on_marked(&mut self, mark: Mark, ctx: &mut Context) {
        match mark {
            Mark::Taken { generation, snapshot } => {
                ctx.counters.snapshots_taken += 1;
                self.tell_taken(generation, snapshot, ctx);
            }
            Mark::Dropped { generation } => self.tell_dropped(generation, ctx),
            // Told when the pages say so.
            Mark::RolledBack { .. } => {}
        }
    }

    fn tell_taken(&self, generation: Generation, snapshot: SnapshotId, ctx: &mut Context) {
        let (family, epoch) = (self.family, self.epoch);
        ctx.notice(Notice::SnapshotTaken { family, epoch, snapshot, generation });
    }

    fn tell_dropped(&self, generation: Generation, ctx: &mut Context) {
        let (family, epoch) = (self.family, self.epoch);
        ctx.notice(Notice::SnapshotDropped { family, epoch, generation });
    }

    /// Whether there is something to read of this generation: of the present always.
    pub(crate) fn has_version(&self, at: Generation) -> bool {
        at == PRESENT || self.snapshots.taken.contains_key(&at)
    }

    /// Generations that wait for the drain, though nothing is added to them any more.
    pub fn frozen_generations(&self) -> usize {
        self.overlay.frozen()
    }

    /// Whether marks of snapshots may have to wait until there is room in the log.
    pub fn lacks_room(&self) -> bool {
        self.room() == 0
    }

    pub fn snapshots(&self) -> Vec<(Generation, SnapshotId)> {
        self.snapshots.list()
    }
}
