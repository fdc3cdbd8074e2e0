//! What people ask of a member about nodes and drives: emptying them, taking them out, adding drives.
//! Promises: what data still depends on is not taken out unless by force, and then as what it is: lost.

use super::Member;
use super::last_copies::LastCopies;
use super::leaving::{Exporting, attached_at};
use super::requests::{changed, seen, with_store};
use crate::api::{AddDrives, ClusterDriveView, NodeView, SetCluster};
use crate::config::cluster::{
    ClusterConfig, ClusterError, ClusterNodeRecord, ClusterStore, NodeState, Versioned,
};
use crate::config::{DriveRecord, DriveRecordState, FamilyState, SegmentRecord};
use crate::control::drives::{DriveBook, DrivePlan};
use crate::control::refusal::Refusal;
use crate::control::start::{Settings, StartError};
use crate::control::{SharedControl, Standing};
use crate::shard_loop::Mail;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::interface::Order;
use weft_engine::{DriveId, ShardId};

/// A drive is looked at so often while others change what may need it.
const LOOKS_MAX: usize = 20;

/// The book of a member: the numbers are the cluster's.
pub struct ClusterBook<'a> {
    pub store: &'a ClusterStore,
    pub node: u32,
    pub shards: u32,
    /// Drives that the node has: they are dealt to its shards in turn.
    pub dealt: u32,
}

impl DriveBook for ClusterBook<'_> {
    fn add(&mut self, mut record: DriveRecord) -> Result<DriveRecord, StartError> {
        record.node = self.node;
        record.shard = self.dealt % self.shards;
        self.dealt += 1;
        Ok(self.store.add_drive(&record)?.record)
    }

    fn put(&mut self, record: &DriveRecord) -> Result<(), StartError> {
        // Nothing but what this node has found out: what becomes of the drive others may have said meanwhile.
        let found = record;
        self.store.change_drive(found.id(), |record| record.place.clone_from(&found.place))?;
        Ok(())
    }

    fn remove(&mut self, drive: DriveId) -> Result<(), StartError> {
        let known = self.store.load()?.drives.get(&drive).map(|drive| drive.revision);
        match known {
            Some(revision) => Ok(self.store.remove_drive(drive, revision)?),
            None => Ok(()),
        }
    }
}

/// Drives that somebody's data may still be on: members of groups, former ones, and those that logs name.
pub(super) fn needed_drives(mirror: &ClusterConfig) -> BTreeSet<u32> {
    let groups = mirror.groups.values().map(|group| &group.record);
    // Of a vDisk that is being destroyed nobody needs anything.
    let families = mirror.families.values().map(|family| &family.record);
    let families = families.filter(|family| family.state == FamilyState::Live);
    groups
        .flat_map(|group| group.members.iter().chain(&group.former))
        .chain(families.flat_map(|family| family.segments.iter().flat_map(SegmentRecord::drives)))
        .copied()
        .collect()
}

/// Whether nothing depends on a node that is being emptied.
pub(super) fn is_drained(mirror: &ClusterConfig, node: u32) -> bool {
    let is_leaving = mirror.nodes.get(&node).is_some_and(|node| node.record.state == NodeState::Draining);
    is_leaving && !serves_any(mirror, node) && !holds_any(mirror, node)
}

fn serves_any(mirror: &ClusterConfig, node: u32) -> bool {
    let living = mirror.families.values().filter(|family| family.record.state == FamilyState::Live);
    let owners = living.filter_map(|family| family.record.owner);
    owners.map(|owner| ShardId(owner).node()).any(|owner| owner == node)
}

fn holds_any(mirror: &ClusterConfig, node: u32) -> bool {
    let needed = needed_drives(mirror);
    mirror.drives.values().any(|drive| drive.record.node == node && needed.contains(&drive.record.drive))
}

/// What is to be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Node(u32),
    Drive(DriveId),
}

/// Shorter, and a node that is started again would find its copies made elsewhere.
const AWAY_SECONDS_MIN: u64 = 5;

