//! The vDisks that the store gives to this life of this node: opened, resized, closed and destroyed as it says.
//! Promises: a vDisk is opened only in the epoch that its record has, and closed as soon as the record gives it to
//! somebody else.

use super::locality::Clients;
use super::status::drives_up;
use super::{Member, Phase, Served};
use crate::config::cluster::{ClusterError, ClusterStore, NewOwner, Versioned};
use crate::config::{DriveRecordState, FamilyConfig, FamilyState, Policy};
use crate::control::failure::Failure;
use crate::control::{Control, Stage, Standing};
use crate::shard_loop::Mail;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_engine::interface::{FamilyTrouble, Order, Segment};
use weft_engine::{DriveId, Epoch, FamilyId, ShardId};

/// The store is asked again after this time whether it has taken what it was given.
const ASK_AGAIN: Duration = Duration::from_millis(200);

impl Control {
    pub(super) fn reconcile_families(&mut self) {
        let Some(member) = self.part.member() else { return };
        let Some(incarnation) = member.incarnation() else { return };
        let mirror = Arc::clone(&member.mirror);
        let mine = |record: &FamilyConfig| {
            let index = record.owner.and_then(|owner| member.own_index(owner));
            index.filter(|_| record.life == incarnation)
        };
        let gone: Vec<FamilyId> = member
            .served
            .iter()
            .filter(|(family, served)| {
                mirror.families.get(family).is_none_or(|family| {
                    mine(&family.record) != Some(served.shard) && family.record.epoch > served.epoch.0
                })
            })
            .map(|(&family, _)| family)
            .collect();
        let given: Vec<(FamilyId, usize)> = mirror
            .families
            .iter()
            .filter_map(|(&family, entry)| Some((family, mine(&entry.record)?)))
            .collect();
        for family in gone {
            self.close(family);
        }
        let sizes: BTreeSet<u32> = mirror.groups.values().map(|group| group.record.factor).collect();
        for (family, shard) in given {
            let entry = &mirror.families[&family];
            self.reconcile_family(family, shard, entry, mirror.policy(&entry.record), &sizes);
        }
    }

    /// Before clients are let in, not when the store's news come: a vDisk that was rolled back may be smaller than it was. If the news
    /// are here already, they have told, and may have told of a later size.
    pub(in crate::control) fn resize_before_the_news(
        &mut self,
        family: FamilyId,
        changed: &Versioned<FamilyConfig>,
    ) {
        let Some(member) = self.part.member_mut() else { return };
        let is_known =
            member.mirror.families.get(&family).is_some_and(|known| known.revision >= changed.revision);
        let served = member.served.get_mut(&family);
        let Some(served) = served.filter(|served| !is_known && served.size != changed.record.size) else {
            return;
        };
        served.size = changed.record.size;
        self.order_owner(family, Order::Resize { family, size: changed.record.size });
    }

    /// `sizes`: numbers of copies for which there are groups.
    fn reconcile_family(
        &mut self,
        family: FamilyId,
        shard: usize,
        entry: &Versioned<FamilyConfig>,
        mut policy: Policy,
        sizes: &BTreeSet<u32>,
    ) {
        let record = &entry.record;
        let epoch = Epoch(record.epoch);
        let Some(member) = self.part.member_mut() else { return };
        let known = member.served.get(&family);
        if known.is_none_or(|known| known.epoch < epoch) {
            if known.is_some() {
                self.close(family);
            }
            policy.factor = factor_at_opening(policy.factor, record, sizes);
            return self.open(family, shard, record, policy);
        }
        let Some(served) = member.served.get_mut(&family) else { return };
        if record.state == FamilyState::Dropping {
            // Destroying counts as a new owner: nothing of the old one may come after it.
            if !matches!(served.phase, Phase::Dropping | Phase::HandingOver) {
                served.phase = Phase::HandingOver;
                let order = Order::CloseFamily { family };
                self.shards[shard].send(Mail::Order(order));
                self.give(family, shard, entry.clone());
            }
            return;
        }
        if served.size != record.size {
            served.size = record.size;
            let order = Order::Resize { family, size: record.size };
            self.shards[shard].send(Mail::Order(order));
        }
        if !sizes.contains(&policy.factor) {
            // The controller makes groups of a new size first: without them the owner would have nowhere to put anything.
            policy.factor = served.policy.factor;
        }
        // Said about it or about its container.
        for order in policy.orders(std::mem::replace(&mut served.policy, policy), family) {
            self.shards[shard].send(Mail::Order(order));
        }
        // What is served at a stop is about to be left to others, all at once.
        if let Some(to) = record.moving_to
            && self.stage != Stage::Stopping
        {
            self.begin_hand_over(family, to);
        }
    }

