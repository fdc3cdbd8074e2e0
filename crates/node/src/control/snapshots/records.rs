//! The records of snapshots, wherever they are: in the node's own store, or in the cluster's.

use super::DiskName;
use crate::api::SnapshotView;
use crate::config::cluster::ClusterStore;
use crate::config::{
    FamilyState, ScheduleRecord, SnapshotKey, SnapshotOrigin, SnapshotRecord, SnapshotState,
};
use crate::control::member::Chore;
use crate::control::refusal::Refusal;
use crate::control::{Control, Disk, Part, SharedControl, member};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_engine::{FamilyId, Generation, SnapshotId};

/// One whose owner is away is told as it is.
const TAKEN_WAIT: Duration = Duration::from_secs(10);

/// Waits for a snapshot that is just being taken: it may be long done, and this node be the last to hear of it.
pub async fn wait_until_taken(control: &SharedControl, name: &str) {
    control.wait_for(TAKEN_WAIT, |control| (!control.is_being_taken(name)).then_some(())).await;
}

impl Control {
    pub(in crate::control) fn snapshot(&self, key: &SnapshotKey) -> Option<&SnapshotRecord> {
        match &self.part {
            Part::Alone(alone) => alone.snapshots.get(key),
            Part::Member(member) => member.snapshots().get(key).map(|entry| &entry.record),
        }
    }

    /// Those of one vDisk, by name.
    pub(in crate::control) fn snapshots_of(&self, family: FamilyId) -> Vec<&SnapshotRecord> {
        // Any number may come from outside, also the last one there is.
        let from = (family, String::new())..;
        let is_its = |key: &SnapshotKey| key.0 == family;
        match &self.part {
            Part::Alone(alone) => {
                let of_it = alone.snapshots.range(from).take_while(|(key, _)| is_its(key));
                of_it.map(|(_, record)| record).collect()
            }
            Part::Member(member) => {
                let of_it = member.snapshots().range(from).take_while(|(key, _)| is_its(key));
                of_it.map(|(_, entry)| &entry.record).collect()
            }
        }
    }

    pub(in crate::control) fn snapshots(&self) -> Vec<&SnapshotRecord> {
        match &self.part {
            Part::Alone(alone) => alone.snapshots.values().collect(),
            Part::Member(member) => member.snapshots().values().map(|entry| &entry.record).collect(),
        }
    }

    pub(super) fn schedules(&self) -> BTreeMap<FamilyId, ScheduleRecord> {
        match &self.part {
            Part::Alone(alone) => alone.schedules.clone(),
            Part::Member(member) => {
                let all = member.schedules().iter();
                all.map(|(&family, entry)| (family, entry.record.clone())).collect()
            }
        }
    }

    /// The snapshot that somebody has named.
    pub(in crate::control) fn snapshot_named(
        &self,
        vdisk: &str,
        name: &str,
    ) -> Result<&SnapshotRecord, Refusal> {
        let family = self.family_named(vdisk).ok_or_else(|| Refusal::no_vdisk(vdisk))?;
        self.snapshot(&(family, name.to_string())).ok_or_else(|| {
            Refusal::no_snapshot(&DiskName { vdisk: vdisk.to_string(), snapshot: Some(name.to_string()) })
        })
    }

    /// Whether what was named is a snapshot that is just being taken, as far as this node has heard.
    fn is_being_taken(&self, name: &str) -> bool {
        let DiskName { vdisk, snapshot } = DiskName::parse(name);
        let record = snapshot.and_then(|snapshot| self.snapshot_named(&vdisk, &snapshot).ok());
        record.is_some_and(|record| record.state == SnapshotState::Creating)
    }

    /// Whether somebody uses a snapshot, as far as this node has heard: clients, a clone, or a vDisk on its way back to it.
    pub(in crate::control) fn is_needed(&self, record: &SnapshotRecord) -> bool {
        let family = record.family();
        let Some(generation) = record.generation else { return !record.exports.is_empty() };
        !record.exports.is_empty()
            || self.attachments.contains_key(&Disk::snapshot(family, Generation(generation)))
            || self.first_other(&record.attached).is_some()
            || self.goes_back_to(family, generation)
            || !self.clones_of(family, Some(generation)).is_empty()
    }

