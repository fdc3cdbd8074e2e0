//! Where vDisks and their snapshots can be reached over NBD: adding, ending and restoring exports.
//! Promises: what could not be opened is tried again until it can, and is trouble until then; who names a vDisk that is just
//! being opened waits for it.

use super::listener::{Address, Listener};
use super::refusal::Refusal;
use super::snapshots::{DiskName, wait_until_taken};
use super::vdisks::check_name;
use super::{Control, Family, Serving, SharedControl, Stage};
use crate::api::{ExportVdisk, ExportView};
use crate::config::{ExportRecord, FamilyConfig, SnapshotKey, SnapshotRecord};
use crate::shard_loop::{Disk, Mail};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weft_engine::{FamilyId, SnapshotId};
use weft_frontends::nbd::ExportInfo;

/// Exports of one vDisk, and of one snapshot.
pub(super) const EXPORTS_MAX: usize = 16;

/// What could not be opened is tried again so often: somebody else may have left the address.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Opening takes a moment; longer only when copies are away, and then the reason is worth more than waiting.
const OPENED_WAIT: Duration = Duration::from_secs(10);

/// Why exports do not open: by vDisk, and by address.
type Troubles = BTreeMap<FamilyId, BTreeMap<String, String>>;

/// Tries again what could not be opened.
pub(super) async fn look_after(control: SharedControl) {
    loop {
        tokio::time::sleep(AGAIN_AFTER).await;
        control.lock().open_exports_again();
    }
}

/// Waits for a vDisk that is just being opened, or a snapshot that is just being taken: whoever named it in a script saw it
/// served a moment ago, perhaps by another node.
pub(super) async fn wait_until_exportable(control: &SharedControl, name: &str) {
    wait_until_taken(control, name).await;
    let vdisk = DiskName::parse(name).vdisk;
    let is_opened = |control: &mut Control| {
        let family = control.family_named(&vdisk);
        let is_opening = family.is_some_and(|family| control.families[&family].serving == Serving::Opening);
        (!is_opening).then_some(())
    };
    control.wait_for(OPENED_WAIT, is_opened).await;
}

/// What can be exported, with what its record says about that.
#[derive(Debug, Clone)]
pub(super) struct Exportable {
    pub disk: Disk,
    /// As people write it, and as clients find it if nothing else was said.
    pub name: String,
    pub size: u64,
    pub exports: Vec<ExportRecord>,
    /// Whose record it is in; None: the vDisk's.
    pub snapshot: Option<(SnapshotKey, SnapshotId)>,
}

/// The exports in a record.
pub(super) struct Exported {
    pub family: FamilyId,
    /// Whose record it is; None: the vDisk's.
    pub snapshot: Option<(SnapshotKey, SnapshotId)>,
    pub exports: Vec<ExportRecord>,
}

impl Exportable {
    pub fn vdisk(config: &FamilyConfig) -> Self {
        Self {
            disk: Disk::present(config.id()),
            name: config.name.clone(),
            size: config.size,
            exports: config.exports.clone(),
            snapshot: None,
        }
    }

    /// None: it cannot be read (yet, or any more).
    pub fn snapshot(vdisk: &FamilyConfig, record: &SnapshotRecord) -> Option<Self> {
        Some(Self {
            disk: Disk::snapshot(record.family(), record.ready()?),
            name: DiskName { vdisk: vdisk.name.clone(), snapshot: Some(record.name.clone()) }.to_string(),
            size: record.size,
            exports: record.exports.clone(),
            snapshot: Some((record.key(), record.id())),
        })
    }

    /// A vDisk or a snapshot, in a line for people.
    pub fn who(&self) -> String {
        let what = if self.snapshot.is_some() { "the snapshot" } else { "vDisk" };
        format!("{what} {}", self.name)
    }
}

