//! Containers: policies under a name, for many vDisks at once.
//! Promises: the container `default` is always there; none goes that a vDisk is in; a change holds at once for every vDisk in it that
//! has no word of its own.
//! Leaves to others: the records (`config`), what a vDisk says itself (`policy`), what it takes (`usage`).

use super::refusal::Refusal;
use super::vdisks::check_name;
use super::{Control, Part, SharedControl, member, policy};
use crate::api::{ColdWord, ContainerView, CreateContainer, SetContainer};
use crate::calendar;
use crate::config::{
    CeilingRecord, CompressionRecord, ContainerRecord, DEFAULT_CONTAINER, FamilyConfig, FamilyState, Policy,
};
use std::collections::BTreeSet;
use weft_engine::FamilyId;

/// Containers of one node or cluster.
const CONTAINERS_MAX: usize = 1000;

const FACTOR_MAX: u32 = 3;

/// vDisks that are named when there are many.
const NAMED_MAX: usize = 3;

pub(super) async fn create(
    control: &SharedControl,
    wanted: CreateContainer,
) -> Result<ContainerView, Refusal> {
    let name = wanted.name.clone();
    check_name(&name).map_err(|_| {
        Refusal::bad_input(format!(
            "{name:?} cannot be the name of a container: use up to 63 letters, digits, dots, dashes and underscores, the \
             first a letter or digit"
        ))
    })?;
    let compression = policy::packing(
        CompressionRecord::default(),
        wanted.compression.as_deref(),
        wanted.compression_unit,
        wanted.cold,
    )?;
    check_factor(wanted.factor)?;
    let ceiling = limits(CeilingRecord::default(), wanted.iops_limit, wanted.bw_limit)?;
    let created = calendar::now();
    let (dedup, factor) = (wanted.dedup.unwrap_or(false), wanted.factor);
    let record = ContainerRecord { name, created, compression, dedup, ceiling, factor, joined: 0 };
    {
        let mut control = control.lock();
        control.check_ready()?;
        let all = control.containers();
        if all.iter().any(|there| there.name == record.name) {
            let name = &record.name;
            return Err(Refusal::conflict(format!("a container {name} exists already; choose another name")));
        }
        if all.len() >= CONTAINERS_MAX {
            return Err(Refusal::no_space(format!(
                "there are {CONTAINERS_MAX} containers, and no more are possible; remove one first (weft container rm)"
            )));
        }
        if let Part::Alone(_) = &control.part {
            return control.put_container(record);
        }
    }
    let name = record.name.clone();
    member::changed(control, move |store| store.create_container(&record)).await?;
    control.lock().container_view(&name)
}

/// Changes the policy; what is not said stays.
pub(super) async fn set(
    control: &SharedControl,
    name: &str,
    wanted: SetContainer,
) -> Result<ContainerView, Refusal> {
    check_factor(wanted.factor.filter(|&factor| factor != 0))?;
    // What is wrong with it is told before anything is done.
    policy::packing(
        CompressionRecord::default(),
        wanted.compression.as_deref(),
        wanted.compression_unit,
        wanted.cold,
    )?;
    limits(CeilingRecord::default(), wanted.iops_limit, wanted.bw_limit)?;
    let factor = wanted.factor;
    let alter = move |record: &mut ContainerRecord| {
        let changed = policy::packing(
            record.compression,
            wanted.compression.as_deref(),
            wanted.compression_unit,
            wanted.cold,
        );
        record.compression = changed.expect("it was just found to be right");
        record.dedup = wanted.dedup.unwrap_or(record.dedup);
        record.ceiling = limits(record.ceiling, wanted.iops_limit, wanted.bw_limit)
            .expect("they were just found to be right");
        record.factor = match wanted.factor {
            Some(0) => None,
            Some(factor) => Some(factor),
            None => record.factor,
        };
    };
    {
        let mut control = control.lock();
        control.check_ready()?;
        let mut record = control.container_named(name)?;
        control.make_places_inside(&record, factor)?;
        if let Part::Alone(_) = &control.part {
            alter(&mut record);
            return control.put_container(record);
        }
    }
    let asked = name.to_string();
    member::changed(control, move |store| store.change_container(&asked, &alter)).await?;
    control.lock().container_view(name)
}

pub(super) async fn remove(control: &SharedControl, name: &str) -> Result<(), Refusal> {
    let seen = {
        let mut control = control.lock();
        control.check_ready()?;
        let record = control.container_named(name)?;
        if record.is_default() {
            return Err(Refusal::conflict(format!(
                "the container {DEFAULT_CONTAINER} cannot be removed: vDisks for which no other is named are in it; change it \
                 instead (weft container set {DEFAULT_CONTAINER})"
            )));
        }
        let inside = control.vdisks_in(name);
        if !inside.is_empty() {
            let names: Vec<&str> = inside.iter().take(NAMED_MAX).map(|vdisk| vdisk.name.as_str()).collect();
            let more = if inside.len() > names.len() { ", ..." } else { "" };
            return Err(Refusal::conflict(format!(
                "{} vDisk(s) are in the container {name} ({}{more}); put them into another first (weft vdisk set VDISK \
                 --container {DEFAULT_CONTAINER})",
                inside.len(),
                names.join(", ")
            )));
        }
        match &mut control.part {
            Part::Alone(alone) => {
                alone.store.remove_container(name)?;
                alone.containers.remove(name);
                return Ok(());
            }
            Part::Member(member) => member.container(name).cloned(),
        }
    };
    let Some(seen) = seen else { return Ok(()) };
    let revision = member::with_store(control, move |store| store.remove_container(&seen)).await?;
    member::seen(control, revision).await
}

