//! Consistency groups: snapshots of several vDisks of one instant, whoever serves them.
//! Promises: of two writes of which one was acknowledged before the other was sent, never the second one without the first. Clients wait
//! for a second at most; if that is not enough, no snapshot is left. Either all of them can be read in the end, or none is there,
//! also if whoever takes them dies meanwhile: the record of the first one decides, and owners make those of the others follow.
//!
//! All vDisks of the group are held: their owners take no new request. When all are, marks are put into their logs, and when all
//! of these are durable, the holds end. What is in a snapshot was taken by its owner before the hold there was told; so whatever was
//! acknowledged before that was sent was acknowledged before every mark, and is in its snapshot. Holds end by themselves, so
//! the snapshots count only if every node says, when it is told to end its holds, that they stood until then. (Each by its own
//! clock: while a machine is stopped its clock may stand still, but so does all that it serves.)

use super::name::{check_snapshot_name, time_name};
use super::{DiskName, orders, records, requests};
use crate::api::{
    ConsistencyView, CreateConsistency, ErrorView, GroupSnapshot, HoldVdisks, SnapshotView, TakeSnapshots,
};
use crate::calendar;
use crate::config::{
    ConsistencyRecord, FamilyState, Followed, SnapshotOrigin, SnapshotRecord, SnapshotState,
};
use crate::control::refusal::Refusal;
use crate::control::vdisks::check_name;
use crate::control::{Control, Part, SharedControl, member};
use crate::shard_loop::Mail;
use axum::http::StatusCode;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use weft_engine::interface::Order;
use weft_engine::{FamilyId, SnapshotId};

/// Nobody waits longer for a group's snapshots.
const HOLD: Duration = Duration::from_secs(1);

/// A second was not enough, or a vDisk has just gone to another owner: it is tried so often.
const ATTEMPTS_MAX: u32 = 3;

/// A vDisk that nobody serves at this moment has an owner within this time, and records that are let go of are gone.
const SETTLED_WAIT: Duration = Duration::from_secs(10);

/// The records of snapshots that were taken say so within this time.
const READY_WAIT: Duration = Duration::from_secs(30);

/// vDisks of one group.
const VDISKS_MAX: usize = 256;

/// Why snapshots were not taken.
enum NotTaken {
    /// Tried again, they may be.
    Passing(Refusal),
    Final(Refusal),
}

impl NotTaken {
    fn half_done(self) -> Self {
        match self {
            NotTaken::Passing(refusal) => NotTaken::Passing(refusal.half_done()),
            NotTaken::Final(refusal) => NotTaken::Final(refusal.half_done()),
        }
    }
}

impl From<Refusal> for NotTaken {
    fn from(refusal: Refusal) -> Self {
        match refusal.status {
            StatusCode::SERVICE_UNAVAILABLE => NotTaken::Passing(refusal),
            _ => NotTaken::Final(refusal),
        }
    }
}

/// The vDisks of a group that one node serves; None: this one.
type Places = BTreeMap<Option<String>, Vec<(FamilyId, SnapshotId)>>;

impl Control {
    fn consistency(&self) -> BTreeMap<String, ConsistencyRecord> {
        match &self.part {
            Part::Alone(alone) => alone.consistency.clone(),
            Part::Member(member) => {
                let all = member.consistency().iter();
                all.map(|(name, entry)| (name.clone(), entry.record.clone())).collect()
            }
        }
    }

    pub(in crate::control) fn consistency_views(&self) -> Vec<ConsistencyView> {
        let name =
            |family: &u32| self.families.get(&FamilyId(*family)).map(|entry| entry.config.name.clone());
        self.consistency()
            .into_values()
            .map(|group| ConsistencyView {
                // Those that were deleted are no members any more.
                vdisks: group.families.iter().filter_map(name).collect(),
                name: group.name,
            })
            .collect()
    }

    fn consistency_view(&self, name: &str) -> Result<ConsistencyView, Refusal> {
        let view = self.consistency_views().into_iter().find(|view| view.name == name);
        view.ok_or_else(|| Refusal::conflict("the group was removed meanwhile"))
    }

    /// Of a node that is alone.
    fn put_consistency(&mut self, record: ConsistencyRecord) -> Result<(), Refusal> {
        let alone = self.part.alone();
        alone.store.put_consistency(&record)?;
        alone.consistency.insert(record.name.clone(), record);
        Ok(())
    }

    fn group_named(&self, name: &str) -> Result<ConsistencyRecord, Refusal> {
        self.consistency().remove(name).ok_or_else(|| {
            Refusal::not_found(format!("there is no group {name:?}; `weft group ls` shows what there is"))
        })
    }

