//! Who serves a family, and its record in the config store with the compare-and-set.
//! Promises: segments change only for the owner of the newest epoch that knows the last version.
//! Leaves to others: whose lease is over (`leases`), carrying the orders (`post`).

use super::{FamilyEntry, FamilyPhase};
use crate::family::Family;
use crate::layout::Layout;
use crate::plan::{FamilyPlan, Parameters};
use crate::world::World;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::interface::{Ceiling, Cold, Compression, FamilyRecord, Method, Origin, Segment};
use weft_engine::{DriveId, Epoch, FamilyId, Order};

impl World {
    pub fn create_family(&mut self, plan: &FamilyPlan) {
        let layout = if plan.runs > 1 {
            let size = 1u64 << self.rng.random_range(18..32);
            Layout::sparse(plan.blocks, plan.runs, size.max(plan.blocks as u64 * 4), &mut self.rng)
        } else {
            Layout::dense(plan.blocks)
        };
        self.add_family(layout, plan.factor, None, plan.clients);
    }

    /// A vDisk that nobody serves yet.
    pub(super) fn add_family(&mut self, layout: Layout, factor: u32, origin: Option<Origin>, clients: usize) {
        let family = self.families.len();
        self.control.families.push(FamilyEntry {
            record: FamilyRecord {
                family: FamilyId(family as u32),
                epoch: Epoch(0),
                size: layout.size_blocks * 4096,
                factor,
                segments: Vec::new(),
                version: 0,
                origin,
                rollback: None,
                compression: Compression::default(),
                ceiling: Ceiling::default(),
            },
            owner: None,
            phase: FamilyPhase::Closed,
            lease: None,
            serving: BTreeMap::new(),
            retry_at: 0,
            next: None,
            asleep: false,
            stale: false,
            stale_before: 0,
            since: 0,
            moving_to: None,
            clients_on: None,
            settled: false,
            snapshots: BTreeMap::new(),
            rolled_back: None,
            rollback_asked: 0,
            record_lost: None,
        });
        self.families.push(Family::new(family, layout, factor, origin));
        for _ in 0..clients {
            self.add_client(family);
        }
    }

    /// The compare-and-set of the config store.
    pub(super) fn change_segments(
        &mut self,
        shard: usize,
        family: FamilyId,
        epoch: Epoch,
        version: u64,
        segments: Vec<Segment>,
    ) {
        let ordered = segments.windows(2).all(|two| two[0].first < two[1].first);
        let sound = segments.iter().all(|segment| {
            !segment.members.is_empty()
                && segment.members.iter().collect::<BTreeSet<_>>().len() == segment.members.len()
                && segment.first.0 > 0
        });
        if segments.is_empty() || !ordered || !sound {
            self.fail(format!("family {family} wants segments that cannot be: {segments:?}"));
            return;
        }
        let record = &self.control.families[family.0 as usize].record;
        let same = record.epoch == epoch && record.version == version && record.segments == segments;
        // Whoever asks may not have heard yet that a drive has been taken away.
        let before: BTreeSet<DriveId> = record.segments.iter().flat_map(|it| it.members.clone()).collect();
        let new =
            segments.iter().flat_map(|segment| &segment.members).filter(|drive| !before.contains(drive));
        let gone = new.filter(|drive| self.control.drives[drive.0 as usize].retired).count();
        let taken = same || (record.epoch == epoch && record.version + 1 == version && gone == 0);
        if gone > 0 {
            self.coverage.count("segment changes to drives that were taken away");
        }
        let record = &mut self.control.families[family.0 as usize].record;
        if taken && !same {
            record.segments = segments;
            record.version = version;
            self.coverage.count("segment changes taken");
            self.opened_after_blackout();
        } else if !taken {
            self.coverage.count("segment changes refused");
        }
        self.order(shard, Order::SegmentsChanged { family, epoch, version, taken });
    }

    /// A family whose owner's lease is over needs another.
    fn leave_lost_owner(&mut self, family: usize) {
        let Some(owner) = self.control.families[family].owner else { return };
        if self.lease_of(owner) == self.control.families[family].lease {
            return;
        }
        let pause = self.rng.random_range(0..100_000);
        let entry = &mut self.control.families[family];
        entry.owner = None;
        entry.lease = None;
        entry.retry_at = self.now + pause;
        if matches!(entry.phase, FamilyPhase::Opening | FamilyPhase::Ready) {
            entry.phase = FamilyPhase::Closed;
        }
    }

    /// Shards that may be serving it, as far as leases tell.
    fn may_serve(&self, family: usize) -> Vec<usize> {
        let serving = self.control.families[family].serving.iter();
        let live = serving.filter(|&(&shard, serving)| serving.lease == self.lease_of(shard));
        live.map(|(&shard, _)| shard).collect()
    }

