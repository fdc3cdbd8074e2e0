//! Snapshots that are taken by themselves, by whoever serves the vDisk.
//! Promises: one in each interval at most, of which the last few stay; one that is late is not made up for: times at which nobody served the
//! vDisk are left out, and so are those whose snapshot was refused.

use super::name::time_name;
use crate::api::{ScheduleView, SetSchedule};
use crate::calendar;
use crate::config::{
    FamilyState, ScheduleRecord, SnapshotKey, SnapshotOrigin, SnapshotRecord, SnapshotState,
};
use crate::control::member::Chore;
use crate::control::refusal::Refusal;
use crate::control::{Control, Part, SharedControl, member};
use weft_engine::limits::SNAPSHOTS_MAX;
use weft_engine::{FamilyId, Generation, SnapshotId};

/// No shorter interval: each snapshot is a record in the store.
const EVERY_SECONDS_MIN: u64 = 5;

/// No longer one: ten years. What is more was not meant.
const EVERY_SECONDS_MAX: u64 = 3650 * 86_400;

/// The last snapshot of a schedule that the engine would not take. Kept in memory only: after a restart it is tried once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    created: u64,
    reason: String,
    /// The newest of the schedule's snapshots then: when there is a newer one, this is past.
    newest: Option<Generation>,
}

/// The beginning of the interval that a time lies in. Intervals begin when the schedule did, and as long before and after that as you like:
/// it may have begun by a clock that was wrong.
fn slot(schedule: &ScheduleRecord, time: u64) -> u64 {
    let every = schedule.every_seconds.max(1);
    let (at, begin) = (time % every, schedule.since % every);
    let passed = if at >= begin { at - begin } else { every - (begin - at) };
    time.saturating_sub(passed)
}

/// When the next one is to be taken, as far as is known from those there are, and from when one was refused. None of these is of
/// the future, whatever it says: then a clock was wrong.
fn next(schedule: &ScheduleRecord, own: &[&SnapshotRecord], refused: Option<u64>, now: u64) -> u64 {
    let known = own.iter().map(|record| record.created).chain([schedule.since]).chain(refused);
    match known.filter(|&time| time <= now).max() {
        Some(newest) => slot(schedule, newest).saturating_add(schedule.every_seconds),
        None => slot(schedule, now),
    }
}

/// The snapshot of a schedule that is due now, by its time.
fn due(schedule: &ScheduleRecord, own: &[&SnapshotRecord], refused: Option<u64>, now: u64) -> Option<u64> {
    let is_late = own.iter().any(|record| record.state == SnapshotState::Creating);
    // Of all that were missed only the last one counts.
    (!is_late && now >= next(schedule, own, refused, now)).then(|| slot(schedule, now))
}

/// Of a schedule's own snapshots, by their order: a clock may have been wrong.
fn newest(own: &[&SnapshotRecord]) -> Option<Generation> {
    own.iter().filter_map(|record| record.ready()).max()
}

/// Those that are one too many.
fn surplus<'a>(schedule: &ScheduleRecord, own: &[&'a SnapshotRecord]) -> Vec<&'a SnapshotRecord> {
    let mut ready: Vec<_> = own.iter().copied().filter(|record| record.ready().is_some()).collect();
    // Not by their times: a clock may have been wrong.
    ready.sort_by_key(|record| record.generation);
    let count = ready.len().saturating_sub(schedule.keep as usize);
    ready.into_iter().take(count).collect()
}

impl Control {
    /// Takes what is due of vDisks that are served here, and removes what is one too many.
    pub(super) fn run_schedules(&mut self) {
        let now = calendar::now();
        let mut wanted = Vec::new();
        let mut gone: Vec<(SnapshotKey, SnapshotId)> = Vec::new();
        let schedules = self.schedules();
        self.snapshot_orders.refused.retain(|family, _| schedules.contains_key(family));
        for (family, schedule) in schedules {
            // Of what goes back to a snapshot the next one comes later: it would be in the way.
            if self.epoch_served(family).is_none() || self.check_may_be_taken(family).is_err() {
                continue;
            }
            let own = self.own_snapshots(family);
            let refused = self.refused(family).map(|refused| refused.created);
            if let Some(at) = due(&schedule, &own, refused, now) {
                // The name tells the interval, so that no two are taken in one whatever happens.
                let mut name = format!("auto-{}", time_name(at));
                let there = self.snapshot(&(family, name.clone()));
                if there.is_some_and(|there| there.created > now) {
                    // Of the future, by a clock that was wrong.
                    name = self.free_name(&[family], &name);
                }
                if self.snapshot(&(family, name.clone())).is_none() {
                    wanted.push(self.snapshot_record(family, name, now, SnapshotOrigin::Schedule));
                }
            }
            let surplus = surplus(&schedule, &own).into_iter().filter(|record| !self.is_needed(record));
            gone.extend(surplus.map(|record| (record.key(), record.id())));
        }
        for record in wanted {
            self.put_scheduled(record);
        }
        for (key, snapshot) in gone {
            self.let_snapshot_go_soon(key, snapshot);
        }
    }

