//! `records-seen.json` in a node's directory: how new the records are by which the node has acted.
//! Promises: what was written is durable when the call returns; what is there is never newer than the records were.
//! Leaves to others: what follows when the records are older than that (`cluster::memory`, the start of a node).

use super::{MembershipError, NodeRecord, durable_file};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Its name in the node's directory.
pub const SEEN_FILE: &str = "records-seen.json";

/// So many owners are passed over where the clock says nothing.
const EPOCHS_PASSED_OVER: u32 = 1 << 20;

/// An epoch that no owner has had of whom older records do not know, at this time in seconds since 1970: it is that. Nor had any by records
/// that were accepted some time ago, and are not these, as owners do not change every second for long.
pub fn epoch_passed_over(epoch: u32, now: u64) -> u32 {
    let by_clock = u32::try_from(now).unwrap_or(0);
    if by_clock > epoch {
        return by_clock;
    }
    epoch.checked_add(EPOCHS_PASSED_OVER).expect("older records are not accepted thousands of times")
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "of")]
pub enum Seen {
    /// The records of the cluster of this id.
    Cluster {
        id: u64,
        /// The last time that older ones were accepted, see [`super::cluster::ClusterRecord::accepted`]; 0: never.
        accepted: u64,
        /// Of the store, since then.
        revision: u64,
        /// Keys that were put last, and when: see [`super::cluster::ClusterStore::remembering`].
        #[serde(default)]
        put: BTreeMap<String, u64>,
    },
    /// Those of the node itself, which is alone.
    Alone { node: u64, starts: u64 },
}

impl Seen {
    /// None: nothing is known.
    pub fn read(dir: &Path) -> Result<Option<Self>, MembershipError> {
        let path = dir.join(SEEN_FILE);
        let text = match durable_file::read(dir, SEEN_FILE) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(source) => return Err(MembershipError::Io { path, source }),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| MembershipError::DamagedSeen { path, source })
    }

    pub fn write(&self, dir: &Path) -> Result<(), MembershipError> {
        let mut text = serde_json::to_vec_pretty(self).expect("it is plain data");
        text.push(b'\n');
        durable_file::replace(dir, SEEN_FILE, &text)
            .map_err(|source| MembershipError::Io { path: dir.join(SEEN_FILE), source })
    }

    /// Of the starts of a node that is alone, how many were counted where its records are not. None: the records are no older.
    pub fn starts_missing(&self, records: &NodeRecord) -> Option<u64> {
        match self {
            // Those of which no start was counted are of a version that does not count any: they may be newer.
            Self::Alone { node, starts } if *node == records.node && records.starts > 0 => {
                starts.checked_sub(records.starts).filter(|missing| *missing > 0)
            }
            Self::Alone { .. } | Self::Cluster { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_fewer_starts_are_older() {
        let seen = Seen::Alone { node: 7, starts: 5 };
        let missing =
            |node, starts| seen.starts_missing(&NodeRecord { node, starts, ..NodeRecord::default() });
        assert_eq!([missing(7, 3), missing(7, 5), missing(7, 6)], [Some(2), None, None]);
        assert_eq!(missing(8, 3), None, "they are of another node");
        assert_eq!(missing(7, 0), None, "who wrote them does not count");
        let elsewhere = Seen::Cluster { id: 7, accepted: 0, revision: 5, put: BTreeMap::new() };
        assert_eq!(
            elsewhere.starts_missing(&NodeRecord { node: 7, starts: 3, ..NodeRecord::default() }),
            None
        );
    }

    #[test]
    fn who_comes_after_older_records_were_accepted_has_an_epoch_of_his_own() {
        let day = 86_400;
        let first = epoch_passed_over(5, 20_000 * day);
        assert!(first > 1_000_000);
        // Some owners later, others are accepted, of which the first know nothing.
        assert!(epoch_passed_over(7, 20_000 * day + 60) > first + 10);
        assert!(epoch_passed_over(first, 20_000 * day) > first + 1_000_000, "the clock stands still");
        assert!(epoch_passed_over(5, 0) > 1_000_000, "the clock is wrong");
    }

    #[test]
    fn what_was_seen_is_read_again_and_damage_is_told() {
        let dir = std::env::temp_dir().join(format!("weft-seen-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
        assert_eq!(Seen::read(&dir).expect("nothing is there"), None);
        let put = BTreeMap::from([("/weft/main/nodes/0".to_string(), 8)]);
        let of_cluster = Seen::Cluster { id: u64::MAX, accepted: 3, revision: 9, put };
        for seen in [of_cluster, Seen::Alone { node: 7, starts: 5 }] {
            seen.write(&dir).expect("it is written");
            assert_eq!(Seen::read(&dir).expect("it is read"), Some(seen));
        }
        std::fs::write(dir.join(SEEN_FILE), b"{").expect("it is written");
        let error = Seen::read(&dir).expect_err("it is damaged");
        assert!(error.to_string().contains("remove it"), "{error}");
        std::fs::remove_dir_all(&dir).expect("it is ours");
    }
}
