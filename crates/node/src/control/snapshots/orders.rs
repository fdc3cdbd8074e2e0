//! What the owner of a vDisk does about its snapshots: orders to the engine until the records say that nothing is left.
//! Orders can be given twice, so whatever may have been lost (an owner, a message, an answer of the store) is done again.

use super::schedules::Refused;
use crate::calendar;
use crate::config::{SnapshotKey, SnapshotOrigin, SnapshotRecord, SnapshotState};
use crate::control::{Control, Part, Serving, SharedControl, Stage};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weft_engine::interface::{Order, SnapshotTrouble};
use weft_engine::{Epoch, FamilyId, Generation, SnapshotId};

/// Unfinished snapshots and schedules are looked at so often, besides whenever something happens.
const LOOK: Duration = Duration::from_millis(500);

/// What was ordered and has not come to an end by then is ordered again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// A snapshot of a group that is not taken by then never will be: who should have ordered it is gone.
const GROUP_WAIT: Duration = Duration::from_secs(30);

/// About snapshots that are not finished, could not be taken, or may not be begun.
#[derive(Debug, Default)]
pub struct Orders {
    /// What was ordered last, in which epoch and when.
    last: BTreeMap<SnapshotId, (Epoch, Wish, Instant)>,
    /// Since when this node has known of them: clocks of other nodes do not count.
    since: BTreeMap<SnapshotId, Instant>,
    /// What was refused last, of vDisks with a schedule: their records go at once.
    pub(super) refused: BTreeMap<FamilyId, Refused>,
    /// vDisks whose newer snapshots are being removed, so that they can go back to one, and the generation of that: no others are begun
    /// here meanwhile, and that one stays.
    pub(super) preparing: BTreeMap<FamilyId, u32>,
}

/// What a record that is not finished asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Take,
    Drop(Generation),
    /// It was never taken: only the record is left.
    Forget,
    /// Of a group, all of which were taken: it counts.
    Count,
    /// Of a group, some of which was not: it goes.
    GiveUp,
    /// Of a group of which nothing was heard for long: all of it shall go.
    GiveGroupUp,
}

/// Whether the snapshots of a group that were taken together count, as far as is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Open,
    Counts,
    Failed,
}

impl Wish {
    fn of(record: &SnapshotRecord, verdict: Verdict, waited: Duration) -> Option<Self> {
        let is_refused = !record.trouble.is_empty();
        match (record.state, record.generation) {
            (SnapshotState::Ready, _) => None,
            // Those of a group are ordered together, by who holds the clients of all its vDisks.
            (SnapshotState::Creating, generation) if matches!(record.origin, SnapshotOrigin::Group(_)) => {
                match verdict {
                    Verdict::Open => (waited > GROUP_WAIT).then_some(Self::GiveGroupUp),
                    Verdict::Counts if generation.is_some() => Some(Self::Count),
                    // It was taken. Asked for again, its owner is told which one it is.
                    Verdict::Counts => Some(Self::Take),
                    Verdict::Failed => Some(Self::GiveUp),
                }
            }
            (SnapshotState::Creating, _) => Some(Self::Take),
            (SnapshotState::Deleting, Some(generation)) => Some(Self::Drop(Generation(generation))),
            (SnapshotState::Deleting, None) if is_refused => Some(Self::Forget),
            // It may have been taken by an owner that could not say so. Asked for again, it is told which one it is.
            (SnapshotState::Deleting, None) => Some(Self::Take),
        }
    }
}

/// Looks now and then.
pub async fn look_after(control: SharedControl) {
    loop {
        tokio::time::sleep(LOOK).await;
        let mut control = control.lock();
        if control.stage == Stage::Ready {
            control.order_snapshots();
            control.order_rollbacks();
            control.run_schedules();
        }
    }
}