/// Changes settings of the cluster.
pub async fn set(control: &SharedControl, wanted: SetCluster) -> Result<String, Refusal> {
    let Some(away_seconds) = wanted.away_seconds else {
        return Err(Refusal::bad_input("nothing is to be set; see `weft cluster set --help`"));
    };
    if away_seconds < AWAY_SECONDS_MIN {
        return Err(Refusal::bad_input(format!(
            "{away_seconds} s are too few: a node that is just started again would count as gone; choose {AWAY_SECONDS_MIN} s \
             or more"
        )));
    }
    changed(control, move |store| store.change_cluster(|record| record.away_seconds = away_seconds)).await?;
    Ok(format!("a node or drive that is away for {away_seconds} s is not waited for any more"))
}

pub async fn drain(control: &SharedControl, node: u32, undo: bool) -> Result<NodeView, Refusal> {
    find_node(control, node)?;
    if !undo {
        control.lock().member()?.check_leaving(node)?;
    }
    let changed = set_leaving(control, node, !undo).await?;
    seen(control, changed.revision).await?;
    let control = control.lock();
    let views = control.member()?.node_views();
    views.into_iter().find(|view| view.node == node).ok_or_else(|| no_node(node))
}

/// The node is to be emptied, or not any more.
async fn set_leaving(
    control: &SharedControl,
    node: u32,
    leaves: bool,
) -> Result<Versioned<ClusterNodeRecord>, Refusal> {
    let wanted = if leaves { NodeState::Draining } else { NodeState::In };
    let change = move |store: &ClusterStore| {
        store.change_node(node, |record| {
            if record.state != NodeState::Removed {
                record.state = wanted;
            }
        })
    };
    with_store(control, change).await
}

/// What is given up with a node or a drive.
#[derive(Debug, Clone, Copy, Default)]
pub struct GivesUp {
    /// Its copies: it is gone, and they are made again from others.
    pub copies: bool,
    /// Data of which nobody else who is up has a copy.
    pub data: bool,
}

/// Takes a node out for good.
pub async fn remove(control: &SharedControl, node: u32, gives_up: GivesUp) -> Result<String, Refusal> {
    let force = gives_up.copies;
    let mut config = all_there_is(control).await?;
    if !is_there(&config, node) {
        return Err(no_node(node));
    }
    if let Some(disk) = attached_at(&config, node).filter(|_| !force) {
        return Err(control.lock().attached_to(&disk, node));
    }
    let still_needed = || {
        Refusal::conflict(format!(
            "node {node} is still needed; empty it first (weft node drain {node}), or, if it is gone for good, \
             take it out with --force: its copies are then made again from the others"
        ))
    };
    let mut was_told_to_leave = false;
    if !force {
        if serves_any(&config, node) || holds_any(&config, node) {
            return Err(still_needed());
        }
        if !is_drained(&config, node) {
            // So that nothing is given to it while it goes.
            let can_go = async {
                set_leaving(control, node, true).await?;
                let now = all_there_is(control).await?;
                let attached = attached_at(&now, node).map(|disk| control.lock().attached_to(&disk, node));
                let refusal = if is_drained(&now, node) { attached } else { Some(still_needed()) };
                refusal.map_or(Ok(now), Err)
            };
            config = match can_go.await {
                Ok(now) => now,
                Err(refusal) => return Err(node_stays(control, node, refusal).await),
            };
            was_told_to_leave = true;
        }
    }
    if force && config.alive.contains_key(&node) && !is_drained(&config, node) {
        return Err(Refusal::conflict(format!(
            "node {node} lives; stop it first (weft down), then take it out by force"
        )));
    }
    if force && !gives_up.data {
        let own = config.drives.values().filter(|drive| drive.record.node == node);
        let going = own.map(|drive| drive.record.drive).collect();
        if let Some(refusal) = LastCopies::of(&config, &going).refusal(&format!("node {node}")) {
            return Err(refusal);
        }
    }
    let needed = needed_drives(&config);
    let own = config.drives.iter().filter(|(_, drive)| drive.record.node == node);
    let drives: Vec<(DriveId, bool)> = own.map(|(&id, _)| (id, needed.contains(&id.0))).collect();
    let exporting = Exporting::of(&config, node);
    let count = drives.len();
    let lost = drives.iter().filter(|(_, needed)| *needed).count();
    let went: Result<bool, Refusal> = with_store(control, move |store| {
        for &(drive, is_needed) in &drives {
            if !give_up_drive(store, drive, is_needed, Cow::Borrowed(&config))? {
                return Ok(false);
            }
        }
        // The node's record last: while it is there, whatever was cut off in between is done again by asking again.
        exporting.end(store, node)?;
        store.change_node(node, |record| record.state = NodeState::Removed).map(|_| true)
    })
    .await;
    if !matches!(went, Ok(true)) {
        let refusal = went.err().unwrap_or_else(still_needed);
        return Err(if was_told_to_leave { node_stays(control, node, refusal).await } else { refusal });
    }
    Ok(match lost {
        0 => format!("node {node} is out, and its {count} drive(s) with it"),
        lost => format!(
            "node {node} is out; {lost} of its {count} drive(s) count as lost, and their copies are made again"
        ),
    })
}

