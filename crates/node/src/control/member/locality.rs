//! Where the clients of a vDisk are, as its owner sees it: when all of them have been on one other node for long, the
//! vDisk goes there. Counted here and nowhere else: the store hears of the move only.
//!
//! It goes there soon when this node does not reach that one any more, which lives all the same: its clients could wait for
//! ever (`docs/decisions/0052-a-vdisk-goes-to-clients-that-its-owner-does-not-reach.md`). Unless nobody but this node could tell the
//! other one what is in its log: it would not be served at all there.

use super::{Phase, Served};
use crate::config::SegmentRecord;
use crate::config::cluster::NodeState;
use crate::control::statistics::ask_shards;
use crate::control::{Control, SharedControl};
use crate::shard_loop::{Question, ShardStatistics};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weft_engine::cluster::detection::{HAND_OVERS_MAX, LEASE_US, LOCALITY_US, STAY_US};
use weft_engine::{DriveId, Epoch, FamilyId, ShardId};

/// Clients are looked at so often, and what cannot be reached.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_AT_CUTS: Duration = Duration::from_secs(1);

/// Who is not reached for so long, beside the time after which it counts as lost, and has a lease all the same: lives. A lease
/// that ended when it died would be over by then.
const CUT: Duration = Duration::from_micros(LEASE_US);

const LOCALITY: Duration = Duration::from_micros(LOCALITY_US);
const STAY: Duration = Duration::from_micros(STAY_US);

/// Of one vDisk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Requests so far, by the node that asked.
    asked_by: BTreeMap<u32, u64>,
    /// The only node they have come from. None: from several, or from nowhere for long.
    only_on: Option<Stay>,
}

#[derive(Debug, PartialEq, Eq)]
struct Stay {
    node: u32,
    /// Since when requests have come from there, and when some were seen last.
    since: Instant,
    last: Instant,
}

impl Clients {
    /// Takes in what has been counted by now.
    fn note(&mut self, asked_by: &BTreeMap<u32, u64>, now: Instant) {
        let before = |node: &u32| self.asked_by.get(node).copied().unwrap_or(0);
        let mut busy = asked_by.iter().filter(|(node, count)| **count > before(node)).map(|(&node, _)| node);
        match (busy.next(), busy.next()) {
            // Nobody asks anything: that says nothing, for a while.
            (None, _) => {
                self.only_on = self.only_on.take().filter(|stay| now.duration_since(stay.last) < LOCALITY)
            }
            (Some(node), None) => match &mut self.only_on {
                Some(stay) if stay.node == node => stay.last = now,
                _ => self.only_on = Some(Stay { node, since: now, last: now }),
            },
            (Some(_), Some(_)) => self.only_on = None,
        }
        self.asked_by = asked_by.clone();
    }

    /// The node it should be on instead of this one.
    fn better_place(&self, here: u32, served_since: Instant, now: Instant) -> Option<u32> {
        let Stay { node, since, last } = self.only_on.as_ref()?;
        // A single question, as of whoever has just made the vDisk, is no client that stays.
        let is_settled = last.duration_since(*since) >= LOCALITY && now.duration_since(served_since) >= STAY;
        (*node != here && is_settled).then_some(*node)
    }

    /// The node it should be on because all its clients are there, and this one does not reach it.
    fn way_out(&self, cut_off: &BTreeSet<u32>) -> Option<u32> {
        self.only_on.as_ref().map(|stay| stay.node).filter(|node| cut_off.contains(node))
    }
}

/// Looks for vDisks whose clients are elsewhere.
pub async fn watch(control: SharedControl) {
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(LOOK_AT_CUTS).await;
        let cut_off = control.lock().cut_off_from_here();
        if looked.elapsed() < LOOK && cut_off.is_empty() {
            continue;
        }
        looked = Instant::now();
        let question = |to| Question::Statistics { details: false, to };
        let counted = ask_shards(&control, LOOK, question).await;
        control.lock().note_clients(&counted, &cut_off);
    }
}

impl Control {
    /// Nodes that live and that no shard here has reached for long, unless this one reaches nobody.
    fn cut_off_from_here(&mut self) -> BTreeSet<u32> {
        let now = Instant::now();
        let Some(member) = self.part.member_mut() else { return BTreeSet::new() };
        if member.reaches_nobody() {
            member.cuts.clear();
            return BTreeSet::new();
        }
        let lost = member.reached().into_iter().filter(|(_, reached)| !reached);
        let lost: BTreeSet<u32> = lost.map(|(node, _)| node).collect();
        member.cuts.retain(|node, _| lost.contains(node));
        for node in lost {
            member.cuts.entry(node).or_insert(now);
        }
        let long = member.cuts.iter().filter(|(_, since)| now.duration_since(**since) >= CUT);
        long.map(|(&node, _)| node).filter(|node| member.mirror.alive.contains_key(node)).collect()
    }