    fn own_snapshots(&self, family: FamilyId) -> Vec<&SnapshotRecord> {
        let all = self.snapshots_of(family).into_iter();
        all.filter(|record| record.origin == SnapshotOrigin::Schedule).collect()
    }

    /// Remembers those that were refused before their records go.
    pub(super) fn note_refused(&mut self, unfinished: &[SnapshotRecord]) {
        for record in unfinished {
            if record.origin == SnapshotOrigin::Schedule && !record.trouble.is_empty() {
                let newest = newest(&self.own_snapshots(record.family()));
                let refused = Refused { created: record.created, reason: record.trouble.clone(), newest };
                self.snapshot_orders.refused.insert(record.family(), refused);
            }
        }
    }

    /// The last one of a schedule, if it was refused.
    fn refused(&self, family: FamilyId) -> Option<&Refused> {
        let refused = self.snapshot_orders.refused.get(&family)?;
        (newest(&self.own_snapshots(family)) <= refused.newest).then_some(refused)
    }

    /// Whether the last one was refused for the same reason.
    pub(super) fn is_refused_again(&self, family: FamilyId, reason: &str) -> bool {
        self.refused(family).is_some_and(|before| before.reason == reason)
    }

    fn put_scheduled(&mut self, record: SnapshotRecord) {
        if let Part::Member(member) = &mut self.part {
            return member.spawn_chore(
                Chore::Scheduled(record.family()),
                move |store| store.create_snapshot(&record),
                |_, made| {
                    if let Err(error) = made {
                        tracing::warn!(%error, "a snapshot of a schedule could not be begun");
                    }
                },
            );
        }
        if let Err(refusal) = self.put_snapshot(record) {
            tracing::warn!(reason = refusal.line, "a snapshot of a schedule could not be begun");
        }
    }

    pub(in crate::control) fn schedule_views(&self) -> Vec<ScheduleView> {
        let (all, now) = (self.schedules(), calendar::now());
        let mut views: Vec<_> = all
            .iter()
            .filter_map(|(family, schedule)| {
                let own = self.own_snapshots(*family);
                let refused = self.refused(*family);
                Some(ScheduleView {
                    vdisk: self.families.get(family)?.config.name.clone(),
                    every_seconds: schedule.every_seconds,
                    keep: schedule.keep,
                    snapshots: own.iter().filter(|record| record.ready().is_some()).count() as u64,
                    next: next(schedule, &own, refused.map(|refused| refused.created), now),
                    trouble: refused.map(|refused| refused.reason.clone()).unwrap_or_default(),
                })
            })
            .collect();
        views.sort_by(|a, b| a.vdisk.cmp(&b.vdisk));
        views
    }
}

pub async fn set(control: &SharedControl, wanted: SetSchedule) -> Result<ScheduleView, Refusal> {
    if !(EVERY_SECONDS_MIN..=EVERY_SECONDS_MAX).contains(&wanted.every_seconds) {
        return Err(Refusal::bad_input(format!(
            "snapshots cannot be taken every {} s: choose {EVERY_SECONDS_MIN} s to {} days (--every)",
            wanted.every_seconds,
            EVERY_SECONDS_MAX / 86_400
        )));
    }
    if wanted.keep == 0 || wanted.keep as usize >= SNAPSHOTS_MAX {
        return Err(Refusal::bad_input(format!(
            "a schedule cannot keep {} snapshots: choose 1 to {} (--keep)",
            wanted.keep,
            SNAPSHOTS_MAX - 1
        )));
    }
    let schedule = {
        let control = control.lock();
        control.check_ready()?;
        let family = control.family_named(&wanted.vdisk).ok_or_else(|| Refusal::no_vdisk(&wanted.vdisk))?;
        if control.families[&family].config.state == FamilyState::Dropping {
            return Err(Refusal::no_vdisk(&wanted.vdisk));
        }
        // Who says the same again, as tools do that look after a configuration, does not put the next one off.
        let present = control.schedules().remove(&family);
        let same = present.filter(|present| present.every_seconds == wanted.every_seconds);
        ScheduleRecord {
            family: family.0,
            every_seconds: wanted.every_seconds,
            keep: wanted.keep,
            since: same.map_or_else(calendar::now, |same| same.since),
        }
    };
    if control.lock().part.member().is_some() {
        let revision = member::with_store(control, move |store| store.put_schedule(&schedule)).await?;
        member::seen(control, revision).await?;
    } else {
        let mut control = control.lock();
        let alone = control.part.alone();
        alone.store.put_schedule(&schedule)?;
        alone.schedules.insert(FamilyId(schedule.family), schedule);
    }
    let views = control.lock().schedule_views();
    views
        .into_iter()
        .find(|view| view.vdisk == wanted.vdisk)
        .ok_or_else(|| Refusal::conflict("the schedule was removed meanwhile"))
}