    fn open(&mut self, family: FamilyId, shard: usize, record: &FamilyConfig, policy: Policy) {
        let epoch = Epoch(record.epoch);
        let (order, phase) = match record.state {
            FamilyState::Live => (Order::OpenFamily(record.record(&policy)), Phase::Opening),
            FamilyState::Dropping => (Order::DropFamily { family, epoch }, Phase::Dropping),
        };
        tracing::debug!(%family, %epoch, ?phase, "a vDisk was given to this node");
        let Some(member) = self.part.member_mut() else { return };
        let served = Served {
            shard,
            epoch,
            size: record.size,
            policy,
            phase,
            since: Instant::now(),
            clients: Clients::default(),
        };
        member.served.insert(family, served);
        self.shards[shard].send(Mail::Order(order));
        self.note_serving(family);
    }

    /// Somebody else serves it now, or nobody: it is gone.
    fn close(&mut self, family: FamilyId) {
        let Some(member) = self.part.member_mut() else { return };
        member.whole.remove(&family);
        if let Some(served) = member.served.remove(&family)
            && !matches!(served.phase, Phase::HandingOver)
        {
            self.shards[served.shard].send(Mail::Order(Order::CloseFamily { family }));
        }
        self.note_serving(family);
    }

    /// Asks the store to give a vDisk to a shard of this node (again), in a new epoch. What follows comes as news.
    fn give(&mut self, family: FamilyId, shard: usize, seen: Versioned<FamilyConfig>) {
        let Some(member) = self.part.member() else { return };
        let Some(to) = member.own_claim(shard) else { return };
        let epoch = seen.record.epoch;
        member.spawn(
            move |store| store.give(&seen, &to, None),
            move |control, given| {
                if let Err(error) = given {
                    tracing::warn!(%family, epoch, %error, "a vDisk did not get its new epoch");
                    control.fail(family, Epoch(epoch), error.to_string(), 1);
                }
            },
        );
    }

    /// What waits to be tried again, or has waited long enough.
    pub(super) fn look_after_families(&mut self) {
        let now = Instant::now();
        let Some(member) = self.part.member_mut() else { return };
        member.failures.retain(|family, _| member.served.contains_key(family));
        let mirror = Arc::clone(&member.mirror);
        let up = drives_up(&mirror);
        let mut again = Vec::new();
        let mut late = Vec::new();
        let mut stuck = Vec::new();
        for (&family, served) in &member.served {
            let moving_to = mirror.families.get(&family).and_then(|entry| entry.record.moving_to);
            match &served.phase {
                phase if phase.is_stuck() && moving_to.is_some() => {
                    stuck.extend(moving_to.map(|to| (family, to)));
                }
                Phase::Failed(failure) if failure.is_due(now, &up) => again.push((family, served.shard)),
                Phase::Settling { until, .. } if now >= *until => late.push(family),
                _ => {}
            }
        }
        for (family, to) in stuck {
            self.begin_hand_over(family, to);
        }
        for (family, shard) in again {
            let Some(seen) = mirror.families.get(&family) else { continue };
            let Some(member) = self.part.member_mut() else { return };
            let Some(served) = member.served.get_mut(&family) else { continue };
            // A newer epoch is on its way to being opened anyway.
            if seen.record.epoch == served.epoch.0 {
                if let Phase::Failed(failure) = &mut served.phase {
                    failure.tried(now);
                }
                self.give(family, shard, seen.clone());
            }
        }
        for family in late {
            tracing::info!(%family, "a busy vDisk is handed over before everything of it has settled");
            self.hand_over(family);
        }
    }

    pub(in crate::control) fn on_served(&mut self, family: FamilyId, epoch: Epoch) {
        if let Some(served) = self.served_in(family, epoch)
            && served.phase == Phase::Opening
        {
            served.phase = Phase::Ready;
            if let Some(member) = self.part.member_mut() {
                member.failures.remove(&family);
            }
            self.note_serving(family);
            // It may have been told to go on while it was being opened.
            self.reconcile();
        }
    }

