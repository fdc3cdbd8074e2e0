//! The control plane: the config store with its compare-and-set, and what decides who serves what.
//! Promises: orders to one shard arrive in the order they were given; a family gets a new owner only when no
//! other serves it any more (leases), unless a stale owner is wanted; every opening has a higher epoch.
//! Leaves to others: when things fail (`atlas`). It learns of failures late, as real ones do.

use crate::client::Family;
use crate::coverage::Fault;
use crate::event::Event;
use crate::layout::Layout;
use crate::plan::FamilyPlan;
use crate::world::World;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::interface::{
    Damage, DriveState, DriveTrouble, DriveView, FamilyRecord, FamilyTrouble, GroupView, Segment, View,
};
use weft_engine::{DriveId, Epoch, FamilyId, GroupId, Input, Notice, Order, ShardId};

const TICK_US: u64 = 20_000;

#[derive(Clone, Debug)]
pub struct DriveEntry {
    pub shard: usize,
    pub domain: u32,
    pub state: DriveState,
    /// Whether it was ever ready: until then it may be formatted (again).
    formatted: bool,
    /// The engine of this process uses it.
    pub ready: bool,
    opening: bool,
    pub retired: bool,
    retry_at: u64,
    /// The drive whose places in groups it takes.
    replaces: Option<DriveId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FamilyPhase {
    Closed,
    Opening,
    Ready,
    /// To be destroyed; the shard that does it, once one was asked.
    Dropping,
    Dropped,
}

#[derive(Clone, Debug)]
pub struct FamilyEntry {
    pub record: FamilyRecord,
    pub owner: Option<usize>,
    pub phase: FamilyPhase,
    /// Shards that have been told to serve it and not to stop, with the epoch: the truth, which the
    /// control plane knows only as far as leases tell it.
    pub serving: BTreeMap<usize, u32>,
    pub retry_at: u64,
    /// Where it should go next; any shard if None.
    pub next: Option<usize>,
    /// The next opening does not wait for the old owner to stop.
    pub stale: bool,
    pub settled: bool,
}

#[derive(Default)]
pub struct Control {
    pub drives: Vec<DriveEntry>,
    pub families: Vec<FamilyEntry>,
    pub groups: BTreeMap<GroupId, GroupView>,
    version: u64,
    last_order: BTreeMap<usize, u64>,
    last_notice: BTreeMap<usize, u64>,
    changed: bool,
    /// When a drive or node last came or went.
    unrest: u64,
}

impl Control {
    pub fn add_drive(&mut self, shard: usize, domain: u32) {
        self.drives.push(DriveEntry {
            shard,
            domain,
            state: DriveState::Down,
            formatted: false,
            ready: false,
            opening: false,
            retired: false,
            retry_at: 0,
            replaces: None,
        });
    }

    pub fn view(&self) -> View {
        View {
            version: self.version,
            drives: self
                .drives
                .iter()
                .enumerate()
                .map(|(drive, entry)| {
                    let shard = ShardId(entry.shard as u32);
                    (DriveId(drive as u32), DriveView { shard, domain: entry.domain, state: entry.state })
                })
                .collect(),
            groups: self.groups.clone(),
        }
    }

    /// The shard a client asks: mostly the one that serves, sometimes one that does not (any more).
    pub fn route(&self, family: usize, rng: &mut SmallRng) -> Option<usize> {
        let entry = &self.families[family];
        if entry.serving.len() > 1 && rng.random_range(0..3) == 0 {
            return entry.serving.keys().nth(rng.random_range(0..entry.serving.len())).copied();
        }
        match entry.phase {
            FamilyPhase::Ready => entry.owner,
            _ if rng.random_range(0..10) == 0 => entry.owner,
            _ => None,
        }
    }

    /// The epoch in which a shard was told to serve a family, 0 if it was not.
    pub fn serving_epoch(&self, shard: usize, family: usize) -> u32 {
        self.families[family].serving.get(&shard).copied().unwrap_or(0)
    }