/// What is not said stays.
fn limits(present: CeilingRecord, iops: Option<u64>, bytes: Option<u64>) -> Result<CeilingRecord, Refusal> {
    present.with(iops.map(Some), bytes.map(Some)).map_err(Refusal::bad_input)
}

fn check_factor(factor: Option<u32>) -> Result<(), Refusal> {
    match factor {
        Some(factor) if !(1..=FACTOR_MAX).contains(&factor) => {
            Err(Refusal::bad_input(format!("a vDisk cannot have {factor} copies: choose 1, 2 or 3")))
        }
        _ => Ok(()),
    }
}

impl Control {
    /// All of them, by name.
    pub(super) fn containers(&self) -> Vec<ContainerRecord> {
        let mut all: Vec<ContainerRecord> = match &self.part {
            Part::Alone(alone) => alone.containers.values().cloned().collect(),
            Part::Member(member) => member.containers().values().map(|entry| entry.record.clone()).collect(),
        };
        // One that an older version made the cluster without is there from the next start of a node on.
        if !all.iter().any(ContainerRecord::is_default) {
            all.insert(0, ContainerRecord::default());
        }
        all
    }

    pub(super) fn container_named(&self, name: &str) -> Result<ContainerRecord, Refusal> {
        let found = self.containers().into_iter().find(|container| container.name == name);
        found.ok_or_else(|| {
            Refusal::not_found(format!(
                "there is no container {name:?}; `weft container ls` shows what there is"
            ))
        })
    }

    /// The vDisks in a container, without those that are being deleted.
    pub(super) fn vdisks_in(&self, container: &str) -> Vec<&FamilyConfig> {
        let all = self.families.values().map(|entry| &entry.config);
        all.filter(|config| config.container == container && config.state == FamilyState::Live).collect()
    }

    /// Refuses another number of copies (0: none is said any more) if some vDisk inside would have no place for them.
    fn make_places_inside(&mut self, record: &ContainerRecord, factor: Option<u32>) -> Result<(), Refusal> {
        let Some(factor) = factor.map(|factor| Some(factor).filter(|&factor| factor != 0)) else {
            return Ok(());
        };
        let changed = ContainerRecord { factor, ..record.clone() };
        let of = |vdisk: &&FamilyConfig, record| vdisk.policy(Some(record)).factor;
        let inside = self.vdisks_in(&record.name).into_iter();
        let others = inside.filter(|vdisk| of(vdisk, record) != of(vdisk, &changed));
        let wanted: BTreeSet<u32> = others.map(|vdisk| of(&vdisk, &changed)).collect();
        wanted.into_iter().try_for_each(|factor| self.make_places_for(factor))
    }

    /// For a node that is alone: writes it down, and tells the owners of its vDisks.
    fn put_container(&mut self, record: ContainerRecord) -> Result<ContainerView, Refusal> {
        let name = record.name.clone();
        let inside = self.vdisks_in(&name).into_iter();
        let before: Vec<(FamilyId, Policy)> = inside.map(|vdisk| (vdisk.id(), self.policy(vdisk))).collect();
        let alone = self.part.alone();
        alone.store.put_container(&record)?;
        alone.containers.insert(name.clone(), record);
        for (family, before) in before {
            let now = self.policy(&self.families[&family].config);
            for order in now.orders(before, family) {
                self.order_owner(family, order);
            }
        }
        self.container_view(&name)
    }

    pub(super) fn container_view(&self, name: &str) -> Result<ContainerView, Refusal> {
        let record = self.container_named(name)?;
        let inside = self.vdisks_in(name);
        Ok(ContainerView {
            created: record.created,
            compression: record.compression.method_text(),
            compression_unit: record.compression.unit,
            cold: record.compression.cold.map(ColdWord::from),
            dedup: record.dedup,
            factor: record.factor,
            iops_limit: record.ceiling.engine().iops,
            bw_limit: record.ceiling.engine().bytes,
            vdisks: inside.len() as u64,
            vdisk_bytes: inside.iter().map(|vdisk| vdisk.size).sum(),
            name: record.name,
        })
    }

    pub(super) fn container_views(&self) -> Vec<ContainerView> {
        let all = self.containers().into_iter();
        all.filter_map(|container| self.container_view(&container.name).ok()).collect()
    }
}