impl Control {
    /// What somebody has named, `VDISK` or `VDISK@SNAPSHOT`, if it can be read now.
    pub(super) fn exportable(&self, name: &str) -> Result<Exportable, Refusal> {
        let DiskName { vdisk, snapshot } = DiskName::parse(name);
        let family = self.family_named(&vdisk).ok_or_else(|| Refusal::no_vdisk(&vdisk))?;
        let entry = &self.families[&family];
        match &entry.serving {
            Serving::Ready | Serving::Elsewhere => {}
            Serving::Opening => {
                let awaited = self.awaited_by(family).map_or(String::new(), |awaited| format!(": {awaited}"));
                return Err(Refusal::unavailable(format!("vDisk {vdisk} is still being opened{awaited}")));
            }
            Serving::Failed(reason) => {
                return Err(Refusal::conflict(format!(
                    "vDisk {vdisk} is not served: {reason}; put that right first"
                )));
            }
            Serving::Dropping => return Err(Refusal::no_vdisk(&vdisk)),
        }
        let Some(snapshot) = snapshot else { return Ok(Exportable::vdisk(&entry.config)) };
        let record = self.snapshot_named(&vdisk, &snapshot)?;
        Exportable::snapshot(&entry.config, record).ok_or_else(|| {
            Refusal::conflict(format!(
                "the snapshot {name} is being made or removed; `weft snapshot show {name}` tells"
            ))
        })
    }

    /// What somebody has named, whether it can be read or not, with its exports.
    pub(super) fn exports_named(&self, name: &str) -> Result<Exported, Refusal> {
        let DiskName { vdisk, snapshot } = DiskName::parse(name);
        let family = self.family_named(&vdisk).ok_or_else(|| Refusal::no_vdisk(&vdisk))?;
        let Some(snapshot) = snapshot else {
            let exports = self.families[&family].config.exports.clone();
            return Ok(Exported { family, snapshot: None, exports });
        };
        let record = self.snapshot_named(&vdisk, &snapshot)?;
        let snapshot = Some((record.key(), record.id()));
        Ok(Exported { family, snapshot, exports: record.exports.clone() })
    }

    /// The record of an export that is to be, if it can be.
    pub(super) fn new_export(
        &self,
        target: &Exportable,
        wanted: &ExportVdisk,
        node: u32,
    ) -> Result<ExportRecord, Refusal> {
        let address = Address::parse(&wanted.address)?.to_string();
        let who = target.who();
        if target.exports.iter().any(|export| export.address == address && export.node == node) {
            return Err(Refusal::conflict(format!("{who} is exported at {address} already")));
        }
        if target.exports.len() >= EXPORTS_MAX {
            return Err(Refusal::conflict(format!(
                "{who} has {EXPORTS_MAX} exports; end one first (weft vdisk unexport {})",
                target.name
            )));
        }
        if let Some(name) = &wanted.name {
            check_name(name)?;
        }
        let read_only = wanted.read_only || target.snapshot.is_some();
        Ok(ExportRecord { address, read_only, node, name: wanted.name.clone() })
    }

    /// Exports a vDisk or a snapshot; the record is durable and clients are let in when this returns.
    pub(super) fn add_export(&mut self, name: &str, wanted: &ExportVdisk) -> Result<ExportView, Refusal> {
        self.check_ready()?;
        let target = self.exportable(name)?;
        let record = self.new_export(&target, wanted, 0)?;
        self.open_export(&target, &record)?;
        let mut exports = target.exports.clone();
        exports.push(record.clone());
        if let Err(error) = self.put_exports(target.disk.family, target.snapshot.as_ref(), exports) {
            self.close_exports(target.disk, Some(&record.address));
            return Err(error);
        }
        Ok(self.export_view(target.disk.family, &target.name, &record))
    }

    /// For a node that is alone.
    fn put_exports(
        &mut self,
        family: FamilyId,
        snapshot: Option<&(SnapshotKey, SnapshotId)>,
        exports: Vec<ExportRecord>,
    ) -> Result<(), Refusal> {
        if let Some((key, _)) = snapshot {
            let alone = self.part.alone();
            let Some(record) = alone.snapshots.get_mut(key) else { return Ok(()) };
            let changed = SnapshotRecord { exports, ..record.clone() };
            alone.store.put_snapshots(std::slice::from_ref(&changed))?;
            *record = changed;
            return Ok(());
        }
        self.change_vdisk_here(family, |record| record.exports.clone_from(&exports))?;
        Ok(())
    }

