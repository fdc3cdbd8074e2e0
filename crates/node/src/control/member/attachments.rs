//! Which nodes of a cluster have a vDisk or snapshot as a block device: written in its record, so that every node knows.
//! Promises: a vDisk is a device of one node at a time; what stands in a record without a device leaves it again, and a device
//! that its record does not tell of any more is taken away.
//! Leaves to others: making devices (`attach`), refusing what may not happen to what is attached (who is asked for it).

use super::{seen, with_store};
use crate::config::cluster::{ClusterError, ClusterStore, NodeState};
use crate::config::{FamilyState, SnapshotKey, SnapshotState};
use crate::control::attachments::AttachmentState;
use crate::control::exports::{Exportable, wait_until_exportable};
use crate::control::refusal::Refusal;
use crate::control::{Control, Disk, SharedControl, Stage};
use std::time::{Duration, Instant};
use weft_engine::{FamilyId, SnapshotId};

/// What could not be written is tried again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A record that tells where it is attached.
#[derive(Debug, Clone)]
struct Claim {
    family: FamilyId,
    /// None: the vDisk itself.
    snapshot: Option<(SnapshotKey, SnapshotId)>,
}

/// What came of altering it.
struct Claimed {
    revision: u64,
    attached: Vec<u32>,
    /// It is there to be used.
    is_usable: bool,
}

impl Claim {
    fn of(what: &Exportable) -> Self {
        Self { family: what.disk.family, snapshot: what.snapshot.clone() }
    }

    /// Alters the list of nodes; `alter` gets told whether what is attached is there to be used.
    fn change(
        &self,
        store: &ClusterStore,
        mut alter: impl FnMut(&mut Vec<u32>, bool),
    ) -> Result<Claimed, ClusterError> {
        let Some((key, snapshot)) = &self.snapshot else {
            let is_usable =
                |state: FamilyState, is_going_back: bool| state == FamilyState::Live && !is_going_back;
            let changed = store.change_vdisk(self.family, |vdisk| {
                let is_usable = is_usable(vdisk.state, vdisk.rollback.is_some());
                alter(&mut vdisk.attached, is_usable);
            })?;
            let vdisk = changed.record;
            let is_usable = is_usable(vdisk.state, vdisk.rollback.is_some());
            return Ok(Claimed { revision: changed.revision, attached: vdisk.attached, is_usable });
        };
        let changed = store.change_snapshot(key, *snapshot, |record| {
            alter(&mut record.attached, record.state == SnapshotState::Ready);
        })?;
        let is_usable = changed.record.state == SnapshotState::Ready;
        Ok(Claimed { revision: changed.revision, attached: changed.record.attached, is_usable })
    }
}

/// Writes down that this node has it, before it does. On a node that is alone there is nothing to write.
pub(in crate::control) async fn claim(control: &SharedControl, what: &Exportable) -> Result<(), Refusal> {
    let (node, removed) = {
        let control = control.lock();
        let Some(member) = control.part.member() else { return Ok(()) };
        let nodes = member.mirror.nodes.values().map(|entry| &entry.record);
        let removed: Vec<u32> =
            nodes.filter(|record| record.state == NodeState::Removed).map(|record| record.node).collect();
        (member.node, removed)
    };
    let claim = Claim::of(what);
    let may_be_several = claim.snapshot.is_some();
    let claimed = with_store(control, move |store| {
        claim.change(store, |attached, is_usable| {
            attached.retain(|other| *other != node && !removed.contains(other));
            if is_usable && (may_be_several || attached.is_empty()) {
                attached.push(node);
            }
        })
    })
    .await?;
    let going = || Refusal::conflict(format!("{} is being removed, or goes back to a snapshot", what.who()));
    if claimed.attached.contains(&node) {
        seen(control, claimed.revision).await?;
        // The removal of a vDisk looks at its snapshots, if they were claimed before it. One that came before is known by now.
        let control = control.lock();
        let vdisk = control.member()?.mirror.families.get(&what.disk.family);
        let is_there = vdisk.is_some_and(|vdisk| vdisk.record.state == FamilyState::Live);
        return if is_there { Ok(()) } else { Err(going()) };
    }
    Err(match claimed.attached.first() {
        Some(&other) if claimed.is_usable => control.lock().attached_to(&what.name, other),
        _ => going(),
    })
}

