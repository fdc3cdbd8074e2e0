//! Rolling a vDisk back to one of its snapshots.
//! Promises: the record says so before anything happens and until it is done, so whoever serves the vDisk finishes it, and no client
//! is served in between; newer snapshots and users are in the way unless they are told to go; what went is told, also if the vDisk
//! does not go back then.

use super::DiskName;
use super::requests::{check_removable, remove};
use crate::api::{RollBack, VdiskView};
use crate::config::{FamilyConfig, FamilyState, RollbackRecord, SnapshotRecord};
use crate::control::change::change_between_snapshots;
use crate::control::member::Chore;
use crate::control::refusal::Refusal;
use crate::control::{Control, Part, SharedControl};
use crate::shard_loop::Disk;
use axum::http::StatusCode;
use std::collections::btree_map::Entry;
use std::time::Duration;
use weft_engine::interface::{Order, RollbackTrouble};
use weft_engine::{Epoch, FamilyId, Generation};

/// It is waited for so long; it goes on by itself afterwards.
const WAIT: Duration = Duration::from_secs(120);

/// Newer snapshots are removed so often, should others be taken at the same moments: other nodes do not know that they should not.
const ATTEMPTS_MAX: u32 = 5;

pub async fn roll_back(control: &SharedControl, wanted: RollBack) -> Result<VdiskView, Refusal> {
    super::wait_until_taken(control, &wanted.snapshot).await;
    let family = control.lock().prepare_rollback(&wanted)?;
    let mut gone = Vec::new();
    let done = go_back(control, &wanted, &mut gone).await;
    control.lock().snapshot_orders.preparing.remove(&family);
    done.map_err(|refusal| and_gone(refusal, &gone))
}

/// Notes the snapshots that it removes.
async fn go_back(
    control: &SharedControl,
    wanted: &RollBack,
    gone: &mut Vec<String>,
) -> Result<VdiskView, Refusal> {
    let attempts = if wanted.discard_newer { ATTEMPTS_MAX } else { 1 };
    // By its owner, although no snapshot is in the way as far as this node has heard.
    let mut was_refused = false;
    for _ in 0..attempts {
        let (family, record, newer) = control.lock().plan_rollback(wanted)?;
        discard(control, family, record, wanted, newer, gone).await?;
        if !begin(control, family, record, wanted).await? {
            was_refused = false;
            continue;
        }
        control.lock().order_rollbacks();
        // Its outcome stands in the record, by its number: another one may have begun since.
        let outcome = control
            .wait_for(WAIT, |control| match control.families.get(&family).map(|entry| &entry.config) {
                Some(config) if config.rollback.is_some_and(|under_way| under_way.id == record.id) => None,
                Some(config) => Some(Ok(config.rolled_back == Some(record.id))),
                None => Some(Err(Refusal::not_found("the vDisk was deleted meanwhile"))),
            })
            .await
            .transpose()?;
        match outcome {
            Some(true) => return control.lock().view_of(family),
            // Its owner had taken another snapshot by then, or has not got this one.
            Some(false) => {
                let control = control.lock();
                control.check_target(family, record, wanted)?;
                was_refused = control.newer_than(family, record.generation).is_empty();
            }
            None => {
                let mut view = control.lock().view_of(family)?;
                view.note =
                    format!("it is on its way back to {}; clients wait until it is there", wanted.snapshot);
                return Ok(view);
            }
        }
    }
    let name = &wanted.snapshot;
    Err(Refusal::conflict(match was_refused {
        true => format!(
            "who serves the vDisk did not go back to {name}, and its log says why; the vDisk stays as it is"
        ),
        false => format!(
            "a snapshot was taken at the same moment, so the vDisk stays as it is; try again ({name})"
        ),
    }))
}

