//! The vDisks of a cluster: their names, their owners, their logs' segments.
//! Promises: a name belongs to one vDisk; an epoch is given to one owner; segments are changed by the owner
//! of the newest epoch only, one version after the other.

use super::change::{Patience, Verdict, Versioned, json, parse};
use super::create::New;
use super::decided::{Decided, Ground, parts};
use super::records::NameRecord;
use super::{ClusterError, ClusterStore, Leadership};
use crate::config::etcd::{Compare, Transaction};
use crate::config::{DriveRecord, DriveRecordState, FamilyConfig, FamilyState, OwnPolicy, SegmentRecord};
use std::collections::BTreeSet;
use weft_engine::interface::Segment;
use weft_engine::{DriveId, Epoch, FamilyId, Generation, ShardId};

/// What a vDisk begins with.
#[derive(Debug, Clone)]
pub struct NewVdisk {
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Copies of everything, where neither its own word nor its container says anything else.
    pub factor: u32,
    /// Seconds since 1970.
    pub created: u64,
    /// Who serves it, in epoch 1; None: nobody yet, and the first owner takes epoch 2.
    pub owner: Option<ShardId>,
    pub container: String,
    pub own: OwnPolicy,
}

impl NewVdisk {
    pub fn record(&self, family: u32) -> FamilyConfig {
        FamilyConfig {
            family,
            name: self.name.clone(),
            size: self.size,
            factor: self.factor,
            inherits_factor: self.own.factor.is_none(),
            created: self.created,
            epoch: 1,
            owner: self.owner.map(|shard| shard.0),
            life: 0,
            moving_to: None,
            segments: Vec::new(),
            version: 0,
            exports: Vec::new(),
            state: FamilyState::Live,
            container: self.container.clone(),
            compression: self.own.compression,
            dedup: self.own.dedup,
            ceiling: self.own.ceiling,
            origin: None,
            rollback: None,
            clones_made: 0,
            attached: Vec::new(),
            rolled_back: None,
        }
    }
}

/// Who shall serve a vDisk, and what must still be true then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOwner {
    pub shard: ShardId,
    /// Of the shard's node.
    pub life: u64,
    /// Nodes, and the revisions at which their keys of life were last put; 0: there was none. The new owner's node is
    /// one of them: a dead node is given nothing. The old one's is another, if its end is why: it must not have come
    /// back.
    pub alive: Vec<(u32, u64)>,
}

/// A vDisk, as it was seen, and who shall serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub seen: Versioned<FamilyConfig>,
    pub to: NewOwner,
}

/// The record of a vDisk in its new owner's epoch.
fn given(seen: &FamilyConfig, to: &NewOwner) -> FamilyConfig {
    FamilyConfig {
        epoch: seen.epoch.checked_add(1).expect(EPOCHS),
        owner: Some(to.shard.0),
        life: to.life,
        // Sent elsewhere meanwhile, it goes on from there.
        moving_to: seen.moving_to.filter(|wanted| *wanted != to.shard.node()),
        ..seen.clone()
    }
}

/// What every new epoch rests on.
const EPOCHS: &str = "four thousand million owners are never reached";

impl ClusterStore {
    pub fn create_vdisk(&self, wanted: &NewVdisk) -> Result<Versioned<FamilyConfig>, ClusterError> {
        let stamp = rand::random();
        let mut record = wanted.record(0);
        let revision = self.create(None, |cluster| {
            record.family = cluster.next_family;
            cluster.next_family += 1;
            let mut news = Vec::from(self.new_vdisk(&record, stamp));
            news.extend(self.joining(&record.container, 1)?);
            Ok(news)
        })?;
        Ok(Versioned { record, revision })
    }

    /// The record of a vDisk that is to be made, and the one that makes its name unique.
    pub(super) fn new_vdisk(&self, record: &FamilyConfig, stamp: u64) -> [New; 2] {
        let name = NameRecord { family: record.family, stamp };
        [
            New::named(self.keys.vdisk_name(&record.name), &name, &record.name),
            New::numbered(self.keys.family(record.id()), record),
        ]
    }