    pub fn shard_died(&mut self, shard: usize) {
        for family in &mut self.families {
            family.serving.remove(&shard);
        }
        for drive in self.drives.iter_mut().filter(|drive| drive.shard == shard) {
            drive.ready = false;
            drive.opening = false;
        }
    }

    /// All drives have been in use since `time`.
    pub fn all_well_since(&self, time: u64) -> bool {
        self.unrest <= time && self.all_drives_up()
    }

    pub fn all_drives_up(&self) -> bool {
        self.drives.iter().all(|drive| drive.retired || (drive.ready && drive.state == DriveState::Up))
    }

    pub fn domains_up(&self) -> BTreeSet<u32> {
        self.drives.iter().filter(|drive| drive.state == DriveState::Up).map(|drive| drive.domain).collect()
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// `new` takes the place of a member, whose copies may lie there for a while.
    pub fn change_member(&mut self, group: GroupId, at: usize, new: DriveId) {
        let view = self.groups.get_mut(&group).expect("the group exists");
        let old = std::mem::replace(&mut view.members[at], new);
        view.former.retain(|&drive| drive != new);
        view.former.push(old);
        self.changed = true;
    }

    /// Everything is where it belongs: former members need not be asked any more.
    pub fn forget_former(&mut self) {
        for group in self.groups.values_mut() {
            self.changed |= !group.former.is_empty();
            group.former.clear();
        }
    }

    pub fn domain_of(&self, drive: DriveId) -> u32 {
        self.drives[drive.0 as usize].domain
    }
}

impl World {
    /// Groups of every factor that has enough fault domains, each drive first in some.
    pub fn make_groups(&mut self) {
        let drives: Vec<(DriveId, u32)> = self
            .control
            .drives
            .iter()
            .enumerate()
            .map(|(at, entry)| (DriveId(at as u32), entry.domain))
            .collect();
        let domains = drives.iter().map(|(_, domain)| *domain).collect::<BTreeSet<_>>().len();
        for factor in 1..=domains.min(3) {
            for repeat in 0..if factor == 1 { 1 } else { 2 } {
                for at in 0..drives.len() {
                    let mut members = vec![drives[at]];
                    let mut next = at + 1 + repeat;
                    while members.len() < factor {
                        let candidate = drives[next % drives.len()];
                        if members.iter().all(|member| member.1 != candidate.1) {
                            members.push(candidate);
                        }
                        next += 1;
                    }
                    let members = members.into_iter().map(|(drive, _)| drive).collect();
                    let group = GroupId(self.control.groups.len() as u32 + 1);
                    self.control.groups.insert(group, GroupView { members, former: Vec::new() });
                }
            }
        }
        self.control.changed = true;
    }

    pub fn create_family(&mut self, plan: &FamilyPlan) {
        let family = self.families.len();
        let layout = if plan.runs > 1 {
            let size = 1u64 << self.rng.random_range(18..32);
            Layout::sparse(plan.blocks, plan.runs, size.max(plan.blocks as u64 * 4), &mut self.rng)
        } else {
            Layout::dense(plan.blocks)
        };
        self.control.families.push(FamilyEntry {
            record: FamilyRecord {
                family: FamilyId(family as u32),
                epoch: Epoch(0),
                size: layout.size_blocks * 4096,
                factor: plan.factor,
                segments: Vec::new(),
                version: 0,
            },
            owner: None,
            phase: FamilyPhase::Closed,
            serving: BTreeMap::new(),
            retry_at: 0,
            next: None,
            stale: false,
            settled: false,
        });
        self.families.push(Family::new(family, layout, plan.factor));
        for _ in 0..plan.clients {
            self.add_client(family);
        }
    }

    /// Gives an order; it arrives behind all orders given to that shard before.
    pub fn order(&mut self, shard: usize, order: Order) {
        let last = self.control.last_order.entry(shard).or_default();
        let time = (self.now + self.rng.random_range(1..=self.parameters.order_us)).max(*last + 1);
        *last = time;
        let incarnation = self.shards[shard].incarnation;
        self.queue.push(time, Event::Order { shard, incarnation, order });
    }

