//! What people ask about snapshots: written into the records, and waited for until it has become true.

use super::name::{check_snapshot_name, time_name};
use super::{DiskName, records};
use crate::api::{CreateSnapshot, SnapshotView};
use crate::calendar;
use crate::config::cluster::ClusterError;
use crate::config::{FamilyState, SnapshotKey, SnapshotOrigin, SnapshotRecord, SnapshotState, numbered};
use crate::control::refusal::Refusal;
use crate::control::{Control, Disk, Part, SharedControl, clones, member};
use std::time::Duration;
use weft_engine::{FamilyId, SnapshotId};

/// A snapshot is taken within this time, or it counts as failed and goes again.
const CREATE_WAIT: Duration = Duration::from_secs(30);

/// A removal is waited for so long; it goes on by itself afterwards.
const REMOVE_WAIT: Duration = Duration::from_secs(30);

/// Makes a snapshot; it can be read, and has everything that was acknowledged before, when this returns.
pub async fn create(control: &SharedControl, wanted: CreateSnapshot) -> Result<SnapshotView, Refusal> {
    let record = control.lock().new_snapshot(&wanted)?;
    let (key, snapshot) = (record.key(), record.id());
    put(control, record).await?;
    let name = DiskName { vdisk: wanted.vdisk, snapshot: Some(key.1.clone()) };
    let taken = control
        .wait_for(CREATE_WAIT, |control| {
            let record = control.snapshot(&key).filter(|record| record.id() == snapshot);
            let Some(record) = record else { return Some(Err("it was removed meanwhile".to_string())) };
            match record.state {
                SnapshotState::Creating => None,
                SnapshotState::Ready => Some(Ok(())),
                SnapshotState::Deleting if record.trouble.is_empty() => {
                    Some(Err("it was removed meanwhile".to_string()))
                }
                SnapshotState::Deleting => Some(Err(record.trouble.clone())),
            }
        })
        .await
        .unwrap_or_else(|| {
            Err(format!(
                "that was not done within {} s, as when nobody serves its vDisk; see `weft vdisk show {}`",
                CREATE_WAIT.as_secs(),
                name.vdisk
            ))
        });
    if let Err(reason) = taken {
        // Whoever serves the vDisk next drops it, should it have been taken after all.
        let stays = match records::let_go(control, &key, snapshot).await {
            // Somebody may have cloned it already.
            Ok(record) => record.state != SnapshotState::Deleting,
            // It is there as long as nobody could say otherwise.
            Err(_) => control.lock().snapshot(&key).is_some_and(|record| record.id() == snapshot),
        };
        let line = format!("the snapshot {name} could not be taken: {reason}");
        return Err(match stays {
            true => Refusal::failed(format!("{line}; it may still be, see `weft snapshot show {name}`")),
            false => Refusal::failed(line),
        });
    }
    let control = control.lock();
    let record = control.snapshot(&key).ok_or_else(|| Refusal::no_snapshot(&name))?;
    control.snapshot_view(record).ok_or_else(|| Refusal::no_snapshot(&name))
}

/// Puts the record of a snapshot that is to be taken.
pub(super) async fn put(control: &SharedControl, record: SnapshotRecord) -> Result<(), Refusal> {
    if control.lock().part.member().is_some() {
        return member::changed(control, move |store| store.create_snapshot(&record)).await.map(drop);
    }
    control.lock().put_snapshot(record)
}

/// Removes a snapshot. A remark for people, if it takes long.
pub async fn remove(control: &SharedControl, name: &str) -> Result<String, Refusal> {
    let (key, snapshot) = check_removable(control, name).await?;
    // Somebody may have exported or cloned it meanwhile: then it stays.
    let changed = records::let_go(control, &key, snapshot).await?;
    if changed.state != SnapshotState::Deleting {
        return Err(if changed.exports.is_empty() {
            Refusal::conflict(format!(
                "{name} was cloned, or a vDisk was rolled back to it, at this moment; it stays"
            ))
        } else {
            exported(name)
        });
    }
    {
        let mut control = control.lock();
        if control.part.member().is_none() {
            control.order_snapshots();
        }
    }
    let gone = control
        .wait_for(REMOVE_WAIT, |control| {
            let there = control.snapshot(&key).is_some_and(|record| record.id() == snapshot);
            (!there).then_some(())
        })
        .await;
    Ok(match gone {
        Some(()) => String::new(),
        None => format!("{name} is being removed; it is gone when its vDisk is served again"),
    })
}

/// Refuses to remove what is in use.
pub(super) async fn check_removable(
    control: &SharedControl,
    name: &str,
) -> Result<(SnapshotKey, SnapshotId), Refusal> {
    let (key, snapshot) = control.lock().removable(name)?;
    let record = control.lock().snapshot(&key).cloned();
    if let Some(record) = record {
        let clones = clones::living(control, &record).await?;
        if !clones.is_empty() {
            return Err(clones::has_clones(name, &clones));
        }
    }
    Ok((key, snapshot))
}

