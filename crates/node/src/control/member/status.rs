//! How the cluster is, as this node sees it: made from the store's contents, and from what the other nodes answer.

use super::asking::ask_living;
use super::nodes::{is_drained, needed_drives};
use super::{Member, Phase};
use crate::api::{
    ClusterDriveView, ClusterView, CopiesView, GroupPlaceView, NodeView, RepairView, ReportView, StatsView,
    is_drive_up,
};
use crate::config::cluster::{ClusterConfig, NodeState};
use crate::config::{DriveRecord, DriveRecordState, FamilyState, GroupRecord, Place, SegmentRecord};
use crate::control::refusal::Refusal;
use crate::control::{Control, SharedControl, statistics};
use crate::shard_loop::PoorWay;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use weft_engine::{FamilyId, ShardId};

/// vDisks that are named when many are not served.
const LINES_MAX: usize = 10;

/// Copying under way: when it was first seen, and of how many groups.
pub struct Repair {
    since: Instant,
    total: u32,
}

/// Bytes that are taken, by drive.
type Used = BTreeMap<u32, u64>;

/// What the nodes said that answered.
#[derive(Default)]
struct Reports {
    used: Used,
    /// vDisks that their owners do not serve yet, and why.
    waiting: BTreeMap<u32, String>,
    /// vDisks that do not have as many copies as they should.
    copying: BTreeMap<u32, CopiesView>,
    /// Ways between nodes on which much gets lost or takes long, a line for each.
    ways: Vec<String>,
}

/// What another node wants to know of this one for its page.
pub async fn report(control: &SharedControl) -> Result<ReportView, Refusal> {
    let StatsView { drives, vdisks, .. } = statistics::gather(control).await;
    let control = control.lock();
    let member = control.member()?;
    let has_lease = member.has_lease();
    let waiting = member.served.iter().filter_map(|(family, served)| {
        let why = match &served.phase {
            Phase::Opening => {
                let awaited =
                    member.awaited_by(*family).map_or(String::new(), |awaited| format!("; {awaited}"));
                format!("it is being opened{awaited}")
            }
            Phase::Failed(failure) => failure.reason.clone(),
            Phase::Ready | Phase::Settling { .. } if !has_lease => {
                format!("its node has no lease: {}", member.why_no_lease())
            }
            Phase::Ready | Phase::Settling { .. } | Phase::HandingOver | Phase::Dropping => return None,
        };
        Some((family.0, why))
    });
    Ok(ReportView {
        used: drives
            .into_iter()
            .filter(|drive| is_drive_up(&drive.state))
            .map(|drive| (drive.drive, drive.used_bytes))
            .collect(),
        waiting: waiting.collect(),
        copying: vdisks
            .iter()
            .filter_map(|vdisk| Some((vdisk.family, CopiesView::of(&vdisk.engine)?)))
            .filter(|(_, copies)| !copies.reached)
            .collect(),
        ways: member.poor_ways().collect(),
    })
}

/// The whole page.
pub async fn cluster(control: &SharedControl) -> Result<ClusterView, Refusal> {
    let mirror = Arc::clone(&control.lock().member()?.mirror);
    let asked = Arc::clone(&mirror);
    let reports = tokio::task::spawn_blocking(move || gather(&asked)).await.unwrap_or_default();
    let control = control.lock();
    Ok(control.member()?.cluster_view(&reports))
}

/// Asks all living nodes how things are on them.
fn gather(mirror: &ClusterConfig) -> Reports {
    let mut reports = Reports::default();
    for report in ask_living::<ReportView>(mirror, "/v1/internal/report") {
        reports.used.extend(report.used);
        reports.waiting.extend(report.waiting);
        reports.copying.extend(report.copying);
        reports.ways.extend(report.ways);
    }
    reports
}

/// How the copies of one group stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copies {
    Whole,
    /// All members are up, and not all have everything yet.
    Moving,
    /// A member is down or lost.
    Thin,
}

pub(super) fn drives_up(mirror: &ClusterConfig) -> BTreeSet<u32> {
    mirror.alive.values().flat_map(|alive| alive.record.up.iter().copied()).collect()
}

