//! Snapshots as people know them: by name, in records. Whoever serves the vDisk has the engine take and drop them.
//! Promises: the record comes before the snapshot and goes after it, so that whatever is cut short is finished by the next owner;
//! what is answered as made can be read, and is there after every restart.
//! Leaves to others: taking, keeping and reading them (the engine); the records (`config`).

mod diff;
mod groups;
mod name;
mod orders;
mod records;
mod requests;
mod rollback;
mod schedules;

pub use diff::diff;
pub use groups::{
    change as change_group, create as create_group, hold, remove as remove_group, snapshot as snapshot_group,
    take,
};
pub use name::DiskName;
pub use orders::{Orders, look_after};
pub use records::wait_until_taken;
pub use requests::{create, remove};
pub use rollback::roll_back;
pub use schedules::{remove as remove_schedule, set as set_schedule};

use super::refusal::Refusal;
use crate::config::SnapshotRecord;
use crate::config::cluster::ClusterError;

impl Refusal {
    fn no_snapshot(name: &DiskName) -> Self {
        Self::not_found(format!(
            "there is no snapshot {name}; `weft snapshot ls {}` shows what there is",
            name.vdisk
        ))
    }

    pub(super) fn going_back(vdisk: &str) -> Self {
        Self::from(ClusterError::GoingBack { name: vdisk.to_string() })
    }
}

/// In the order in which they were taken.
fn by_age(snapshots: &mut [&SnapshotRecord]) {
    snapshots.sort_by_key(|record| (record.created, record.generation, record.snapshot));
}