fn exported(name: &str) -> Refusal {
    Refusal::conflict(format!("{name} is exported; end that first (weft vdisk unexport {name})"))
}

impl Control {
    /// The record of a snapshot that somebody wants, and that there can be.
    fn new_snapshot(&self, wanted: &CreateSnapshot) -> Result<SnapshotRecord, Refusal> {
        self.check_ready()?;
        let vdisk = &wanted.vdisk;
        let family = self.family_named(vdisk).ok_or_else(|| Refusal::no_vdisk(vdisk))?;
        if self.families[&family].config.state == FamilyState::Dropping {
            return Err(Refusal::no_vdisk(vdisk));
        }
        self.check_may_be_taken(family)?;
        let created = calendar::now();
        let name = match &wanted.name {
            Some(name) => {
                check_snapshot_name(name)?;
                name.clone()
            }
            None => self.free_name(&[family], &time_name(created)),
        };
        if let Some(there) = self.snapshot(&(family, name.clone())) {
            let how =
                if there.state == SnapshotState::Deleting { "is being removed" } else { "exists already" };
            return Err(Refusal::conflict(format!(
                "the snapshot {vdisk}@{name} {how}; choose another name, or remove it (weft snapshot rm {vdisk}@{name})"
            )));
        }
        Ok(self.snapshot_record(family, name, created, SnapshotOrigin::Asked))
    }

    pub(super) fn snapshot_record(
        &self,
        family: FamilyId,
        name: String,
        created: u64,
        origin: SnapshotOrigin,
    ) -> SnapshotRecord {
        let size = self.families.get(&family).map_or(0, |entry| entry.config.size);
        SnapshotRecord::new(rand::random(), family.0, &name, size, created, origin)
    }

    /// The name, or the name and a number: what no snapshot of any of these is called.
    pub(super) fn free_name(&self, families: &[FamilyId], name: &str) -> String {
        let is_free =
            |name: &String| families.iter().all(|&family| self.snapshot(&(family, name.clone())).is_none());
        let mut names = std::iter::once(name.to_string()).chain(numbered(name));
        names.find(is_free).expect("there are more numbers than snapshots")
    }

    /// Refuses what a snapshot that is just being taken would not see: it has the size that its vDisk had when it was asked for.
    pub(in crate::control) fn check_no_snapshot_under_way(&self, family: FamilyId) -> Result<(), Refusal> {
        let all = self.snapshots_of(family).into_iter();
        match { all }.find(|record| record.state == SnapshotState::Creating) {
            Some(record) => {
                let name = record.name.clone();
                Err(Refusal::conflict(ClusterError::SnapshotUnderWay { name }.to_string()))
            }
            None => Ok(()),
        }
    }

    /// For a node that is alone. It gets the size that its vDisk has. Since it was wanted its vDisks may have been waited for, so what it
    /// must not meet is looked at again: another snapshot of the name would not be listed any more, though it is there.
    pub(super) fn put_snapshot(&mut self, mut record: SnapshotRecord) -> Result<(), Refusal> {
        let (family, key) = (record.family(), record.key());
        let of = self.families.get(&family).map(|of| &of.config);
        let of = of.filter(|of| of.state == FamilyState::Live);
        let of = of.ok_or_else(|| Refusal::not_found("the vDisk was deleted meanwhile"))?;
        record.size = of.size;
        self.check_may_be_taken(family)?;
        if self.snapshot(&key).is_some() {
            return Err(Refusal::conflict(ClusterError::SnapshotExists { name: key.1 }.to_string()));
        }
        let Part::Alone(alone) = &mut self.part else {
            unreachable!("a member puts it into the cluster's store")
        };
        alone.store.put_snapshots(std::slice::from_ref(&record))?;
        alone.snapshots.insert(key, record);
        self.order_snapshots();
        Ok(())
    }