    /// Ends the exports of a vDisk or a snapshot, at one address or all.
    pub(super) fn remove_exports(&mut self, name: &str, address: Option<&str>) -> Result<String, Refusal> {
        self.check_ready()?;
        let Exported { family, snapshot, exports } = self.exports_named(name)?;
        let meant = Meant::parse(address)?;
        let (gone, exports): (Vec<_>, Vec<_>) =
            exports.into_iter().partition(|export| meant.includes(export));
        if gone.is_empty() {
            return Err(meant.not_exported(name));
        }
        self.put_exports(family, snapshot.as_ref(), exports)?;
        let entry = self.families.get_mut(&family).expect("the name was just found");
        entry.forget_trouble_of(&gone);
        let generation = snapshot.and_then(|(key, _)| self.snapshot(&key)?.ready());
        self.close_exports(Disk { family, snapshot: generation }, meant.0.as_deref());
        Ok(format!("{} export(s) ended", gone.len()))
    }

    /// Everything that can be exported of vDisks served here.
    pub(super) fn all_exportable(&self) -> Vec<Exportable> {
        self.families.keys().flat_map(|&family| self.exportable_of(family)).collect()
    }

    /// A vDisk and its snapshots, if it is served here.
    fn exportable_of(&self, family: FamilyId) -> Vec<Exportable> {
        let entry = self.families.get(&family).filter(|entry| entry.serving == Serving::Ready);
        let Some(Family { config, .. }) = entry else { return Vec::new() };
        let snapshots = self.snapshots_of(family).into_iter();
        let snapshots = snapshots.filter_map(|record| Exportable::snapshot(config, record));
        [Exportable::vdisk(config)].into_iter().chain(snapshots).collect()
    }

    /// Opens all exports that the records tell of; what does not work is noted as trouble.
    pub(super) fn restore_exports(&mut self) {
        for target in self.all_exportable() {
            for export in &target.exports {
                self.restore_export(&target, export, None);
            }
        }
    }

    /// Opens those of a vDisk that could not be served before.
    pub(super) fn restore_exports_of(&mut self, family: FamilyId) {
        if self.stage != Stage::Ready {
            return;
        }
        for target in self.exportable_of(family) {
            for export in &target.exports {
                if !self.is_exported(target.disk, &export.address)
                    && !self.has_export_trouble(family, &export.address)
                {
                    self.restore_export(&target, export, None);
                }
            }
        }
    }

    /// `before`: why it did not open the last time. That is not told again and again.
    pub(super) fn restore_export(
        &mut self,
        target: &Exportable,
        export: &ExportRecord,
        before: Option<&String>,
    ) {
        let Err(refusal) = self.open_export(target, export) else {
            if before.is_some() {
                tracing::info!(
                    name = target.name,
                    address = export.address,
                    "an export opens that did not before"
                );
            }
            return;
        };
        if before != Some(&refusal.line) {
            tracing::error!(
                name = target.name,
                address = export.address,
                reason = refusal.line,
                "an export does not open"
            );
        }
        if let Some(entry) = self.families.get_mut(&target.disk.family) {
            entry.export_trouble.insert(export.address.clone(), refusal.line);
        }
    }

    fn open_exports_again(&mut self) {
        if self.stage != Stage::Ready {
            return;
        }
        // All is forgotten first: what fails again is noted again, and what is not wanted any more is no trouble.
        let troubled = self.families.iter_mut().filter(|(_, entry)| !entry.export_trouble.is_empty());
        let before: Troubles =
            troubled.map(|(&family, entry)| (family, std::mem::take(&mut entry.export_trouble))).collect();
        if before.is_empty() {
            return;
        }
        let (node, all) = match self.part.member() {
            Some(member) => (member.number(), self.exportable_in_store()),
            None => (0, self.all_exportable()),
        };
        for target in all {
            for export in target.exports.iter().filter(|export| export.node == node) {
                let reason = before.get(&target.disk.family).and_then(|reasons| reasons.get(&export.address));
                if reason.is_some() && !self.is_exported(target.disk, &export.address) {
                    self.restore_export(&target, export, reason);
                }
            }
        }
    }