    pub fn order_arrives(&mut self, shard: usize, incarnation: u32, order: Order) {
        let state = &self.shards[shard];
        if state.incarnation != incarnation || state.engine.is_none() {
            return;
        }
        let node = state.node;
        if let Some(waiting) = &mut self.nodes[node].store_cut {
            waiting.push((shard, incarnation, order));
            return;
        }
        self.order_received(shard, incarnation, order);
    }

    /// An order has come over the link to the store, and is done as soon as the process is awake.
    pub fn order_received(&mut self, shard: usize, incarnation: u32, order: Order) {
        let state = &self.shards[shard];
        if state.incarnation != incarnation || state.engine.is_none() {
            return;
        }
        let node = state.node;
        if let Some(waiting) = &mut self.nodes[node].waiting {
            waiting.push(Event::Order { shard, incarnation, order });
            return;
        }
        match &order {
            Order::OpenFamily(record) => {
                let entry = &mut self.control.families[record.family.0 as usize];
                if record.epoch < entry.record.epoch {
                    // It waited while somebody else was chosen: the store would tell the node so.
                    return;
                }
                entry.serving.insert(shard, record.epoch.0);
            }
            Order::CloseFamily { family } => {
                self.control.families[family.0 as usize].serving.remove(&shard);
            }
            Order::View(view) => self.shards[shard].view = view.version,
            _ => {}
        }
        self.deliver(shard, incarnation, Input::Order(order));
    }

    /// A shard has news, which reach the control plane a little later.
    pub fn noticed(&mut self, shard: usize, notice: Notice) {
        let at = self.moment();
        match &notice {
            Notice::FamilyReady { family, epoch, replayed } => {
                self.coverage.count("families opened");
                self.coverage.add("records replayed", *replayed);
                if epoch.0 > 1 {
                    self.coverage.count("takeovers");
                }
                self.families[family.0 as usize].owner_ready(epoch.0, at);
            }
            Notice::FamilyFailed { family, epoch, reason } => {
                self.coverage.count(match reason {
                    FamilyTrouble::NoMember => "openings failed: no member",
                    FamilyTrouble::RecordLost(_) => "openings failed: record lost",
                    FamilyTrouble::PageLost(_) => "openings failed: page lost",
                    FamilyTrouble::Fenced => "owners fenced",
                });
                let serving = &mut self.control.families[family.0 as usize].serving;
                if serving.get(&shard) == Some(&epoch.0) {
                    serving.remove(&shard);
                }
            }
            Notice::Damage { damage, .. } => self.coverage.count(match damage {
                Damage::Log { .. } => "damage found in logs",
                Damage::CopyBad { .. } => "bad copies found",
                Damage::CopyRepaired { .. } => "copies repaired",
                Damage::BlockLost { .. } => "blocks without any good copy at the time",
            }),
            _ => {}
        }
        let last = self.control.last_notice.entry(shard).or_default();
        let time = (self.now + self.rng.random_range(1..=self.parameters.order_us)).max(*last + 1);
        *last = time;
        let incarnation = self.shards[shard].incarnation;
        self.queue.push(time, Event::Notice { shard, incarnation, notice });
    }