/// What was told to leave so that it could be taken out is not to leave any more. Gives why it was not taken out, and, if this cannot
/// be written down either, how to end that.
async fn node_stays(control: &SharedControl, node: u32, refusal: Refusal) -> Refusal {
    let stays = set_leaving(control, node, false).await.is_ok();
    if stays { refusal } else { still_leaves(refusal, format!("`weft node drain {node} --undo`")) }
}

/// The same of a drive.
async fn drive_stays(control: &SharedControl, drive: DriveId, refusal: Refusal) -> Refusal {
    let stays = set_drive_leaving(control, drive, false).await.is_ok();
    if stays { refusal } else { still_leaves(refusal, format!("`weft drive remove {drive} --undo`")) }
}

fn still_leaves(refusal: Refusal, command: String) -> Refusal {
    let line = format!("{}; it may count as being emptied now, which {command} ends", refusal.line);
    Refusal { line, ..refusal }.half_done()
}

/// All records as they are now. What this node has heard of them may be of before: it follows the store only when it has started, and a
/// moment behind; too late to take out what data may be on by now.
async fn all_there_is(control: &SharedControl) -> Result<ClusterConfig, Refusal> {
    with_store(control, ClusterStore::load).await
}

/// A drive that is needed stays in the store as lost, until nothing names it any more. One that was not, when `seen` was loaded, goes;
/// false, and nothing is done, if it has come to be needed since.
fn give_up_drive(
    store: &ClusterStore,
    drive: DriveId,
    is_needed: bool,
    mut seen: Cow<ClusterConfig>,
) -> Result<bool, ClusterError> {
    if is_needed {
        store.change_drive(drive, |record| record.state = DriveRecordState::Lost)?;
        return Ok(true);
    }
    for _ in 0..LOOKS_MAX {
        match store.give_up_unneeded(drive, &seen) {
            Ok(lost) => {
                store.remove_drive(drive, lost.revision)?;
                return Ok(true);
            }
            Err(ClusterError::Changed { .. }) => seen = Cow::Owned(store.load()?),
            Err(error) => return Err(error),
        }
        if needed_drives(&seen).contains(&drive.0) {
            return Ok(false);
        }
    }
    Err(ClusterError::Contended { key: format!("drive {}", drive.0) })
}

pub async fn drain_drive(
    control: &SharedControl,
    drive: u32,
    undo: bool,
) -> Result<ClusterDriveView, Refusal> {
    let id = find_drive(control, drive)?;
    if !undo {
        control.lock().member()?.check_drive_leaving(id)?;
    }
    let changed = set_drive_leaving(control, id, !undo).await?;
    seen(control, changed.revision).await?;
    let control = control.lock();
    let views = control.drive_views()?;
    views.into_iter().find(|view| view.drive == drive).ok_or_else(|| no_drive(drive))
}