    pub(in crate::control) fn on_not_served(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        reason: FamilyTrouble,
    ) {
        if reason == FamilyTrouble::Fenced {
            tracing::info!(%family, %epoch, "a vDisk has a newer owner");
        } else {
            tracing::error!(%family, %epoch, %reason, "a vDisk cannot be served; it is tried again");
        }
        let mut times = 1;
        if let Some(member) = self.part.member_mut()
            && matches!(reason, FamilyTrouble::RecordLost(_) | FamilyTrouble::PageLost(_))
        {
            let before = member.failures.entry(family).or_insert(0);
            *before += 1;
            times = *before;
        }
        self.fail(family, epoch, reason.to_string(), times);
    }

    /// For the `times`th time in a row for a reason that does not pass by itself.
    fn fail(&mut self, family: FamilyId, epoch: Epoch, reason: String, times: u32) {
        let Some(member) = self.part.member() else { return };
        let failure = Failure::new(reason, times, Instant::now(), drives_up(&member.mirror));
        if let Some(served) = self.served_in(family, epoch) {
            served.phase = Phase::Failed(failure);
            self.note_serving(family);
        }
    }

    pub(super) fn served_in(&mut self, family: FamilyId, epoch: Epoch) -> Option<&mut Served> {
        let served = self.part.member_mut()?.served.get_mut(&family)?;
        (served.epoch == epoch).then_some(served)
    }
}

impl Member {
    /// A claim to a vDisk for one of this node's shards; None: the node has no life now.
    pub(super) fn own_claim(&self, shard: usize) -> Option<NewOwner> {
        let shard = ShardId::of(self.node, shard as u32);
        self.claim(shard).filter(|claim| Some(claim.life) == self.incarnation())
    }

    /// A claim for any shard; None: its node does not live, or is about to end, as far as is known.
    pub(super) fn claim(&self, shard: ShardId) -> Option<NewOwner> {
        let node = shard.node();
        let alive = self.mirror.alive.get(&node).filter(|alive| !alive.record.stopping)?;
        Some(NewOwner { shard, life: alive.record.incarnation, alive: vec![(node, alive.revision)] })
    }

    /// The owner of a vDisk wants other segments.
    pub(in crate::control) fn change_segments(
        &self,
        shard: ShardId,
        family: FamilyId,
        epoch: Epoch,
        version: u64,
        segments: Vec<Segment>,
    ) {
        let Some(index) = self.own_index(shard.0) else { return };
        self.insist(
            family,
            "change the segments of its log",
            move |store| store.change_segments(family, epoch, version, &segments),
            move |control, changed| {
                let changed = changed.flatten();
                let taken = changed.is_some();
                if let Some(entry) = control.families.get_mut(&family)
                    && entry.config.epoch == epoch.0
                    && taken
                {
                    entry.config.version = version;
                    entry.config.segments = changed.map_or_else(Vec::new, |changed| changed.record.segments);
                }
                let order = Order::SegmentsChanged { family, epoch, version, taken };
                control.shards[index].send(Mail::Order(order));
            },
        );
    }

    /// Nothing of it is left on any drive. A record that stays because the store did not answer for all of this life is dropped again
    /// by its next owner.
    pub(in crate::control) fn remove_vdisk(&self, family: FamilyId) {
        self.insist(
            family,
            "remove its record",
            move |store| store.remove_vdisk(family),
            move |control, removed| {
                // The lease is over, or seems to be: etcd keeps leases that it could not look at. Then it is still to be done here.
                let served = control.part.member_mut().and_then(|member| member.served.get_mut(&family));
                if let (None, Some(served)) = (removed, served)
                    && served.phase == Phase::Dropping
                {
                    let reason = "its record could not be removed".to_string();
                    served.phase = Phase::Failed(Failure::passing(reason, Instant::now()));
                }
            },
        );
    }

