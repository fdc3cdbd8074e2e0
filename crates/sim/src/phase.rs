//! The course of a run: start, then rounds of trouble, healing, judging and reading everything back.
//! Promises: once faults have stopped everything is served, repaired and settled within a bounded time, or
//! the seed fails and says what was still missing.

mod read_back;

use crate::control::{FamilyPhase, common_of};
use crate::engine_view::{counted, held, named, pages, volumes};
use crate::event::Event;
use crate::judge::placement::{
    Held, blocks_are_counted, copies_are_equal, nothing_missing_nothing_left, runs_are_apart,
};
use crate::judge::space;
use crate::plan::Plan;
use crate::world::World;
use rand::Rng;
use rand::seq::{IndexedRandom, IteratorRandom};
use read_back::Reader;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::formats::layout::Layout;
use weft_engine::identity::Generation;
use weft_engine::interface::Segment;
use weft_engine::{DriveId, FamilyId, Order};

/// Owners do not ask drives for space if somebody of their shard has within this.
const SPACE_HEARD_US: u64 = 1_500_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Drives are formatted, vDisks opened for the first time.
    Starting,
    /// Clients work while the atlas does its worst.
    Trouble,
    /// Nothing fails any more: requests end, everybody comes back.
    Healing,
    /// Everything is drained, checkpointed and repaired.
    Settling,
    /// Nothing is left over anywhere.
    Checking,
    /// Every block is read and judged.
    ReadBack,
    Over,
}

pub struct Progress {
    pub round: usize,
    pub since: u64,
    pub until: u64,
    /// What was last found missing.
    missing: String,
    readers: BTreeMap<usize, Reader>,
    /// How often everything was read back for its data to follow, and no sooner than when again.
    pub passes: u32,
    pub next_pass: u64,
    /// For which epoch each family was asked to settle.
    asked: BTreeMap<usize, u32>,
    /// Data was deleted in this round, so that the rest could settle.
    thrown_away: bool,
    /// A vDisk of a full pool that nothing is asked of until all others were emptied and have settled.
    spared: Option<usize>,
    /// From when on the drives' answers to whoever asked before the others had settled do not count any more.
    unheard_from: Option<u64>,
    /// From when on a vDisk may be served no more in this round, and whether one was chosen.
    pub falls_asleep: u64,
    pub slept: bool,
}