    pub fn notice_arrives(&mut self, shard: usize, incarnation: u32, notice: Notice) {
        let node = self.shards[shard].node;
        if self.nodes[node].store_cut.is_some() {
            // It is told again until the store can be reached.
            self.queue.push(self.now + 10_000, Event::Notice { shard, incarnation, notice });
            return;
        }
        let alive = self.shards[shard].incarnation == incarnation;
        match notice {
            // What a process asked of the store may be done although the process has died since.
            Notice::ChangeSegments { family, epoch, version, segments } => {
                self.change_segments(shard, family, epoch, version, segments);
            }
            Notice::DriveReady { drive } if alive => self.drive_ready(drive),
            Notice::DriveFailed { drive, reason } if alive => self.drive_failed(drive, reason),
            Notice::FamilyReady { family, epoch, .. } if alive => {
                let entry = &mut self.control.families[family.0 as usize];
                if entry.record.epoch == epoch && entry.phase == FamilyPhase::Opening {
                    entry.phase = FamilyPhase::Ready;
                }
            }
            Notice::FamilyFailed { family, epoch, .. } if alive => {
                let pause = self.rng.random_range(20_000..200_000);
                let entry = &mut self.control.families[family.0 as usize];
                let open = matches!(entry.phase, FamilyPhase::Opening | FamilyPhase::Ready);
                if entry.record.epoch == epoch && open {
                    entry.phase = FamilyPhase::Closed;
                    entry.owner = None;
                    entry.retry_at = self.now + pause;
                }
            }
            Notice::FamilyDropped { family } => {
                let entry = &mut self.control.families[family.0 as usize];
                if entry.phase == FamilyPhase::Dropping {
                    entry.phase = FamilyPhase::Dropped;
                    self.coverage.count("families dropped");
                }
            }
            Notice::FamilySettled { family } if alive => {
                self.coverage.count("families settled");
                self.control.families[family.0 as usize].settled = true;
            }
            _ => {}
        }
    }

    /// The compare-and-set of the config store.
    fn change_segments(
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
        let entry = &mut self.control.families[family.0 as usize];
        let record = &mut entry.record;
        let same = record.epoch == epoch && record.version == version && record.segments == segments;
        let taken = same || (record.epoch == epoch && record.version + 1 == version);
        if taken && !same {
            record.segments = segments;
            record.version = version;
            self.coverage.count("segment changes taken");
        } else if !taken {
            self.coverage.count("segment changes refused");
        }
        self.order(shard, Order::SegmentsChanged { family, epoch, version, taken });
    }

    fn drive_ready(&mut self, drive: DriveId) {
        let entry = &mut self.control.drives[drive.0 as usize];
        entry.opening = false;
        if entry.retired {
            return;
        }
        entry.ready = true;
        entry.formatted = true;
        entry.state = DriveState::Up;
        let replaces = entry.replaces.take();
        self.control.changed = true;
        self.control.unrest = self.now;
        if let Some(old) = replaces {
            for group in self.control.groups.values_mut() {
                for member in group.members.iter_mut().filter(|member| **member == old) {
                    *member = drive;
                    group.former.push(old);
                }
            }
        }
    }

    fn drive_failed(&mut self, drive: DriveId, reason: DriveTrouble) {
        let entry = &mut self.control.drives[drive.0 as usize];
        entry.ready = false;
        entry.opening = false;
        entry.retry_at = self.now + 100_000;
        self.control.unrest = self.now;
        self.coverage.count("drives failed");
        if entry.state == DriveState::Up {
            entry.state = DriveState::Down;
            self.control.changed = true;
        }
        if reason != DriveTrouble::Gone && entry.formatted {
            if self.victim != Some(drive.0 as usize) {
                self.fail(format!(
                    "drive {drive} cannot be used any more, though nothing was done to it: {reason}"
                ));
            } else if !entry.retired {
                self.drive_replaced(drive.0 as usize);
            }
        }
    }

    /// A drive is taken out for good, an empty one put into its place.
    pub fn drive_replaced(&mut self, drive: usize) {
        let entry = &mut self.control.drives[drive];
        if entry.retired {
            return;
        }
        entry.retired = true;
        entry.ready = false;
        entry.state = DriveState::Lost;
        let (shard, domain) = (entry.shard, entry.domain);
        self.control.changed = true;
        self.control.unrest = self.now;
        self.drives[drive].gone = true;
        self.coverage.fault(Fault::ReplacedDrive);
        self.order(shard, Order::CloseDrive { drive: DriveId(drive as u32) });
        let new = self.add_drive(shard);
        let entry = &mut self.control.drives[new.0 as usize];
        entry.domain = domain;
        entry.replaces = Some(DriveId(drive as u32));
    }