/// The drive is to be emptied, or not any more.
async fn set_drive_leaving(
    control: &SharedControl,
    drive: DriveId,
    leaves: bool,
) -> Result<Versioned<DriveRecord>, Refusal> {
    let change = move |store: &ClusterStore| {
        store.change_drive(drive, |record| {
            record.state = match record.state {
                DriveRecordState::Formatted if leaves => DriveRecordState::Draining,
                DriveRecordState::Draining if !leaves => DriveRecordState::Formatted,
                other => other,
            };
        })
    };
    with_store(control, change).await
}

/// Takes a drive out for good.
pub async fn remove_drive(control: &SharedControl, drive: u32, gives_up: GivesUp) -> Result<String, Refusal> {
    let lost = gives_up.copies;
    let id = DriveId(drive);
    let mut config = all_there_is(control).await?;
    let Some(known) = config.drives.get(&id) else { return Err(no_drive(drive)) };
    let mut is_needed = needed_drives(&config).contains(&drive);
    let stayed = known.record.state == DriveRecordState::Formatted;
    if !is_needed && stayed {
        // So that nothing is given to it while it goes.
        let looked = async {
            set_drive_leaving(control, id, true).await?;
            all_there_is(control).await
        };
        config = match looked.await {
            Ok(now) => now,
            Err(refusal) => return Err(drive_stays(control, id, refusal).await),
        };
        is_needed = needed_drives(&config).contains(&drive);
        if is_needed {
            set_drive_leaving(control, id, false).await?;
        }
    }
    let still_needed = || {
        Refusal::conflict(format!(
            "drive {drive} is still needed; empty it first (`weft drive remove` does that, and waits), or, if it is \
             dead, say --lost: its copies are then made again from the others"
        ))
    };
    if is_needed && !lost {
        return Err(still_needed());
    }
    if lost && is_needed && config.alive.values().any(|alive| alive.record.up.contains(&drive)) {
        return Err(Refusal::conflict(format!(
            "drive {drive} works, and data is on it; empty it instead (weft drive remove {drive})"
        )));
    }
    if is_needed
        && !gives_up.data
        && let Some(refusal) =
            LastCopies::of(&config, &BTreeSet::from([drive])).refusal(&format!("drive {drive}"))
    {
        return Err(refusal);
    }
    let give_up = move |store: &ClusterStore| give_up_drive(store, id, is_needed, Cow::Owned(config));
    let given_up = with_store(control, give_up).await;
    if !matches!(given_up, Ok(true)) {
        let refusal = given_up.err().unwrap_or_else(still_needed);
        return Err(if stayed { drive_stays(control, id, refusal).await } else { refusal });
    }
    Ok(if is_needed {
        format!("drive {drive} counts as lost, and its copies are made again")
    } else {
        format!("drive {drive} is out; its files or device can be taken away when its node has stopped")
    })
}