    fn families_named(&self, vdisks: &[String]) -> Result<Vec<u32>, Refusal> {
        vdisks
            .iter()
            .map(|name| self.family_named(name).map(|family| family.0).ok_or_else(|| Refusal::no_vdisk(name)))
            .collect()
    }

    /// The records of snapshots that are to be taken together.
    fn group_records(&self, group: &str, wanted: &GroupSnapshot) -> Result<Vec<SnapshotRecord>, Refusal> {
        self.check_ready()?;
        let created = calendar::now();
        if let Some(name) = &wanted.name {
            check_snapshot_name(name)?;
        }
        let stays = |family: &FamilyId| {
            self.families.get(family).is_some_and(|entry| entry.config.state != FamilyState::Dropping)
        };
        let families: Vec<FamilyId> =
            self.group_named(group)?.families.into_iter().map(FamilyId).filter(stays).collect();
        // All of them are called the same.
        let name = wanted.name.clone().unwrap_or_else(|| self.free_name(&families, &time_name(created)));
        let mut records = Vec::new();
        for family in families {
            self.check_may_be_taken(family)?;
            if self.snapshot(&(family, name.clone())).is_some() {
                let vdisk = self.families[&family].config.name.clone();
                let disk = DiskName { vdisk, snapshot: Some(name) };
                return Err(Refusal::conflict(format!(
                    "the snapshot {disk} exists already; choose another name"
                )));
            }
            let origin = SnapshotOrigin::Group(group.to_string());
            let follows = records
                .first()
                .map(|first: &SnapshotRecord| Followed { family: first.family, snapshot: first.snapshot });
            let record = self.snapshot_record(family, name.clone(), created, origin);
            records.push(SnapshotRecord { follows, ..record });
        }
        if records.is_empty() {
            return Err(Refusal::conflict(format!(
                "the group {group} has no vDisks; add some (weft group add {group} VDISK)"
            )));
        }
        Ok(records)
    }

    /// Who serves each of them.
    fn places(&self, records: &[SnapshotRecord]) -> Result<Places, Refusal> {
        let mut places = Places::new();
        for record in records {
            let family = record.family();
            let at = if self.epoch_served(family).is_some() {
                None
            } else {
                let elsewhere = self.part.member().and_then(|member| member.api_of_owner(family));
                Some(elsewhere.ok_or_else(|| {
                    Refusal::unavailable("a vDisk of the group is served by nobody at this moment; try again")
                })?)
            };
            places.entry(at).or_default().push((family, record.id()));
        }
        Ok(places)
    }
}

pub async fn create(control: &SharedControl, wanted: CreateConsistency) -> Result<ConsistencyView, Refusal> {
    check_name(&wanted.name)?;
    let (mut record, is_member) = {
        let control = control.lock();
        control.check_ready()?;
        let families = control.families_named(&wanted.vdisks)?;
        (ConsistencyRecord { name: wanted.name.clone(), families }, control.part.member().is_some())
    };
    tidy(&mut record);
    check_size(&record)?;
    if is_member {
        let revision = member::with_store(control, move |store| store.create_consistency(&record)).await?;
        member::seen(control, revision).await?;
    } else {
        let mut control = control.lock();
        if control.consistency().contains_key(&wanted.name) {
            let name = wanted.name;
            return Err(Refusal::conflict(format!("a group {name} exists already; choose another name")));
        }
        control.put_consistency(record)?;
    }
    control.lock().consistency_view(&wanted.name)
}

/// Adds vDisks to a group, and takes others out.
pub async fn change(
    control: &SharedControl,
    group: &str,
    add: &[String],
    remove: &[String],
) -> Result<ConsistencyView, Refusal> {
    let (alter, is_member) = {
        let control = control.lock();
        control.check_ready()?;
        let there = control.group_named(group)?.families.into_iter();
        // Those that were deleted go too.
        let gone: Vec<u32> =
            there.filter(|family| !control.families.contains_key(&FamilyId(*family))).collect();
        let (add, remove) = (control.families_named(add)?, control.families_named(remove)?);
        let alter = move |record: &mut ConsistencyRecord| {
            let before = record.clone();
            record.families.retain(|family| !remove.contains(family) && !gone.contains(family));
            record.families.extend(&add);
            tidy(record);
            let checked = check_size(record);
            if checked.is_err() {
                *record = before;
            }
            checked
        };
        (alter, control.part.member().is_some())
    };
    if is_member {
        let name = group.to_string();
        // What somebody else changes at the same moment stays.
        let (changed, checked) = member::with_store(control, move |store| {
            let mut checked = Ok(());
            let changed = store.change_consistency(&name, |record| checked = alter(record))?;
            Ok((changed, checked))
        })
        .await?;
        checked?;
        member::seen(control, changed.revision).await?;
    } else {
        let mut control = control.lock();
        let mut record = control.group_named(group)?;
        alter(&mut record)?;
        control.put_consistency(record)?;
    }
    control.lock().consistency_view(group)
}

