//! What people set of a vDisk when they make it and at any time later: how its data is packed, and its limits.
//! Promises: what is answered is in the store; the owner uses it for what comes from then on.
//! Leaves to others: packing and limiting (the engine), telling the owner in a cluster (`member/families.rs`, like every
//! change).

use super::refusal::Refusal;
use super::{Control, SharedControl, member};
use crate::api::{CreateVdisk, SetVdisk, VdiskView};
use crate::config::{CeilingRecord, CompressionRecord, FamilyConfig};
use weft_engine::{FamilyId, Order};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub compression: CompressionRecord,
    pub ceiling: CeilingRecord,
}

impl Settings {
    pub fn of(record: &FamilyConfig) -> Self {
        Self { compression: record.compression, ceiling: record.ceiling }
    }

    /// What a new vDisk shall have.
    pub fn wanted(wanted: &CreateVdisk) -> Result<Self, Refusal> {
        Self::default().with(&SetVdisk {
            compression: wanted.compression.clone(),
            compression_unit: wanted.compression_unit,
            iops_limit: wanted.iops_limit,
            bw_limit: wanted.bw_limit,
        })
    }

    fn with(self, wanted: &SetVdisk) -> Result<Self, Refusal> {
        let compression = self.compression.with(wanted.compression.as_deref(), wanted.compression_unit);
        let ceiling = self.ceiling.with(wanted.iops_limit, wanted.bw_limit);
        Ok(Self {
            compression: compression.map_err(Refusal::bad_input)?,
            ceiling: ceiling.map_err(Refusal::bad_input)?,
        })
    }

    pub fn put(self, record: &mut FamilyConfig) {
        let Self { compression, ceiling } = self;
        record.compression = compression;
        record.ceiling = ceiling;
    }

    /// What an owner has to be told that knows of `before`.
    pub fn orders(self, before: Self, family: FamilyId) -> impl Iterator<Item = Order> {
        let Self { compression, ceiling } = self;
        let packing = (before.compression != compression)
            .then(|| Order::SetCompression { family, compression: compression.engine() });
        let limits =
            (before.ceiling != ceiling).then(|| Order::SetCeiling { family, ceiling: ceiling.engine() });
        packing.into_iter().chain(limits)
    }
}

pub(super) async fn set(
    control: &SharedControl,
    name: &str,
    wanted: &SetVdisk,
) -> Result<VdiskView, Refusal> {
    let (family, changed) = {
        let control = control.lock();
        control.check_ready()?;
        let family = control.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        (family, Settings::of(&control.families[&family].config).with(wanted)?)
    };
    if control.lock().part.member().is_some() {
        return member::set_vdisk(control, family, changed).await;
    }
    control.lock().set_here(family, changed)
}

impl Control {
    fn set_here(&mut self, family: FamilyId, changed: Settings) -> Result<VdiskView, Refusal> {
        self.check_ready()?;
        let Some(entry) = self.families.get_mut(&family) else {
            return Err(Refusal::conflict("the vDisk was deleted meanwhile".to_string()));
        };
        let before = Settings::of(&entry.config);
        changed.put(&mut entry.config);
        self.part.alone().store.put_family(&entry.config)?;
        for order in changed.orders(before, family) {
            self.order_owner(family, order);
        }
        Ok(self.vdisk_view(family))
    }
}
