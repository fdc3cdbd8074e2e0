//! Creating, deleting and resizing vDisks.

use super::clones::has_clones;
use super::policy;
use super::refusal::Refusal;
use super::{Control, Family, Part, Serving, SharedControl, Stage};
use crate::api::{ColdWord, CreateVdisk, ExportView, VdiskView};
use crate::calendar;
use crate::config::cluster::NewVdisk;
use crate::config::{DEFAULT_CONTAINER, FamilyState, Policy};
use crate::shard_loop::Disk;
use std::collections::BTreeMap;
use std::time::Duration;
use weft_engine::interface::Order;
use weft_engine::{Epoch, FamilyId};

/// vDisks of one node.
const VDISKS_MAX: usize = 4096;

const NAME_BYTES_MAX: usize = 63;

/// A new vDisk is served within this time, or its creation counts as failed.
pub(super) const CREATE_WAIT: Duration = Duration::from_secs(30);

/// A deletion is waited for so long; it goes on by itself afterwards.
const DELETE_WAIT: Duration = Duration::from_secs(30);

/// Sizes are whole blocks.
const SIZE_GRAIN: u64 = 4096;

/// What may go along with a vDisk.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deletion {
    /// Its exports, whoever uses them.
    pub force: bool,
    pub with_snapshots: bool,
}

/// Whether a name can be a vDisk's: it becomes part of URIs and paths.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    let mut characters = name.bytes();
    let begins_well = characters.next().is_some_and(|first| first.is_ascii_alphanumeric());
    let goes_on_well = characters.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if begins_well && goes_on_well && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::bad_input(format!(
        "{name:?} cannot be the name of a vDisk: use up to {NAME_BYTES_MAX} letters, digits, dots, dashes and \
         underscores, the first a letter or digit"
    )))
}

/// A checkpoint's record has 40 bytes for each GiB that was ever touched, and as much again for what snapshots see there, and must fit
/// into what one node tells another at once: 40 MiB.
const SIZE_MAX: u64 = 256 << 40;

/// The size that a vDisk gets, and a remark if it is another one.
pub(super) fn check_size(size: u64) -> Result<(u64, String), Refusal> {
    if size == 0 || size > SIZE_MAX {
        return Err(Refusal::bad_input(format!(
            "a vDisk cannot have {size} bytes: choose a size from 1 to {SIZE_MAX} (256T)"
        )));
    }
    let whole = size.next_multiple_of(SIZE_GRAIN);
    let note = if whole == size {
        String::new()
    } else {
        format!("the size was rounded up to {whole} bytes, a whole number of blocks of {SIZE_GRAIN}")
    };
    Ok((whole, note))
}

/// Refuses a number of copies that so many places (they are called `what`) cannot hold; `add` says how there could be more.
pub(super) fn check_factor(factor: u32, places: usize, what: &str, add: &str) -> Result<(), Refusal> {
    if factor == 0 || factor > 3 {
        return Err(Refusal::bad_input(format!("a vDisk cannot have {factor} copies: choose 1, 2 or 3")));
    }
    if factor as usize > places {
        return Err(Refusal::bad_input(format!(
            "{factor} copies need {factor} {what} that are up, and there are {places}; {add} or choose fewer copies (--rf)"
        )));
    }
    Ok(())
}

pub(super) fn check_growth(name: &str, from: u64, to: u64) -> Result<(), Refusal> {
    if to < from {
        return Err(Refusal::bad_input(format!(
            "vDisk {name} has {from} bytes and cannot shrink to {to}: what is behind would be lost; copy what you need \
             to a smaller one"
        )));
    }
    Ok(())
}

pub async fn create(control: &SharedControl, wanted: CreateVdisk) -> Result<VdiskView, Refusal> {
    check_name(&wanted.name)?;
    let (size, note) = check_size(wanted.size)?;
    let family = control.lock().begin_create(&wanted, size)?;
    let served = control
        .wait_for(CREATE_WAIT, |control| match control.families.get(&family).map(|entry| &entry.serving) {
            Some(Serving::Ready) => Some(Ok(())),
            Some(Serving::Failed(reason)) => Some(Err(reason.clone())),
            Some(Serving::Opening | Serving::Elsewhere) => None,
            Some(Serving::Dropping) | None => Some(Err("it was deleted meanwhile".to_string())),
        })
        .await
        .unwrap_or_else(|| Err(format!("no answer within {} s", CREATE_WAIT.as_secs())));
    if let Err(reason) = served {
        // Nobody has it yet: it goes again, unless it has gone and another has its name.
        let mut control = control.lock();
        if control.family_named(&wanted.name) == Some(family) {
            let _ = control.begin_delete(&wanted.name, Deletion { force: true, with_snapshots: true });
        }
        return Err(Refusal::failed(format!(
            "vDisk {} could not be made: {reason}; see `weft status`, then try again",
            wanted.name
        )));
    }
    let mut view = control.lock().vdisk_view(family);
    view.note = note;
    Ok(view)
}

pub async fn delete(control: &SharedControl, name: &str, how: Deletion) -> Result<String, Refusal> {
    let family = control.lock().begin_delete(name, how)?;
    Ok(wait_until_gone(control, family, name).await)
}

