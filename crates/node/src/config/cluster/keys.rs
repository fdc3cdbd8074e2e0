//! Where each record of a cluster is in etcd.

use weft_engine::{DriveId, FamilyId, GroupId};

const NAME_MAX: usize = 63;

#[derive(Debug, Clone)]
pub struct Keys {
    name: String,
}

/// What a key below the cluster's name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    Cluster,
    Node(u32),
    Alive(u32),
    CutOff(u32),
    Drive(DriveId),
    Group(GroupId),
    Family(FamilyId),
    /// Of this vDisk, under this name.
    Snapshot(FamilyId, String),
    Schedule(FamilyId),
    /// A consistency group.
    Consistency(String),
    Container(String),
    Name,
    Controller,
}

impl Keys {
    /// None: no cluster can have this name.
    pub fn new(name: &str) -> Option<Self> {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        (plain && begins && name.len() <= NAME_MAX).then(|| Self { name: name.to_string() })
    }

    pub fn cluster_name(&self) -> &str {
        &self.name
    }

    fn below(&self, rest: impl std::fmt::Display) -> String {
        format!("/weft/{}/{rest}", self.name)
    }

    /// The range of all keys of the cluster: the first that could be, and the first behind them.
    pub fn all(&self) -> (String, String) {
        // '0' is the character behind '/'.
        (self.below(""), format!("/weft/{}0", self.name))
    }

    /// The same of one kind.
    fn all_of(&self, kind: &str) -> (String, String) {
        (self.below(format_args!("{kind}/")), self.below(format_args!("{kind}0")))
    }

    pub fn cluster(&self) -> String {
        self.below("cluster")
    }

    pub fn node(&self, node: u32) -> String {
        self.below(format_args!("nodes/{node}"))
    }

    pub fn alive(&self, node: u32) -> String {
        self.below(format_args!("alive/{node}"))
    }

    /// The range of the keys of all nodes that live.
    pub fn lives(&self) -> (String, String) {
        self.all_of("alive")
    }

    /// Whether the record there outlives nodes, and is hardly ever removed.
    pub fn is_lasting(&self, key: &str) -> bool {
        let kind = self.read(key);
        matches!(kind, Some(Key::Cluster | Key::Node(_) | Key::Drive(_) | Key::Group(_) | Key::Family(_)))
    }

    pub fn cut_off(&self, node: u32) -> String {
        self.below(format_args!("cut-off/{node}"))
    }

    pub fn drive(&self, drive: DriveId) -> String {
        self.below(format_args!("drives/{drive}"))
    }

    pub fn group(&self, group: GroupId) -> String {
        self.below(format_args!("groups/{group}"))
    }

    pub fn family(&self, family: FamilyId) -> String {
        self.below(format_args!("families/{family}"))
    }

    /// The range of the keys of all groups.
    pub fn groups(&self) -> (String, String) {
        self.all_of("groups")
    }

    /// The range of the keys of all vDisks.
    pub fn families(&self) -> (String, String) {
        self.all_of("families")
    }

    pub fn snapshot(&self, family: FamilyId, name: &str) -> String {
        self.below(format_args!("snapshots/{family}/{name}"))
    }

    /// The range of the keys of all snapshots of a vDisk.
    pub fn snapshots(&self, family: FamilyId) -> (String, String) {
        // '0' is the character behind '/'.
        (self.snapshot(family, ""), self.below(format_args!("snapshots/{family}0")))
    }

    pub fn schedule(&self, family: FamilyId) -> String {
        self.below(format_args!("schedules/{family}"))
    }

    pub fn consistency(&self, group: &str) -> String {
        self.below(format_args!("consistency/{group}"))
    }

    pub fn container(&self, name: &str) -> String {
        self.below(format_args!("containers/{name}"))
    }

    pub fn vdisk_name(&self, name: &str) -> String {
        self.below(format_args!("names/{name}"))
    }

    pub fn controller(&self) -> String {
        self.below("controller")
    }

