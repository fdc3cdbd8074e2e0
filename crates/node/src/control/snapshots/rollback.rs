//! Rolling a vDisk back to one of its snapshots.
//! Promises: the record says so before anything happens and until it is done, so whoever serves the vDisk finishes it, and no client
//! is served in between; newer snapshots and users are in the way unless they are told to go.

use super::DiskName;
use super::requests::{check_removable, remove};
use crate::api::{RollBack, VdiskView};
use crate::config::{FamilyConfig, FamilyState, RollbackRecord};
use crate::control::change::change_vdisk;
use crate::control::member::Chore;
use crate::control::refusal::Refusal;
use crate::control::{Control, Part, SharedControl};
use crate::shard_loop::Disk;
use std::time::Duration;
use weft_engine::interface::{Order, RollbackTrouble};
use weft_engine::{FamilyId, Generation};

/// It is waited for so long; it goes on by itself afterwards.
const WAIT: Duration = Duration::from_secs(120);

pub async fn roll_back(control: &SharedControl, wanted: RollBack) -> Result<VdiskView, Refusal> {
    let (family, record, newer) = control.lock().plan_rollback(&wanted)?;
    // None of them goes before it is known that all of them can.
    for name in &newer {
        check_removable(control, name).await?;
    }
    let mut gone: Vec<String> = Vec::new();
    for name in newer {
        if let Err(Refusal { status, line }) = remove(control, &name).await {
            let line = match gone.is_empty() {
                true => line,
                false => {
                    format!("{line}; the vDisk stays as it is, but these are removed: {}", gone.join(", "))
                }
            };
            return Err(Refusal { status, line });
        }
        gone.push(name);
    }
    begin(control, family, record, &wanted).await?;
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
    if outcome == Some(false) {
        return Err(Refusal::conflict(format!(
            "a snapshot was taken at the same moment, so the vDisk stays as it is; try again ({})",
            wanted.snapshot
        )));
    }
    let mut view = control.lock().view_of(family)?;
    if outcome.is_none() {
        view.note = format!("it is on its way back to {}; clients wait until it is there", wanted.snapshot);
    }
    Ok(view)
}

/// Writes down that it is to go back, if nobody has begun to use it, and no other rollback has begun, since that was planned.
async fn begin(
    control: &SharedControl,
    family: FamilyId,
    record: RollbackRecord,
    wanted: &RollBack,
) -> Result<(), Refusal> {
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
        // On a node that is alone nobody can attach it between this and the change; in a cluster the record decides.
        control.check_unused(family, &vdisk, force)?;
        match control.part {
            Part::Alone(_) => Some(control.change_vdisk_here(family, alter.clone())?),
            Part::Member(_) => None,
        }
    };
    let config = match config {
        Some(config) => config,
        None => change_vdisk(control, family, alter).await?,
    };
    if config.rollback.is_some_and(|under_way| under_way.id == record.id)
        || config.rolled_back == Some(record.id)
    {
        return Ok(());
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
        if self.families.get(&family).is_some_and(|entry| entry.config.rollback.is_some()) {
            return Err(Refusal::conflict(format!("vDisk {vdisk} is on its way back to a snapshot already")));
        }
        self.check_unused(family, &vdisk, wanted.force)?;
        let newer: Vec<String> = self
            .snapshots_of(family)
            .into_iter()
            .filter(|other| other.generation.is_none_or(|other| other > generation.0))
            .map(|other| format!("{vdisk}@{}", other.name))
            .collect();
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
    }

    /// Written down first; then clients are let in.
    pub(in crate::control) fn on_rolled_back(&mut self, family: FamilyId) {
        tracing::info!(%family, "a vDisk is rolled back");
        self.end_rollback(family, end_rollback);
    }

    /// A newer snapshot was taken at the same moment: the vDisk stays as it is.
    pub(in crate::control) fn on_rollback_refused(
        &mut self,
        family: FamilyId,
        to: Generation,
        reason: RollbackTrouble,
    ) {
        tracing::warn!(%family, %to, %reason, "a vDisk is not rolled back");
        self.end_rollback(family, |config| config.rollback = None);
    }

    fn end_rollback(&mut self, family: FamilyId, end: impl Fn(&mut FamilyConfig) + Send + 'static) {
        let Some(entry) = self.families.get_mut(&family) else { return };
        let Some(rollback) = entry.config.rollback else {
            return self.order_owner(family, Order::Resume { family });
        };
        if self.rolled_back.contains(&rollback.id) {
            // The store has it, and it was opened by a record from before.
            return self.order_owner(family, Order::Resume { family });
        }
        // By the time the store is asked, the record may say something else that is not done.
        let mut end = move |config: &mut FamilyConfig| {
            if config.rollback.is_some_and(|wanted| wanted.id == rollback.id) {
                end(config);
            }
        };
        if let Part::Member(member) = &mut self.part {
            return member.spawn_chore(
                Chore::EndRollback(rollback.id),
                move |store| store.change_vdisk(family, &mut end),
                move |control, changed| match changed {
                    Ok(_) => {
                        control.rolled_back.insert(rollback.id);
                        control.order_owner(family, Order::Resume { family });
                    }
                    // The engine says so again when it is asked again.
                    Err(error) => {
                        tracing::warn!(%family, %error, "that a rollback is over cannot be written yet");
                    }
                },
            );
        }
        if let Err(refusal) = self.change_vdisk_here(family, end) {
            let reason = refusal.line;
            tracing::error!(%family, reason, "that a rollback is over cannot be written down; the vDisk waits");
            return;
        }
        self.order_owner(family, Order::Resume { family });
    }
}

fn end_rollback(config: &mut FamilyConfig) {
    if let Some(rollback) = config.rollback.take() {
        config.size = rollback.size;
        config.rolled_back = Some(rollback.id);
    }
}