pub(super) fn is_slow(mirror: &ClusterConfig, drive: &DriveRecord) -> bool {
    mirror.alive.get(&drive.node).is_some_and(|alive| alive.record.slow.contains(&drive.drive))
}

/// Only of drives that the cluster takes for up, as their capacity: what is on others counts when they are back.
fn used_of(used: &Used, up: &BTreeSet<u32>) -> Used {
    used.iter().filter(|&(drive, _)| up.contains(drive)).map(|(&drive, &bytes)| (drive, bytes)).collect()
}

/// Drives that are sure to have the copies of a group: members that have not only just come, which are the last ones, and those
/// that were members before.
fn holders(group: &GroupRecord) -> impl Iterator<Item = &u32> {
    let whole = group.members.len().saturating_sub(group.former.len());
    group.members.iter().take(whole).chain(&group.former)
}

/// Drives that may have copies of a group.
fn may_hold(group: &GroupRecord) -> impl Iterator<Item = &u32> {
    group.members.iter().chain(&group.former)
}

fn copies(group: &GroupRecord, up: &BTreeSet<u32>) -> Copies {
    if !group.members.iter().all(|member| up.contains(member)) {
        Copies::Thin
    } else if group.former.is_empty() {
        Copies::Whole
    } else {
        Copies::Moving
    }
}

impl Member {
    /// Notes copying that begins or ends.
    pub(super) fn note_repair(&mut self) {
        let owing =
            self.mirror.groups.values().filter(|group| !group.record.former.is_empty()).count() as u32;
        match &mut self.repair {
            _ if owing == 0 => self.repair = None,
            Some(repair) => repair.total = repair.total.max(owing),
            None => self.repair = Some(Repair { since: Instant::now(), total: owing }),
        }
    }

    fn repair_view(&self) -> Option<RepairView> {
        let repair = self.repair.as_ref()?;
        let left = self.mirror.groups.values().filter(|group| !group.record.former.is_empty()).count() as u32;
        let done = repair.total.saturating_sub(left);
        let passed = repair.since.elapsed().as_secs();
        // At the pace so far; nothing is known before something is done.
        let seconds_left = (done > 0).then(|| passed * u64::from(left) / u64::from(done));
        Some(RepairView { groups_left: left, groups_total: repair.total, seconds_left })
    }