    /// What has failed is tried again in its own time, not with every news of its vDisk.
    pub(super) fn has_export_trouble(&self, family: FamilyId, address: &str) -> bool {
        self.families.get(&family).is_some_and(|entry| entry.export_trouble.contains_key(address))
    }

    fn is_exported(&self, disk: Disk, address: &str) -> bool {
        self.listeners.get(address).is_some_and(|listener| listener.table.size(disk).is_some())
    }

    pub(super) fn open_export(&mut self, target: &Exportable, export: &ExportRecord) -> Result<(), Refusal> {
        let address = Address::parse(&export.address)?;
        let info = ExportInfo {
            name: export.name.clone().unwrap_or_else(|| target.name.clone()),
            description: String::new(),
            family: target.disk.family,
            snapshot: target.disk.snapshot,
            size: target.size,
            read_only: export.read_only,
        };
        if !self.listeners.contains_key(&export.address) {
            // Clients of a shared address arrive at the owner of the vDisk that was exported there first.
            let listener = Listener::open(address, Arc::clone(self.owner(target.disk.family)))?;
            self.listeners.insert(export.address.clone(), listener);
        }
        let table = &self.listeners[&export.address].table;
        if table.disk_of(&info.name).is_some_and(|other| other != target.disk) {
            return Err(Refusal::conflict(format!(
                "something else is exported under the name {} at {} already; choose another name (--name) or address",
                info.name, export.address
            )));
        }
        table.insert(info);
        Ok(())
    }

    /// Stops listening for a vDisk or snapshot, at one address or all, and ends its connections there.
    pub(super) fn close_exports(&mut self, disk: Disk, address: Option<&str>) {
        for (text, listener) in &self.listeners {
            if address.is_none_or(|address| address == text) {
                listener.table.remove(disk);
            }
        }
        self.listeners.retain(|_, listener| !listener.table.is_empty());
        self.close_connections(disk, address);
    }

    /// ... and for everything of a vDisk.
    pub(super) fn close_all_exports(&mut self, family: FamilyId) {
        let disks = self.listeners.values().flat_map(|listener| listener.table.disks());
        let disks: std::collections::BTreeSet<Disk> = disks.filter(|disk| disk.family == family).collect();
        for disk in disks {
            self.close_exports(disk, None);
        }
    }

    /// Ends the connections of a vDisk or snapshot, at one address or all.
    fn close_connections(&self, disk: Disk, address: Option<&str>) {
        for shard in &self.shards {
            shard.send(Mail::CloseConnections { disk, address: address.map(Into::into) });
        }
    }

    pub(super) fn export_view(&self, family: FamilyId, name: &str, export: &ExportRecord) -> ExportView {
        let name = export.name.as_deref().unwrap_or(name);
        let uri = Address::parse(&export.address).map_or_else(|_| String::new(), |address| address.uri(name));
        let trouble = self.families.get(&family).and_then(|entry| entry.export_trouble.get(&export.address));
        ExportView {
            address: export.address.clone(),
            read_only: export.read_only,
            node: self.part.member().map(|_| export.node),
            uri,
            trouble: trouble.cloned().unwrap_or_default(),
        }
    }
}

/// Which exports of a disk are to end: those at one address, or all.
pub(super) struct Meant(Option<String>);

impl Meant {
    pub fn parse(address: Option<&str>) -> Result<Self, Refusal> {
        let parsed = address.map(|address| Address::parse(address).map(|parsed| parsed.to_string()));
        Ok(Self(parsed.transpose()?))
    }

    pub fn includes(&self, export: &ExportRecord) -> bool {
        self.0.as_ref().is_none_or(|address| export.address == *address)
    }

    /// There are none.
    pub fn not_exported(&self, name: &str) -> Refusal {
        let place = self.0.as_ref().map_or_else(|| "anywhere".to_string(), |address| format!("at {address}"));
        let show = if name.contains('@') { "weft snapshot show" } else { "weft vdisk show" };
        Refusal::not_found(format!("{name} is not exported {place}; `{show} {name}` shows where it is"))
    }
}
