//! The control plane of the simulated cluster: the table of groups by the real placement, one owner for each family.
//! Promises: owners stay where they are: nodes that join keep copies and serve nothing. Former members of groups are
//! forgotten when every owner says so.
//! Leaves to others: failures; there are none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_engine::cluster::placement::{Drive, Group, MOVES_MAX, Standing, Wishes, plan};
use weft_engine::cluster::whole::WholeGroups;
use weft_engine::interface::{Ceiling, Compression, Damage, DriveState, DriveView, FamilyRecord, View};
use weft_engine::{DriveId, Epoch, FamilyId, GroupId, Notice, Order, ShardId};

/// Copies of everything.
pub const FACTOR: u32 = 2;

/// The shard of a node, which has no other one.
pub fn shard_of(node: u32) -> ShardId {
    ShardId::of(node, 0)
}

#[derive(Default)]
pub struct Control {
    drives: Vec<Drive>,
    ready: BTreeSet<DriveId>,
    groups: BTreeMap<GroupId, Group>,
    whole: WholeGroups,
    audited: BTreeSet<(GroupId, u64)>,
    version: u64,
    /// Drives in the newest view.
    told: usize,
    families: BTreeMap<FamilyId, (FamilyRecord, usize)>,
    serving: BTreeSet<FamilyId>,
    is_at_rest: bool,
}

impl Control {
    pub fn add_drive(&mut self, node: u32) -> DriveId {
        let id = DriveId(self.drives.len() as u32);
        self.drives.push(Drive { id, node, rack: 0, zone: 0, weight: 1, standing: Standing::In });
        self.is_at_rest = false;
        id
    }

    /// A new family of so many bytes, to be opened there.
    pub fn add_family(&mut self, size: u64, owner: usize) -> (FamilyId, Order) {
        let family = FamilyId(self.families.len() as u32 + 1);
        let record = FamilyRecord {
            family,
            epoch: Epoch(1),
            size,
            factor: FACTOR,
            segments: Vec::new(),
            version: 0,
            origin: None,
            rollback: None,
            compression: Compression::default(),
            ceiling: Ceiling::default(),
        };
        self.families.insert(family, (record.clone(), owner));
        (family, Order::OpenFamily(record))
    }

    pub fn owner(&self, family: FamilyId) -> usize {
        self.families[&family].1
    }

    pub fn all_serving(&self) -> bool {
        self.serving.len() == self.families.len()
    }

    /// All drives are in use, all groups are where they should be, and nothing is owed to anybody.
    pub fn is_at_rest(&self) -> bool {
        self.is_at_rest
    }

    /// What a shard tells, and the orders that follow.
    pub fn on_notice(&mut self, shard: usize, notice: Notice) -> Vec<(usize, Order)> {
        match notice {
            Notice::DriveReady { drive } => drop(self.ready.insert(drive)),
            Notice::FamilyReady { family, .. } => drop(self.serving.insert(family)),
            Notice::ChangeSegments { family, epoch, version, segments } => {
                let (record, _) =
                    self.families.get_mut(&family).expect("only families that are there change");
                (record.segments, record.version) = (segments, version);
                return vec![(shard, Order::SegmentsChanged { family, epoch, version, taken: true })];
            }
            Notice::GroupsWhole { family, epoch, view, groups } => {
                self.whole.told(family, epoch, view, &groups);
            }
            // Nobody changes the number of copies here: it is what it was from the beginning.
            Notice::FactorReached { .. } | Notice::FactorMissed { .. } => {}
            // A member that joined was asked for what it has not got yet, or has got its copy.
            Notice::Damage { damage: Damage::CopyAwaited { .. } | Damage::CopyRepaired { .. }, .. } => {}
            other => panic!("nothing fails here: {other:?}"),
        }
        Vec::new()
    }

    /// Every second: the table of groups as it should be now, and the view of it for all shards.
    pub fn tick(&mut self, shards: usize) -> Vec<(usize, Order)> {
        if self.ready.len() < self.drives.len() {
            return Vec::new();
        }
        let owners = self.families.values().map(|(record, _)| (record.family, record.epoch)).collect();
        for group in self.whole.take_settled(&owners) {
            self.audited.insert((group, self.groups[&group].version));
        }
        let next_group = self.groups.last_key_value().map_or(1, |(last, _)| last.0 + 1);
        let wishes = Wishes { factors: [FACTOR].into(), moves_max: MOVES_MAX, next_group };
        let groups: Vec<Group> = self.groups.values().cloned().collect();
        let plan = plan(&self.drives, &groups, &self.audited, &wishes);
        let is_same = plan.changed.is_empty() && plan.made.is_empty() && self.told == self.drives.len();
        self.is_at_rest = plan.is_at_rest && is_same;
        if is_same {
            return Vec::new();
        }
        self.version += 1;
        self.told = self.drives.len();
        for group in plan.changed.into_iter().chain(plan.made) {
            if !group.former.is_empty() {
                self.whole.changed(group.id, self.version);
            }
            self.groups.insert(group.id, group);
        }
        (0..shards).map(|shard| (shard, Order::View(self.view()))).collect()
    }

    fn view(&self) -> View {
        let view = |drive: &Drive| DriveView {
            shard: shard_of(drive.node),
            domain: drive.node,
            state: DriveState::Up,
        };
        View {
            version: self.version,
            drives: self.drives.iter().map(|drive| (drive.id, view(drive))).collect(),
            groups: Arc::new(self.groups.iter().map(|(&id, group)| (id, group.view())).collect()),
        }
    }
}