    fn cluster_view(&self, reports: &Reports) -> ClusterView {
        let Reports { used, waiting, copying, ways } = reports;
        let mirror = &self.mirror;
        let up = drives_up(mirror);
        let used = &used_of(used, &up);
        let nodes: Vec<_> = mirror
            .nodes
            .values()
            .map(|node| &node.record)
            .filter(|node| node.state != NodeState::Removed)
            .collect();
        let drives: Vec<_> = mirror
            .drives
            .values()
            .map(|drive| &drive.record)
            .filter(|drive| !matches!(drive.state, DriveRecordState::Lost | DriveRecordState::Making))
            .collect();
        let standing: Vec<Copies> = mirror.groups.values().map(|group| copies(&group.record, &up)).collect();
        let count = |what: Copies| standing.iter().filter(|&&copies| copies == what).count() as u32;
        let families: Vec<_> =
            mirror.families.iter().filter(|(_, family)| family.record.state == FamilyState::Live).collect();
        let is_served = |id: &FamilyId| self.owner_node(*id).is_some() && !waiting.contains_key(&id.0);
        let served = families.iter().filter(|(id, _)| is_served(id)).count();
        let mut lines = Vec::new();
        let has_lease = self.has_lease();
        if !has_lease {
            lines.push(format!("this node has no lease ({}): what follows may be old", self.why_no_lease()));
        }
        lines.extend(self.store.etcd().strangers().iter().map(ToString::to_string));
        for node in &nodes {
            let (number, name) = (node.node, &node.name);
            if !mirror.alive.contains_key(&number) {
                lines.push(format!("node {number} ({name}) is not alive"));
            } else if !mirror.stays(number) {
                lines.push(format!("node {number} ({name}) is stopping"));
            } else if node.state == NodeState::Draining {
                lines.push(format!("node {number} ({name}) is being emptied"));
            }
        }
        for (shard, lost) in &self.unreachable {
            let why = lost.values().next().map_or("", String::as_str);
            lines.push(format!("node {} cannot be reached from here: {why}", shard.node()));
        }
        lines.extend(ways.iter().take(LINES_MAX).cloned());
        for drive in drives.iter().filter(|drive| !up.contains(&drive.drive)) {
            if mirror.alive.contains_key(&drive.node) {
                lines.push(format!("drive {} in node {} is not up", drive.drive, drive.node));
            }
        }
        for drive in drives.iter().filter(|drive| is_slow(mirror, drive)) {
            lines.push(format!(
                "drive {} in node {} is slow: its node tells more (weft status)",
                drive.drive, drive.node
            ));
        }
        let is_up = |drive: &u32| up.contains(drive);
        let groups = || mirror.groups.values().map(|group| &group.record);
        let dark = groups().filter(|group| !may_hold(group).any(is_up)).count();
        let unsure = groups().filter(|group| !holders(group).any(is_up)).count() - dark;
        if unsure > 0 {
            lines.push(format!("{unsure} group(s) have no drive that is up and sure to have every copy"));
        }
        if dark > 0 {
            lines.push(format!(
                "{dark} group(s) have no drive that is up: what is only there cannot be read now"
            ));
        }
        for (id, family) in families.iter().filter(|(id, _)| !is_served(id)).take(LINES_MAX) {
            let why = waiting.get(&id.0).map_or("it waits for an owner", String::as_str);
            lines.push(format!("vDisk {} is not served at this moment: {why}", family.record.name));
        }
        let thin = count(Copies::Thin);
        let moving = count(Copies::Moving);
        let (failures, next_loses) = self.failures(&up, used);
        let health = match () {
            () if !has_lease || dark > 0 || served < families.len() || next_loses => "danger",
            () if thin > 0 || moving > 0 || !lines.is_empty() => "degraded",
            () => "ok",
        };
        ClusterView {
            name: self.store.name().to_string(),
            id: mirror.cluster.record.id,
            revision: mirror.revision,
            controller: mirror.controller.as_ref().map(|controller| controller.record.node),
            this_node: self.node,
            health: health.to_string(),
            lines,
            nodes_alive: nodes.iter().filter(|node| mirror.alive.contains_key(&node.node)).count() as u32,
            nodes: nodes.len() as u32,
            drives_up: drives.iter().filter(|drive| up.contains(&drive.drive)).count() as u32,
            drives: drives.len() as u32,
            vdisks: families.len() as u32,
            vdisks_served: served as u32,
            groups: standing.len() as u32,
            groups_whole: count(Copies::Whole),
            groups_moving: moving,
            groups_thin: thin,
            capacity_bytes: drives
                .iter()
                .filter(|drive| up.contains(&drive.drive))
                .map(|drive| drive.data)
                .sum(),
            used_bytes: used.values().sum(),
            away_seconds: mirror.cluster.record.away_seconds,
            vdisk_bytes: families.iter().map(|(_, family)| family.record.size).sum(),
            repair: self.repair_view(),
            copying: self.copying_lines(copying),
            failures,
        }
    }

    /// vDisks whose number of copies is on its way to another. One that has only not looked at everything since it was opened is not
    /// told of.
    fn copying_lines(&self, copying: &BTreeMap<u32, CopiesView>) -> Vec<String> {
        let told = copying.iter().filter(|(_, copies)| copies.left_bytes > 0 || !copies.log);
        let named =
            told.filter_map(|(family, copies)| Some((self.mirror.families.get(&FamilyId(*family))?, copies)));
        let lines = named.map(|(family, copies)| format!("vDisk {}: {}", family.record.name, copies.line()));
        lines.take(LINES_MAX).collect()
    }

    /// What a vDisk that is being opened may wait for; None: nothing of its log is away.
    pub(in crate::control) fn awaited_by(&self, family: FamilyId) -> Option<String> {
        let record = self.mirror.families.get(&family).map(|family| &family.record);
        let named: BTreeSet<u32> = record
            .iter()
            .flat_map(|record| &record.segments)
            .flat_map(SegmentRecord::drives)
            .copied()
            .collect();
        let away: Vec<String> = named.difference(&drives_up(&self.mirror)).map(u32::to_string).collect();
        (!away.is_empty()).then(|| {
            format!("drive(s) {} of its log are away, and what only they have is waited for", away.join(", "))
        })
    }