/// Removes newer snapshots, as long as the one to go back to is there. What somebody else removes meanwhile is in nobody's way.
async fn discard(
    control: &SharedControl,
    family: FamilyId,
    record: RollbackRecord,
    wanted: &RollBack,
    newer: Vec<String>,
    gone: &mut Vec<String>,
) -> Result<(), Refusal> {
    // None of them goes before it is known that all of them can.
    for name in &newer {
        match check_removable(control, name).await {
            Err(refusal) if refusal.status != StatusCode::NOT_FOUND => return Err(refusal),
            Ok(_) | Err(_) => {}
        }
    }
    for name in newer {
        // Each takes its time, and others, on other nodes as well, may let the older one go meanwhile: then the newer ones shall not
        // go for nothing.
        control.lock().check_target(family, record, wanted)?;
        match remove(control, &name).await {
            Ok(note) if note.is_empty() => gone.push(name),
            // As long as its owner has it the vDisk cannot go back.
            Ok(note) => return Err(Refusal::unavailable(format!("{note}; try again then"))),
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

/// A refusal that also says which snapshots went before it.
fn and_gone(refusal: Refusal, gone: &[String]) -> Refusal {
    if gone.is_empty() {
        return refusal;
    }
    let line = format!("{}; these snapshots were removed before that: {}", refusal.line, gone.join(", "));
    Refusal { line, ..refusal }.half_done()
}

/// Writes down that it is to go back, if nobody has begun to use it, and no other rollback has begun, since that was planned.
/// False: a newer snapshot is there again.
async fn begin(
    control: &SharedControl,
    family: FamilyId,
    record: RollbackRecord,
    wanted: &RollBack,
) -> Result<bool, Refusal> {
    let force = wanted.force;
    let attached = {
        let control = control.lock();
        control.families.get(&family).map(|entry| entry.config.attached.clone()).unwrap_or_default()
    };
    let alter = move |config: &mut FamilyConfig| {
        let is_free = config.attached == attached && (force || config.exports.is_empty());
        // Asked again because an answer of the store was lost, it may have been done already.
        let is_done = config.rolled_back == Some(record.id);
        if config.state == FamilyState::Live && config.rollback.is_none() && is_free && !is_done {
            config.rollback = Some(record);
        }
    };
    let config = {
        let mut control = control.lock();
        let vdisk = DiskName::parse(&wanted.snapshot).vdisk;
        // On a node that is alone nobody can attach it, or take a snapshot of it, between this and the change; in a cluster
        // the record decides, and its owner.
        control.check_unused(family, &vdisk, force)?;
        control.check_target(family, record, wanted)?;
        if !control.newer_than(family, record.generation).is_empty() {
            return Ok(false);
        }
        match control.part {
            Part::Alone(_) => Some(control.change_vdisk_here(family, alter.clone())?),
            Part::Member(_) => None,
        }
    };
    let config = match config {
        Some(config) => config,
        None => change_between_snapshots(control, family, alter).await?,
    };
    if config.rollback.is_some_and(|under_way| under_way.id == record.id)
        || config.rolled_back == Some(record.id)
    {
        return Ok(true);
    }
    Err(Refusal::conflict(format!(
        "the vDisk of {} came into use, or began to go back, at this moment; look again (weft vdisk ls)",
        wanted.snapshot
    )))
}

impl Control {
    /// The vDisk, what its record is to say, and the snapshots that go before.
    fn plan_rollback(&self, wanted: &RollBack) -> Result<(FamilyId, RollbackRecord, Vec<String>), Refusal> {
        self.check_ready()?;
        let name = &wanted.snapshot;
        let (vdisk, snapshot) = DiskName::of_snapshot(name)?;
        let record = self.snapshot_named(&vdisk, &snapshot)?;
        let generation = record.ready().ok_or_else(|| {
            Refusal::conflict(format!("{name} is not ready; see `weft snapshot ls {vdisk}`"))
        })?;
        let family = record.family();
        self.check_stays(family, &vdisk)?;
        self.check_not_going_back(family)?;
        self.check_unused(family, &vdisk, wanted.force)?;
        let newer = self.newer_than(family, generation.0).into_iter();
        let newer: Vec<String> = newer.map(|other| format!("{vdisk}@{}", other.name)).collect();
        if !newer.is_empty() && !wanted.discard_newer {
            return Err(Refusal::conflict(format!(
                "{vdisk} has {} newer snapshot(s) ({}), which would go; say so (--discard-newer), or clone {name} instead",
                newer.len(),
                newer.join(", ")
            )));
        }
        Ok((
            family,
            RollbackRecord { id: rand::random(), generation: generation.0, size: record.size },
            newer,
        ))
    }

    /// From here on no snapshot of the vDisk is begun on this node, until whoever asked for the rollback has an answer: it would come
    /// between the newer ones that go and the record.
    fn prepare_rollback(&mut self, wanted: &RollBack) -> Result<FamilyId, Refusal> {
        let (family, record, _) = self.plan_rollback(wanted)?;
        match self.snapshot_orders.preparing.entry(family) {
            Entry::Vacant(vacant) => {
                vacant.insert(record.generation);
                Ok(family)
            }
            Entry::Occupied(_) => Err(Refusal::going_back(&DiskName::parse(&wanted.snapshot).vdisk)),
        }
    }

    /// Refuses if the snapshot that a vDisk is to go back to was removed since that was planned, as far as this node has heard.
    fn check_target(
        &self,
        family: FamilyId,
        record: RollbackRecord,
        wanted: &RollBack,
    ) -> Result<(), Refusal> {
        let generation = Some(Generation(record.generation));
        if self.snapshots_of(family).iter().any(|snapshot| snapshot.ready() == generation) {
            return Ok(());
        }
        Err(Refusal::conflict(format!(
            "{} was removed at this moment, so the vDisk stays as it is",
            wanted.snapshot
        )))
    }

    /// Whether a vDisk is on its way back to this snapshot of it, or is being prepared for that here.
    pub(super) fn goes_back_to(&self, family: FamilyId, generation: u32) -> bool {
        let rollback = self.families.get(&family).and_then(|entry| entry.config.rollback);
        rollback.is_some_and(|rollback| rollback.generation == generation)
            || self.snapshot_orders.preparing.get(&family) == Some(&generation)
    }

    /// Refuses a snapshot of a vDisk that goes back to one, or is just being prepared for that.
    pub(super) fn check_may_be_taken(&self, family: FamilyId) -> Result<(), Refusal> {
        match self.families.get(&family) {
            Some(entry) if self.snapshot_orders.preparing.contains_key(&family) => {
                Err(Refusal::going_back(&entry.config.name))
            }
            Some(_) | None => self.check_not_going_back(family),
        }
    }

    /// The snapshots of a vDisk that were taken after one, or will be.
    fn newer_than(&self, family: FamilyId, generation: u32) -> Vec<&SnapshotRecord> {
        let all = self.snapshots_of(family).into_iter();
        all.filter(|other| other.generation.is_none_or(|other| other > generation)).collect()
    }

    /// Refuses what cannot be done while a vDisk is on its way back: what there is will not be what there was.
    pub(in crate::control) fn check_not_going_back(&self, family: FamilyId) -> Result<(), Refusal> {
        match self.families.get(&family).map(|entry| &entry.config) {
            Some(config) if config.rollback.is_some() => Err(Refusal::going_back(&config.name)),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses if somebody would not see that it changes; with `force` only if it is attached.
    fn check_unused(&self, family: FamilyId, vdisk: &str, force: bool) -> Result<(), Refusal> {
        self.check_detached(Disk::present(family), vdisk)?;
        if !force && self.families.get(&family).is_some_and(|entry| !entry.config.exports.is_empty()) {
            return Err(Refusal::conflict(format!(
                "vDisk {vdisk} is exported, and a client would not see that it changes; end that first (weft vdisk unexport \
                 {vdisk}), or force it if nobody is connected"
            )));
        }
        Ok(())
    }

    /// Orders what records ask for, of vDisks that are served here and were opened before their record said so.
    pub(in crate::control) fn order_rollbacks(&mut self) {
        let wanted: Vec<(FamilyId, u32)> = self
            .families
            .iter()
            .filter_map(|(&family, entry)| Some((family, entry.config.rollback?)))
            .filter(|(_, rollback)| !self.rolled_back.contains(&rollback.id))
            .map(|(family, rollback)| (family, rollback.generation))
            .collect();
        for (family, generation) in wanted {
            if self.epoch_served(family).is_some() {
                // Under way or done, it is not begun again: the engine holds it until it is resumed.
                self.order_owner(family, Order::RollBack { family, to: Generation(generation) });
            }
        }
        // Of some nobody heard that the store has it that they are done.
        let is_over = |family: &FamilyId| match self.families.get(family) {
            Some(entry) => {
                entry.config.rollback.is_none_or(|rollback| self.rolled_back.contains(&rollback.id))
            }
            None => true,
        };
        let over: Vec<FamilyId> = self.to_resume.iter().copied().filter(is_over).collect();
        for family in over {
            self.resume(family);
        }
    }

    /// Clients are let in again.
    fn resume(&mut self, family: FamilyId) {
        self.to_resume.remove(&family);
        self.order_owner(family, Order::Resume { family });
    }

    /// Written down first; then clients are let in.
    pub(in crate::control) fn on_rolled_back(&mut self, family: FamilyId, epoch: Epoch, to: Generation) {
        let wanted = self.families.get(&family).and_then(|entry| entry.config.rollback);
        if wanted.is_some_and(|rollback| rollback.generation != to.0) {
            // It tells of an earlier one. This one is ordered again, and says so itself.
            return;
        }
        tracing::info!(%family, "a vDisk is rolled back");
        self.end_rollback(family, epoch, end_rollback);
    }

    /// A newer snapshot was taken at the same moment, or this one is not there: the vDisk stays as it is.
    pub(in crate::control) fn on_rollback_refused(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        to: Generation,
        reason: RollbackTrouble,
    ) {
        let wanted = self.families.get(&family).and_then(|entry| entry.config.rollback);
        if wanted.is_some_and(|rollback| rollback.generation != to.0) {
            // As above.
            return;
        }
        tracing::warn!(%family, %to, %reason, "a vDisk is not rolled back");
        self.end_rollback(family, epoch, |config| config.rollback = None);
    }

    /// `epoch`: that of who says so.
    fn end_rollback(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        end: impl Fn(&mut FamilyConfig) + Send + 'static,
    ) {
        let Some(entry) = self.families.get_mut(&family) else { return };
        self.to_resume.insert(family);
        let Some(rollback) = entry.config.rollback else {
            return self.resume(family);
        };
        if self.rolled_back.contains(&rollback.id) {
            // The store has it, and it was opened by a record from before.
            return self.resume(family);
        }
        let mut end = move |config: &mut FamilyConfig| {
            if is_about(config, rollback.id, epoch) {
                end(config);
            }
        };
        if let Part::Member(member) = &mut self.part {
            return member.spawn_chore(
                Chore::EndRollback(rollback.id),
                move |store| store.change_vdisk(family, &mut end),
                move |control, changed| match changed {
                    Ok(changed) if changed.record.rollback.is_some_and(|left| left.id == rollback.id) => {
                        tracing::info!(%family, "who serves this vDisk by now decides about its rollback");
                    }
                    Ok(changed) => {
                        control.rolled_back.insert(rollback.id);
                        control.resize_before_the_news(family, &changed);
                        control.resume(family);
                    }
                    // The engine says so again when it is asked again.
                    Err(error) => {
                        tracing::warn!(%family, %error, "that a rollback is over cannot be written yet");
                    }
                },
            );
        }
        match self.change_vdisk_here(family, end) {
            Ok(changed) if changed.rollback.is_none() => self.resume(family),
            // Whoever serves it by now says so itself.
            Ok(_) => {}
            Err(refusal) => {
                let reason = refusal.line;
                tracing::error!(%family, reason, "that a rollback is over cannot be written down; the vDisk waits");
            }
        }
    }
}

/// Whether what the owner of this epoch says is about the rollback that the record still wants. By the time the store is asked, it
/// may want another one. And what an owner of before has done may have been another one to the same snapshot; what it could not
/// do, the present one may be doing.
fn is_about(config: &FamilyConfig, rollback: u64, epoch: Epoch) -> bool {
    config.rollback.is_some_and(|wanted| wanted.id == rollback) && config.epoch == epoch.0
}

fn end_rollback(config: &mut FamilyConfig) {
    if let Some(rollback) = config.rollback.take() {
        config.size = rollback.size;
        config.rolled_back = Some(rollback.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OwnPolicy;
    use crate::config::cluster::NewVdisk;

    #[test]
    fn the_word_of_an_earlier_owner_ends_no_rollback() {
        let vdisk = NewVdisk {
            name: "v".to_string(),
            size: 1 << 20,
            factor: 1,
            created: 0,
            owner: None,
            container: "default".to_string(),
            own: OwnPolicy::default(),
        };
        let rollback = Some(RollbackRecord { id: 7, generation: 3, size: 1 << 20 });
        let config = FamilyConfig { epoch: 5, rollback, ..vdisk.record(1) };
        assert!(is_about(&config, 7, Epoch(5)));
        assert!(!is_about(&config, 7, Epoch(4)), "it went back to the same snapshot once before");
        assert!(!is_about(&config, 6, Epoch(5)), "the record wants another one by now");
        assert!(!is_about(&FamilyConfig { rollback: None, ..config }, 7, Epoch(5)));
    }

    #[test]
    fn what_was_removed_is_told_whatever_came_then() {
        let refusal = Refusal::not_found("the vDisk was deleted meanwhile");
        assert_eq!(and_gone(refusal.clone(), &[]), refusal);
        let told = and_gone(refusal, &["v@a".to_string(), "v@b".to_string()]);
        assert!(told.line.contains("v@a, v@b"), "{told}");
        // Of what was not found a node that is behind looks again, and would forget what it removed.
        assert_eq!(told.status, StatusCode::CONFLICT);
        let late = and_gone(Refusal::unavailable("etcd does not answer"), &["v@a".to_string()]);
        assert_eq!(late.status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