    /// A drive's process stops using it, though it may come back.
    pub fn close_drive(&mut self, drive: usize) {
        let entry = &mut self.control.drives[drive];
        if entry.retired || !entry.ready {
            return;
        }
        entry.ready = false;
        entry.state = DriveState::Down;
        let shard = entry.shard;
        self.control.changed = true;
        self.control.unrest = self.now;
        self.order(shard, Order::CloseDrive { drive: DriveId(drive as u32) });
    }

    /// A process has started and asks for its orders.
    pub fn node_registers(&mut self, node: usize) {
        self.control.unrest = self.now;
        let noticed = self.rng.random_bool(0.5);
        for drive in 0..self.control.drives.len() {
            let entry = &mut self.control.drives[drive];
            if self.nodes[node].shards.contains(&entry.shard) {
                entry.retry_at = 0;
                if noticed && entry.state == DriveState::Up {
                    entry.state = DriveState::Down;
                    self.control.changed = true;
                }
            }
        }
        self.families_leave(node);
        self.tell_view();
        self.reconcile_drives();
    }

    /// Families whose owner is not there any more need another.
    fn families_leave(&mut self, node: usize) {
        for family in 0..self.control.families.len() {
            let pause = self.rng.random_range(0..100_000);
            let entry = &mut self.control.families[family];
            let Some(owner) = entry.owner else { continue };
            if self.nodes[node].shards.contains(&owner) && !entry.serving.contains_key(&owner) {
                entry.owner = None;
                entry.retry_at = self.now + pause;
                if matches!(entry.phase, FamilyPhase::Opening | FamilyPhase::Ready) {
                    entry.phase = FamilyPhase::Closed;
                }
            }
        }
    }

    pub fn store_cut(&mut self, node: usize, until: u64) {
        let state = &mut self.nodes[node];
        if state.store_cut.is_some() {
            return;
        }
        state.store_cut = Some(Vec::new());
        state.store_cuts += 1;
        state.away_since.get_or_insert(self.now);
        let cut = state.store_cuts;
        self.queue.push(self.now + self.parameters.lease_us, Event::LeaseEnds { node, cut });
        self.queue.push(until, Event::StoreHeals(node));
    }

    /// The holder of a lease stops at its own clock's expiry.
    pub fn lease_ends(&mut self, node: usize, cut: u32) {
        let state = &mut self.nodes[node];
        if state.store_cut.is_none() || state.store_cuts != cut {
            return;
        }
        state.lease_over = true;
        if state.waiting.is_some() {
            // It sleeps. It looks at its clock before anything else when it wakes.
            return;
        }
        self.close_all_families(node);
    }

    pub fn close_all_families(&mut self, node: usize) {
        for shard in self.nodes[node].shards.clone() {
            for family in 0..self.control.families.len() {
                if self.control.families[family].serving.remove(&shard).is_some() {
                    let incarnation = self.shards[shard].incarnation;
                    let order = Order::CloseFamily { family: FamilyId(family as u32) };
                    self.deliver(shard, incarnation, Input::Order(order));
                }
            }
        }
    }

    pub fn store_heals(&mut self, node: usize) {
        let Some(waiting) = self.nodes[node].store_cut.take() else { return };
        self.nodes[node].lease_over = false;
        if self.nodes[node].up {
            self.nodes[node].away_since = None;
        }
        for (shard, incarnation, order) in waiting {
            self.order_received(shard, incarnation, order);
        }
        if self.nodes[node].up {
            self.families_leave(node);
            for drive in 0..self.control.drives.len() {
                let entry = &mut self.control.drives[drive];
                let here = self.nodes[node].shards.contains(&entry.shard);
                if here && entry.ready && entry.state == DriveState::Down {
                    entry.state = DriveState::Up;
                    self.control.changed = true;
                    self.control.unrest = self.now;
                }
            }
        }
    }

