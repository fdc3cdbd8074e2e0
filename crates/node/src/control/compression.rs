//! How vDisks pack their data: asked for when one is made, changed at any time.
//! Promises: what is answered is in the store; the owner uses it for what it places from then on.
//! Leaves to others: packing (the engine), telling the owner in a cluster (`member/families.rs`, like every change).

use super::refusal::Refusal;
use super::{Control, SharedControl, member};
use crate::api::{SetVdisk, VdiskView};
use crate::config::CompressionRecord;
use weft_engine::{FamilyId, Order};

/// What a new vDisk shall have.
pub(super) fn wanted(method: Option<&str>, unit: Option<u64>) -> Result<CompressionRecord, Refusal> {
    CompressionRecord::default().with(method, unit).map_err(Refusal::bad_input)
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
        let present = control.families[&family].config.compression;
        let changed = present.with(wanted.compression.as_deref(), wanted.compression_unit);
        (family, changed.map_err(Refusal::bad_input)?)
    };
    if control.lock().part.member().is_some() {
        return member::set_compression(control, family, changed).await;
    }
    control.lock().set_compression_here(family, changed)
}

impl Control {
    fn set_compression_here(
        &mut self,
        family: FamilyId,
        changed: CompressionRecord,
    ) -> Result<VdiskView, Refusal> {
        self.check_ready()?;
        let Some(entry) = self.families.get_mut(&family) else {
            return Err(Refusal::conflict("the vDisk was deleted meanwhile".to_string()));
        };
        entry.config.compression = changed;
        self.part.alone().store.put_family(&entry.config)?;
        self.order_owner(family, Order::SetCompression { family, compression: changed.engine() });
        Ok(self.vdisk_view(family))
    }
}