impl Progress {
    pub fn new() -> Self {
        Self {
            round: 0,
            since: 0,
            until: 0,
            missing: String::new(),
            readers: BTreeMap::new(),
            passes: 0,
            next_pass: 0,
            asked: BTreeMap::new(),
            thrown_away: false,
            spared: None,
            unheard_from: None,
            falls_asleep: 0,
            slept: false,
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    pub fn phase_tick(&mut self) {
        self.queue.push(self.now + self.parameters.tick_us * 5 / 4, Event::PhaseTick);
        self.judge_reached();
        if matches!(self.phase, Phase::Healing | Phase::Settling) {
            self.judge_thin();
        }
        let next = match self.phase {
            Phase::Starting => self.all_served().map(|()| Phase::Trouble),
            Phase::Trouble if self.now >= self.progress.until => Ok(Phase::Healing),
            Phase::Trouble => return self.put_one_to_sleep(),
            Phase::Healing => self.all_back().map(|()| Phase::Settling),
            Phase::Settling => {
                let settled = self.all_settled().and_then(|()| self.groups_settled());
                settled
                    .and_then(|()| self.placement_rests())
                    .and_then(|()| self.logs_have_left())
                    .and_then(|()| self.logs_lie_well())
                    .map(|()| Phase::Checking)
            }
            Phase::Checking => self.all_exact().map(|()| Phase::ReadBack),
            Phase::ReadBack if self.progress.readers.is_empty() => {
                self.all_followed().map(|()| self.round_is_over())
            }
            Phase::ReadBack => {
                Err(format!("{} vDisks are still being read back", self.progress.readers.len()))
            }
            Phase::Over => return,
        };
        match next {
            Ok(next) => self.enter(next),
            Err(_) if self.phase == Phase::Healing && self.is_end_lost_rightly() => {
                self.coverage.count("logs whose end only a lost drive had");
                self.phase = Phase::Over;
            }
            Err(missing) => {
                self.progress.missing = missing;
                if self.now > self.progress.since + self.parameters.convergence_us {
                    let missing = self.progress.missing.clone();
                    let open: Vec<_> = self.requests.iter().take(3).collect();
                    self.fail(format!(
                        "not well {} s after the faults ended ({:?}): {missing}; open requests: {open:?}{}",
                        self.parameters.convergence_us / 1_000_000,
                        self.phase,
                        self.what_all_are_at()
                    ));
                }
            }
        }
    }

    /// The first lines of what each shard tells of itself.
    pub(crate) fn what_all_are_at(&self) -> String {
        let engines =
            self.shards.iter().enumerate().filter_map(|(at, shard)| Some((at, shard.engine.as_ref()?)));
        let shards: String =
            engines.map(|(shard, engine)| format!("\nshard {shard}:\n{}", engine.describe())).collect();
        format!("{shards}\ngroups: {}", self.control.describe_groups())
    }

    fn enter(&mut self, phase: Phase) {
        if self.trace {
            println!("{:>10} phase {phase:?}", self.now);
        }
        self.phase = phase;
        match phase {
            Phase::Trouble => self.begin_trouble(),
            Phase::Healing => self.begin_healing(),
            Phase::Settling => self.progress.asked.clear(),
            Phase::ReadBack => {
                self.set_ceilings();
                self.begin_following();
                self.begin_read_back();
            }
            Phase::Starting | Phase::Checking | Phase::Over => {}
        }
    }

    fn round_is_over(&mut self) -> Phase {
        self.coverage.count("rounds through all judges");
        self.progress.round += 1;
        if self.progress.round < self.parameters.rounds { Phase::Trouble } else { Phase::Over }
    }

    fn begin_trouble(&mut self) {
        self.progress.until = self.now + self.parameters.round_us;
        self.progress.falls_asleep = self.now + self.parameters.round_us / 4;
        self.progress.slept = false;
        (self.victim, self.absentee) = (None, None);
        self.blacked_out = false;
        self.set_ceilings();
        if self.parameters.destroys {
            let mut there: Vec<usize> =
                (0..self.drives.len()).filter(|&drive| !self.control.drives[drive].retired).collect();
            // Mostly those are lost that had room.
            let small = self.parameters.small_node.filter(|_| self.rng.random_ratio(3, 4));
            there.retain(|&drive| Some(self.node_of(drive)) != small);
            let victim = there[self.rng.random_range(0..there.len())];
            self.victim = Some(victim);
            self.lied.insert(DriveId(victim as u32));
            if self.parameters.absences {
                let home = self.node_of(victim);
                let others = (0..self.nodes.len()).filter(|&node| node != home && Some(node) != small);
                self.absentee = others.choose(&mut self.rng);
            }
        }
        if self.parameters.absences && !self.parameters.destroys {
            self.absentee = Some(self.rng.random_range(0..self.nodes.len()));
        }
        let first = self.rng.random_range(0..self.parameters.fault_every_us);
        self.queue.push(self.now + first, Event::Fault);
        if let Some(plan) = self.parameters.snapshots {
            self.queue.push(self.now + plan.every_us / 2, Event::Snapshot);
        }
        if let Some(plan) = self.parameters.clones {
            self.queue.push(self.now + plan.every_us / 2, Event::Clone);
        }
        if let Some(plan) = self.parameters.factors {
            self.queue.push(self.now + plan.every_us / 2, Event::Factor);
        }
        for client in 0..self.clients.len() {
            self.plan_client(client);
        }
        self.plan_blackout();
        self.plan_rot();
    }

    /// All faults stop; what was damaged and not met stays for a while, so that repair may meet it.
    fn begin_healing(&mut self) {
        self.progress.since = self.now;
        self.progress.asked.clear();
        self.progress.thrown_away = false;
        (self.progress.spared, self.progress.unheard_from) = (None, None);
        if let Some(victim) = self.victim.filter(|&victim| self.absentee.is_some() && self.may_lose(victim))
            && self.rng.random_ratio(2, 3)
        {
            // At the last moment at which the absentee may be away.
            self.drive_replaced(victim);
        }
        self.network.heal();
        for node in 0..self.nodes.len() {
            let pause = self.nodes[node].pauses;
            self.node_wakes(node, pause);
            self.store_heals(node);
            self.node_starts(node);
        }
        for drive in 0..self.drives.len() {
            if !self.control.drives[drive].retired {
                let state = &mut self.drives[drive];
                state.gone = false;
                state.end_faults();
            }
        }
        let faltering: Vec<(usize, usize)> = self.faltering.iter().copied().collect();
        self.units_heal(&faltering);
        self.end_slowness();
        if self.rng.random_bool(0.5) {
            for node in 0..self.nodes.len() {
                self.nodes[node].draining = false;
            }
            for drive in self.control.drives_draining(true) {
                self.drain_drive(drive, false);
            }
        }
        if self.parameters.snapshots.is_some() && self.snapshot_rng.random_bool(0.4) {
            self.drop_all_snapshots();
        }
        for family in 0..self.families.len() {
            // Of several owners only the newest stays.
            let entry = &self.control.families[family];
            let stale: Vec<usize> =
                entry.serving.keys().copied().filter(|&shard| Some(shard) != entry.owner).collect();
            for shard in stale {
                self.order(shard, Order::CloseFamily { family: FamilyId(family as u32) });
            }
        }
    }

    /// No group remembers former members: each owner has found everything on all members.
    fn groups_settled(&self) -> Result<(), String> {
        match self.control.unsettled_groups().next() {
            None => Ok(()),
            Some(group) => {
                Err(format!("group {group} still has former members: {}", self.control.describe_whole(group)))
            }
        }
    }

    /// No log lies on a drive that is gone, or that is to be emptied while there are others enough.
    fn logs_have_left(&self) -> Result<(), String> {
        let (leaving, staying) = (self.control.drives_draining(true), self.control.drives_draining(false));
        for entry in self.control.families.iter().filter(|entry| entry.phase == FamilyPhase::Ready) {
            let copies = (entry.record.factor as usize).min(leaving.len() + staying.len());
            let mut named = entry.record.segments.iter().flat_map(Segment::drives);
            let stays =
                |drive: usize| staying.contains(&drive) || leaving.contains(&drive) && staying.len() < copies;
            if let Some(drive) = named.find(|drive| !stays(drive.0 as usize)) {
                let family = entry.record.family;
                return Err(format!("the log of family {family} still names drive {drive}, which shall go"));
            }
        }
        Ok(())
    }

    /// Every log is written to on as many drives, as far apart, as there can be; and on none that is slow while enough others are in nodes of
    /// their own.
    fn logs_lie_well(&self) -> Result<(), String> {
        let (up, open) = (self.control.domains_up().len(), self.control.domains_open().len());
        for entry in self.control.families.iter().filter(|entry| entry.phase == FamilyPhase::Ready) {
            let factor = entry.record.factor as usize;
            let members = entry.record.segments.last().map_or(&[][..], |segment| &segment.members);
            let apart: BTreeSet<u32> = members.iter().map(|&drive| self.control.domain_of(drive)).collect();
            let slow = members.iter().find(|drive| self.control.drives[drive.0 as usize].slow);
            let family = entry.record.family;
            if apart.len() < up.min(factor) {
                return Err(format!("the log of family {family} is written to on {members:?} only"));
            }
            if let Some(drive) = slow.filter(|_| open >= factor) {
                return Err(format!(
                    "the log of family {family} is written to on drive {drive}, which is slow"
                ));
            }
        }
        Ok(())
    }

    fn all_served(&self) -> Result<(), String> {
        for (drive, entry) in self.control.drives.iter().enumerate() {
            if !entry.retired && !entry.ready {
                return Err(format!("drive {drive} is not ready"));
            }
            // Nobody may have noticed yet, because nobody asked it for anything.
            if !entry.retired && self.drives[drive].hung_until > self.now {
                return Err(format!("drive {drive} still hangs"));
            }
        }
        for (family, entry) in self.control.families.iter().enumerate() {
            if !entry.asleep && !matches!(entry.phase, FamilyPhase::Ready | FamilyPhase::Dropped) {
                return Err(format!("family {family} is {:?} at {:?}", entry.phase, entry.owner));
            }
            if entry.serving.len() > 1 {
                return Err(format!("family {family} has several owners: {:?}", entry.serving));
            }
        }
        Ok(())
    }

    fn all_back(&mut self) -> Result<(), String> {
        self.all_served()?;
        if let Err(missing) = self.rollbacks_done() {
            if volumes(self).any(|(_, volume)| volume.is_pool_full()) && self.make_room() {
                self.coverage.count("snapshots or clones dropped to make room");
            }
            return Err(missing);
        }
        let open = self.requests.iter().filter(|open| !self.is_asleep(open.family)).count();
        if open > 0 {
            return Err(format!("{open} requests are not answered"));
        }
        if self.wake_all() {
            self.progress.since = self.now;
            return Err("a vDisk that nobody served is served again".into());
        }
        self.snapshots_done(true)?;
        if self.parameters.plan == Plan::Full && self.progress.asked.is_empty() {
            // What does not fit is thrown away: now everything must go on.
            self.drop_all_snapshots();
            // Whoever has heard last that there is no room.
            let full: Vec<usize> =
                volumes(self).filter(|(_, volume)| volume.is_pool_full()).map(|(family, _)| family).collect();
            self.progress.spared = full.choose(&mut self.rng).copied();
            self.throw_data_away(true);
            return Err("space is being freed".into());
        }
        Ok(())
    }

    /// The one that was spared has heard of the pool what it heard when that was full. It wants to write, and is emptied as well then.
    fn spare_no_more(&mut self, family: usize) -> Result<(), String> {
        self.progress.spared = None;
        if let Some((client, owner)) = self.client_and_owner(family) {
            self.coverage.count("vDisks that had heard of a full pool and wanted to write");
            self.ask_block(client, family, owner);
        }
        self.throw_away_of(family, true);
        Err("the vDisk that was spared is written to".into())
    }

    /// Every second vDisk is emptied, and the others `keep` a quarter, or nothing.
    fn throw_data_away(&mut self, keep: bool) {
        for family in 0..self.families.len() {
            self.progress.asked.insert(family, 0);
            if self.progress.spared != Some(family) {
                self.throw_away_of(family, keep);
            }
        }
    }

    fn client_and_owner(&self, family: usize) -> Option<(usize, usize)> {
        let client = self.clients.iter().position(|client| client.family == family)?;
        Some((client, self.control.families[family].owner?))
    }

    fn throw_away_of(&mut self, family: usize, keep: bool) {
        let Some((client, owner)) = self.client_and_owner(family) else { return };
        if self.control.families[family].phase == FamilyPhase::Ready {
            let size = self.families[family].layout.size_blocks * 8;
            let keep = if keep && family.is_multiple_of(2) { size / 4 } else { 0 };
            self.ask_zero(client, family, owner, keep, size - keep);
        }
    }

    fn all_settled(&mut self) -> Result<(), String> {
        self.all_served()?;
        if volumes(self).any(|(_, volume)| volume.is_pool_full()) {
            if self.make_room() {
                self.coverage.count("snapshots or clones dropped to make room");
            } else if !self.progress.thrown_away
                && self.requests.is_empty()
                && self.now > self.progress.since + self.parameters.convergence_us / 2
            {
                // What is left to drain does not fit, and nothing came back for long: a pool that is full for good
                // needs somebody who deletes. All of it: a quarter may be too much where every pair of copies has one on the
                // only drive of the smaller of two nodes.
                self.progress.thrown_away = true;
                self.throw_data_away(false);
                self.coverage.count("pools full for good, of which data was deleted");
            }
        }
        if !self.requests.is_empty() {
            return Err(format!("{} requests are not answered", self.requests.len()));
        }
        self.factors_reached()?;
        for family in 0..self.families.len() {
            let entry = &mut self.control.families[family];
            if entry.phase != FamilyPhase::Ready || self.progress.spared == Some(family) {
                continue;
            }
            let owner = entry.owner.expect("a served family has an owner");
            let epoch = entry.record.epoch.0;
            if self.progress.asked.insert(family, epoch) != Some(epoch) {
                entry.settled = false;
                self.order(owner, Order::Settle { family: FamilyId(family as u32) });
            }
            if !self.control.families[family].settled {
                return Err(format!(
                    "family {family} did not end its settling: {}",
                    self.describe(family, owner)
                ));
            }
        }
        if let Some(family) = self.progress.spared {
            let unheard_from = *self.progress.unheard_from.get_or_insert(self.now + SPACE_HEARD_US);
            if self.now < unheard_from {
                return Err("the vDisk that was spared waits".into());
            }
            return self.spare_no_more(family);
        }
        self.together_is_over()?;
        self.snapshots_done(false)?;
        self.volumes_are_settled()?;
        let (named, held) = (named(self)?, held(self)?);
        nothing_missing_nothing_left(&named, &held)
    }

    /// No log has records of a vDisk that was dropped: nobody would ever trim them, and they would keep its ring from going round.
    fn no_log_of_the_dropped(&self) -> Result<(), String> {
        let engines = self.shards.iter().filter_map(|shard| shard.engine.as_ref());
        for (drive, keeper) in engines.flat_map(|engine| engine.keepers()) {
            let mut held = keeper.log_ranges().map(|(family, ..)| family);
            let is_dropped =
                |family: &FamilyId| self.control.families[family.0 as usize].phase == FamilyPhase::Dropped;
            if let Some(family) = held.find(is_dropped) {
                return Err(format!("drive {drive} has log records of family {family}"));
            }
        }
        Ok(())
    }

    /// What a family that does not settle is at.
    fn describe(&self, family: usize, owner: usize) -> String {
        let engine = self.shards[owner].engine.as_ref();
        match engine.and_then(|engine| engine.volume(FamilyId(family as u32))) {
            Some(volume) => format!(
                "quiet {}, {} dirty bytes, {} edits, pool full {}",
                volume.is_quiet(),
                volume.dirty_bytes(),
                volume.map().edits.len(),
                volume.is_pool_full()
            ),
            None => "its shard does not know it".into(),
        }
    }

    fn volumes_are_settled(&self) -> Result<(), String> {
        for (family, entry) in self.control.families.iter().enumerate() {
            if entry.phase != FamilyPhase::Ready {
                continue;
            }
            let owner = entry.owner.expect("a served family has an owner");
            let engine = self.shards[owner].engine.as_ref().expect("an owner lives");
            let volume =
                engine.volume(FamilyId(family as u32)).ok_or(format!("family {family} has no volume"))?;
            if !volume.is_settled() {
                return Err(format!("family {family} is not settled: {}", self.describe(family, owner)));
            }
            if volume.was_refused_room() {
                return Err(format!(
                    "family {family} has nothing left to drain, and refuses writes for a full pool"
                ));
            }
        }
        Ok(())
    }

    /// Everything lies where it should, nothing else does, and all copies are the same.
    fn all_exact(&mut self) -> Result<(), String> {
        self.all_served()?;
        self.volumes_are_settled()?;
        let view = self.control.version();
        if !self.all_in_sight() {
            return Err("some nodes have lost sight of others".into());
        }
        for (shard, state) in self.shards.iter().enumerate() {
            if !self.nodes[state.node].removed && common_of(state.view) != view {
                return Err(format!("shard {shard} has not got the newest view"));
            }
        }
        let (named, held) = (named(self)?, held(self)?);
        nothing_missing_nothing_left(&named, &held)?;
        self.no_log_of_the_dropped()?;
        let drives = &self.drives;
        let judged = runs_are_apart(&held, |drive| drives[drive.0 as usize].geometry.data / 4096);
        if let Err(what) = judged {
            self.fail(what);
            return Ok(());
        }
        let counted = counted(self)?;
        if counted.iter().any(|counted| counted.moving > 0) {
            return Err(format!("blocks are on their way: {counted:?}"));
        }
        let judged = blocks_are_counted(&held, &counted, |drive| {
            let layout = Layout::of(self.drives[drive.0 as usize].geometry.data);
            layout.end - layout.units
        });
        match judged {
            Ok((shared, left)) => {
                self.coverage.add("blocks of egroups that lie elsewhere", shared);
                self.coverage.add("blocks that only references hold", left);
            }
            Err(what) => self.fail(what),
        }
        for drive in &mut self.drives {
            drive.restore();
        }
        let may_be_bad = |held: &Held, block: u64| {
            let rotten = self.rotten_egroups.get(&(held.family, held.egroup));
            self.lied.contains(&held.drive) || rotten.is_some_and(|rotten| rotten.contains(&block))
        };
        match copies_are_equal(&held, &self.drives, may_be_bad) {
            Ok(compared) => {
                self.coverage.add("blocks compared on all members", compared.blocks);
                self.coverage.add("damaged blocks that nobody has read", compared.unread_damage);
            }
            Err(what) => self.fail(format!("{what}; the victim was {:?}", self.victim)),
        }
        self.coverage.add("egroups judged", named.len() as u64);
        let packed = named.iter().filter(|name| name.stored < name.units).count();
        self.coverage.add("packed egroups judged", packed as u64);
        if let Err(what) = self.space_is_counted(&held) {
            self.fail(what);
        }
        Ok(())
    }

    /// Every unit of data is counted once, of the present or of snapshots that there are.
    fn space_is_counted(&mut self, held: &[Held]) -> Result<(), String> {
        let (mut counted, mut several) = (Vec::new(), 0);
        for (index, volume) in volumes(self) {
            let family = FamilyId(index as u32);
            let snapshots = &self.families[index].snapshots;
            let (known, staying) = (snapshots.there(), snapshots.staying());
            let told: BTreeSet<Generation> =
                volume.snapshots().iter().map(|(generation, _)| *generation).collect();
            // The word of an owner that dropped one may have been lost with it.
            if !told.is_subset(&known) || !staying.iter().all(|generation| told.contains(generation)) {
                return Err(format!("family {family} has snapshots {told:?}, and those known are {known:?}"));
            }
            let directory = &volume.map().directory;
            if told.is_empty() && directory.past() > 0 {
                return Err(format!(
                    "family {family} has no snapshots, but {} units of the past",
                    directory.past()
                ));
            }
            let Some(pages) = pages(self, volume, family, held) else {
                counted.push(None);
                continue;
            };
            let exact = space::is_exact(&pages, &directory.iter().collect(), &told);
            let units = exact.map_err(|what| format!("family {family}: {what}"))?;
            if units != (directory.live(), directory.past()) {
                return Err(format!("family {family}: {units:?} units, in all {}", directory.live()));
            }
            let mut pages_of: BTreeMap<u64, u64> = BTreeMap::new();
            pages.past.iter().for_each(|(leaf, _)| *pages_of.entry(*leaf).or_default() += 1);
            several += pages_of.values().filter(|&&pages| pages > 1).count() as u64;
            counted.push(Some(units));
        }
        self.coverage.add("leaves with several pages of the past", several);
        for units in counted {
            match units {
                None => self.coverage.count("maps with damaged pages, not counted anew"),
                Some((live, past)) => {
                    self.coverage.add("units counted anew", live);
                    self.coverage.add("units that only snapshots see", past);
                }
            }
        }
        Ok(())
    }
}