/// Waits for the end of a deletion; a remark for people, if it takes long.
pub(super) async fn wait_until_gone(control: &SharedControl, family: FamilyId, name: &str) -> String {
    let gone = control
        .wait_for(DELETE_WAIT, |control| (!control.families.contains_key(&family)).then_some(()))
        .await;
    match gone {
        Some(()) => String::new(),
        None => format!(
            "vDisk {name} is being deleted; its space and its name are free again when all drives have answered"
        ),
    }
}

impl Control {
    /// Refuses while the node starts or stops.
    pub(super) fn check_ready(&self) -> Result<(), Refusal> {
        match self.stage {
            Stage::Ready => Ok(()),
            Stage::Starting => Err(Refusal::unavailable("the node is still starting; try again in a moment")),
            Stage::Stopping => {
                Err(Refusal::unavailable("the node is stopping; start it again with `weft up`"))
            }
        }
    }

    /// For a node that is alone.
    pub(super) fn check_room_for(&self, count: usize) -> Result<(), Refusal> {
        if self.families.len() + count <= VDISKS_MAX {
            return Ok(());
        }
        Err(Refusal::no_space(format!("a node has at most {VDISKS_MAX} vDisks; delete some first")))
    }

    fn begin_create(&mut self, wanted: &CreateVdisk, size: u64) -> Result<FamilyId, Refusal> {
        self.check_ready()?;
        let name = &wanted.name;
        if let Some(family) = self.family_named(name) {
            let is_going = self.families[&family].config.state == FamilyState::Dropping;
            let what = if is_going { "is still being deleted" } else { "exists already" };
            return Err(Refusal::conflict(format!("a vDisk {name} {what}; choose another name")));
        }
        self.check_room_for(1)?;
        let container = self.container_named(wanted.container.as_deref().unwrap_or(DEFAULT_CONTAINER))?;
        let own = policy::wanted(wanted, &container)?;
        let factor = wanted.factor.or(container.factor).unwrap_or(self.factor);
        let up = self.drives_up().len();
        check_factor(factor, up, "drives", "add drives (weft up --drives N)")?;
        let alone = self.part.alone();
        let id = alone.node.next_family;
        alone.node.next_family = id + 1;
        alone.store.put_node(&alone.node)?;
        if self.arrange_groups(factor)? {
            self.send_view();
        }
        let created = calendar::now();
        let (name, container) = (name.clone(), container.name);
        let new = NewVdisk { name, size, factor, created, owner: None, container, own };
        let config = new.record(id);
        self.part.alone().store.put_family(&config)?;
        let (family, record) = (config.id(), config.record(&self.policy(&config)));
        let entry = Family { config, serving: Serving::Opening, export_trouble: BTreeMap::new() };
        self.families.insert(family, entry);
        self.order_owner(family, Order::OpenFamily(record));
        Ok(family)
    }

    /// Refuses to delete what is in use; with `force` only what is attached.
    pub(super) fn check_deletable(&self, name: &str, how: Deletion) -> Result<FamilyId, Refusal> {
        self.check_ready()?;
        let family = self.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        if self.attachments.keys().any(|disk| disk.family == family) {
            return Err(Refusal::conflict(format!(
                "vDisk {name} or a snapshot of it is attached; detach it first (weft vdisk detach {name})"
            )));
        }
        if !how.force && !self.families[&family].config.exports.is_empty() {
            return Err(Refusal::conflict(format!(
                "vDisk {name} is exported; end that first (weft vdisk unexport {name}), or force it"
            )));
        }
        self.check_detached(Disk::present(family), name)?;
        let clones = self.clones_of(family, None);
        if !clones.is_empty() {
            return Err(has_clones(&format!("a snapshot of vDisk {name}"), &clones));
        }
        let snapshots = self.snapshots_of(family);
        if !how.with_snapshots && !snapshots.is_empty() {
            return Err(Refusal::conflict(format!(
                "vDisk {name} has {} snapshots, which go with it; remove them first (weft snapshot rm), or say that they \
                 may go (--with-snapshots)",
                snapshots.len()
            )));
        }
        for record in &snapshots {
            if let Some(node) = self.first_other(&record.attached) {
                return Err(self.attached_to(&format!("{name}@{}", record.name), node));
            }
        }
        if let Some(exported) = snapshots.iter().find(|record| !record.exports.is_empty() && !how.force) {
            let snapshot = &exported.name;
            return Err(Refusal::conflict(format!(
                "the snapshot {name}@{snapshot} is exported; end that first (weft vdisk unexport {name}@{snapshot}), or \
                 force it"
            )));
        }
        Ok(family)
    }

    fn begin_delete(&mut self, name: &str, how: Deletion) -> Result<FamilyId, Refusal> {
        let family = self.check_deletable(name, how)?;
        let config = self.change_vdisk_here(family, |record| {
            record.exports.clear();
            record.state = FamilyState::Dropping;
            // The drop counts as a new owner: nothing of the old one may come after it.
            record.epoch = record.next_epoch();
        })?;
        self.close_all_exports(family);
        self.order_drop(family, Epoch(config.epoch));
        Ok(family)
    }