fn tidy(record: &mut ConsistencyRecord) {
    record.families.sort_unstable();
    record.families.dedup();
}

fn check_size(record: &ConsistencyRecord) -> Result<(), Refusal> {
    if record.families.len() > VDISKS_MAX {
        return Err(Refusal::conflict(format!("a group has at most {VDISKS_MAX} vDisks")));
    }
    Ok(())
}

pub async fn remove(control: &SharedControl, group: &str) -> Result<(), Refusal> {
    let name = {
        let control = control.lock();
        control.check_ready()?;
        control.group_named(group)?.name
    };
    if control.lock().part.member().is_some() {
        let revision = member::with_store(control, move |store| store.remove_consistency(&name)).await?;
        return member::seen(control, revision).await;
    }
    let mut control = control.lock();
    let alone = control.part.alone();
    alone.store.remove_consistency(&name)?;
    alone.consistency.remove(&name);
    Ok(())
}

/// Takes a snapshot of every vDisk of the group, all of one instant.
pub async fn snapshot(
    control: &SharedControl,
    group: &str,
    wanted: &GroupSnapshot,
) -> Result<Vec<SnapshotView>, Refusal> {
    let mut attempt = 1;
    loop {
        let all = control.lock().group_records(group, wanted)?;
        // One that is on its way to another node has an owner in a moment.
        let _ = control.wait_for(SETTLED_WAIT, |control| control.places(&all).ok()).await;
        let refusal = match try_snapshot(control, &all).await {
            Ok(taken) => return Ok(taken),
            Err(NotTaken::Final(refusal)) => return Err(refusal),
            Err(NotTaken::Passing(refusal)) => refusal,
        };
        // Their names are free again when nothing of them is left.
        let are_gone = |control: &mut Control| {
            all.iter().all(|record| control.snapshot(&record.key()).is_none()).then_some(())
        };
        if attempt == ATTEMPTS_MAX || control.wait_for(SETTLED_WAIT, are_gone).await.is_none() {
            return Err(refusal);
        }
        tracing::info!(group, attempt, reason = refusal.line, "the snapshots of a group are tried again");
        attempt += 1;
    }
}

/// All of them, or nothing of them is left.
async fn try_snapshot(
    control: &SharedControl,
    all: &[SnapshotRecord],
) -> Result<Vec<SnapshotView>, NotTaken> {
    let taken = match put_all(control, all).await {
        Ok(()) => take_and_count(control, all).await.map_err(NotTaken::half_done),
        Err(refusal) => Err(NotTaken::Final(refusal)),
    };
    if let Err(reason) = taken {
        // The first one decides for all. Whoever serves the vDisk drops it, should it have been taken; some may not have been begun.
        let (first, others) = (&all[0], &all[1..]);
        let undone = match records::let_go(control, &first.key(), first.id()).await {
            Ok(record) => record.state == SnapshotState::Deleting,
            Err(refusal) => refusal.status == StatusCode::NOT_FOUND,
        };
        // Should that not be known, whoever serves them finds out.
        for record in others.iter().filter(|_| undone) {
            let _ = records::let_go(control, &record.key(), record.id()).await;
        }
        return Err(reason);
    }
    let control = control.lock();
    let there = all.iter().filter_map(|record| control.snapshot(&record.key()));
    Ok(there.filter_map(|record| control.snapshot_view(record)).collect())
}

/// Those that were begun.
async fn take_and_count(control: &SharedControl, all: &[SnapshotRecord]) -> Result<(), NotTaken> {
    take_together(control, all).await?;
    count_all(control, all).await.map_err(NotTaken::Final)
}

/// Begins them all: the first one, which decides, and then the others at once, because each waits for the store.
async fn put_all(control: &SharedControl, all: &[SnapshotRecord]) -> Result<(), Refusal> {
    requests::put(control, all[0].clone()).await?;
    let mut others = JoinSet::new();
    for record in all[1..].iter().cloned() {
        let control = control.clone();
        others.spawn(async move { requests::put(&control, record).await });
    }
    let mut result = Ok(());
    for put in others.join_all().await {
        result = result.and(put);
    }
    result.map_err(Refusal::half_done)
}