    /// Compares what is with what should be, and gives orders.
    pub fn control_tick(&mut self) {
        self.queue.push(self.now + TICK_US, Event::ControlTick);
        self.detect();
        self.reconcile_drives();
        for family in 0..self.control.families.len() {
            self.reconcile_family(family);
        }
        if self.control.changed {
            self.tell_view();
        }
    }

    /// Nodes that are away for long enough are noticed.
    fn detect(&mut self) {
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            let patience = if state.up {
                // It lives, perhaps: wait until its lease is surely over.
                2 * self.parameters.lease_us
            } else {
                self.parameters.detection_us
            };
            if state.away_since.is_none_or(|since| self.now < since + patience) {
                continue;
            }
            for drive in 0..self.control.drives.len() {
                let entry = &mut self.control.drives[drive];
                if self.nodes[node].shards.contains(&entry.shard) && entry.state == DriveState::Up {
                    entry.state = DriveState::Down;
                    self.control.changed = true;
                    self.control.unrest = self.now;
                }
            }
            self.families_leave(node);
        }
    }

    fn reconcile_drives(&mut self) {
        for drive in 0..self.control.drives.len() {
            let hung = self.drives[drive].hung_until;
            let there = !self.drives[drive].gone && hung + 2_000 < self.now;
            if hung > self.now && self.drives[drive].hung_since + self.parameters.detection_us * 2 < self.now
            {
                self.close_drive(drive);
            }
            let entry = &self.control.drives[drive];
            let node = &self.nodes[self.shards[entry.shard].node];
            if entry.ready || entry.opening || entry.retired || !node.up || node.store_cut.is_some() {
                continue;
            }
            if !there || entry.retry_at > self.now {
                continue;
            }
            let format = !entry.formatted;
            let shard = entry.shard;
            self.control.drives[drive].opening = true;
            let geometry = self.drives[drive].geometry;
            self.order(shard, Order::OpenDrive { drive: DriveId(drive as u32), geometry, format });
        }
    }

    fn tell_view(&mut self) {
        self.control.changed = false;
        self.control.version += 1;
        let view = self.control.view();
        for shard in 0..self.shards.len() {
            if self.shards[shard].engine.is_some() {
                self.order(shard, Order::View(view.clone()));
            }
        }
    }

    /// Shards that could serve: alive, and in touch with the store.
    pub fn live_shards(&self) -> Vec<usize> {
        (0..self.shards.len())
            .filter(|&shard| {
                let node = &self.nodes[self.shards[shard].node];
                node.up && node.store_cut.is_none() && self.shards[shard].engine.is_some()
            })
            .collect()
    }

    fn reconcile_family(&mut self, family: usize) {
        let entry = &self.control.families[family];
        if entry.retry_at > self.now || entry.owner.is_some() || entry.phase == FamilyPhase::Dropped {
            return;
        }
        if entry.phase == FamilyPhase::Closed && entry.record.version == 0 && !self.control.all_drives_up() {
            // The first opening of a vDisk waits until the pool is whole; so does everybody's first hour.
            return;
        }
        let dropping = entry.phase == FamilyPhase::Dropping;
        if !entry.serving.is_empty() && (dropping || !entry.stale) {
            // Whoever still serves is asked to stop, and waited for.
            for shard in entry.serving.keys().copied().collect::<Vec<_>>() {
                self.order(shard, Order::CloseFamily { family: FamilyId(family as u32) });
            }
            self.control.families[family].retry_at = self.now + 50_000;
            return;
        }
        let live = self.live_shards();
        let wanted = entry.next.filter(|shard| live.contains(shard));
        let Some(shard) = wanted.or_else(|| live.choose(&mut self.rng).copied()) else { return };
        let entry = &mut self.control.families[family];
        entry.next = None;
        entry.stale = false;
        entry.record.epoch = Epoch(entry.record.epoch.0 + 1);
        entry.owner = Some(shard);
        entry.settled = false;
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
        entry.owner = None;
        entry.retry_at = self.now;
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