    fn note_clients(&mut self, counted: &[Option<ShardStatistics>], cut_off: &BTreeSet<u32>) {
        let now = Instant::now();
        let Some(member) = self.part.member_mut() else { return };
        let here = member.node;
        let is_on_its_way =
            |served: &&Served| matches!(served.phase, Phase::Settling { .. } | Phase::HandingOver);
        // Each move of these is to stay short; there is no hurry.
        let mut room = HAND_OVERS_MAX.saturating_sub(member.served.values().filter(is_on_its_way).count());
        let mirror = &member.mirror;
        let node_of = |drive| mirror.drives.get(&drive).map(|drive| drive.record.node);
        let mut moves: Vec<(FamilyId, (ShardId, Epoch), u32)> = Vec::new();
        for (&family, served) in &mut member.served {
            let Served { shard, epoch, clients, since, phase, .. } = served;
            // Another shard may remember it from before.
            let told = counted[*shard].as_ref();
            let Some(family_counted) = told.and_then(|told| told.families.get(&family)) else {
                continue;
            };
            clients.note(&family_counted.asked_by, now);
            let record = mirror.families.get(&family).map(|family| &family.record);
            let Some(record) = record.filter(|record| *phase == Phase::Ready && record.moving_to.is_none())
            else {
                continue;
            };
            let by = (ShardId::of(here, *shard as u32), *epoch);
            let way_out =
                clients.way_out(cut_off).filter(|_| has_log_beside(here, &record.segments, node_of));
            if let Some(to) = way_out {
                moves.push((family, by, to));
            } else if room > 0
                && let Some(to) = clients.better_place(here, *since, now)
                && !cut_off.contains(&to)
            {
                room -= 1;
                moves.push((family, by, to));
            }
        }
        for (family, by, to) in moves {
            let Some(member) = self.part.member() else { return };
            let node = member.mirror.nodes.get(&to);
            let takes_vdisks =
                node.is_some_and(|node| node.record.state == NodeState::In && !node.record.storage_only);
            if !takes_vdisks || !member.mirror.stays(to) {
                continue;
            }
            tracing::info!(%family, to, "all clients of a vDisk are on another node: it goes there");
            // Sent elsewhere meanwhile, or given to another life, it has nothing to do with what was seen here.
            member.spawn(
                move |store| store.send(family, by, to, None),
                move |_, told| {
                    if let Err(error) = told {
                        tracing::warn!(%family, %error, "a vDisk stays although its clients are elsewhere");
                    }
                },
            );
        }
    }
}

/// Whether a drive in another node than this one has what the log of a vDisk was given last: else nobody could open it elsewhere.
fn has_log_beside(node: u32, segments: &[SegmentRecord], node_of: impl Fn(DriveId) -> Option<u32>) -> bool {
    let is_elsewhere = |drive: &u32| node_of(DriveId(*drive)).is_some_and(|other| other != node);
    segments.last().is_none_or(|last| last.members.iter().any(is_elsewhere))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vdisk_follows_clients_that_have_been_on_one_other_node_for_long() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut clients = Clients::default();
        clients.note(&BTreeMap::from([(2, 10)]), after(0));
        clients.note(&BTreeMap::from([(2, 20)]), after(30));
        assert_eq!(clients.better_place(1, began, after(59)), None, "not long enough");
        clients.note(&BTreeMap::from([(2, 20)]), after(60));
        assert_eq!(clients.better_place(1, began, after(299)), None, "it has only just come here itself");
        clients.note(&BTreeMap::from([(2, 20)]), after(80));
        assert_eq!(clients.better_place(1, began, after(300)), None, "nor seen for as long");
        clients.note(&BTreeMap::from([(2, 21)]), after(85));
        assert_eq!(clients.better_place(1, began, after(300)), Some(2), "silence does not begin it anew");
        assert_eq!(clients.better_place(2, began, after(300)), None, "it is there already");
        clients.note(&BTreeMap::from([(1, 1), (2, 30)]), after(301));
        assert_eq!(clients.better_place(1, began, after(400)), None, "somebody else asks too");
        clients.note(&BTreeMap::from([(1, 1), (2, 40)]), after(302));
        clients.note(&BTreeMap::from([(1, 1), (2, 41)]), after(361));
        assert_eq!(clients.better_place(1, began, after(361)), None, "and only now stopped");
        clients.note(&BTreeMap::from([(1, 1), (2, 42)]), after(362));
        assert_eq!(clients.better_place(1, began, after(362)), Some(2));
    }

    #[test]
    fn a_vdisk_whose_clients_cannot_be_reached_goes_to_them() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut clients = Clients::default();
        clients.note(&BTreeMap::from([(2, 10)]), after(0));
        clients.note(&BTreeMap::from([(2, 10)]), after(6));
        assert_eq!(clients.way_out(&BTreeSet::from([3])), None);
        assert_eq!(clients.way_out(&BTreeSet::from([2])), Some(2), "soon, and by what was seen before");
        clients.note(&BTreeMap::from([(1, 1), (2, 11)]), after(8));
        assert_eq!(clients.way_out(&BTreeSet::from([2])), None, "others would lose it");
    }

    #[test]
    fn a_log_that_is_here_only_keeps_the_vdisk_here() {
        let node_of = |drive: DriveId| (drive.0 < 40).then_some(drive.0 / 10);
        let segment = |members: &[u32]| SegmentRecord {
            first: 1,
            epoch: 1,
            members: members.to_vec(),
            absent: Vec::new(),
        };
        assert!(has_log_beside(1, &[], node_of), "there is nothing in it");
        assert!(has_log_beside(1, &[segment(&[10, 20])], node_of));
        assert!(
            !has_log_beside(1, &[segment(&[10, 20]), segment(&[10, 11])], node_of),
            "the last one counts"
        );
        assert!(!has_log_beside(1, &[segment(&[10, 99])], node_of), "a drive that is not known says nothing");
    }

    #[test]
    fn a_vdisk_that_was_asked_once_stays() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut clients = Clients::default();
        for at in (0..3600).step_by(5) {
            // Whoever has made it has asked whether it is served.
            clients.note(&BTreeMap::from([(2, 1)]), after(at));
            assert_eq!(clients.better_place(1, began, after(at)), None, "{at}");
        }
        // Somebody looks at it once an hour.
        clients.note(&BTreeMap::from([(2, 2)]), after(3600));
        assert_eq!(clients.better_place(1, began, after(3600)), None);
    }
}