impl Control {
    /// Gives the orders that unfinished snapshots of vDisks served here need.
    pub(in crate::control) fn order_snapshots(&mut self) {
        let now = Instant::now();
        let all = self.snapshots().into_iter();
        let unfinished: Vec<_> = all.filter(|record| record.state != SnapshotState::Ready).cloned().collect();
        // Whoever serves them: every node can be asked how its schedules fare.
        self.note_refused(&unfinished);
        let epoch_of = |record: SnapshotRecord| Some((self.epoch_served(record.family())?, record));
        let unfinished: Vec<_> = unfinished.into_iter().filter_map(epoch_of).collect();
        let is_open = |id: &SnapshotId| unfinished.iter().any(|(_, record)| record.id() == *id);
        self.snapshot_orders.last.retain(|id, _| is_open(id));
        self.snapshot_orders.since.retain(|id, _| is_open(id));
        // Nobody waits any more for what was taken too late.
        self.taken_together.retain(is_open);
        for (epoch, record) in unfinished {
            let since = *self.snapshot_orders.since.entry(record.id()).or_insert(now);
            let verdict = self.verdict(&record);
            let Some(wish) = Wish::of(&record, verdict, now.duration_since(since)) else { continue };
            if wish == Wish::Take && self.check_not_going_back(record.family()).is_err() {
                // It would be newer than what the vDisk goes back to, and stop that; it waits.
                continue;
            }
            let last = self.snapshot_orders.last.get(&record.id());
            let is_ordered = last.is_some_and(|&(at_epoch, what, at)| {
                at_epoch == epoch && what == wish && now.duration_since(at) < AGAIN_AFTER
            });
            if is_ordered {
                continue;
            }
            self.snapshot_orders.last.insert(record.id(), (epoch, wish, now));
            let (family, snapshot) = (record.family(), record.id());
            match wish {
                Wish::Take => self.order_owner(family, Order::TakeSnapshot { family, snapshot }),
                Wish::Drop(generation) => {
                    self.order_owner(family, Order::DropSnapshot { family, generation });
                }
                Wish::Forget => self.remove_snapshot_soon(record.key(), snapshot),
                Wish::Count => self.change_snapshot_soon(record.key(), snapshot, count),
                Wish::GiveUp => self.change_snapshot_soon(record.key(), snapshot, give_up),
                Wish::GiveGroupUp => {
                    // Its record decides for all, should somebody say at this moment that they count.
                    let (key, snapshot) = deciding(&record);
                    self.change_snapshot_soon(key, snapshot, give_up);
                }
            }
        }
    }

    /// Whether another snapshot of its group waits for what this one says.
    pub(super) fn is_followed(&self, record: &SnapshotRecord) -> bool {
        let follows = |other: &&SnapshotRecord| {
            other.state == SnapshotState::Creating
                && other.follows.is_some_and(|followed| followed.snapshot == record.snapshot)
        };
        record.state == SnapshotState::Ready && self.snapshots().iter().any(follows)
    }

    fn verdict(&self, record: &SnapshotRecord) -> Verdict {
        if record.follows.is_none() {
            return Verdict::Open;
        }
        let (key, snapshot) = deciding(record);
        match self.snapshot(&key).filter(|record| record.id() == snapshot).map(|record| record.state) {
            Some(SnapshotState::Creating) => Verdict::Open,
            Some(SnapshotState::Ready) => Verdict::Counts,
            Some(SnapshotState::Deleting) | None => Verdict::Failed,
        }
    }

    /// The epoch in which a vDisk is served here; None: it is not.
    pub(super) fn epoch_served(&self, family: FamilyId) -> Option<Epoch> {
        let entry = self.families.get(&family).filter(|entry| entry.serving == Serving::Ready)?;
        match &self.part {
            Part::Alone(_) => Some(Epoch(entry.config.epoch)),
            Part::Member(member) => member.epoch_of(family),
        }
    }

    pub(super) fn snapshot_with_id(&self, family: FamilyId, snapshot: SnapshotId) -> Option<SnapshotRecord> {
        self.snapshots_of(family).into_iter().find(|record| record.id() == snapshot).cloned()
    }

    /// A vDisk is served here from now on, and has these snapshots.
    pub(in crate::control) fn on_snapshots_known(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        there: &[(Generation, SnapshotId)],
    ) {
        if self.epoch_served(family) != Some(epoch) {
            return;
        }
        // The record comes before the snapshot and goes after it, and what the store said when the owner was chosen is known
        // here: so if there is none, somebody has put older records back.
        for &(generation, snapshot) in there {
            if self.snapshot_with_id(family, snapshot).is_none() {
                self.keep_found_snapshot(family, generation, snapshot);
            }
        }
        self.order_snapshots();
    }

    /// A snapshot without a record gets one: whoever wants to can remove it then.
    fn keep_found_snapshot(&mut self, family: FamilyId, generation: Generation, snapshot: SnapshotId) {
        let name = self.free_name(&[family], &format!("found-{}", generation.0));
        tracing::warn!(%family, name, "a snapshot was found that no record names, for older records were put back; it gets one");
        let record = SnapshotRecord {
            snapshot: snapshot.0,
            state: SnapshotState::Ready,
            generation: Some(generation.0),
            ..self.snapshot_record(family, name, calendar::now(), SnapshotOrigin::Asked)
        };
        self.put_found_snapshot(record);
    }