/// All were taken in time: says so in the record of the first one, and the others follow.
async fn count_all(control: &SharedControl, all: &[SnapshotRecord]) -> Result<(), Refusal> {
    wait_for_all(control, all, |record| record.generation.is_some()).await?;
    let first = &all[0];
    let decided = records::change(control, &first.key(), first.id(), orders::count).await?;
    if decided.state != SnapshotState::Ready {
        return Err(Refusal::failed(
            "the snapshots of the group took too long to be recorded, and were given up; try again",
        ));
    }
    {
        let mut control = control.lock();
        for record in &all[1..] {
            control.change_snapshot_soon(record.key(), record.id(), orders::count);
        }
    }
    // From here on it happens by itself.
    let _ = wait_for_all(control, all, |record| record.ready().is_some()).await;
    Ok(())
}

async fn take_together(control: &SharedControl, all: &[SnapshotRecord]) -> Result<(), NotTaken> {
    let (places, revision) = {
        let control = control.lock();
        (control.places(all)?, control.part.member().map_or(0, member::Member::revision))
    };
    let holder = rand::random();
    let held = at_all(control, &places, |vdisks| Step::Hold { holder, vdisks, revision }).await;
    let taken = match held {
        Ok(()) => at_all(control, &places, |vdisks| Step::Take { vdisks }).await,
        Err(refusal) => Err(refusal),
    };
    let stood = at_all(control, &places, |vdisks| Step::Release { holder, vdisks }).await;
    taken?;
    stood.map_err(NotTaken::Passing)
}

async fn wait_for_all(
    control: &SharedControl,
    all: &[SnapshotRecord],
    is_so: impl Fn(&SnapshotRecord) -> bool,
) -> Result<(), Refusal> {
    let done = control.wait_for(READY_WAIT, |control| {
        let all_so = all.iter().all(|record| {
            let there = control.snapshot(&record.key()).filter(|there| there.id() == record.id());
            there.is_some_and(&is_so)
        });
        all_so.then_some(())
    });
    done.await.ok_or_else(|| {
        Refusal::failed(
            "the snapshots of the group were taken, but could not all be recorded; they are removed",
        )
    })
}

/// What a node does with the vDisks that it serves.
enum Step {
    Hold { holder: u64, vdisks: Vec<(FamilyId, SnapshotId)>, revision: u64 },
    Take { vdisks: Vec<(FamilyId, SnapshotId)> },
    Release { holder: u64, vdisks: Vec<(FamilyId, SnapshotId)> },
}

/// At all nodes at the same time; the first refusal counts.
async fn at_all(
    control: &SharedControl,
    places: &Places,
    step: impl Fn(Vec<(FamilyId, SnapshotId)>) -> Step,
) -> Result<(), Refusal> {
    let tasks: Vec<_> = places
        .iter()
        .map(|(place, vdisks)| {
            let (control, place, step) = (control.clone(), place.clone(), step(vdisks.clone()));
            tokio::spawn(async move {
                match place {
                    None => step.here(&control).await,
                    Some(api) => step.there(api).await,
                }
            })
        })
        .collect();
    let mut result = Ok(());
    for task in tasks {
        let done = task.await.map_err(|_| Refusal::failed("an assertion failed; see the node's log"));
        result = result.and(done.and_then(|done| done));
    }
    result
}

impl Step {
    async fn here(self, control: &SharedControl) -> Result<(), Refusal> {
        match self.wish() {
            Wish::Hold(wanted) => hold(control, wanted).await,
            Wish::Take(wanted) => take(control, wanted).await,
        }
    }

    async fn there(self, api: String) -> Result<(), Refusal> {
        let (path, body) = match self.wish() {
            Wish::Hold(wanted) => ("hold", serde_json::to_string(&wanted)),
            Wish::Take(wanted) => ("take", serde_json::to_string(&wanted)),
        };
        let body = body.expect("a document can be written");
        let asked = tokio::task::spawn_blocking(move || {
            let url = format!("http://{api}/v1/internal/{path}");
            let answer = ureq::post(&url).timeout(HOLD * 2).send_string(&body);
            answer.map(drop).map_err(|error| not_done(&api, error))
        });
        asked.await.map_err(|_| Refusal::failed("an assertion failed; see the node's log"))?
    }