    /// Destroys a vDisk whose record says that it is to go.
    pub(super) fn drop_family(&mut self, family: FamilyId) -> Result<(), Refusal> {
        let Some(config) = self.part.alone().store.take_epoch(family)? else { return Ok(()) };
        let epoch = Epoch(config.epoch);
        self.families.get_mut(&family).expect("a family in the store is known").config = config;
        self.order_drop(family, epoch);
        Ok(())
    }

    fn order_drop(&mut self, family: FamilyId, epoch: Epoch) {
        self.families.get_mut(&family).expect("a family in the store is known").serving = Serving::Dropping;
        self.order_owner(family, Order::CloseFamily { family });
        self.order_owner(family, Order::DropFamily { family, epoch });
    }

    /// Serves a vDisk of the store: a new epoch, then the order to open it.
    pub(super) fn open_family(&mut self, family: FamilyId) -> Result<(), Refusal> {
        let Some(config) = self.part.alone().store.take_epoch(family)? else { return Ok(()) };
        let record = config.record(&self.policy(&config));
        let entry = self.families.get_mut(&family).expect("a family in the store is known");
        entry.config = config;
        entry.serving = Serving::Opening;
        self.order_owner(family, Order::OpenFamily(record));
        Ok(())
    }

    pub(super) fn resize(&mut self, name: &str, size: u64) -> Result<VdiskView, Refusal> {
        self.check_ready()?;
        let family = self.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        let (size, mut note) = check_size(size)?;
        let entry = &self.families[&family];
        if entry.serving == Serving::Dropping {
            return Err(Refusal::no_vdisk(name));
        }
        // It would get the size of the snapshot in the end.
        self.check_not_going_back(family)?;
        check_growth(name, entry.config.size, size)?;
        self.check_no_snapshot_under_way(family)?;
        self.change_vdisk_here(family, |record| record.size = size)?;
        let entry = &self.families[&family];
        if (!entry.config.exports.is_empty() || self.attachments.contains_key(&Disk::present(family)))
            && note.is_empty()
        {
            note = "clients see the new size when they connect or attach again".to_string();
        }
        let mut view = self.vdisk_view(family);
        view.note = note;
        Ok(view)
    }

    pub(super) fn vdisk_view(&self, family: FamilyId) -> VdiskView {
        let entry = &self.families[&family];
        let config = &entry.config;
        let Policy { compression, dedup, ceiling, factor } = self.policy(config);
        let who = |is_own: bool| if is_own { "vdisk" } else { "container" }.to_string();
        let (owner_node, owner_shard, served) = match &self.part {
            Part::Member(member) => {
                let (node, shard, served) = member.owner_view(family);
                (node, shard, Some(served))
            }
            Part::Alone(_) => (None, None, None),
        };
        // Its owner lives, but may be opening it: this node knows that of its own.
        let is_open = matches!(entry.serving, Serving::Ready | Serving::Elsewhere);
        let served = served.map(|served| served && is_open);
        let (state, trouble) = match &entry.serving {
            Serving::Opening => ("opening", self.awaited_by(family).unwrap_or_default()),
            Serving::Ready => ("ready", String::new()),
            Serving::Failed(reason) => ("failed", reason.clone()),
            Serving::Dropping => ("deleting", String::new()),
            Serving::Elsewhere if served == Some(true) => ("ready", String::new()),
            Serving::Elsewhere => ("waiting", "no node serves it at this moment".to_string()),
        };
        VdiskView {
            name: config.name.clone(),
            family: config.family,
            size: config.size,
            factor,
            factor_from: who(!config.inherits_factor),
            epoch: config.epoch,
            created: config.created,
            state: state.to_string(),
            trouble,
            container: config.container.clone(),
            compression: compression.method_text(),
            compression_unit: compression.unit,
            cold: compression.cold.map(ColdWord::from),
            compression_from: who(config.compression.is_some()),
            dedup,
            dedup_from: who(config.dedup.is_some()),
            iops_limit: ceiling.engine().iops,
            bw_limit: ceiling.engine().bytes,
            iops_limit_from: who(config.ceiling.iops.is_some()),
            bw_limit_from: who(config.ceiling.bytes.is_some()),
            exports: self.export_views(family),
            owner_node,
            owner_shard,
            served,
            attached: self.attachment_view(Disk::present(family)),
            snapshots: self.snapshots_of(family).len() as u64,
            note: String::new(),
        }
    }

    pub(super) fn export_views(&self, family: FamilyId) -> Vec<ExportView> {
        let config = &self.families[&family].config;
        config.exports.iter().map(|export| self.export_view(family, &config.name, export)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_checked() {
        for good in ["a", "vm-1.root_disk", "9"] {
            assert!(check_name(good).is_ok());
        }
        for bad in ["", "-a", ".", "a/b", "a b", "ä", "a\n", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(check_size(4096), Ok((4096, String::new())));
        assert_eq!(check_size(1).map(|(size, _)| size), Ok(4096));
        assert!(check_size(0).is_err() && check_size(u64::MAX).is_err());
    }
}