/// Writes down that this node does not have it any more. What cannot be written now is written later.
pub(in crate::control) async fn release(control: &SharedControl, disk: Disk) {
    let Some((claim, node)) = control.lock().claim_of(disk) else { return };
    let released = with_store(control, move |store| {
        claim.change(store, |attached, _| attached.retain(|other| *other != node))
    })
    .await;
    match released {
        Ok(claimed) => {
            // Should the news not come, they come later: it is detached.
            let _ = seen(control, claimed.revision).await;
        }
        Err(refusal) => {
            tracing::warn!(reason = refusal.line, "that something is detached cannot be written yet");
            control.lock().look_at_attachments_again();
        }
    }
}

/// The same of a node that stops: nobody waits for the news.
pub(in crate::control) async fn release_at_the_end(control: &SharedControl, disk: Disk) {
    let Some((claim, node)) = control.lock().claim_of(disk) else { return };
    let work = move |store: &ClusterStore| {
        claim.change(store, |attached, _| attached.retain(|other| *other != node))
    };
    if let Err(refusal) = with_store(control, work).await {
        tracing::warn!(reason = refusal.line, "that something is detached is written at the next start");
    }
}

/// Takes it from a node that does not live: nobody can ask that one. Gives a remark.
pub(in crate::control) async fn take_from(
    control: &SharedControl,
    name: &str,
    disk: Disk,
    from: u32,
) -> Result<String, Refusal> {
    let claim = {
        let control = control.lock();
        if control.member()?.mirror.alive.contains_key(&from) {
            return Err(control.attached_to(name, from));
        }
        control.claim_of(disk).map(|(claim, _)| claim)
    };
    let claim = claim.ok_or_else(|| Refusal::not_found(format!("{name} was removed meanwhile")))?;
    let revision = with_store(control, move |store| match &claim.snapshot {
        None => store.take_device(claim.family, from).map(|changed| changed.revision),
        // Nobody writes to a snapshot.
        Some(_) => claim
            .change(store, |attached, _| attached.retain(|other| *other != from))
            .map(|changed| changed.revision),
    })
    .await?;
    seen(control, revision).await?;
    // Whoever wants to attach it next, and asks its owner, finds it served.
    wait_until_exportable(control, name).await;
    Ok(format!(
        "it was attached to node {from}, which does not live; should that node run still, nothing is written through its device any \
         more, and who uses it there gets I/O errors"
    ))
}

impl Control {
    /// The other node that has it, as far as is known here.
    pub(in crate::control) fn attached_elsewhere(&self, disk: Disk) -> Option<u32> {
        match disk.snapshot {
            None => self.first_other(&self.families.get(&disk.family)?.config.attached),
            Some(_) => {
                let snapshots = self.snapshots_of(disk.family).into_iter();
                let record = { snapshots }.find(|record| record.ready() == disk.snapshot)?;
                self.first_other(&record.attached)
            }
        }
    }

    /// The first of these nodes that is another one, and was not removed: rather one that does not live.
    pub(in crate::control) fn first_other(&self, attached: &[u32]) -> Option<u32> {
        let member = self.part.member()?;
        let is_there = |node: &u32| {
            let found = member.mirror.nodes.get(node);
            *node != member.node && found.is_some_and(|found| found.record.state != NodeState::Removed)
        };
        let others = || attached.iter().copied().filter(is_there);
        others().find(|node| !member.mirror.alive.contains_key(node)).or_else(|| others().next())
    }

    /// Something could not be written, and news of it will not come.
    fn look_at_attachments_again(&mut self) {
        if let Some(member) = self.part.member_mut() {
            member.attachments_at = Some(Instant::now() + AGAIN_AFTER);
        }
    }