/// Makes new drives of this node, and uses them at once.
pub async fn add_drives(
    control: &SharedControl,
    wanted: AddDrives,
) -> Result<Vec<ClusterDriveView>, Refusal> {
    if wanted.files == 0 && wanted.paths.is_empty() {
        return Err(Refusal::bad_input("no drive is named; give --files N --size SIZE, or --path DEVICE"));
    }
    let (dir, store, node, shards, mut records) = {
        let control = control.lock();
        control.check_ready()?;
        let member = control.member()?;
        // Those that were taken out are none of the node's any more.
        let own = control.drives.values().filter(|drive| drive.standing != Standing::Lost);
        let records: Vec<_> = own.map(|drive| drive.record.clone()).collect();
        (control.dir.clone(), member.store.clone(), member.node, control.shards.len() as u32, records)
    };
    let before: BTreeSet<u32> = records.iter().map(|record| record.drive).collect();
    let made = tokio::task::spawn_blocking(move || {
        let mut book = ClusterBook { store: &store, node, shards, dealt: records.len() as u32 };
        let settings = Settings {
            drives: Some(wanted.files),
            drive_size: wanted.size,
            drive_paths: wanted.paths,
            force: wanted.force,
            ..Settings::of(&dir)
        };
        let plan = DrivePlan::add_more(&dir, &settings, &mut records, &mut book)?;
        Ok::<_, StartError>((plan, records))
    });
    let made = made
        .await
        .map_err(|_| Refusal::failed("the control plane failed an assertion; see the node's log"))?;
    let (plan, records) = made.map_err(|error| match &error {
        StartError::BadInput(_) => Refusal::bad_input(error.to_string()),
        StartError::Drive(drive) if drive.is_of_input() => Refusal::bad_input(error.to_string()),
        _ => Refusal::failed(error.to_string()),
    })?;
    let new: Vec<_> = records.into_iter().filter(|record| !before.contains(&record.drive)).collect();
    let mut control = control.lock();
    let keeper = |record: &DriveRecord| record.shard as usize;
    let drives = plan.drives(&new, keeper);
    control.drives.extend(drives);
    control.begin_opening(plan);
    let numbers: BTreeSet<u32> = new.iter().map(|record| record.drive).collect();
    let place = |view: &ClusterDriveView| numbers.contains(&view.drive);
    let mut views: Vec<_> = control.drive_views()?.into_iter().filter(place).collect();
    // The store's news may not be here yet.
    for record in
        new.iter().filter(|record| !views.iter().any(|view| view.drive == record.drive)).collect::<Vec<_>>()
    {
        views.push(ClusterDriveView {
            drive: record.drive,
            node: record.node,
            shard: record.shard,
            state: "opening".to_string(),
            weight: record.weight,
            log_bytes: record.log,
            data_bytes: record.data,
            ..Default::default()
        });
    }
    Ok(views)
}

fn find_node(control: &SharedControl, node: u32) -> Result<(), Refusal> {
    let control = control.lock();
    if is_there(&control.member()?.mirror, node) { Ok(()) } else { Err(no_node(node)) }
}

fn is_there(config: &ClusterConfig, node: u32) -> bool {
    config.nodes.get(&node).is_some_and(|node| node.record.state != NodeState::Removed)
}

fn find_drive(control: &SharedControl, drive: u32) -> Result<DriveId, Refusal> {
    let control = control.lock();
    let known = control.member()?.mirror.drives.contains_key(&DriveId(drive));
    known.then_some(DriveId(drive)).ok_or_else(|| no_drive(drive))
}

fn no_node(node: u32) -> Refusal {
    Refusal::not_found(format!("there is no node {node}; `weft node ls` shows which there are"))
}

fn no_drive(drive: u32) -> Refusal {
    Refusal::not_found(format!("there is no drive {drive}; `weft drive ls` shows which there are"))
}

impl Member {
    /// Where copies of one block can be apart: nodes with drives that work, and are not to be emptied. One node by itself has its
    /// drives for that, as when it was alone.
    pub(in crate::control) fn places(&self) -> usize {
        let stays = |drive: &&u32| {
            let known = self.mirror.drives.get(&DriveId(**drive));
            known.is_some_and(|drive| drive.record.state != DriveRecordState::Draining)
        };
        let present = self.mirror.alive.iter().filter(|(node, _)| self.is_in(**node));
        let working =
            present.map(|(_, alive)| alive.record.up.iter().filter(stays).count()).filter(|&up| up > 0);
        let (nodes, drives) = working.fold((0, 0), |(nodes, drives), up| (nodes + 1, drives + up));
        if nodes == 1 { drives } else { nodes }
    }

    /// The same if everything worked that the store knows of.
    pub(super) fn places_known(&self) -> usize {
        self.places_beside(None)
    }

    fn places_beside(&self, leaving: Option<Leaving>) -> usize {
        let drives = self.mirror.drives.values().map(|drive| &drive.record);
        let leaves = |drive: &&DriveRecord| {
            matches!(drive.state, DriveRecordState::Draining | DriveRecordState::Lost)
                || leaving == Some(Leaving::Drive(drive.id()))
        };
        let kept = drives.filter(|drive| !leaves(drive));
        let mut nodes: BTreeMap<u32, usize> = BTreeMap::new();
        for drive in kept {
            *nodes.entry(drive.node).or_default() += 1;
        }
        nodes.retain(|&node, _| self.is_in(node) && leaving != Some(Leaving::Node(node)));
        if nodes.len() == 1 { nodes.values().sum() } else { nodes.len() }
    }

