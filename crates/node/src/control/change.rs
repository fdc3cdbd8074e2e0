//! Changing the record of a vDisk: in the node's own store, or in the cluster's.
//! Promises: it is written down and known here when this returns, and nothing is changed if it cannot be written down; who serves
//! the vDisk is told what that means.
//! Leaves to others: what is changed (who asks); telling the owner in a cluster, where every change comes as news (`member`).

use super::refusal::Refusal;
use super::{Control, SharedControl, member};
use crate::config::FamilyConfig;
use crate::shard_loop::Disk;
use weft_engine::FamilyId;
use weft_engine::interface::Order;

/// Gives the record as it is then.
pub(super) async fn change_vdisk(
    control: &SharedControl,
    family: FamilyId,
    mut alter: impl FnMut(&mut FamilyConfig) + Send + 'static,
) -> Result<FamilyConfig, Refusal> {
    if control.lock().part.member().is_none() {
        return control.lock().change_vdisk_here(family, alter);
    }
    member::changed(control, move |store| store.change_vdisk(family, &mut alter)).await
}

/// ... in a cluster, what must not change while a snapshot of it is being taken.
pub(super) async fn change_between_snapshots(
    control: &SharedControl,
    family: FamilyId,
    alter: impl FnMut(&mut FamilyConfig) + Send + 'static,
) -> Result<FamilyConfig, Refusal> {
    member::changed(control, move |store| store.change_between_snapshots(family, alter)).await
}

/// ... and puts the vDisk into another container.
pub(super) async fn move_vdisk_into(
    control: &SharedControl,
    family: FamilyId,
    container: String,
    mut alter: impl FnMut(&mut FamilyConfig) + Send + 'static,
) -> Result<FamilyConfig, Refusal> {
    {
        let mut control = control.lock();
        if control.part.member().is_none() {
            // Nobody removes it meanwhile: the lock is held.
            control.container_named(&container)?;
            return control.change_vdisk_here(family, |record| {
                alter(record);
                record.container.clone_from(&container);
            });
        }
    }
    member::changed(control, move |store| store.put_into_container(family, &container, &mut alter)).await
}

impl Control {
    /// For a node that is alone.
    pub(super) fn change_vdisk_here(
        &mut self,
        family: FamilyId,
        mut alter: impl FnMut(&mut FamilyConfig),
    ) -> Result<FamilyConfig, Refusal> {
        let entry = self.families.get_mut(&family);
        let entry = entry.ok_or_else(|| Refusal::not_found("the vDisk was deleted meanwhile"))?;
        let mut changed = entry.config.clone();
        alter(&mut changed);
        self.part.alone().store.put_family(&changed)?;
        let before = std::mem::replace(&mut entry.config, changed.clone());
        if changed.size != before.size {
            let size = changed.size;
            for listener in self.listeners.values() {
                listener.table.resize(Disk::present(family), size);
            }
            self.order_owner(family, Order::Resize { family, size });
        }
        for order in self.policy(&changed).orders(self.policy(&before), family) {
            self.order_owner(family, order);
        }
        Ok(changed)
    }
}