pub async fn remove(control: &SharedControl, vdisk: &str) -> Result<(), Refusal> {
    let family = {
        let control = control.lock();
        control.check_ready()?;
        let family = control.family_named(vdisk).ok_or_else(|| Refusal::no_vdisk(vdisk))?;
        if !control.schedules().contains_key(&family) {
            return Err(Refusal::not_found(format!(
                "vDisk {vdisk} has no schedule; `weft snapshot schedule ls` shows which have"
            )));
        }
        family
    };
    if control.lock().part.member().is_some() {
        let revision = member::with_store(control, move |store| store.remove_schedule(family)).await?;
        return member::seen(control, revision).await;
    }
    let mut control = control.lock();
    let alone = control.part.alone();
    alone.store.remove_schedule(family)?;
    alone.schedules.remove(&family);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(created: u64, state: SnapshotState) -> SnapshotRecord {
        let generation = (state == SnapshotState::Ready).then_some(created as u32);
        let name = created.to_string();
        let record = SnapshotRecord::new(created, 1, &name, 4096, created, SnapshotOrigin::Schedule);
        SnapshotRecord { state, generation, ..record }
    }

    #[test]
    fn one_is_due_in_each_interval_and_late_ones_are_left_out() {
        let schedule = ScheduleRecord { family: 1, every_seconds: 10, keep: 2, since: 100 };
        assert_eq!(due(&schedule, &[], None, 109), None, "the first one comes after one interval");
        assert_eq!(due(&schedule, &[], None, 110), Some(110));
        let first = record(112, SnapshotState::Ready);
        assert_eq!(due(&schedule, &[&first], None, 119), None);
        assert_eq!(
            due(&schedule, &[&first], None, 120),
            Some(120),
            "a late one does not make the next one late"
        );
        assert_eq!(due(&schedule, &[&first], None, 175), Some(170), "of those that were missed one is taken");
        assert_eq!(next(&schedule, &[&record(175, SnapshotState::Ready)], None, 176), 180);
        let open = record(121, SnapshotState::Creating);
        assert_eq!(
            due(&schedule, &[&first, &open], None, 150),
            None,
            "there is never more than one on its way"
        );
    }

    #[test]
    fn a_clock_that_was_wrong_stops_nothing() {
        let schedule = ScheduleRecord { family: 1, every_seconds: 10, keep: 2, since: 100 };
        let future = record(9000, SnapshotState::Ready);
        assert_eq!(due(&schedule, &[&future], None, 120), Some(120), "what was taken by it does not count");
        let present = record(121, SnapshotState::Ready);
        assert_eq!(due(&schedule, &[&future, &present], None, 129), None);
        assert_eq!(due(&schedule, &[&future, &present], None, 130), Some(130));
        let late = ScheduleRecord { since: 9003, ..schedule };
        assert_eq!(due(&late, &[], None, 120), Some(113), "nor does when it began by it");
        assert_eq!(due(&late, &[&present], None, 122), None);
        assert_eq!(due(&late, &[&present], None, 123), Some(123));
        // Taken one after the other, whatever the clock said.
        let mut older = record(9000, SnapshotState::Ready);
        older.generation = Some(1);
        let all = [&older, &record(120, SnapshotState::Ready), &record(130, SnapshotState::Ready)];
        let gone: Vec<u64> = surplus(&schedule, &all).iter().map(|record| record.created).collect();
        assert_eq!(gone, [9000]);
    }

    #[test]
    fn what_was_refused_is_tried_again_in_the_next_interval() {
        let schedule = ScheduleRecord { family: 1, every_seconds: 10, keep: 2, since: 100 };
        let first = record(112, SnapshotState::Ready);
        assert_eq!(due(&schedule, &[&first], None, 121), Some(120));
        assert_eq!(due(&schedule, &[&first], Some(121), 122), None, "its record has gone");
        assert_eq!(next(&schedule, &[&first], Some(121), 122), 130);
        assert_eq!(due(&schedule, &[&first], Some(121), 130), Some(130));
        assert_eq!(due(&schedule, &[&first], Some(9000), 130), Some(130), "by a clock that was wrong");
    }

    #[test]
    fn no_interval_is_too_long_to_reckon_with() {
        let schedule = ScheduleRecord { family: 1, every_seconds: u64::MAX - 3, keep: 2, since: 100 };
        assert_eq!(next(&schedule, &[], None, 200), u64::MAX);
        assert_eq!(due(&schedule, &[], None, 200), None);
        let future = ScheduleRecord { since: 9000, ..schedule };
        assert_eq!(due(&future, &[], None, 200), Some(0), "it began by a clock that was wrong");
    }

    #[test]
    fn the_newest_stay() {
        let schedule = ScheduleRecord { family: 1, every_seconds: 10, keep: 2, since: 100 };
        let all = [
            record(140, SnapshotState::Ready),
            record(110, SnapshotState::Ready),
            record(130, SnapshotState::Ready),
            record(100, SnapshotState::Deleting),
            record(150, SnapshotState::Creating),
        ];
        let all: Vec<&SnapshotRecord> = all.iter().collect();
        let gone: Vec<u64> = surplus(&schedule, &all).iter().map(|record| record.created).collect();
        assert_eq!(gone, [110]);
    }
}