    pub fn family(&self, family: FamilyId) -> Result<Option<Versioned<FamilyConfig>>, ClusterError> {
        self.etcd.get(&self.keys.family(family))?.as_ref().map(parse).transpose()
    }

    /// Whether there was a vDisk of this number and is none any more, as etcd itself says now.
    pub fn is_deleted(&self, family: FamilyId) -> Result<bool, ClusterError> {
        // In this order: a number that had been given out by then belonged to a record by then.
        let cluster = self.cluster_record()?.record;
        let given_out = family.0 < cluster.next_family && !cluster.lost.contains(family);
        Ok(given_out && self.family(family)?.is_none())
    }

    /// A drive holds something of this vDisk. If its number has not been given out yet, older records were put back: it never will be.
    /// (A record is there before anything is written.)
    pub fn note_lost(&self, found: FamilyId) -> Result<(), ClusterError> {
        self.change_cluster(|cluster| cluster.note_lost(found)).map(|_| ())
    }

    /// What is held of a vDisk that the records know nothing of may go. False if it is none of those.
    pub fn forget_lost(&self, family: FamilyId) -> Result<bool, ClusterError> {
        let mut is_lost = false;
        self.change_cluster(|cluster| is_lost = cluster.lost.forget(family))?;
        Ok(is_lost)
    }

    /// Those of these vDisks of which there is no record. Their numbers are never used again.
    pub(super) fn gone_of(&self, families: &[u32]) -> Result<Vec<u32>, ClusterError> {
        let mut gone = Vec::new();
        for &family in families {
            if self.family(FamilyId(family))?.is_none() {
                gone.push(family);
            }
        }
        Ok(gone)
    }

    /// The vDisk of this name.
    pub fn family_named(&self, name: &str) -> Result<Option<FamilyId>, ClusterError> {
        let found = self.etcd.get(&self.keys.vdisk_name(name))?;
        Ok(match found {
            Some(found) => Some(FamilyId(parse::<NameRecord>(&found)?.record.family)),
            None => None,
        })
    }

    /// Takes the record and the name of a vDisk away, with those of its snapshots: nothing of it is left on any drive. Fine if it is gone already.
    pub fn remove_vdisk(&self, family: FamilyId) -> Result<(), ClusterError> {
        let key = self.keys.family(family);
        let mut patience = Patience::new(&key);
        loop {
            let Some(found) = self.family(family)? else { return Ok(()) };
            let name = self.keys.vdisk_name(&found.record.name);
            let (first_snapshot, end) = self.keys.snapshots(family);
            let transaction = Transaction::new()
                .when(Compare::unchanged(&key, found.revision))
                .delete(&key)
                .delete(&name)
                .delete_range(&first_snapshot, &end)
                .delete(&self.keys.schedule(family))
                .otherwise_get(&key);
            if self.etcd.transact(&transaction)?.succeeded {
                return Ok(());
            }
            patience.wait()?;
        }
    }

    /// Changes what its owner does not change: size, exports, state.
    pub fn change_vdisk(
        &self,
        family: FamilyId,
        mut alter: impl FnMut(&mut FamilyConfig),
    ) -> Result<Versioned<FamilyConfig>, ClusterError> {
        self.change(&self.keys.family(family), None, |record: &mut FamilyConfig, _| {
            let before = record.clone();
            alter(record);
            assert_eq!(
                (&record.name, record.family),
                (&before.name, before.family),
                "names and numbers stay"
            );
            assert_eq!(
                (record.epoch, record.version),
                (before.epoch, before.version),
                "these are the owner's"
            );
            assert_eq!(record.segments, before.segments, "segments are the owner's");
            assert_eq!(
                record.container, before.container,
                "it is counted by the container that it is put into"
            );
            Ok(if *record == before { Verdict::Leave } else { Verdict::Put })
        })
    }

    /// Lets it grow to `size` bytes; it never shrinks, and on its way back to a snapshot it stays as it is.
    pub fn resize_vdisk(&self, family: FamilyId, size: u64) -> Result<Versioned<FamilyConfig>, ClusterError> {
        self.change_between_snapshots(family, |record| {
            if record.rollback.is_none() {
                record.size = record.size.max(size);
            }
        })
    }