    pub(super) fn look_after_attachments(&mut self) {
        let Some(member) = self.part.member_mut() else { return };
        if member.attachments_at.is_some_and(|at| Instant::now() >= at) {
            member.attachments_at = None;
            self.reconcile_attachments();
        }
    }

    /// Refuses because another node has it.
    pub(in crate::control) fn attached_to(&self, name: &str, node: u32) -> Refusal {
        let found = self.part.member().and_then(|member| member.mirror.nodes.get(&node));
        let api = found.map_or("its API", |found| found.record.api.as_str());
        Refusal::conflict(format!(
            "{name} is attached to node {node}; detach it there first (weft vdisk detach {name} --api {api})"
        ))
    }

    /// The record of it, and this node. None: there is none, or the node is alone.
    fn claim_of(&self, disk: Disk) -> Option<(Claim, u32)> {
        let node = self.part.member()?.node;
        let snapshot = match disk.snapshot {
            None => None,
            Some(_) => {
                let snapshots = self.snapshots_of(disk.family).into_iter();
                let record = { snapshots }.find(|record| record.ready() == disk.snapshot)?;
                Some((record.key(), record.id()))
            }
        };
        Some((Claim { family: disk.family, snapshot }, node))
    }

    /// What the records say of this node and what it has become the same.
    pub(in crate::control) fn reconcile_attachments(&mut self) {
        if self.stage == Stage::Stopping || self.part.member().is_none() {
            return;
        }
        let told = self.attachments_told();
        let stale: Vec<Disk> =
            told.iter().filter(|disk| !self.attachments.contains_key(*disk)).copied().collect();
        for disk in stale {
            let Some((claim, node)) = self.claim_of(disk) else { continue };
            let Some(member) = self.part.member() else { return };
            member.spawn(
                move |store| claim.change(store, |attached, _| attached.retain(|other| *other != node)),
                move |control, changed| {
                    control.attachments.remove(&disk);
                    if let Err(error) = changed {
                        tracing::warn!(%error, "that something is not attached any more cannot be written yet");
                        control.look_at_attachments_again();
                    }
                },
            );
            // It is not attached anew until this is written.
            self.attachments.insert(disk, AttachmentState::Changing(None));
        }
        let given_away: Vec<Disk> = self
            .attachments
            .iter()
            .filter(|(disk, state)| matches!(state, AttachmentState::Attached(_)) && !told.contains(*disk))
            .map(|(&disk, _)| disk)
            .collect();
        for disk in given_away {
            let attachment = self.attachments.get_mut(&disk).and_then(AttachmentState::take);
            let (Some(attachment), Some(member)) = (attachment, self.part.member()) else { continue };
            let device = attachment.device().display();
            tracing::error!(%device, family = %disk.family, "this device is taken away: its record does not tell of this node any more");
            member.spawn(
                move |_| attachment.end_by_force(),
                move |control, ()| drop(control.attachments.remove(&disk)),
            );
        }
    }

    /// Devices that the records do not tell of read and write no more. To be called before the shards hear of owners and epochs: what
    /// such a device still has under way was asked in an older epoch, and may not be asked again in the new one.
    pub(in crate::control) fn silence_devices(&self) {
        let told = self.attachments_told();
        for (disk, state) in &self.attachments {
            if let Some(end) = state.silencer()
                && !told.contains(disk)
            {
                end.set();
            }
        }
    }

    /// What this node has, as the records say.
    fn attachments_told(&self) -> std::collections::BTreeSet<Disk> {
        let Some(member) = self.part.member() else { return Default::default() };
        let node = member.node;
        let vdisks = member.mirror.families.iter();
        let vdisks = vdisks.filter(|(_, entry)| entry.record.attached.contains(&node));
        let snapshots = member.mirror.snapshots.values().map(|entry| &entry.record);
        let snapshots = snapshots.filter(|record| record.attached.contains(&node));
        let snapshots = snapshots.filter_map(|record| Some(Disk::snapshot(record.family(), record.ready()?)));
        vdisks.map(|(&family, _)| Disk::present(family)).chain(snapshots).collect()
    }
}