    fn wish(self) -> Wish {
        let families =
            |vdisks: Vec<(FamilyId, SnapshotId)>| vdisks.iter().map(|(family, _)| family.0).collect();
        match self {
            Self::Hold { holder, vdisks, revision } => {
                Wish::Hold(HoldVdisks { holder, families: families(vdisks), revision, release: false })
            }
            Self::Release { holder, vdisks } => {
                Wish::Hold(HoldVdisks { holder, families: families(vdisks), revision: 0, release: true })
            }
            Self::Take { vdisks } => {
                let snapshots = vdisks.iter().map(|(family, snapshot)| (family.0, snapshot.0)).collect();
                Wish::Take(TakeSnapshots { snapshots })
            }
        }
    }
}

/// Why another node did not do its part: in its own words, if it has any.
fn not_done(api: &str, error: ureq::Error) -> Refusal {
    match error {
        ureq::Error::Status(code, answer) => match answer.into_json::<ErrorView>() {
            Ok(ErrorView { error: line }) => {
                let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Refusal::new(status, line)
            }
            Err(_) => Refusal::failed(format!(
                "the node at {api} did not do its part, with status {code}; try again"
            )),
        },
        ureq::Error::Transport(error) => {
            Refusal::failed(format!("the node at {api} did not do its part: {error}; try again"))
        }
    }
}

/// A step as a node is told of it.
enum Wish {
    Hold(HoldVdisks),
    Take(TakeSnapshots),
}

/// Has the shards of this node take no requests for these vDisks for a second; or take them again, which is refused (and done) if they
/// have taken some since.
pub async fn hold(control: &SharedControl, wanted: HoldVdisks) -> Result<(), Refusal> {
    if wanted.revision > 0 {
        // What is held is to be taken: its record has to be known here, or it would be dropped as nobody's.
        member::seen(control, wanted.revision).await?;
    }
    let families: Vec<FamilyId> = wanted.families.iter().copied().map(FamilyId).collect();
    let told: Vec<_> = {
        let control = control.lock();
        if !wanted.release && !families.iter().all(|family| control.epoch_served(*family).is_some()) {
            return Err(Refusal::unavailable("a vDisk of the group is not served here any more; try again"));
        }
        let longest = if wanted.release { Duration::ZERO } else { HOLD };
        control
            .shards
            .iter()
            .map(|shard| {
                let (done, is_done) = tokio::sync::oneshot::channel();
                shard.send(Mail::Hold { holder: wanted.holder, families: families.clone(), longest, done });
                is_done
            })
            .collect()
    };
    let mut stood = true;
    for shard in told {
        stood &= shard.await.map_err(|_| Refusal::failed("a shard is gone; see the node's log"))?;
    }
    if wanted.release && !stood {
        return Err(Refusal::failed(
            "the group's vDisks could not all be marked within a second, so that no snapshot was kept; try again",
        ));
    }
    Ok(())
}

/// Orders snapshots that belong together, and waits until all are taken.
pub async fn take(control: &SharedControl, wanted: TakeSnapshots) -> Result<(), Refusal> {
    let all: Vec<_> =
        wanted.snapshots.iter().map(|&(family, id)| (FamilyId(family), SnapshotId(id))).collect();
    {
        let control = control.lock();
        for &(family, _) in &all {
            control.check_not_going_back(family)?;
        }
        for &(family, snapshot) in &all {
            control.order_owner(family, Order::TakeSnapshot { family, snapshot });
        }
    }
    let taken = control
        .wait_for(HOLD, |control| {
            if all.iter().all(|(_, snapshot)| control.taken_together.contains(snapshot)) {
                return Some(Ok(()));
            }
            // Clients wait: not for what will not come.
            all.iter().find_map(|&(family, snapshot)| control.given_up(family, snapshot)).map(Err)
        })
        .await;
    {
        let mut control = control.lock();
        for (_, snapshot) in &all {
            control.taken_together.remove(snapshot);
        }
    }
    taken.unwrap_or_else(|| {
        Err(Refusal::failed("the snapshots of a group were not taken within a second; try again"))
    })
}

impl Control {
    /// Why a snapshot that was ordered will not be taken; None: it was, or may be.
    fn given_up(&self, family: FamilyId, snapshot: SnapshotId) -> Option<Refusal> {
        let reason = match self.snapshot_with_id(family, snapshot) {
            Some(record) if record.state != SnapshotState::Deleting => return None,
            Some(record) if !record.trouble.is_empty() => record.trouble,
            Some(_) | None => "it was removed meanwhile".to_string(),
        };
        let vdisk = self.families.get(&family).map(|entry| entry.config.name.as_str());
        let vdisk = vdisk.unwrap_or("(deleted)");
        Some(Refusal::failed(format!("the snapshot of vDisk {vdisk} could not be taken: {reason}")))
    }
}
