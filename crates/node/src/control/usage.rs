//! What vDisks take, and what they save: asked of their owners when somebody wants to know.
//! Promises: figures of a container are sums over those of its vDisks whose owners answered, and it is said how many did.
//! Leaves to others: counting (the engine), but for what clones see: what a snapshot holds is counted here, once.

use super::refusal::Refusal;
use super::{Control, Serving, SharedControl, member, statistics};
use crate::api::{ContainerUsageView, CopiesView, OwnUsageView, UsageView};
use crate::config::{CloneOrigin, FamilyConfig};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_engine::interface::{Reply, Request};
use weft_engine::{FamilyId, Generation};

/// Who asks for figures waits no longer than this for what clones see to be counted.
const COUNT_WAIT: Duration = Duration::from_millis(500);

/// Extents in one question to the engine.
const EXTENTS_MAX: u32 = 4096;

/// What owners said, by vDisk.
type Told = BTreeMap<u32, UsageView>;

pub(super) async fn of_vdisk(control: &SharedControl, name: &str) -> Result<UsageView, Refusal> {
    let family = {
        let control = control.lock();
        control.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?
    };
    let told = if control.lock().is_served_elsewhere(family) {
        member::usage_of(control, family).await?
    } else {
        here(control).await
    };
    told.get(&family.0).cloned().ok_or_else(|| {
        Refusal::unavailable(format!("what vDisk {name} takes is not known: nobody serves it at this moment"))
    })
}

pub(super) async fn of_container(control: &SharedControl, name: &str) -> Result<ContainerUsageView, Refusal> {
    let is_member = {
        let control = control.lock();
        control.container_named(name)?;
        control.part.member().is_some()
    };
    let told = if is_member { member::usage_of_all(control).await? } else { here(control).await };
    let control = control.lock();
    let inside = control.vdisks_in(name);
    let mut view = ContainerUsageView { vdisks: inside.len() as u64, ..ContainerUsageView::default() };
    for usage in inside.iter().filter_map(|vdisk| told.get(&vdisk.family)) {
        view.vdisks_told += 1;
        view.vdisks_copying += u64::from(usage.copies.is_some_and(|copies| !copies.reached));
        view.usage.add(usage);
    }
    Ok(view)
}

/// Of the vDisks that are served by this node.
pub(super) async fn own(control: &SharedControl) -> Vec<OwnUsageView> {
    let told = here(control).await.into_iter();
    told.map(|(family, usage)| OwnUsageView { family, usage }).collect()
}

async fn here(control: &SharedControl) -> Told {
    count_origins(control).await;
    let counted = statistics::gather(control).await.vdisks;
    let control = control.lock();
    let usage = counted.into_iter().filter_map(|vdisk| {
        let entry = control.families.get(&FamilyId(vdisk.family))?;
        let origin = entry.config.origin.map_or(0, |origin| control.origins.held(&origin));
        Some((vdisk.family, UsageView::of(&entry.config, origin, &vdisk.engine)?))
    });
    usage.collect()
}

impl UsageView {
    /// From what the engine counts about a vDisk; None: it does not serve it.
    fn of(config: &FamilyConfig, origin: u64, counted: &BTreeMap<String, u64>) -> Option<Self> {
        let count = |name: &str| counted.get(name).copied();
        let (live, past) = (count("live_bytes")?, count("past_bytes")?);
        let (placed, stored) = (count("placed_bytes")?, count("stored_bytes")?);
        // What the next checkpoint counts among the live ones, unless it was replaced meanwhile.
        let fresh = count("fresh_bytes")?;
        let mapped = live - past + fresh;
        Some(Self {
            size_bytes: config.size,
            mapped_bytes: mapped,
            log_bytes: count("dirty_bytes")?,
            zero_bytes: count("zero_bytes")?,
            // As if all that it has of its own had taken the place of something there.
            origin_bytes: origin.saturating_sub(mapped),
            snapshot_bytes: past,
            dead_bytes: placed.saturating_sub(live + fresh),
            placed_bytes: placed,
            stored_bytes: stored,
            copies_bytes: count("copies_bytes").unwrap_or(stored * u64::from(config.factor)),
            copies: CopiesView::of(counted),
        })
    }

    fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.size_bytes, other.size_bytes),
            (&mut self.mapped_bytes, other.mapped_bytes),
            (&mut self.log_bytes, other.log_bytes),
            (&mut self.zero_bytes, other.zero_bytes),
            (&mut self.origin_bytes, other.origin_bytes),
            (&mut self.snapshot_bytes, other.snapshot_bytes),
            (&mut self.dead_bytes, other.dead_bytes),
            (&mut self.placed_bytes, other.placed_bytes),
            (&mut self.stored_bytes, other.stored_bytes),
            (&mut self.copies_bytes, other.copies_bytes),
        ];
        for (sum, more) in sums {
            *sum += more;
        }
    }
}

impl CopiesView {
    /// From what the engine counts about a vDisk; None: it does not serve it.
    pub(in crate::control) fn of(counted: &BTreeMap<String, u64>) -> Option<Self> {
        let count = |name: &str| counted.get(name).copied();
        let told = |name: &str| count(name) == Some(1);
        Some(Self {
            wanted: count("factor")? as u32,
            reached: told("factor_reached"),
            left_bytes: count("factor_left_bytes")?,
            log: told("factor_log"),
            whole: told("factor_whole"),
            short: told("factor_short"),
            seconds_left: count("factor_remaining_us").map(|us| us.div_ceil(1_000_000)),
        })
    }
}

/// What snapshots hold, by vDisk and generation: how far it has been counted, and how much it is up to there. They never change.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<(u32, u32), (u64, u64)>);

impl Origins {
    fn held(&self, origin: &CloneOrigin) -> u64 {
        self.0.get(&(origin.family, origin.generation)).map_or(0, |(_, held)| *held)
    }

    fn counted_to(&self, origin: &CloneOrigin) -> u64 {
        self.0.get(&(origin.family, origin.generation)).map_or(0, |(to, _)| *to)
    }
}

/// Counts what the origins hold of clones that are served here. Of large ones a part each time.
async fn count_origins(control: &SharedControl) {
    let until = tokio::time::Instant::now() + COUNT_WAIT;
    let origins: Vec<CloneOrigin> = {
        let mut control = control.lock();
        let control = &mut *control;
        let living = |family: &u32| control.families.contains_key(&FamilyId(*family));
        control.origins.0.retain(|(family, _), _| living(family));
        let ready = control.families.values().filter(|entry| entry.serving == Serving::Ready);
        ready.filter_map(|entry| entry.config.origin).collect()
    };
    for origin in origins {
        loop {
            let (family, snapshot) = (FamilyId(origin.family), Generation(origin.generation));
            let (from, reply) = {
                let control = control.lock();
                let from = control.origins.counted_to(&origin);
                if from >= origin.size {
                    break;
                }
                let (len, limit) = (origin.size - from, EXTENTS_MAX);
                let request = Request::SnapshotExtents { snapshot, offset: from, len, limit };
                (from, control.ask_owner(family, request))
            };
            // Who does not tell is asked again next time.
            let Ok(Ok(Reply::Extents(extents))) = tokio::time::timeout_at(until, reply).await else { return };
            let told: u64 = extents.iter().map(|extent| extent.len).sum();
            let held: u64 = extents.iter().filter(|extent| extent.data).map(|extent| extent.len).sum();
            let mut control = control.lock();
            let counted = control.origins.0.entry((origin.family, origin.generation)).or_default();
            // Somebody else may have counted the same meanwhile.
            if counted.0 == from {
                *counted = (from + told, counted.1 + held);
            }
            if told == 0 {
                return;
            }
        }
    }
}

impl Control {
    fn is_served_elsewhere(&self, family: FamilyId) -> bool {
        self.part.member().is_some_and(|member| member.shard_of(family).is_none())
    }
}