    /// Changes the record of this very snapshot of a node that is alone.
    fn change_snapshot_alone(
        &mut self,
        key: &SnapshotKey,
        snapshot: SnapshotId,
        mut alter: impl FnMut(&mut SnapshotRecord),
    ) -> Result<SnapshotRecord, Refusal> {
        let alone = self.part.alone();
        let record = alone.snapshots.get_mut(key).filter(|record| record.id() == snapshot);
        let record = record.ok_or_else(|| Refusal::not_found("the snapshot was removed meanwhile"))?;
        let mut changed = record.clone();
        alter(&mut changed);
        alone.store.put_snapshots(std::slice::from_ref(&changed))?;
        record.clone_from(&changed);
        Ok(changed)
    }

    /// Lets a snapshot go that nobody needs, see [`let_go`]; what does not work now is tried again by who wants it gone.
    pub(super) fn let_snapshot_go_soon(&mut self, key: SnapshotKey, snapshot: SnapshotId) {
        match &mut self.part {
            Part::Member(member) => member.spawn_chore(
                Chore::LetSnapshotGo(snapshot),
                move |store| store.let_snapshot_go(&key, snapshot),
                |_, changed| {
                    if let Err(error) = changed {
                        tracing::warn!(%error, "a snapshot that is not needed could not be removed yet");
                    }
                },
            ),
            Part::Alone(_) => {
                if let Err(refusal) = self.let_snapshot_go_alone(&key, snapshot) {
                    tracing::error!(
                        reason = refusal.line,
                        "a snapshot that is not needed could not be removed"
                    );
                }
            }
        }
    }

    /// Nothing happens between the look and the change.
    fn let_snapshot_go_alone(
        &mut self,
        key: &SnapshotKey,
        snapshot: SnapshotId,
    ) -> Result<SnapshotRecord, Refusal> {
        let needed = self.snapshot(key).is_some_and(|record| self.is_needed(record));
        self.change_snapshot_alone(key, snapshot, |record| {
            if !needed {
                record.state = SnapshotState::Deleting;
            }
        })
    }

    /// Begins to change the record of this very snapshot; what does not work now is tried again by who looks after it.
    pub(super) fn change_snapshot_soon(
        &mut self,
        key: SnapshotKey,
        snapshot: SnapshotId,
        mut alter: impl FnMut(&mut SnapshotRecord) + Send + 'static,
    ) {
        match &mut self.part {
            Part::Alone(_) => {
                let is_there = self.snapshot(&key).is_some_and(|record| record.id() == snapshot);
                if is_there && let Err(refusal) = self.change_snapshot_alone(&key, snapshot, alter) {
                    tracing::error!(reason = refusal.line, "the record of a snapshot could not be changed");
                }
            }
            Part::Member(member) => member.spawn(
                move |store| store.change_snapshot(&key, snapshot, &mut alter),
                |_, changed| {
                    if let Err(error) = changed {
                        tracing::warn!(%error, "the record of a snapshot could not be changed yet");
                    }
                },
            ),
        }
    }

    /// The record of a snapshot that is there already.
    pub(super) fn put_found_snapshot(&mut self, record: SnapshotRecord) {
        match &mut self.part {
            Part::Alone(alone) => match alone.store.put_snapshots(std::slice::from_ref(&record)) {
                Ok(()) => drop(alone.snapshots.insert(record.key(), record)),
                Err(error) => tracing::error!(%error, "the record of a snapshot could not be put"),
            },
            Part::Member(member) => member.spawn(
                move |store| store.create_snapshot(&record),
                |_, put| {
                    if let Err(error) = put {
                        tracing::warn!(%error, "the record of a snapshot could not be put; it stays without one");
                    }
                },
            ),
        }
    }

