//! The exports that the store gives to this node: any node serves any vDisk, by asking its owner.

use crate::config::{ExportRecord, FamilyState};
use crate::control::Control;
use std::collections::BTreeSet;
use std::sync::Arc;
use weft_engine::FamilyId;

impl Control {
    /// Listens where the store says, and nowhere else.
    pub(super) fn reconcile_exports(&mut self) {
        if self.stage == crate::control::Stage::Stopping {
            return;
        }
        let Some(member) = self.part.member() else { return };
        let mirror = Arc::clone(&member.mirror);
        let node = member.node;
        let mut wanted: BTreeSet<(String, FamilyId)> = BTreeSet::new();
        let mut missing: Vec<(FamilyId, ExportRecord)> = Vec::new();
        for (&family, entry) in &mirror.families {
            let exports = entry.record.exports.iter().filter(|export| export.node == node);
            for export in exports.filter(|_| entry.record.state == FamilyState::Live) {
                wanted.insert((export.address.clone(), family));
                let listener = self.listeners.get(&export.address);
                match listener.and_then(|listener| listener.table.size(family)) {
                    None => missing.push((family, export.clone())),
                    Some(size) if size != entry.record.size => {
                        if let Some(listener) = listener {
                            listener.table.resize(family, entry.record.size);
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        let mut surplus = Vec::new();
        for (address, listener) in &self.listeners {
            for family in listener.table.families() {
                if !wanted.contains(&(address.clone(), family)) {
                    surplus.push((family, address.clone()));
                }
            }
        }
        for (family, address) in surplus {
            self.close_exports(family, Some(&address));
        }
        for (family, export) in missing {
            let has_failed = self
                .families
                .get(&family)
                .is_some_and(|entry| entry.export_trouble.contains_key(&export.address));
            if has_failed {
                continue;
            }
            if let Err(refusal) = self.open_export(family, &export) {
                tracing::error!(%family, address = export.address, reason = refusal.line, "an export does not open");
                if let Some(entry) = self.families.get_mut(&family) {
                    entry.export_trouble.insert(export.address, refusal.line);
                }
            }
        }
    }
}
