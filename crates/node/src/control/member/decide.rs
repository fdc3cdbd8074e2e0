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

/// So long a drive of a node that lives is waited for, also where nodes are for less: drives hang for half a minute, and are well again.
const DRIVE_AWAY_LEAST: Duration = Duration::from_secs(60);

/// What a controller remembers between two decisions. A new one begins without: it then waits a little longer.
pub struct Memory {
    /// Drives that nobody can use, and since when that is known.
    away: BTreeMap<DriveId, Instant>,
    /// Since when of these the node was seen living first: it is most likely opening them.
    back: BTreeMap<DriveId, Instant>,
}

impl Memory {
    pub fn new() -> Self {
        Self { away: BTreeMap::new(), back: BTreeMap::new() }
    }

    /// Takes in what the store holds now.
    pub fn note(&mut self, mirror: &ClusterConfig, now: Instant) {
        let counts = |drive: &DriveRecord| {
            let is_removed =
                mirror.nodes.get(&drive.node).is_none_or(|node| node.record.state == NodeState::Removed);
            !is_removed && !matches!(drive.state, DriveRecordState::Lost | DriveRecordState::Making)
        };
        let all: Vec<&DriveRecord> =
            mirror.drives.values().map(|drive| &drive.record).filter(|drive| counts(drive)).collect();
        let away: BTreeMap<DriveId, &DriveRecord> =
            all.iter().filter(|drive| !mirror.is_up(drive)).map(|&drive| (drive.id(), drive)).collect();
        let down: Vec<DriveId> = away
            .iter()
            .filter(|(_, drive)| mirror.alive.contains_key(&drive.node))
            .map(|(&id, _)| id)
            .collect();
        // Until it is up, however often its node begins anew: a drive that hangs is not told as down while a node starts.
        for known in [&mut self.away, &mut self.back] {
            known.retain(|drive, _| away.contains_key(drive));
        }
        for &drive in away.keys() {
            self.away.entry(drive).or_insert(now);
        }
        for &drive in &down {
            self.back.entry(drive).or_insert(now);
        }
        // Where half of all are down in nodes that live, something else is broken than drives: whoever came back first would get all places.
        if down.len() * 2 >= all.len() {
            self.away.extend(down.into_iter().map(|drive| (drive, now)));
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
    let is_for = |known: &BTreeMap<DriveId, Instant>, least: Duration| {
        known.get(&record.id()).is_some_and(|&since| now.duration_since(since) >= least)
    };
    let is_opening = mirror.alive.contains_key(&record.node) && !is_for(&memory.back, DRIVE_AWAY_LEAST);
    let is_long_away = is_for(&memory.away, away_after) && !is_opening;
    match () {
        () if record.state == DriveRecordState::Lost => Standing::Lost,
        () if state == NodeState::Removed || is_long_away => Standing::Lost,
        () if !mirror.is_up(record) => Standing::Down,
        () if record.state == DriveRecordState::Draining || state == NodeState::Draining => {
            Standing::Draining
        }
        () => Standing::In,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cluster::{AliveRecord, ClusterNodeRecord, ClusterRecord};
    use crate::config::{Place, WEIGHT_WHOLE};

    const AWAY: Duration = Duration::from_secs(600);

    fn at_first<T>(record: T) -> Versioned<T> {
        Versioned { record, revision: 1 }
    }

    /// Four nodes that live; of drive 10 in node 1, drive 20 in node 2 and so on all are up.
    fn four_nodes() -> ClusterConfig {
        let cluster = ClusterRecord { away_seconds: AWAY.as_secs(), ..ClusterRecord::new(1) };
        let mut config = ClusterConfig::new(1, at_first(cluster));
        for node in 1..=4 {
            let record = ClusterNodeRecord {
                node,
                name: format!("n{node}"),
                api: String::new(),
                transport: Vec::new(),
                shards: 1,
                zone: String::new(),
                rack: String::new(),
                storage_only: false,
                last_life: 1,
                starts: 1,
                state: NodeState::In,
            };
            let drive = DriveRecord {
                drive: node * 10,
                node,
                shard: 0,
                place: Place::Files,
                log: 1 << 30,
                data: 1 << 40,
                weight: WEIGHT_WHOLE,
                incarnation: None,
                state: DriveRecordState::Formatted,
            };
            config.nodes.insert(node, at_first(record));
            config.drives.insert(drive.id(), at_first(drive));
            tell(&mut config, node, &[node * 10], &[]);
        }
        config
    }

    /// A node tells how its drives stand.
    fn tell(config: &mut ClusterConfig, node: u32, up: &[u32], down: &[u32]) {
        let (up, down, slow) = (up.to_vec(), down.to_vec(), Vec::new());
        let record =
            AliveRecord { node, incarnation: 1, place: String::new(), up, down, slow, stopping: false };
        config.alive.insert(node, at_first(record));
    }

    fn standing_of(config: &ClusterConfig, memory: &Memory, now: Instant, drive: u32) -> Standing {
        standing(config, memory, now, &config.drives[&DriveId(drive)].record)
    }

    #[test]
    fn a_drive_that_is_down_for_long_in_a_node_that_lives_is_given_up_until_it_comes_up() {
        let (mut config, mut memory, begin) = (four_nodes(), Memory::new(), Instant::now());
        let mut look = |config: &ClusterConfig, now: Instant| {
            memory.note(config, now);
            standing_of(config, &memory, now, 10)
        };
        assert_eq!(look(&config, begin), Standing::In);
        tell(&mut config, 1, &[], &[10]);
        assert_eq!(look(&config, begin), Standing::Down);
        assert_eq!(look(&config, begin + AWAY - Duration::from_secs(1)), Standing::Down, "it may come back");
        assert_eq!(look(&config, begin + AWAY), Standing::Lost);
        config.alive.remove(&1);
        assert_eq!(look(&config, begin + AWAY), Standing::Lost, "that its node dies does not bring it back");
        tell(&mut config, 1, &[10], &[]);
        assert_eq!(look(&config, begin + AWAY), Standing::In);
        tell(&mut config, 1, &[], &[10]);
        assert_eq!(look(&config, begin + 2 * AWAY - Duration::from_secs(1)), Standing::Down);
        assert_eq!(look(&config, begin + 2 * AWAY), Standing::Down, "it has been up meanwhile");
    }

    #[test]
    fn a_drive_that_hangs_while_its_node_starts_is_given_up_like_one_that_is_down() {
        let (mut config, mut memory, begin) = (four_nodes(), Memory::new(), Instant::now());
        tell(&mut config, 1, &[], &[10]);
        memory.note(&config, begin);
        config.alive.remove(&1);
        memory.note(&config, begin + AWAY / 2);
        // Neither up nor down: it does not answer.
        tell(&mut config, 1, &[], &[]);
        memory.note(&config, begin + AWAY / 2);
        let last = begin + AWAY - Duration::from_secs(1);
        assert_eq!(standing_of(&config, &memory, last, 10), Standing::Down);
        assert_eq!(standing_of(&config, &memory, begin + AWAY, 10), Standing::Lost);
    }

    #[test]
    fn a_drive_is_not_given_up_while_its_node_that_came_back_late_opens_it() {
        let (mut config, mut memory, begin) = (four_nodes(), Memory::new(), Instant::now());
        config.alive.remove(&1);
        memory.note(&config, begin);
        let back = begin + AWAY - Duration::from_secs(20);
        tell(&mut config, 1, &[], &[]);
        for seconds in [0, 30, 59] {
            let now = back + Duration::from_secs(seconds);
            memory.note(&config, now);
            assert_eq!(
                standing_of(&config, &memory, now, 10),
                Standing::Down,
                "{seconds} s after it came back"
            );
        }
        assert_eq!(standing_of(&config, &memory, back + DRIVE_AWAY_LEAST, 10), Standing::Lost);
    }

    #[test]
    fn a_drive_of_a_node_that_lives_is_waited_for_as_long_as_drives_hang() {
        let (mut config, mut memory, begin) = (four_nodes(), Memory::new(), Instant::now());
        config.cluster.record.away_seconds = 5;
        tell(&mut config, 1, &[], &[10]);
        config.alive.remove(&2);
        memory.note(&config, begin);
        let soon = begin + Duration::from_secs(5);
        assert_eq!(standing_of(&config, &memory, soon, 10), Standing::Down);
        assert_eq!(standing_of(&config, &memory, soon, 20), Standing::Lost);
        assert_eq!(standing_of(&config, &memory, begin + DRIVE_AWAY_LEAST, 10), Standing::Lost);
    }

    #[test]
    fn while_half_of_all_drives_are_down_none_is_given_up_and_then_each_has_its_time() {
        let (mut config, mut memory, begin) = (four_nodes(), Memory::new(), Instant::now());
        for node in [1, 2] {
            tell(&mut config, node, &[], &[node * 10]);
        }
        for at in [begin, begin + AWAY, begin + 3 * AWAY] {
            memory.note(&config, at);
            assert_eq!(standing_of(&config, &memory, at, 10), Standing::Down);
        }
        tell(&mut config, 2, &[20], &[]);
        let back = begin + 3 * AWAY + Duration::from_secs(5);
        memory.note(&config, back);
        assert_eq!(
            standing_of(&config, &memory, back, 10),
            Standing::Down,
            "it is seldom one that comes back alone"
        );
        assert_eq!(standing_of(&config, &memory, begin + 4 * AWAY, 10), Standing::Lost);
    }

    #[test]
    fn copies_on_a_drive_that_is_down_for_long_are_made_again_on_another() {
        let (mut config, mut memory, begin) = (four_nodes(), Memory::new(), Instant::now());
        let group = GroupRecord { group: 1, factor: 2, members: vec![10, 20], former: Vec::new() };
        config.groups.insert(group.id(), at_first(group));
        tell(&mut config, 1, &[], &[10]);
        memory.note(&config, begin);
        let members = |now: Instant| {
            let groups: Vec<placement::Group> = config.groups.values().map(group_of).collect();
            let wishes = Wishes { factors: BTreeSet::new(), moves_max: MOVES_MAX, next_group: 2 };
            let drives = drives(&config, &memory, now);
            let plan = placement::plan(&drives, &groups, &BTreeSet::new(), &wishes);
            let changed = plan.changed.into_iter().find(|group| group.id == GroupId(1));
            changed.map(|group| (group.members, group.former))
        };
        assert_eq!(members(begin), None, "it may come back");
        let (members, former) = members(begin + AWAY).expect("it is not waited for any more");
        assert!(!members.contains(&DriveId(10)) && members.contains(&DriveId(20)), "{members:?}");
        assert_eq!(former, [DriveId(10)]);
    }
}