    /// A line for each node to which the way from here is poor.
    pub(in crate::control) fn poor_ways(&self) -> impl Iterator<Item = String> {
        let mut worst: BTreeMap<u32, PoorWay> = BTreeMap::new();
        for ((_, other), way) in &self.poor_ways {
            let entry = worst.entry(other.node()).or_insert(*way);
            entry.again_per_mille = entry.again_per_mille.max(way.again_per_mille);
            entry.there_and_back_us = entry.there_and_back_us.max(way.there_and_back_us);
        }
        worst.into_iter().map(|(other, PoorWay { again_per_mille, there_and_back_us })| {
            format!(
                "the way from node {} to node {other} is poor: {} % of what is sent there has to be sent again, and there and back takes \
                 {} ms",
                self.node,
                f64::from(again_per_mille) / 10.0,
                f64::from(there_and_back_us / 100) / 10.0
            )
        })
    }

    /// Whether etcd has answered this node lately: without that it serves nothing.
    fn has_lease(&self) -> bool {
        self.life.as_ref().is_some_and(|life| !life.lease.deadline().has_passed())
    }

    /// What would happen if a node failed now, a line for each; and whether one of them would lose data that has fewer copies now
    /// than its policy wants. (What has as many, all in one node because there is no other, is told in the line only.)
    fn failures(&self, up: &BTreeSet<u32>, used: &Used) -> (Vec<String>, bool) {
        let mirror = &self.mirror;
        let on: BTreeMap<u32, u32> =
            mirror.drives.values().map(|drive| (drive.record.drive, drive.record.node)).collect();
        let mut lines: Vec<(usize, String)> = Vec::new();
        let mut loses = false;
        for (&node, record) in mirror.nodes.iter().filter(|(node, _)| mirror.alive.contains_key(node)) {
            let mine = |drive: &u32| on.get(drive) == Some(&node);
            let stays = |drive: &u32| up.contains(drive) && on.get(drive) != Some(&node);
            let touched: Vec<&GroupRecord> = mirror
                .groups
                .values()
                .map(|group| &group.record)
                .filter(|group| may_hold(group).any(mine))
                .collect();
            let gone: Vec<&GroupRecord> =
                touched.iter().copied().filter(|group| !holders(group).any(stays)).collect();
            // After several losses in a row the record does not say which of the members has everything.
            let unsure = gone.iter().filter(|group| may_hold(group).any(stays)).count();
            let is_short = |group: &GroupRecord| {
                holders(group).filter(|drive| up.contains(drive)).count() < group.factor as usize
            };
            loses |= gone.iter().any(|group| group.factor > 1 && is_short(group));
            let gone = gone.len();
            let moves =
                mirror.families.keys().filter(|family| self.owner_node(**family) == Some(node)).count();
            let to_copy: u64 = used.iter().filter(|(drive, _)| mine(drive)).map(|(_, bytes)| bytes).sum();
            let targets = mirror.drives.values().map(|drive| &drive.record).filter(|drive| {
                let takes_copies = drive.state == DriveRecordState::Formatted && self.is_in(drive.node);
                stays(&drive.drive) && takes_copies
            });
            let places = targets.clone().count();
            let fits = touched.iter().all(|group| group.factor as usize <= places);
            let free: u64 = targets
                .map(|drive| drive.data.saturating_sub(used.get(&drive.drive).copied().unwrap_or(0)))
                .sum();
            // What was written last is in the log, and nowhere else yet.
            let logs = mirror
                .families
                .values()
                .filter_map(|family| {
                    Some((mirror.policy(&family.record).factor, family.record.segments.last()?))
                })
                .filter(|(_, segment)| {
                    segment.members.iter().any(mine) && !segment.members.iter().any(stays)
                });
            let (logs, short_logs) = logs.fold((0, 0), |(logs, short), (factor, segment)| {
                let copies = segment.members.iter().filter(|drive| up.contains(drive)).count();
                (logs + 1, short + usize::from(factor > 1 && copies < factor as usize))
            });
            loses |= short_logs > 0;
            let copies = match (gone, logs) {
                (0, 0) => "every block keeps a copy".to_string(),
                (gone, logs) if gone == unsure && gone > 0 => {
                    format!("{gone} group(s) and {logs} log(s) may keep no copy")
                }
                (gone, logs) => format!("{gone} group(s) and {logs} log(s) keep no copy"),
            };
            let room = if touched.is_empty() {
                "nothing has to be copied".to_string()
            } else {
                format!(
                    "room to copy everything again: {}",
                    if fits && to_copy <= free { "yes" } else { "no" }
                )
            };
            let name = &record.record.name;
            lines.push((
                gone + logs,
                format!("if node {node} ({name}) fails now: {moves} vDisk(s) move, {copies}; {room}"),
            ));
        }
        lines.sort_by_key(|(gone, _)| std::cmp::Reverse(*gone));
        (lines.into_iter().map(|(_, line)| line).collect(), loses)
    }

