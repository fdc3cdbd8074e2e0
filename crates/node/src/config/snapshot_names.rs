//! Snapshots of one vDisk that have one name. A node that stood alone could write such two, as long as it did not look again whether a
//! name was free when the vDisks of a group had been waited for.
//! Promises: none of them is lost; who can be read keeps its name, and the other one gets another.

use super::{Config, SnapshotKey, SnapshotRecord, SnapshotState};
use std::collections::BTreeSet;

/// Names to choose from where this one is taken.
pub fn numbered(name: &str) -> impl Iterator<Item = String> {
    (2u32..).map(move |number| format!("{name}-{number}"))
}

impl Config {
    /// Gives each snapshot a name of its own, the same ones whenever it is asked. Those that got another one, to be stored.
    pub fn name_snapshots_apart(&mut self) -> Vec<SnapshotRecord> {
        let mut taken: BTreeSet<SnapshotKey> = self.snapshots.iter().map(SnapshotRecord::key).collect();
        if taken.len() == self.snapshots.len() {
            return Vec::new();
        }
        self.snapshots
            .sort_by_key(|record| (record.state != SnapshotState::Ready, record.created, record.snapshot));
        let mut named = BTreeSet::new();
        let mut renamed = Vec::new();
        for record in &mut self.snapshots {
            if named.insert(record.key()) {
                continue;
            }
            let before = record.name.clone();
            record.name = numbered(&before)
                .find(|name| !taken.contains(&(record.family(), name.clone())))
                .expect("there are more numbers than snapshots");
            tracing::warn!(
                family = record.family,
                name = before,
                now = record.name,
                "two snapshots of a vDisk had one name"
            );
            named.insert(record.key());
            taken.insert(record.key());
            renamed.push(record.clone());
        }
        renamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SnapshotOrigin;

    fn a_snapshot(snapshot: u64, family: u32, name: &str, state: SnapshotState) -> SnapshotRecord {
        let record = SnapshotRecord::new(snapshot, family, name, 1 << 30, 1, SnapshotOrigin::Asked);
        SnapshotRecord { state, ..record }
    }

    #[test]
    fn of_snapshots_with_one_name_none_is_lost() {
        let snapshots = vec![
            a_snapshot(1, 1, "nightly", SnapshotState::Deleting),
            a_snapshot(2, 1, "nightly", SnapshotState::Ready),
            a_snapshot(3, 1, "nightly-2", SnapshotState::Ready),
            a_snapshot(4, 1, "nightly", SnapshotState::Creating),
            a_snapshot(5, 2, "nightly", SnapshotState::Ready),
        ];
        let mut config = Config { snapshots: snapshots.clone(), ..Config::default() };
        let renamed = config.name_snapshots_apart();
        let mut names: Vec<(u64, &str)> =
            config.snapshots.iter().map(|record| (record.snapshot, record.name.as_str())).collect();
        names.sort_unstable();
        let expected = [(1, "nightly-3"), (2, "nightly"), (3, "nightly-2"), (4, "nightly-4"), (5, "nightly")];
        assert_eq!(names, expected);
        assert_eq!(renamed.iter().map(|record| record.snapshot).collect::<Vec<_>>(), [1, 4]);
        let mut cut = Config { snapshots, ..Config::default() };
        assert_eq!(cut.name_snapshots_apart(), renamed, "what could not be stored gets the same name again");
        assert_eq!(config.name_snapshots_apart(), []);
    }
}
