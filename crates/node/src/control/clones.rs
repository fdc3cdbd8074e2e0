//! Clones: vDisks that begin as a snapshot of another, and take no space until they are written.
//! Promises: all that are asked for are made, or the answer says which are there; a snapshot stays as long as a clone needs it.
//! Leaves to others: reading what a clone has not written (the engine), the records (`config`).

use super::refusal::Refusal;
use super::snapshots::{DiskName, wait_until_taken};
use super::vdisks::{CREATE_WAIT, check_factor, check_name};
use super::{Control, Family, Part, Serving, SharedControl, member};
use crate::api::{CreateClones, VdiskView};
use crate::calendar;
use crate::config::cluster::{CLONES_MAX, NewVdisk, Versioned};
use crate::config::{
    CloneOrigin, DEFAULT_CONTAINER, FamilyConfig, FamilyState, OwnPolicy, SnapshotKey, SnapshotRecord,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use weft_engine::interface::Order;
use weft_engine::{FamilyId, SnapshotId};

/// Clones made by one request.
const COUNT_MAX: usize = 1000;

/// Makes clones; they are served when this returns.
pub async fn create(control: &SharedControl, wanted: CreateClones) -> Result<Vec<VdiskView>, Refusal> {
    let mut names = BTreeSet::new();
    for name in &wanted.names {
        check_name(name)?;
        if !names.insert(name) {
            return Err(Refusal::bad_input(format!("two clones cannot both be called {name}")));
        }
    }
    if wanted.names.is_empty() || wanted.names.len() > COUNT_MAX {
        let count = wanted.names.len();
        return Err(Refusal::bad_input(format!(
            "{count} clones cannot be made at once: 1 to {COUNT_MAX} can"
        )));
    }
    wait_until_taken(control, &wanted.snapshot).await;
    let is_member = control.lock().part.member().is_some();
    let families = if is_member {
        create_in_cluster(control, &wanted).await?
    } else {
        control.lock().begin_clones(&wanted)?
    };
    let until = Instant::now() + CREATE_WAIT;
    let waits: Vec<_> = families
        .iter()
        .map(|&family| tokio::spawn(served(control.clone(), family, is_member, until)))
        .collect();
    let mut views = Vec::new();
    for (family, wait) in families.into_iter().zip(waits) {
        let note = wait.await.unwrap_or_default();
        // Somebody may have deleted it meanwhile.
        if let Ok(mut view) = control.lock().view_of(family) {
            view.note = note;
            views.push(view);
        }
    }
    Ok(views)
}

/// Waits until a clone is served; if it is not by then, a remark for people.
async fn served(control: SharedControl, family: FamilyId, is_member: bool, until: Instant) -> String {
    let longest = until.saturating_duration_since(Instant::now());
    if is_member {
        return match member::answers(&control, family, longest).await {
            Ok(()) => String::new(),
            Err(reason) => format!("it is made, but not served yet: {reason}"),
        };
    }
    let served = control
        .wait_for(longest, |control| match control.families.get(&family).map(|entry| &entry.serving) {
            Some(Serving::Opening | Serving::Elsewhere) => None,
            Some(Serving::Failed(reason)) => Some(format!("it is made, but not served: {reason}")),
            Some(Serving::Ready | Serving::Dropping) | None => Some(String::new()),
        })
        .await;
    served.unwrap_or_else(|| "it is made, but not served yet".to_string())
}

/// How the clones begin, if there can be any.
struct Plan {
    key: SnapshotKey,
    snapshot: SnapshotId,
    origin: CloneOrigin,
    /// Copies that it was made with, and those that it shall have.
    factor: u32,
    copies: u32,
    container: String,
    own: OwnPolicy,
    created: u64,
}

impl Plan {
    /// The clone of this name, but for where it begins.
    fn vdisk(&self, name: &str) -> NewVdisk {
        NewVdisk {
            name: name.to_string(),
            size: self.origin.size,
            factor: self.factor,
            created: self.created,
            owner: None,
            container: self.container.clone(),
            own: self.own,
        }
    }
}

impl Control {
    /// A vDisk that is being deleted is gone when its drives have answered, whatever is built upon it.
    pub(super) fn check_stays(&self, family: FamilyId, name: &str) -> Result<(), Refusal> {
        let goes = |entry: &Family| entry.config.state == FamilyState::Dropping;
        if self.families.get(&family).is_none_or(goes) {
            return Err(Refusal::conflict(format!(
                "vDisk {name} is being deleted, and its snapshots with it"
            )));
        }
        Ok(())
    }

    fn plan_clones(&self, wanted: &CreateClones) -> Result<Plan, Refusal> {
        self.check_ready()?;
        let (vdisk, snapshot) = DiskName::of_snapshot(&wanted.snapshot)?;
        let record = self.snapshot_named(&vdisk, &snapshot)?;
        let generation = record.ready().ok_or_else(|| {
            Refusal::conflict(format!(
                "{} is not ready; `weft snapshot ls {vdisk}` tells how far it is",
                wanted.snapshot
            ))
        })?;
        self.check_stays(record.family(), &vdisk)?;
        for name in &wanted.names {
            if self.family_named(name).is_some() {
                return Err(Refusal::conflict(format!("a vDisk {name} exists already; choose another name")));
            }
        }
        let parent = self.families.get(&record.family());
        Ok(Plan {
            key: record.key(),
            snapshot: record.id(),
            origin: CloneOrigin { family: record.family, generation: generation.0, size: record.size },
            factor: parent.map_or(1, |parent| parent.config.factor),
            copies: parent.map_or(1, |parent| self.policy(&parent.config).factor),
            // By what its origin is kept.
            container: parent.map_or(DEFAULT_CONTAINER, |parent| &parent.config.container).to_string(),
            own: parent.map_or_else(OwnPolicy::default, |parent| parent.config.own_policy()),
            created: calendar::now(),
        })
    }

    /// For a node that is alone: all records go into the store together.
    fn begin_clones(&mut self, wanted: &CreateClones) -> Result<Vec<FamilyId>, Refusal> {
        let plan = self.plan_clones(wanted)?;
        self.check_room_for(wanted.names.len())?;
        check_factor(plan.copies, self.drives_up().len(), "drives", "add drives (weft up --drives N)")?;
        let Part::Alone(alone) = &mut self.part else { unreachable!("a member asks its cluster") };
        let first = alone.node.next_family;
        alone.node.next_family = first + wanted.names.len() as u32;
        alone.store.put_node(&alone.node)?;
        let configs: Vec<FamilyConfig> = wanted
            .names
            .iter()
            .zip(first..)
            .map(|(name, family)| FamilyConfig {
                origin: Some(plan.origin),
                ..plan.vdisk(name).record(family)
            })
            .collect();
        alone.store.put_families(&configs)?;
        let mut families = Vec::new();
        for config in configs {
            let (family, record) = (config.id(), config.record(&self.policy(&config)));
            let entry = Family { config, serving: Serving::Opening, export_trouble: BTreeMap::new() };
            self.families.insert(family, entry);
            self.order_owner(family, Order::OpenFamily(record));
            families.push(family);
        }
        Ok(families)
    }

    /// vDisks that were cloned from a snapshot of this one; with a generation, from that one.
    pub(super) fn clones_of(&self, family: FamilyId, generation: Option<u32>) -> Vec<&str> {
        let is_clone = |entry: &&Family| {
            entry.config.origin.is_some_and(|origin| {
                origin.family == family.0 && generation.is_none_or(|of| of == origin.generation)
            })
        };
        self.families.values().filter(is_clone).map(|entry| entry.config.name.as_str()).collect()
    }
}

async fn create_in_cluster(control: &SharedControl, wanted: &CreateClones) -> Result<Vec<FamilyId>, Refusal> {
    // All names, before anything is made.
    control.lock().plan_clones(wanted)?;
    let mut families = Vec::new();
    let mut revision = 0;
    for names in wanted.names.chunks(CLONES_MAX) {
        let made = match create_part(control, &wanted.snapshot, names).await {
            Ok(made) => made,
            Err(refusal) if !families.is_empty() => {
                let (first, last) = (&wanted.names[0], &wanted.names[families.len() - 1]);
                let line = format!(
                    "{}; {} clones were made before that, and stay ({first} to {last})",
                    refusal.line,
                    families.len()
                );
                return Err(Refusal { line, ..refusal }.half_done());
            }
            Err(refusal) => return Err(refusal),
        };
        families.extend(made.record.iter().map(FamilyConfig::id));
        revision = made.revision;
    }
    member::seen(control, revision).await?;
    Ok(families)
}

/// As many as one transaction of the store takes: all of them or none.
async fn create_part(
    control: &SharedControl,
    snapshot: &str,
    names: &[String],
) -> Result<Versioned<Vec<FamilyConfig>>, Refusal> {
    let part = CreateClones { snapshot: snapshot.to_string(), names: names.to_vec() };
    let plan = control.lock().plan_clones(&part)?;
    let new: Vec<NewVdisk> = names.iter().map(|name| plan.vdisk(name)).collect();
    member::with_store(control, move |store| store.create_clones(&plan.key, plan.snapshot, &new)).await
}

/// The clones of a snapshot that are there, by name.
pub(super) async fn living(control: &SharedControl, record: &SnapshotRecord) -> Result<Vec<String>, Refusal> {
    // What was never taken was never cloned.
    let Some(generation) = record.generation else { return Ok(Vec::new()) };
    let (names, is_alone) = {
        let control = control.lock();
        let names = control.clones_of(record.family(), Some(generation));
        let names: Vec<String> = names.into_iter().map(str::to_string).collect();
        (names, control.part.member().is_none())
    };
    if is_alone || !names.is_empty() {
        return Ok(names);
    }
    // News of one that was just made may be on their way.
    let clones = record.clones.clone();
    member::with_store(control, move |store| {
        let found = clones.into_iter().map(|family| store.family(FamilyId(family)));
        let found = found.filter_map(|found| found.transpose().map(|found| Ok(found?.record.name)));
        found.collect()
    })
    .await
}

pub(super) fn has_clones(name: &str, clones: &[impl AsRef<str>]) -> Refusal {
    let shown: Vec<&str> = clones.iter().take(3).map(AsRef::as_ref).collect();
    let more = if clones.len() > shown.len() { ", ..." } else { "" };
    Refusal::conflict(format!(
        "{name} is what {} clone(s) read from ({}{more}); delete them first (weft vdisk rm)",
        clones.len(),
        shown.join(", ")
    ))
}