    pub(super) fn remove_snapshot_soon(&mut self, key: SnapshotKey, snapshot: SnapshotId) {
        match &mut self.part {
            Part::Alone(alone) => match alone.store.remove_snapshot(snapshot) {
                Ok(()) => {
                    alone.snapshots.remove(&key);
                }
                Err(error) => tracing::error!(%error, "the record of a snapshot that is gone stays"),
            },
            Part::Member(member) => member.spawn(
                move |store| store.remove_snapshot(&key, snapshot),
                |_, removed| {
                    if let Err(error) = removed {
                        tracing::warn!(%error, "the record of a snapshot that is gone stays for now");
                    }
                },
            ),
        }
    }

    /// Of one vDisk or of all, the oldest first.
    pub(in crate::control) fn snapshot_views(
        &self,
        vdisk: Option<&str>,
    ) -> Result<Vec<SnapshotView>, Refusal> {
        let family = vdisk
            .map(|vdisk| self.family_named(vdisk).ok_or_else(|| Refusal::no_vdisk(vdisk)))
            .transpose()?;
        let mut records = family.map_or_else(|| self.snapshots(), |family| self.snapshots_of(family));
        super::by_age(&mut records);
        let mut views: Vec<_> = records.into_iter().filter_map(|record| self.snapshot_view(record)).collect();
        // Stable: of each vDisk the oldest stays first.
        views.sort_by(|a, b| a.vdisk.cmp(&b.vdisk));
        Ok(views)
    }

    /// None: its vDisk is gone.
    pub(in crate::control) fn snapshot_view(&self, record: &SnapshotRecord) -> Option<SnapshotView> {
        let family = self.families.get(&record.family())?;
        let vdisk = family.config.name.clone();
        let name = DiskName { vdisk: vdisk.clone(), snapshot: Some(record.name.clone()) };
        let is_going = family.config.state == FamilyState::Dropping;
        let state = match record.state {
            _ if is_going => "deleting",
            SnapshotState::Creating => "creating",
            SnapshotState::Ready => "ready",
            SnapshotState::Deleting => "deleting",
        };
        let attached = record
            .ready()
            .and_then(|generation| self.attachment_view(Disk::snapshot(record.family(), generation)));
        Some(SnapshotView {
            name: name.to_string(),
            vdisk,
            snapshot: record.name.clone(),
            id: format!("{:016x}", record.snapshot),
            state: state.to_string(),
            trouble: record.trouble.clone(),
            generation: record.generation,
            size: record.size,
            created: record.created,
            origin: match &record.origin {
                SnapshotOrigin::Asked => "asked".to_string(),
                SnapshotOrigin::Schedule => "schedule".to_string(),
                SnapshotOrigin::Group(group) => format!("group {group}"),
            },
            exports: record
                .exports
                .iter()
                .map(|export| self.export_view(record.family(), &name.to_string(), export))
                .collect(),
            attached,
        })
    }
}

/// Changes the record of this very snapshot, wherever it is. Gives it as it is then.
pub(super) async fn change(
    control: &SharedControl,
    key: &SnapshotKey,
    snapshot: SnapshotId,
    mut alter: impl FnMut(&mut SnapshotRecord) + Send + 'static,
) -> Result<SnapshotRecord, Refusal> {
    if control.lock().part.member().is_some() {
        let key = key.clone();
        let work = move |store: &ClusterStore| store.change_snapshot(&key, snapshot, &mut alter);
        return member::changed(control, work).await;
    }
    control.lock().change_snapshot_alone(key, snapshot, alter)
}

/// Its owner is to drop this very snapshot, unless somebody needs it: then it stays. Gives its record as it is now.
pub(in crate::control) async fn let_go(
    control: &SharedControl,
    key: &SnapshotKey,
    snapshot: SnapshotId,
) -> Result<SnapshotRecord, Refusal> {
    if control.lock().part.member().is_some() {
        let key = key.clone();
        return member::changed(control, move |store| store.let_snapshot_go(&key, snapshot)).await;
    }
    control.lock().let_snapshot_go_alone(key, snapshot)
}