    pub(in crate::control) fn node_views(&self) -> Vec<NodeView> {
        let mirror = &self.mirror;
        let up = drives_up(mirror);
        let controller = mirror.controller.as_ref().map(|controller| controller.record.node);
        let view = |(&node, entry): (&u32, &crate::config::cluster::Versioned<_>)| {
            let record: &crate::config::cluster::ClusterNodeRecord = &entry.record;
            let alive = mirror.alive.get(&node);
            let drives: Vec<u32> = mirror
                .drives
                .values()
                .map(|drive| &drive.record)
                .filter(|drive| drive.node == node && drive.state != DriveRecordState::Lost)
                .map(|drive| drive.drive)
                .collect();
            let is_lost = self.unreachable.keys().any(|&shard| shard.node() == node);
            NodeView {
                node,
                name: record.name.clone(),
                api: record.api.clone(),
                transport: record.transport.clone(),
                zone: record.zone.clone(),
                rack: record.rack.clone(),
                storage_only: record.storage_only,
                state: match record.state {
                    NodeState::In => "in",
                    NodeState::Draining => "draining",
                    NodeState::Removed => "removed",
                }
                .to_string(),
                alive: alive.is_some(),
                reachable_from_here: node == self.node || (alive.is_some() && !is_lost),
                shards: record.shards,
                drives: drives.len() as u32,
                drives_up: drives.iter().filter(|drive| up.contains(drive)).count() as u32,
                vdisks_served: mirror.families.keys().filter(|id| self.owner_node(**id) == Some(node)).count()
                    as u32,
                incarnation: alive.map_or(record.last_life, |alive| alive.record.incarnation),
                is_controller: controller == Some(node),
                drained: is_drained(mirror, node),
            }
        };
        mirror.nodes.iter().map(view).collect()
    }

    pub(in crate::control) fn group_views(&self) -> Vec<GroupPlaceView> {
        let up = drives_up(&self.mirror);
        let view = |entry: &crate::config::cluster::Versioned<GroupRecord>| {
            let group = &entry.record;
            let copies = copies(group, &up);
            GroupPlaceView {
                group: group.group,
                factor: group.factor,
                members: group.members.clone(),
                former: group.former.clone(),
                version: entry.revision,
                whole: copies == Copies::Whole,
                thin: copies == Copies::Thin,
            }
        };
        self.mirror.groups.values().map(view).collect()
    }

    pub(in crate::control) fn number(&self) -> u32 {
        self.node
    }

    /// The node that serves a vDisk now, and where it answers.
    pub(in crate::control) fn served_by(&self, family: FamilyId) -> Option<(u32, String)> {
        let node = self.owner_node(family)?;
        Some((node, self.mirror.nodes.get(&node)?.record.api.clone()))
    }

    /// The node that serves a vDisk, its shard, and whether anybody does.
    pub(in crate::control) fn owner_view(
        &self,
        family: weft_engine::FamilyId,
    ) -> (Option<u32>, Option<u32>, bool) {
        let owner = self.mirror.families.get(&family).and_then(|family| family.record.owner);
        (owner.map(|shard| ShardId(shard).node()), owner, self.owner_node(family).is_some())
    }
}