    /// Refuses what is exported, attached or needed by its group, and what its vDisk goes back to.
    fn removable(&self, name: &str) -> Result<(SnapshotKey, SnapshotId), Refusal> {
        self.check_ready()?;
        let (vdisk, snapshot) = DiskName::of_snapshot(name)?;
        let record = self.snapshot_named(&vdisk, &snapshot)?;
        if !record.exports.is_empty() {
            return Err(exported(name));
        }
        let disk = record
            .generation
            .map(|generation| Disk::snapshot(record.family(), weft_engine::Generation(generation)));
        if let Some(disk) = disk {
            self.check_detached(disk, name)?;
        }
        if record.generation.is_some_and(|generation| self.goes_back_to(record.family(), generation)) {
            return Err(Refusal::conflict(format!(
                "vDisk {vdisk} is on its way back to {name}, which stays until it is there; try again then"
            )));
        }
        if self.is_followed(record) {
            return Err(Refusal::unavailable(format!(
                "the group's other snapshots of {name} are just being finished; try again in a moment"
            )));
        }
        Ok((record.key(), record.id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cluster::NewVdisk;
    use crate::config::{NodeRecord, OwnPolicy, RedbStore, RollbackRecord};
    use crate::control::{Alone, Family, Serving, Stage};
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;
    use weft_engine::cluster::whole::WholeGroups;

    const OF: FamilyId = FamilyId(1);

    /// A node that stands alone, with a vDisk v that it does not serve yet. It has its directory as long as the test runs.
    struct Lone {
        control: Control,
        dir: PathBuf,
    }

    impl Lone {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("weft-requests-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
            let vdisk = NewVdisk {
                name: "v".to_string(),
                size: 1 << 30,
                factor: 1,
                created: 0,
                owner: None,
                container: "default".to_string(),
                own: OwnPolicy::default(),
            };
            let alone = Alone {
                store: Box::new(RedbStore::open(&dir, true).expect("it is made")),
                node: NodeRecord::default(),
                groups: BTreeMap::new(),
                snapshots: BTreeMap::new(),
                schedules: BTreeMap::new(),
                consistency: BTreeMap::new(),
                containers: BTreeMap::new(),
                whole: WholeGroups::default(),
                view_version: 0,
                failures: BTreeMap::new(),
                reached: BTreeMap::new(),
                left_out: BTreeSet::new(),
            };
            let mut control = Control::new(&dir, 1, Part::Alone(Box::new(alone)), &[], BTreeMap::new());
            let config = vdisk.record(OF.0);
            let family = Family { config, serving: Serving::Opening, export_trouble: BTreeMap::new() };
            control.families.insert(OF, family);
            control.stage = Stage::Ready;
            Self { control, dir }
        }

        fn wanted(&self, snapshot: u64, name: &str) -> SnapshotRecord {
            let record = self.control.snapshot_record(OF, name.to_string(), 1, SnapshotOrigin::Asked);
            SnapshotRecord { snapshot, ..record }
        }

        /// Those that the node knows, and those that its store has.
        fn known(&mut self) -> (Vec<u64>, Vec<u64>) {
            let ids = |all: &[SnapshotRecord]| all.iter().map(|record| record.snapshot).collect::<Vec<_>>();
            let known: Vec<SnapshotRecord> = self.control.snapshots().into_iter().cloned().collect();
            let stored = self.control.part.alone().store.load().expect("it loads").snapshots;
            (ids(&known), ids(&stored))
        }
    }

    impl Drop for Lone {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn a_snapshot_takes_the_place_of_no_other_one_of_its_name() {
        let mut lone = Lone::new("one-name");
        // That of a group, which waits for another vDisk, and one that is asked for meanwhile.
        let (late, early) = (lone.wanted(1, "nightly"), lone.wanted(2, "nightly"));
        lone.control.put_snapshot(early).expect("the name is free");
        let refused = lone.control.put_snapshot(late).expect_err("it is not any more");
        assert!(refused.line.contains("nightly"), "{refused}");
        assert_eq!(lone.known(), (vec![2], vec![2]));
    }

    #[test]
    fn no_snapshot_is_put_of_a_vdisk_that_goes_or_goes_back() {
        let mut lone = Lone::new("goes");
        let wanted = lone.wanted(1, "s");
        let config = |lone: &mut Lone, alter: &dyn Fn(&mut crate::config::FamilyConfig)| {
            alter(&mut lone.control.families.get_mut(&OF).expect("it is there").config);
        };
        let rollback = RollbackRecord { id: 1, generation: 1, size: 1 << 30 };
        config(&mut lone, &|config| config.rollback = Some(rollback));
        lone.control.put_snapshot(wanted.clone()).expect_err("it goes back");
        config(&mut lone, &|config| (config.rollback, config.state) = (None, FamilyState::Dropping));
        lone.control.put_snapshot(wanted.clone()).expect_err("it goes");
        assert_eq!(lone.known(), (vec![], vec![]));
        config(&mut lone, &|config| config.state = FamilyState::Live);
        lone.control.put_snapshot(wanted).expect("now it can be taken");
        assert_eq!(lone.known(), (vec![1], vec![1]));
    }

    #[test]
    fn what_a_vdisk_is_about_to_go_back_to_is_not_removed() {
        let mut lone = Lone::new("target");
        for (snapshot, name) in [(1, "old"), (2, "new")] {
            let record = lone.wanted(snapshot, name);
            let key = record.key();
            lone.control.put_snapshot(record).expect("the name is free");
            let record = lone.control.part.alone().snapshots.get_mut(&key).expect("it was put");
            (record.state, record.generation) = (SnapshotState::Ready, Some(snapshot as u32));
        }
        lone.control.snapshot_orders.preparing.insert(OF, 1);
        let refused = lone.control.removable("v@old").expect_err("the vDisk is to go back to it");
        assert!(refused.line.contains("on its way back"), "{refused}");
        lone.control.removable("v@new").expect("it goes before that");
        // As the schedule would let it go.
        let old = (OF, "old".to_string());
        lone.control.let_snapshot_go_soon(old.clone(), SnapshotId(1));
        assert_eq!(lone.control.snapshot(&old).expect("it stays").state, SnapshotState::Ready);
        lone.control.snapshot_orders.preparing.remove(&OF);
        lone.control.removable("v@old").expect("nobody needs it now");
    }
}