    pub(super) fn reconcile_family(&mut self, family: usize) {
        self.leave_lost_owner(family);
        if self.is_asleep(family) {
            return self.keep_asleep(family);
        }
        let entry = &self.control.families[family];
        if entry.retry_at > self.now || entry.owner.is_some() || entry.phase == FamilyPhase::Dropped {
            return;
        }
        if entry.phase == FamilyPhase::Closed && entry.record.version == 0 && !self.control.all_drives_up() {
            // The first opening of a vDisk waits until the pool is whole; so does everybody's first hour.
            return;
        }
        let dropping = entry.phase == FamilyPhase::Dropping;
        let serving = self.may_serve(family);
        if !serving.is_empty() && (dropping || !entry.stale) {
            // Whoever still serves is asked to stop, and waited for.
            for shard in serving {
                self.order(shard, Order::CloseFamily { family: FamilyId(family as u32) });
            }
            self.control.families[family].retry_at = self.now + 50_000;
            return;
        }
        let live = self.live_shards();
        let wanted = entry.next.filter(|shard| live.contains(shard));
        let by_rule = self.is_cluster() && !dropping;
        let any = || (!by_rule).then(|| live.choose(&mut self.rng).copied()).flatten();
        let Some(shard) = wanted.or_else(any) else { return };
        self.arrived(FamilyId(family as u32));
        let lease = self.lease_of(shard);
        let entry = &mut self.control.families[family];
        entry.next = None;
        entry.stale = false;
        entry.record.epoch = Epoch(entry.record.epoch.0 + 1);
        if !serving.is_empty() {
            entry.stale_before = entry.record.epoch.0;
        }
        entry.owner = Some(shard);
        entry.lease = lease;
        entry.settled = false;
        entry.record.compression = compression_of(&self.parameters, family, entry.record.epoch);
        let serves_already = entry.serving.contains_key(&shard);
        let record = entry.record.clone();
        if dropping {
            let order = Order::DropFamily { family: record.family, epoch: record.epoch };
            self.order(shard, order);
            return;
        }
        entry.phase = FamilyPhase::Opening;
        if serves_already {
            self.order(shard, Order::CloseFamily { family: record.family });
        }
        self.order(shard, Order::OpenFamily(record));
    }

    /// The family goes to another shard, or is opened again at the same. `stale`: the old owner is not
    /// asked to stop, and lives on until it is fenced.
    pub fn move_family(&mut self, family: usize, to: Option<usize>, stale: bool) {
        let entry = &mut self.control.families[family];
        if entry.phase != FamilyPhase::Ready && entry.phase != FamilyPhase::Opening {
            return;
        }
        entry.owner = None;
        entry.lease = None;
        entry.phase = FamilyPhase::Closed;
        entry.next = to;
        entry.stale = stale;
        entry.retry_at = self.now;
        self.reconcile_family(family);
    }

    pub fn drop_family(&mut self, family: usize) {
        let entry = &mut self.control.families[family];
        if matches!(entry.phase, FamilyPhase::Dropping | FamilyPhase::Dropped) {
            return;
        }
        entry.phase = FamilyPhase::Dropping;
        entry.asleep = false;
        entry.owner = None;
        entry.retry_at = self.now;
        entry.snapshots.clear();
        self.families[family].exists = false;
    }

    pub fn grow_family(&mut self, family: usize, blocks: usize) {
        let entry = &mut self.control.families[family];
        let Some(owner) = entry.owner.filter(|_| entry.phase == FamilyPhase::Ready) else { return };
        let state = &mut self.families[family];
        state.grow(blocks);
        entry.record.size = state.layout.size_blocks * 4096;
        let size = entry.record.size;
        self.order(owner, Order::Resize { family: FamilyId(family as u32), size });
    }
}

/// How a family packs its data in this epoch: anything, and another thing in the next. It draws nothing from the run's
/// numbers, so that old seeds stay what they were.
fn compression_of(parameters: &Parameters, family: usize, epoch: Epoch) -> Compression {
    let mut rng = SmallRng::seed_from_u64(parameters.seed ^ (family as u64) << 40 ^ u64::from(epoch.0) << 50);
    let drawn: u8 = rng.random_range(1..=4);
    let (methods, frames) = (rng.random_range(0..8), rng.random_range(0..4));
    let cold = rng.random_bool(0.25).then(|| rng.random_range(1..20));
    // All that higher levels change is the bytes, and they take several times as long: a quarter of the time of some plans.
    let level = if rng.random_ratio(1, 16) { drawn + 1 } else { 1 };
    // Packing takes a fifth of the time of a seed, so every other one does without; but what is shared is packed alike.
    let packs = parameters.images.is_some() || parameters.seed.is_multiple_of(2);
    let method = match methods {
        _ if !packs => Method::Off,
        0..2 => Method::Off,
        2..6 => Method::Lz4,
        _ => Method::Zstd { level },
    };
    let (frame_units, cold) = (1 << frames, cold.map(|after_s| Cold { after_s, level }));
    let share = parameters.images.is_some() && rng.random_bool(0.85);
    Compression { method, frame_units, cold, share }
}
