//! The exports that the store gives to this node: any node serves any vDisk and snapshot, by asking its owner.

use crate::config::{ExportRecord, FamilyState};
use crate::control::exports::Exportable;
use crate::control::{Control, Disk};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Control {
    /// Listens where the store says, and nowhere else.
    pub(super) fn reconcile_exports(&mut self) {
        if self.stage == crate::control::Stage::Stopping {
            return;
        }
        let Some(member) = self.part.member() else { return };
        let node = member.node;
        let mut wanted: BTreeSet<(String, Disk)> = BTreeSet::new();
        let mut missing: Vec<(Exportable, ExportRecord)> = Vec::new();
        for target in self.exportable_in_store() {
            for export in target.exports.iter().filter(|export| export.node == node) {
                wanted.insert((export.address.clone(), target.disk));
                let listener = self.listeners.get(&export.address);
                match listener.and_then(|listener| listener.table.size(target.disk)) {
                    None => missing.push((target.clone(), export.clone())),
                    Some(size) if size != target.size => {
                        if let Some(listener) = listener {
                            listener.table.resize(target.disk, target.size);
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        let mut surplus = Vec::new();
        for (address, listener) in &self.listeners {
            for disk in listener.table.disks() {
                let place = (address.clone(), disk);
                if !wanted.contains(&place) && !self.exports_being_made.contains(&place) {
                    surplus.push((disk, address.clone()));
                }
            }
        }
        for (disk, address) in surplus {
            self.close_exports(disk, Some(&address));
        }
        for (target, export) in missing {
            if !self.has_export_trouble(target.disk.family, &export.address) {
                self.restore_export(&target, &export, None);
            }
        }
    }

    /// What has exports, whoever serves it.
    pub(in crate::control) fn exportable_in_store(&self) -> Vec<Exportable> {
        let Some(member) = self.part.member() else { return Vec::new() };
        let mirror = Arc::clone(&member.mirror);
        let living = |record: &crate::config::FamilyConfig| record.state == FamilyState::Live;
        let vdisks = mirror.families.values().map(|entry| &entry.record);
        let vdisks = vdisks.filter(|record| living(record) && !record.exports.is_empty());
        let mut all: Vec<Exportable> = vdisks.map(Exportable::vdisk).collect();
        for entry in mirror.snapshots.values().filter(|entry| !entry.record.exports.is_empty()) {
            let vdisk = mirror.families.get(&entry.record.family()).map(|vdisk| &vdisk.record);
            let vdisk = vdisk.filter(|record| living(record));
            all.extend(vdisk.and_then(|vdisk| Exportable::snapshot(vdisk, &entry.record)));
        }
        all
    }
}