    /// None: a kind of record that this version does not know, and can do without.
    pub fn read(&self, key: &str) -> Option<Key> {
        let rest = key.strip_prefix("/weft/")?.strip_prefix(&self.name)?.strip_prefix('/')?;
        match rest.split_once('/') {
            None if rest == "cluster" => Some(Key::Cluster),
            None if rest == "controller" => Some(Key::Controller),
            None => None,
            Some(("nodes", node)) => node.parse().ok().map(Key::Node),
            Some(("alive", node)) => node.parse().ok().map(Key::Alive),
            Some(("cut-off", node)) => node.parse().ok().map(Key::CutOff),
            Some(("drives", drive)) => drive.parse().ok().map(|drive| Key::Drive(DriveId(drive))),
            Some(("groups", group)) => group.parse().ok().map(|group| Key::Group(GroupId(group))),
            Some(("families", family)) => family.parse().ok().map(|family| Key::Family(FamilyId(family))),
            Some(("snapshots", rest)) => {
                let (family, name) = rest.split_once('/')?;
                family.parse().ok().map(|family| Key::Snapshot(FamilyId(family), name.to_string()))
            }
            Some(("schedules", family)) => family.parse().ok().map(|family| Key::Schedule(FamilyId(family))),
            Some(("consistency", group)) => Some(Key::Consistency(group.to_string())),
            Some(("containers", name)) => Some(Key::Container(name.to_string())),
            Some(("names", _)) => Some(Key::Name),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_as_what_it_was_made_for() {
        let keys = Keys::new("main").expect("it is a name");
        let (first, end) = keys.all();
        for (key, meaning) in [
            (keys.cluster(), Key::Cluster),
            (keys.node(3), Key::Node(3)),
            (keys.alive(3), Key::Alive(3)),
            (keys.cut_off(3), Key::CutOff(3)),
            (keys.drive(DriveId(7)), Key::Drive(DriveId(7))),
            (keys.group(GroupId(8)), Key::Group(GroupId(8))),
            (keys.family(FamilyId(9)), Key::Family(FamilyId(9))),
            (keys.snapshot(FamilyId(9), "a.b"), Key::Snapshot(FamilyId(9), "a.b".to_string())),
            (keys.schedule(FamilyId(9)), Key::Schedule(FamilyId(9))),
            (keys.consistency("db"), Key::Consistency("db".to_string())),
            (keys.container("fast"), Key::Container("fast".to_string())),
            (keys.vdisk_name("a.b"), Key::Name),
            (keys.controller(), Key::Controller),
        ] {
            assert_eq!(keys.read(&key), Some(meaning));
            assert!(first <= key && key < end, "{key} is in the range of all keys");
        }
        assert_eq!(keys.read("/weft/main/tiers/1"), None);
        assert_eq!(keys.read("/weft/main2/cluster"), None);
    }

    #[test]
    fn the_snapshots_of_one_vdisk_are_a_range() {
        let keys = Keys::new("main").expect("it is a name");
        let (first, end) = keys.snapshots(FamilyId(9));
        for name in ["a", "zz.z", "0", "-"] {
            let key = keys.snapshot(FamilyId(9), name);
            assert!(first <= key && key < end, "{key} is in the range");
            for other in [8, 90, 91] {
                let key = keys.snapshot(FamilyId(other), name);
                assert!(key < first || key >= end, "{key} is of another vDisk");
            }
        }
    }

    #[test]
    fn another_cluster_is_never_in_the_range() {
        let (first, end) = Keys::new("main").expect("it is a name").all();
        for other in ["main0", "main-", "mai", "main.x", "mainz"] {
            let key = Keys::new(other).expect("it is a name").cluster();
            assert!(key < first || key >= end, "{key} is another cluster's");
        }
        for bad in ["", "a/b", "-a", "a b", "ä", &"x".repeat(64)] {
            assert!(Keys::new(bad).is_none(), "{bad:?}");
        }
    }
}