    /// Asks the store until it answers, as long as this life lasts: behind it the answer does not matter any more. Then gets
    /// None if it did not.
    fn insist<T: Send + 'static>(
        &self,
        family: FamilyId,
        wish: &'static str,
        work: impl Fn(&ClusterStore) -> Result<T, ClusterError> + Send + 'static,
        then: impl FnOnce(&mut Control, Option<T>) + Send + 'static,
    ) {
        let deadline = self.life.as_ref().map(|life| life.lease.deadline());
        let (mut is_first, mut then) = (true, Some(then));
        self.hand_on_until_done(None, move |store| {
            let asked = work(store);
            if let Err(error) = &asked {
                if std::mem::take(&mut is_first) {
                    tracing::warn!(%family, %error, "could not {wish} yet");
                }
                // What came of it is not known. Asked again it tells.
                if deadline.as_ref().is_some_and(|deadline| !deadline.has_passed()) {
                    return None;
                }
            }
            let done = asked.ok();
            let then = then.take().expect("what is done is not done again");
            Some(Box::new(move |control| then(control, done)))
        });
    }

    /// The drive is up when the store says that it is formatted. Without etcd it waits for that.
    pub(in crate::control) fn drive_formatted(&self, drive: DriveId) {
        let dir = self.dir.clone();
        self.spawn(
            move |store| {
                let changed = store.change_drive(drive, |record| {
                    if record.state == DriveRecordState::Making {
                        record.state = DriveRecordState::Formatted;
                    }
                    if record.incarnation.is_none() {
                        record.incarnation = crate::drives::incarnation(&dir, record);
                    }
                });
                if is_passing(&changed) {
                    std::thread::sleep(ASK_AGAIN);
                }
                changed
            },
            move |control, changed| {
                if is_passing(&changed)
                    && control.stage != Stage::Stopping
                    && let Some(member) = control.part.member()
                {
                    return member.drive_formatted(drive);
                }
                let Some(entry) = control.drives.get_mut(&drive) else { return };
                let standing = match changed {
                    Ok(changed) => {
                        entry.record = changed.record;
                        Standing::Up
                    }
                    // Not marked, it is formatted again at the next start.
                    Err(error) => Standing::Down(error.to_string()),
                };
                // It may have failed while the store was asked.
                if matches!(entry.standing, Standing::Opening | Standing::Up) {
                    tracing::info!(%drive, ?standing, "a drive has been opened");
                    entry.standing = standing;
                }
                control.drives_changed();
                control.reconcile();
            },
        );
    }
}

/// How many copies a vDisk is opened with. Its owner was not told yet of a number for which there are no groups, and the next one cannot
/// do more than that owner: it goes on with what there is, until there are some. Whose log has that many copies already, or
/// nothing at all yet, is not given fewer.
fn factor_at_opening(wanted: u32, record: &FamilyConfig, sizes: &BTreeSet<u32>) -> u32 {
    let has_fewer = record.segments.last().is_some_and(|last| (last.members.len() as u32) < wanted);
    if sizes.contains(&wanted) || !has_fewer {
        return wanted;
    }
    sizes.range(..wanted).next_back().copied().unwrap_or(wanted)
}

/// Asked again, the store may answer.
fn is_passing<T>(asked: &Result<T, ClusterError>) -> bool {
    matches!(asked, Err(ClusterError::Etcd(_) | ClusterError::Contended { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cluster::NewVdisk;
    use crate::config::{OwnPolicy, SegmentRecord};

    #[test]
    fn a_takeover_opens_a_vdisk_with_copies_for_which_there_are_groups() {
        let vdisk = NewVdisk {
            name: "v".to_string(),
            size: 1 << 30,
            factor: 3,
            created: 0,
            owner: None,
            container: "default".to_string(),
            own: OwnPolicy::default(),
        };
        let opened = |members: &[u32], sizes: &[u32]| {
            let segment = SegmentRecord { first: 1, epoch: 1, members: members.to_vec(), absent: Vec::new() };
            let segments = if members.is_empty() { Vec::new() } else { vec![segment] };
            let record = FamilyConfig { segments, ..vdisk.record(1) };
            factor_at_opening(3, &record, &sizes.iter().copied().collect())
        };
        assert_eq!(opened(&[10, 20], &[1, 2]), 2, "that it is to have three its owner had not been told");
        assert_eq!(opened(&[10, 20], &[1, 2, 3]), 3, "there are groups for it by now");
        assert_eq!(opened(&[10, 20], &[4]), 3, "fewer there are not");
        assert_eq!(opened(&[10, 20, 30], &[1, 2]), 3, "its log had three copies, and gets no fewer");
        assert_eq!(opened(&[], &[1, 2]), 3, "a new one begins as it was wanted");
    }
}