    /// Refuses to empty a node if the others cannot hold as many copies as there shall be: it would never be empty, or there would be
    /// fewer.
    fn check_leaving(&self, node: u32) -> Result<(), Refusal> {
        self.check_places(self.places_beside(Some(Leaving::Node(node))), &format!("node {node}"))
    }

    /// The same for a drive. One that makes no difference may always go: who has too few places already shall not have to keep a
    /// drive that begins to fail.
    fn check_drive_leaving(&self, drive: DriveId) -> Result<(), Refusal> {
        let places = self.places_beside(Some(Leaving::Drive(drive)));
        if places >= self.places_known() {
            return Ok(());
        }
        self.check_places(places, &format!("drive {}", drive.0))
    }

    fn check_places(&self, places: usize, without: &str) -> Result<(), Refusal> {
        let families = self.mirror.families.values().map(|family| &family.record);
        let living = families.filter(|family| family.state == FamilyState::Live);
        // As many as shall be, which its container may say: its record tells what it had when it was last told by itself.
        let wanted = living.map(|family| (self.mirror.policy(family).factor, family));
        let Some((factor, family)) = wanted.max_by_key(|(factor, _)| *factor) else { return Ok(()) };
        if factor as usize <= places {
            return Ok(());
        }
        let name = &family.name;
        let (whose, how) = if family.inherits_factor && self.mirror.says_factor(&family.container) {
            let container = &family.container;
            (format!(", as container {container} says"), format!("weft container set {container} --rf"))
        } else {
            (String::new(), format!("weft vdisk set {name} --rf"))
        };
        Err(Refusal::bad_input(format!(
            "without {without} there is room for {places} copies apart from each other, and vDisk {name} has {factor}{whose}: add \
             nodes (weft node join) or drives, or choose fewer copies first ({how})"
        )))
    }

    pub(super) fn is_in(&self, node: u32) -> bool {
        self.mirror.nodes.get(&node).is_some_and(|node| node.record.state == NodeState::In)
    }

    /// Two copies where there is room for two, also while that does not work: what is away now is no reason to keep one copy.
    pub(in crate::control) fn default_factor(&self, told: u32) -> u32 {
        told.min(self.places_known().max(1) as u32)
    }

    pub(super) fn owner_node(&self, family: weft_engine::FamilyId) -> Option<u32> {
        let record = &self.mirror.families.get(&family)?.record;
        let node = ShardId(record.owner?).node();
        let life = self.mirror.alive.get(&node).map(|alive| alive.record.incarnation);
        (record.state == FamilyState::Live && life == Some(record.life)).then_some(node)
    }
}

impl crate::control::Control {
    /// Drives of this node that were taken out of the store are not used any more.
    pub(super) fn forget_drives(&mut self) {
        let Some(member) = self.part.member() else { return };
        let mirror = &member.mirror;
        let mut out = Vec::new();
        for (&id, drive) in &mut self.drives {
            let record = mirror.drives.get(&id).map(|drive| &drive.record);
            drive.in_news |= record.is_some();
            // One that was just made may not be in the news yet.
            let is_out = record.map_or(drive.in_news, |record| record.state == DriveRecordState::Lost);
            if is_out && matches!(drive.standing, Standing::Up | Standing::Down(_)) {
                out.push(id);
            }
        }
        for id in out {
            let Some(drive) = self.drives.get_mut(&id) else { continue };
            tracing::info!(drive = %id, "a drive was taken out of the cluster");
            let before = std::mem::replace(&mut drive.standing, Standing::Lost);
            if before != Standing::Up {
                continue;
            }
            let keeper = self.shards[self.drives[&id].keeper].clone();
            keeper.send(Mail::Order(Order::CloseDrive { drive: id }));
        }
    }
}