impl Control {
    /// Refuses if this node serves nothing, whatever the reason.
    pub(in crate::control) fn check_serving(&self) -> Result<(), Refusal> {
        self.check_ready()?;
        let Some(member) = self.part.member() else { return Ok(()) };
        let living = member.life.as_ref();
        if living.is_some_and(|living| !living.lease.deadline().has_passed()) {
            return Ok(());
        }
        if let Some(older) = &member.older_records {
            return Err(Refusal::unavailable(format!("nothing is served: {older}")));
        }
        Err(Refusal::unavailable(
            "the node has no lease at this moment: its vDisks go to others until etcd gives it a new one",
        ))
    }

    pub(in crate::control) fn drive_views(&self) -> Result<Vec<ClusterDriveView>, Refusal> {
        let member = self.member()?;
        let mirror = &member.mirror;
        let groups: Vec<&GroupRecord> = mirror.groups.values().map(|group| &group.record).collect();
        let up = drives_up(mirror);
        let needed = needed_drives(mirror);
        let views = mirror.drives.values().map(|entry| {
            let record = &entry.record;
            let drive = record.drive;
            let alive = mirror.alive.get(&record.node);
            let is_down = alive.is_some_and(|alive| alive.record.down.contains(&drive));
            let is_leaving = record.state == DriveRecordState::Draining
                || mirror
                    .nodes
                    .get(&record.node)
                    .is_some_and(|node| node.record.state == NodeState::Draining);
            let (state, reason) = match record.state {
                DriveRecordState::Lost => ("lost", String::new()),
                DriveRecordState::Making => ("opening", "it is being made".to_string()),
                _ if up.contains(&drive) && is_leaving => ("draining", String::new()),
                _ if is_slow(mirror, record) => ("slow", "its node tells more (weft status)".to_string()),
                _ if up.contains(&drive) => ("up", String::new()),
                _ if alive.is_none() => ("down", format!("node {} is not alive", record.node)),
                _ if is_down => ("down", self.reason_of(entry.record.id())),
                _ => ("opening", String::new()),
            };
            ClusterDriveView {
                drive,
                node: record.node,
                shard: record.shard,
                place: match &record.place {
                    Place::Files => format!("drive-{drive}"),
                    Place::Device(path) => path.display().to_string(),
                },
                state: state.to_string(),
                weight: record.weight,
                log_bytes: record.log,
                data_bytes: record.data,
                groups: groups.iter().filter(|group| group.members.contains(&drive)).count() as u32,
                groups_led: groups.iter().filter(|group| group.members.first() == Some(&drive)).count()
                    as u32,
                former: groups.iter().filter(|group| group.former.contains(&drive)).count() as u32,
                needed: needed.contains(&drive),
                leaving: record.state == DriveRecordState::Draining,
                reason,
            }
        });
        Ok(views.collect())
    }

    fn reason_of(&self, drive: weft_engine::DriveId) -> String {
        match self.drives.get(&drive).map(|drive| &drive.standing) {
            Some(crate::control::Standing::Down(reason)) => reason.clone(),
            Some(crate::control::Standing::Up) => "it has not answered for seconds".to_string(),
            _ => "its node tells why (weft status)".to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_drives_that_are_down_is_not_counted_beside_the_capacity_of_the_others() {
        let used = Used::from([(1, 100), (2, 1_000), (3, 10)]);
        assert_eq!(used_of(&used, &BTreeSet::from([1, 3, 4])), Used::from([(1, 100), (3, 10)]));
    }

    #[test]
    fn who_has_only_just_come_is_not_relied_on() {
        let told = |members: &[u32], former: &[u32]| {
            let group =
                GroupRecord { group: 1, factor: 2, members: members.to_vec(), former: former.to_vec() };
            let all = |drives: &mut dyn Iterator<Item = &u32>| drives.copied().collect::<Vec<u32>>();
            (all(&mut holders(&group)), all(&mut may_hold(&group)))
        };
        assert_eq!(told(&[1, 2], &[]).0, [1, 2]);
        assert_eq!(told(&[1, 3], &[2]).0, [1, 2], "3 has taken the place of 2");
        // 2 was lost, and so was 3, which had taken its place: that 1 has everything does not follow from the record.
        assert_eq!(told(&[1, 4], &[2, 3]), (vec![2, 3], vec![1, 4, 2, 3]));
    }
}
