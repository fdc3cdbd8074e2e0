//! What the controller decides, from what the store holds: an elected node asks the rules (`weft_engine::cluster`), and
//! writes what follows. Everything here may be cut anywhere and done again, by this node or the next one.

use crate::api::WholeView;
use crate::config::cluster::{
    Claim, ClusterConfig, ClusterError, ClusterStore, Decided, Ground, Leadership, NewOwner, NodeState,
    Versioned,
};
use crate::config::{DriveRecord, DriveRecordState, FamilyConfig, FamilyState, GroupRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weft_engine::cluster::ownership::{self, Clients, How, Move, Owner};
use weft_engine::cluster::placement::{self, MOVES_MAX, Standing, Wishes};
use weft_engine::{DriveId, Epoch, GroupId, ShardId, Time};

/// What a controller remembers between two decisions. A new one begins without: it then waits a little longer.
pub struct Memory {
    /// Nodes that have no lease, and since when that is known.
    away: BTreeMap<u32, Instant>,
}

impl Memory {
    pub fn new() -> Self {
        Self { away: BTreeMap::new() }
    }

    /// Takes in what the store holds now.
    pub fn note(&mut self, mirror: &ClusterConfig, now: Instant) {
        let is_away = |node: &u32| !mirror.alive.contains_key(node);
        self.away.retain(|node, _| is_away(node) && mirror.nodes.contains_key(node));
        for node in mirror.nodes.keys().filter(|node| is_away(node)) {
            self.away.entry(*node).or_insert(now);
        }
    }
}

/// Writes what should change now. Gives the store's revision behind the last change, 0 if nothing was to be done.
pub fn decide(
    store: &ClusterStore,
    mirror: &ClusterConfig,
    leadership: &Leadership,
    memory: &mut Memory,
    whole: impl FnOnce() -> Vec<WholeView>,
) -> Result<u64, ClusterError> {
    let now = Instant::now();
    memory.note(mirror, now);
    // Clients of what nobody serves are waiting: that comes before all nodes are asked what they have found.
    let moved = move_families(store, mirror, leadership)?;
    let arranged = arrange_groups(store, mirror, leadership, memory, now, &whole())?;
    Ok(moved.max(arranged))
}

fn move_families(
    store: &ClusterStore,
    mirror: &ClusterConfig,
    leadership: &Leadership,
) -> Result<u64, ClusterError> {
    let mut revision = 0;
    let told = |decided: &Move| {
        let Move { family, to, why, .. } = decided;
        tracing::info!(%family, to = to.0, ?why, "a vDisk goes to another shard");
    };
    let (taken, handed_over): (Vec<Move>, Vec<Move>) =
        owners(mirror).moves().into_iter().partition(|decided| decided.how == How::Take);
    let claims: Vec<(&Move, Claim)> =
        taken.iter().filter_map(|decided| Some((decided, claim(mirror, decided)?))).collect();
    let given = store.give_all(claims.iter().map(|(_, claim)| claim.clone()).collect(), leadership)?;
    for ((decided, _), given) in claims.iter().zip(given) {
        // Otherwise something has happened since: the next news tell, and it is decided anew.
        if let Some(given) = given {
            told(decided);
            revision = revision.max(given);
        }
    }
    for decided in &handed_over {
        let Some(seen) = mirror.families.get(&decided.family) else { continue };
        let Some(owner) = seen.record.owner else { continue };
        let by = (ShardId(owner), Epoch(seen.record.epoch));
        match store.send(decided.family, by, decided.to.node(), Some(leadership)) {
            Ok(sent) => {
                told(decided);
                revision = revision.max(sent.revision);
            }
            Err(ClusterError::Changed { .. } | ClusterError::NotThere { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(revision)
}

/// What the store is asked for when a vDisk is given to another shard; None: not now.
fn claim(mirror: &ClusterConfig, decided: &Move) -> Option<Claim> {
    let to = decided.to.node();
    let (seen, alive) = (mirror.families.get(&decided.family)?, mirror.alive.get(&to)?);
    let mut lives = BTreeMap::from([(to, alive.revision)]);
    if let Some(former) = seen.record.owner {
        // The old owner's life must still be over when this is written.
        let former = ShardId(former).node();
        let known = mirror.alive.get(&former);
        if known.is_some_and(|alive| alive.record.incarnation == seen.record.life) {
            // It was taken out of the cluster, and lives on: until its lease has ended, it may answer.
            return None;
        }
        lives.insert(former, known.map_or(0, |alive| alive.revision));
    }
    let life = alive.record.incarnation;
    let to = NewOwner { shard: decided.to, life, alive: lives.into_iter().collect() };
    Some(Claim { seen: seen.clone(), to })
}

/// The cluster as the rules of ownership see it.
fn owners(mirror: &ClusterConfig) -> ownership::Cluster {
    let nodes = mirror.nodes.iter().filter(|(_, node)| node.record.state != NodeState::Removed);
    let nodes = nodes.map(|(&number, node)| {
        let record = &node.record;
        let shards = (0..record.shards).map(|index| ShardId::of(number, index)).collect();
        let node = ownership::Node {
            lease: mirror.alive.get(&number).map(|alive| alive.record.incarnation),
            is_storage_only: record.storage_only,
            is_draining: record.state == NodeState::Draining,
            is_stopping: mirror.alive.get(&number).is_some_and(|alive| alive.record.stopping),
            shards,
        };
        (number, node)
    });
    // One that is being destroyed is taken from the dead only: whoever does it waits for drives that are away, and hands nothing
    // over meanwhile.
    let lives = |record: &FamilyConfig| {
        let owner = record.owner.and_then(|shard| mirror.alive.get(&ShardId(shard).node()));
        owner.is_some_and(|alive| alive.record.incarnation == record.life)
    };
    let families = mirror
        .families
        .iter()
        .filter(|(_, entry)| entry.record.state == FamilyState::Live || !lives(&entry.record));
    let families = families.map(|(&id, entry)| {
        let record = &entry.record;
        let owner = record.owner.map(ShardId).map(|shard| Owner {
            node: shard.node(),
            shard,
            lease: record.life,
            since: Time(0),
        });
        // Where clients are the owner itself knows, and for how long: it asks to be moved, so no time counts here.
        let family = ownership::Family { owner, moving_to: record.moving_to, clients: Clients::default() };
        (id, family)
    });
    ownership::Cluster { now: Time(0), nodes: nodes.collect(), families: families.collect() }
}

fn arrange_groups(
    store: &ClusterStore,
    mirror: &ClusterConfig,
    leadership: &Leadership,
    memory: &Memory,
    now: Instant,
    whole: &[WholeView],
) -> Result<u64, ClusterError> {
    let groups: Vec<placement::Group> = mirror.groups.values().map(group_of).collect();
    let wishes = Wishes {
        factors: mirror.families.values().map(|family| mirror.policy(&family.record).factor).collect(),
        moves_max: MOVES_MAX,
        next_group: mirror.cluster.record.next_group,
    };
    let plan = placement::plan(&drives(mirror, memory, now), &groups, &audited(mirror, whole), &wishes);
    let mut revision = 0;
    if !plan.changed.is_empty() {
        let changed: Vec<_> = plan
            .changed
            .iter()
            .map(|group| {
                let before = &mirror.groups[&group.id];
                let (record, known) = (record_of(group), &before.record);
                let new = record
                    .members
                    .iter()
                    .filter(|drive| !known.members.contains(drive) && !known.former.contains(drive));
                let grounds = grounds(store, mirror, new);
                Decided { what: Versioned { record, revision: before.revision }, grounds }
            })
            .collect();
        tracing::info!(
            groups = changed.len(),
            "groups get other members, or have all copies where they belong"
        );
        match store.put_groups(&changed, leadership) {
            Ok(put) => revision = put.iter().map(|group| group.revision).max().unwrap_or(0),
            Err(ClusterError::Changed { .. }) => return Ok(revision),
            Err(error) => return Err(error),
        }
    }
    if !plan.made.is_empty() {
        let made: Vec<_> = plan
            .made
            .iter()
            .map(|group| {
                let group = record_of(group);
                Decided { grounds: grounds(store, mirror, group.members.iter()), what: group }
            })
            .collect();
        tracing::info!(groups = made.len(), "groups are made");
        match store.add_groups(&made, leadership) {
            Ok(made) => {
                revision = made.iter().map(|group| group.revision).max().unwrap_or(revision).max(revision);
            }
            Err(ClusterError::Changed { .. }) => return Ok(revision),
            Err(error) => return Err(error),
        }
    }
    Ok(revision)
}

/// What must still be so when these drives are given something.
fn grounds<'a>(
    store: &ClusterStore,
    mirror: &ClusterConfig,
    drives: impl Iterator<Item = &'a u32>,
) -> Vec<Ground> {
    let known = drives.filter_map(|&drive| {
        let drive = mirror.drives.get(&DriveId(drive))?;
        Some(store.grounds(drive, mirror.nodes.get(&drive.record.node)?))
    });
    known.flatten().collect()
}

fn group_of(group: &Versioned<GroupRecord>) -> placement::Group {
    let ids = |drives: &[u32]| drives.iter().copied().map(DriveId).collect();
    placement::Group {
        id: group.record.id(),
        factor: group.record.factor,
        members: ids(&group.record.members),
        former: ids(&group.record.former),
        version: group.revision,
    }
}

fn record_of(group: &placement::Group) -> GroupRecord {
    let numbers = |drives: &[DriveId]| drives.iter().map(|drive| drive.0).collect();
    GroupRecord {
        group: group.id.0,
        factor: group.factor,
        members: numbers(&group.members),
        former: numbers(&group.former),
    }
}

/// The groups of which the present owners of all vDisks have found everything on every member, in the version that the
/// store has.
fn audited(mirror: &ClusterConfig, whole: &[WholeView]) -> BTreeSet<(GroupId, u64)> {
    let told: BTreeMap<(u32, u32), &WholeView> =
        whole.iter().map(|told| ((told.family, told.epoch), told)).collect();
    let living: Vec<_> =
        mirror.families.values().filter(|family| family.record.state == FamilyState::Live).collect();
    let is_found = |group: GroupId, version: u64| {
        living.iter().all(|family| {
            let told = told.get(&(family.record.family, family.record.epoch));
            told.and_then(|told| told.groups.get(&group.0)).is_some_and(|&revision| revision >= version)
        })
    };
    let owing = mirror.groups.iter().filter(|(_, group)| !group.record.former.is_empty());
    owing
        .filter(|&(&id, group)| is_found(id, group.revision))
        .map(|(&id, group)| (id, group.revision))
        .collect()
}

/// The drives as placement sees them.
fn drives(mirror: &ClusterConfig, memory: &Memory, now: Instant) -> Vec<placement::Drive> {
    // What was told with the same words is the same place; what was not told is one place too.
    let mut zones = BTreeMap::new();
    let mut racks = BTreeMap::new();
    let mut drives = Vec::new();
    for (&id, drive) in &mirror.drives {
        let record = &drive.record;
        if record.state == DriveRecordState::Making {
            continue;
        }
        let node = mirror.nodes.get(&record.node).map(|node| &node.record);
        let (zone, rack) = node.map_or(("", ""), |node| (node.zone.as_str(), node.rack.as_str()));
        let next = zones.len() as u32;
        let zone_number = *zones.entry(zone).or_insert(next);
        let next = racks.len() as u32;
        let rack_number = *racks.entry((zone, rack)).or_insert(next);
        drives.push(placement::Drive {
            id,
            node: record.node,
            rack: rack_number,
            zone: zone_number,
            weight: record.data / 100 * u64::from(record.weight),
            standing: standing(mirror, memory, now, record),
        });
    }
    drives
}

fn standing(mirror: &ClusterConfig, memory: &Memory, now: Instant, record: &DriveRecord) -> Standing {
    let state = mirror.nodes.get(&record.node).map_or(NodeState::Removed, |node| node.record.state);
    let away_after = Duration::from_secs(mirror.cluster.record.away_seconds);
    let is_long_away =
        memory.away.get(&record.node).is_some_and(|&since| now.duration_since(since) >= away_after);
    let alive = mirror.alive.get(&record.node);
    let is_up = alive.is_some_and(|alive| alive.record.up.contains(&record.drive));
    match () {
        () if record.state == DriveRecordState::Lost => Standing::Lost,
        () if state == NodeState::Removed || is_long_away => Standing::Lost,
        () if !is_up => Standing::Down,
        () if record.state == DriveRecordState::Draining || state == NodeState::Draining => {
            Standing::Draining
        }
        () => Standing::In,
    }
}