    pub(in crate::control) fn on_snapshot_taken(
        &mut self,
        family: FamilyId,
        snapshot: SnapshotId,
        generation: Generation,
    ) {
        tracing::debug!(%family, %generation, "a snapshot is taken");
        let Some(record) = self.snapshot_with_id(family, snapshot) else {
            return self.order_owner(family, Order::DropSnapshot { family, generation });
        };
        if matches!(record.origin, SnapshotOrigin::Group(_)) && record.state == SnapshotState::Creating {
            self.taken_together.insert(snapshot);
        }
        self.change_snapshot_soon(record.key(), snapshot, move |record| {
            record.generation = Some(generation.0);
            if record.state == SnapshotState::Creating && !matches!(record.origin, SnapshotOrigin::Group(_)) {
                record.state = SnapshotState::Ready;
            }
        });
        // Of a node that is alone the record has changed already; a member hears of it.
        self.order_snapshots();
    }

    pub(in crate::control) fn on_snapshot_refused(
        &mut self,
        family: FamilyId,
        snapshot: SnapshotId,
        reason: SnapshotTrouble,
    ) {
        let Some(record) = self.snapshot_with_id(family, snapshot) else { return };
        let reason = reason.to_string();
        if record.origin == SnapshotOrigin::Schedule && self.is_refused_again(family, &reason) {
            // A schedule comes again in each interval: its log would be of nothing else.
            tracing::debug!(%family, name = record.name, reason, "a snapshot was refused, as the one before");
        } else {
            tracing::warn!(%family, name = record.name, reason, "a snapshot was refused");
        }
        // Whoever waits for it finds the reason, before the record goes with the next look.
        self.change_snapshot_soon(record.key(), snapshot, move |record| {
            if record.state != SnapshotState::Ready && record.generation.is_none() {
                record.state = SnapshotState::Deleting;
                record.trouble.clone_from(&reason);
            }
        });
    }

    pub(in crate::control) fn on_snapshot_dropped(&mut self, family: FamilyId, generation: Generation) {
        let dropped = self
            .snapshots_of(family)
            .into_iter()
            .find(|record| record.generation == Some(generation.0))
            .filter(|record| record.state == SnapshotState::Deleting)
            .cloned();
        if let Some(record) = dropped {
            self.remove_snapshot_soon(record.key(), record.id());
        }
    }
}

/// Of which snapshot the record decides whether this one of a group counts.
pub(super) fn deciding(record: &SnapshotRecord) -> (SnapshotKey, SnapshotId) {
    match record.follows {
        None => (record.key(), record.id()),
        Some(other) => ((FamilyId(other.family), record.name.clone()), SnapshotId(other.snapshot)),
    }
}

/// All of its group were taken.
pub(super) fn count(record: &mut SnapshotRecord) {
    if record.state == SnapshotState::Creating && record.generation.is_some() {
        record.state = SnapshotState::Ready;
    }
}

fn give_up(record: &mut SnapshotRecord) {
    if record.state == SnapshotState::Creating {
        record.state = SnapshotState::Deleting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unfinished_record_leads_to_an_end() {
        let record = |state, generation, trouble: &str, origin| SnapshotRecord {
            state,
            generation,
            trouble: trouble.to_string(),
            ..SnapshotRecord::new(1, 1, "s", 4096, 100, origin)
        };
        let asked = SnapshotOrigin::Asked;
        let group = || SnapshotOrigin::Group("g".to_string());
        let wish = |record: SnapshotRecord| Wish::of(&record, Verdict::Open, Duration::from_secs(1));
        assert_eq!(wish(record(SnapshotState::Ready, Some(1), "", asked.clone())), None);
        assert_eq!(wish(record(SnapshotState::Creating, None, "", asked.clone())), Some(Wish::Take));
        assert_eq!(
            wish(record(SnapshotState::Deleting, Some(7), "", asked.clone())),
            Some(Wish::Drop(Generation(7)))
        );
        assert_eq!(wish(record(SnapshotState::Deleting, None, "", asked.clone())), Some(Wish::Take));
        assert_eq!(wish(record(SnapshotState::Deleting, None, "no", asked)), Some(Wish::Forget));
        assert_eq!(wish(record(SnapshotState::Creating, None, "", group())), None, "its group takes it");
        let old = record(SnapshotState::Creating, None, "", group());
        let judged = |record: &SnapshotRecord, verdict| Wish::of(record, verdict, Duration::from_secs(1));
        assert_eq!(
            Wish::of(&old, Verdict::Open, GROUP_WAIT * 2),
            Some(Wish::GiveGroupUp),
            "its group is gone"
        );
        assert_eq!(judged(&old, Verdict::Failed), Some(Wish::GiveUp));
        assert_eq!(judged(&old, Verdict::Counts), Some(Wish::Take), "its generation was not heard of");
        let taken = record(SnapshotState::Creating, Some(3), "", group());
        assert_eq!(judged(&taken, Verdict::Open), None, "others may not be taken yet");
        assert_eq!(judged(&taken, Verdict::Counts), Some(Wish::Count));
        assert_eq!(wish(record(SnapshotState::Deleting, None, "", group())), Some(Wish::Take));
    }
}