    /// Changes its size, or that it goes back to another. [`ClusterError::SnapshotUnderWay`] while a snapshot is being taken: that has
    /// the size that the vDisk had when it was asked for, and would be cut there, with all that comes from it. It begins to go back only
    /// to a snapshot that is ready then.
    pub fn change_between_snapshots(
        &self,
        family: FamilyId,
        mut alter: impl FnMut(&mut FamilyConfig),
    ) -> Result<Versioned<FamilyConfig>, ClusterError> {
        let key = self.keys.family(family);
        let (first_snapshot, end) = self.keys.snapshots(family);
        let mut patience = Patience::new(&key);
        loop {
            let found = self.family(family)?.ok_or_else(|| ClusterError::NotThere { key: key.clone() })?;
            let mut record = found.record.clone();
            alter(&mut record);
            if record == found.record {
                return Ok(found);
            }
            let (looked_at, snapshots) = self.snapshots_at_rest(family)?;
            let mut transaction = Transaction::new()
                .when(Compare::unchanged(&key, found.revision))
                .when(Compare::none_put_since(&first_snapshot, &end, looked_at));
            if let Some(rollback) = record.rollback.filter(|_| found.record.rollback.is_none()) {
                let generation = Some(Generation(rollback.generation));
                let target = snapshots.iter().find(|snapshot| snapshot.record.ready() == generation);
                let target =
                    target.ok_or_else(|| ClusterError::NothingToGoBackTo { name: record.name.clone() })?;
                // Taken away altogether, it is not among those that were put since.
                let target_key = self.keys.snapshot(family, &target.record.name);
                transaction = transaction.when(Compare::unchanged(&target_key, target.revision));
            }
            let transaction = transaction.put(&key, &json(&record), None).otherwise_get(&key);
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(Versioned { record, revision: answer.revision });
            }
            // If this very one came through, its answer was lost: the next look finds that nothing is left to change.
            patience.wait()?;
        }
    }

    /// Its drives are to forget it, if its record still says that it `may_go`; None otherwise. Whoever decided that looked at what a
    /// node had heard: here it is as etcd itself says. Its snapshots go with it if they were `looked_at` as of that revision of the
    /// store, and no record of one was made or changed since (one attached, say); None: it must not have any.
    pub fn begin_removal(
        &self,
        family: FamilyId,
        looked_at: Option<u64>,
        may_go: impl Fn(&FamilyConfig) -> bool,
    ) -> Result<Option<Versioned<FamilyConfig>>, ClusterError> {
        let key = self.keys.family(family);
        let (first_snapshot, end) = self.keys.snapshots(family);
        let mut patience = Patience::new(&key);
        loop {
            let gone = || ClusterError::NotThere { key: key.clone() };
            let found = self.family(family)?.ok_or_else(gone)?;
            if found.record.state == FamilyState::Dropping {
                return Ok(Some(found));
            }
            if !may_go(&found.record) {
                return Ok(None);
            }
            let record =
                FamilyConfig { state: FamilyState::Dropping, exports: Vec::new(), ..found.record.clone() };
            let snapshots = match looked_at {
                Some(revision) => Compare::none_put_since(&first_snapshot, &end, revision),
                None => Compare::none_in(&first_snapshot, &end),
            };
            let transaction = Transaction::new()
                .when(Compare::unchanged(&key, found.revision))
                .when(snapshots)
                .put(&key, &json(&record), None)
                .otherwise_get(&key);
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(Some(Versioned { record, revision: answer.revision }));
            }
            if answer.found[0].as_ref().is_some_and(|now| now.mod_revision == found.revision) {
                // The record is as it was, so it is the snapshots.
                return Ok(None);
            }
            patience.wait()?;
        }
    }

    /// Takes the vDisk from a node that has it as a device and cannot be asked. Its owner stays, in a new epoch: what that node
    /// still has under way was sent in the old one, and is refused. [`ClusterError::Changed`] if the node lives: who has not heard of
    /// that would take a device from under a file system.
    pub fn take_device(&self, family: FamilyId, node: u32) -> Result<Versioned<FamilyConfig>, ClusterError> {
        self.change(&self.keys.family(family), None, |record: &mut FamilyConfig, _| {
            if !record.attached.contains(&node) {
                return Ok(Verdict::Leave);
            }
            record.attached.retain(|other| *other != node);
            record.epoch = record.epoch.checked_add(1).expect(EPOCHS);
            Ok(Verdict::PutIf(vec![Compare::absent(&self.keys.alive(node))]))
        })
    }

    /// Gives the vDisk to `owner` in a new epoch, if its record is still as it was at `seen`. With
    /// `leadership` only as long as that lasts. From the new epoch on every earlier owner is fenced.
    pub fn take_epoch(
        &self,
        family: FamilyId,
        seen: u64,
        owner: Option<ShardId>,
        leadership: Option<&Leadership>,
    ) -> Result<Versioned<FamilyConfig>, ClusterError> {
        let key = self.keys.family(family);
        self.change(&key, leadership, |record: &mut FamilyConfig, revision| {
            if revision != seen {
                return Err(ClusterError::Changed { key: key.clone() });
            }
            record.epoch = record.epoch.checked_add(1).expect(EPOCHS);
            record.owner = owner.map(|shard| shard.0);
            Ok(Verdict::Put)
        })
    }

    /// Gives the vDisk to a shard of a living node in a new epoch, if its record is still as it was `seen`, and the lives of
    /// nodes that the decision rests on are still as they were: see [`NewOwner`].
    pub fn give(
        &self,
        seen: &Versioned<FamilyConfig>,
        to: &NewOwner,
        leadership: Option<&Leadership>,
    ) -> Result<Versioned<FamilyConfig>, ClusterError> {
        let key = self.keys.family(seen.record.id());
        let record = given(&seen.record, to);
        let text = json(&record);
        let transaction = Transaction::new().when(Compare::unchanged(&key, seen.revision));
        let transaction = self.lives(to).iter().map(Ground::holds).fold(transaction, Transaction::when);
        let transaction = transaction.put(&key, &text, None).otherwise_get(&key);
        let answer = self.transact_as(leadership, transaction)?;
        if answer.succeeded {
            return Ok(Versioned { record, revision: answer.revision });
        }
        match &answer.found[0] {
            // An attempt whose answer was lost came through: nobody else gives this life of that node this epoch.
            Some(now) if answer.repeated && now.value == text => {
                Ok(Versioned { record, revision: now.mod_revision })
            }
            _ => Err(ClusterError::Changed { key }),
        }
    }

    /// The same for many, many at once: a node may have served thousands, and the clients of all of them wait. Gives for each at which
    /// revision it was done; None: something has changed, or it was done by an attempt whose answer was lost.
    pub fn give_all(
        &self,
        claims: Vec<Claim>,
        leadership: &Leadership,
    ) -> Result<Vec<Option<u64>>, ClusterError> {
        let decided: Vec<Decided<Claim>> =
            claims.into_iter().map(|claim| Decided { grounds: self.lives(&claim.to), what: claim }).collect();
        let mut done = Vec::with_capacity(decided.len());
        for (part, grounds) in parts(&decided) {
            let mut transaction = Transaction::new();
            for Decided { what: Claim { seen, to }, .. } in part {
                let key = self.keys.family(seen.record.id());
                transaction = transaction.when(Compare::unchanged(&key, seen.revision)).put(
                    &key,
                    &json(&given(&seen.record, to)),
                    None,
                );
            }
            let transaction = grounds.iter().map(Ground::holds).fold(transaction, Transaction::when);
            let answer = self.transact_as(Some(leadership), transaction)?;
            if answer.succeeded {
                done.extend(part.iter().map(|_| Some(answer.revision)));
                continue;
            }
            // One of them is not as it was: the others do not wait for it.
            for Decided { what: Claim { seen, to }, .. } in part {
                done.push(match self.give(seen, to, Some(leadership)) {
                    Ok(given) => Some(given.revision),
                    Err(ClusterError::Changed { .. }) => None,
                    Err(error) => return Err(error),
                });
            }
        }
        Ok(done)
    }

    fn lives(&self, to: &NewOwner) -> Vec<Ground> {
        let ground = |&(node, revision): &(u32, u64)| Ground { key: self.keys.alive(node), revision };
        to.alive.iter().map(ground).collect()
    }

    /// Its owner shall hand it over to the node `to`, if it is still that of this epoch and nobody has sent it anywhere: people have the
    /// last word. With `leadership` only as long as that lasts.
    pub fn send(
        &self,
        family: FamilyId,
        (owner, epoch): (ShardId, Epoch),
        to: u32,
        leadership: Option<&Leadership>,
    ) -> Result<Versioned<FamilyConfig>, ClusterError> {
        let key = self.keys.family(family);
        self.change(&key, leadership, |record: &mut FamilyConfig, _| {
            let is_the_same = record.owner == Some(owner.0) && record.epoch == epoch.0;
            match record.moving_to {
                _ if !is_the_same => Err(ClusterError::Changed { key: key.clone() }),
                // Asked a second time after a lost answer, it is there already.
                Some(there) if there == to => Ok(Verdict::Leave),
                Some(_) => Err(ClusterError::Changed { key: key.clone() }),
                None => {
                    record.moving_to = Some(to);
                    Ok(Verdict::Put)
                }
            }
        })
    }

    /// The owner of `epoch` has stopped serving: whoever is next need not wait for its lease. False if a newer owner
    /// exists.
    pub fn give_up(&self, family: FamilyId, epoch: Epoch) -> Result<bool, ClusterError> {
        let mut given_up = false;
        self.change(&self.keys.family(family), None, |record: &mut FamilyConfig, _| {
            given_up = record.epoch == epoch.0;
            if !given_up || record.owner.is_none() {
                return Ok(Verdict::Leave);
            }
            record.owner = None;
            Ok(Verdict::Put)
        })?;
        Ok(given_up)
    }

    /// That a drive is as it is now; refused if it was given up. Between that and the end of its record its key is still there.
    fn is_no_loss(&self, drive: DriveId) -> Result<Compare, ClusterError> {
        let key = self.keys.drive(drive);
        let found = self.etcd.get(&key)?.map(|found| parse::<DriveRecord>(&found)).transpose()?;
        match found.filter(|drive| drive.record.state != DriveRecordState::Lost) {
            Some(drive) => Ok(Compare::unchanged(&key, drive.revision)),
            None => Err(ClusterError::Changed { key }),
        }
    }

    /// Puts `segments` under `version` if the record still has `epoch` and `version - 1`, and drives that are new in them have not been
    /// taken out; None otherwise.
    pub fn change_segments(
        &self,
        family: FamilyId,
        epoch: Epoch,
        version: u64,
        segments: &[Segment],
    ) -> Result<Option<Versioned<FamilyConfig>>, ClusterError> {
        let mut taken = false;
        let segments: Vec<SegmentRecord> = segments.iter().map(SegmentRecord::of).collect();
        let wanted = json(&segments);
        let changed = self.change(&self.keys.family(family), None, |record: &mut FamilyConfig, _| {
            // Asked a second time after a lost answer, it is there already. Nobody else writes this epoch's versions.
            let done = record.version == version && json(&record.segments) == wanted;
            taken = record.epoch == epoch.0 && (done || record.version + 1 == version);
            if !taken || done {
                return Ok(Verdict::Leave);
            }
            record.version = version;
            let former = std::mem::replace(&mut record.segments, segments.clone());
            let members = |segments: &[SegmentRecord]| -> BTreeSet<u32> {
                segments.iter().flat_map(|segment| segment.members.clone()).collect()
            };
            let new = &members(&record.segments) - &members(&former);
            let as_seen: Result<_, ClusterError> =
                new.iter().map(|drive| self.is_no_loss(DriveId(*drive))).collect();
            Ok(Verdict::PutIf(as_seen?))
        });
        match changed {
            Ok(changed) => Ok(taken.then_some(changed)),
            // Deleted meanwhile: whoever asks is no owner of anything any more. Or it has not heard of a drive that is gone: it opens
            // the vDisk again.
            Err(ClusterError::NotThere { .. } | ClusterError::Changed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
