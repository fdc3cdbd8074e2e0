//! Where vDisks can be reached over NBD: adding, ending and restoring exports.

use super::listener::{Address, Listener};
use super::refusal::Refusal;
use super::{Control, Family, Serving};
use crate::api::{ExportVdisk, ExportView};
use crate::config::ExportRecord;
use std::sync::Arc;
use weft_engine::FamilyId;
use weft_frontends::nbd::ExportInfo;

/// Exports of one vDisk.
pub(super) const EXPORTS_MAX: usize = 16;

impl Control {
    /// Exports a vDisk; the record is durable and clients are let in when this returns.
    pub(super) fn add_export(&mut self, name: &str, wanted: &ExportVdisk) -> Result<ExportView, Refusal> {
        self.check_ready()?;
        let family = self.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        let entry = &self.families[&family];
        match &entry.serving {
            Serving::Ready | Serving::Elsewhere => {}
            Serving::Opening => {
                return Err(Refusal::unavailable(format!("vDisk {name} is still being opened")));
            }
            Serving::Failed(reason) => {
                return Err(Refusal::conflict(format!(
                    "vDisk {name} is not served: {reason}; put that right first"
                )));
            }
            Serving::Dropping => return Err(Refusal::no_vdisk(name)),
        }
        let address = Address::parse(&wanted.address)?;
        let text = address.to_string();
        if entry.config.exports.iter().any(|export| export.address == text) {
            return Err(Refusal::conflict(format!("vDisk {name} is exported at {text} already")));
        }
        if entry.config.exports.len() >= EXPORTS_MAX {
            return Err(Refusal::conflict(format!(
                "vDisk {name} has {EXPORTS_MAX} exports; end one first (weft vdisk unexport)"
            )));
        }
        let record = ExportRecord { address: text.clone(), read_only: wanted.read_only, node: 0 };
        self.open_export(family, &record)?;
        let entry = self.families.get_mut(&family).expect("the name was just found");
        entry.config.exports.push(record.clone());
        if let Err(error) = self.part.alone().store.put_family(&entry.config) {
            entry.config.exports.pop();
            self.close_exports(family, Some(&text));
            return Err(error.into());
        }
        Ok(self.export_view(&self.families[&family], &record))
    }

    /// Ends the exports of a vDisk, at one address or all.
    pub(super) fn remove_exports(&mut self, name: &str, address: Option<&str>) -> Result<String, Refusal> {
        self.check_ready()?;
        let family = self.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        let address =
            address.map(|address| Address::parse(address).map(|parsed| parsed.to_string())).transpose()?;
        let entry = self.families.get_mut(&family).expect("the name was just found");
        let before = entry.config.exports.len();
        entry
            .config
            .exports
            .retain(|export| address.as_ref().is_some_and(|address| export.address != *address));
        let ended = before - entry.config.exports.len();
        if ended == 0 {
            let place = address.map_or_else(|| "anywhere".to_string(), |address| format!("at {address}"));
            return Err(Refusal::not_found(format!(
                "vDisk {name} is not exported {place}; `weft vdisk show {name}` shows where it is"
            )));
        }
        entry.export_trouble.retain(|place, _| address.as_ref().is_some_and(|address| place != address));
        self.part.alone().store.put_family(&entry.config)?;
        self.close_exports(family, address.as_deref());
        Ok(format!("{ended} export(s) ended"))
    }

    /// Opens all exports that the records tell of; what does not work is noted as trouble.
    pub(super) fn restore_exports(&mut self) {
        let all: Vec<_> = self
            .families
            .iter()
            .filter(|(_, entry)| entry.serving == Serving::Ready)
            .flat_map(|(&id, entry)| entry.config.exports.iter().map(move |export| (id, export.clone())))
            .collect();
        for (family, export) in all {
            if let Err(refusal) = self.open_export(family, &export) {
                tracing::error!(%family, address = export.address, reason = refusal.line, "an export does not open");
                let entry = self.families.get_mut(&family).expect("it was just listed");
                entry.export_trouble.insert(export.address, refusal.line);
            }
        }
    }

    pub(super) fn open_export(&mut self, family: FamilyId, export: &ExportRecord) -> Result<(), Refusal> {
        let address = Address::parse(&export.address)?;
        let entry = &self.families[&family];
        let info = ExportInfo {
            name: entry.config.name.clone(),
            description: String::new(),
            family,
            size: entry.config.size,
            read_only: export.read_only,
        };
        if !self.listeners.contains_key(&export.address) {
            // Clients of a shared address arrive at the owner of the vDisk that was exported there first.
            let listener = Listener::open(address, Arc::clone(self.owner(family)))?;
            self.listeners.insert(export.address.clone(), listener);
        }
        self.listeners[&export.address].table.insert(info);
        Ok(())
    }

    /// Stops listening for a vDisk, at one address or all, and ends its connections there.
    pub(super) fn close_exports(&mut self, family: FamilyId, address: Option<&str>) {
        for (text, listener) in &self.listeners {
            if address.is_none_or(|address| address == text) {
                listener.table.remove(family);
            }
        }
        self.listeners.retain(|_, listener| !listener.table.is_empty());
        self.close_connections(family, address);
    }

    pub(super) fn export_view(&self, entry: &Family, export: &ExportRecord) -> ExportView {
        let uri = Address::parse(&export.address)
            .map_or_else(|_| String::new(), |address| address.uri(&entry.config.name));
        ExportView {
            address: export.address.clone(),
            read_only: export.read_only,
            node: self.part.member().map(|_| export.node),
            uri,
            trouble: entry.export_trouble.get(&export.address).cloned().unwrap_or_default(),
        }
    }
}
