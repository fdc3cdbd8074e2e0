//! What clients ask, and what they are told: reads, writes, zeros, flushes and extents, aligned or not, hot or
//! spread, alone or in streams. Every answer goes to the judge of registers.

use crate::event::Event;
use crate::judge::copies::durable_copies;
use crate::judge::registers::{Moment, Registers, Write};
use crate::judge::snapshots::Snapshots;
use crate::layout::{Layout, Run};
use crate::phase::Phase;
use crate::requests::{Asked, Open};
use crate::stamp::{SECTOR, content, stamp};
use crate::world::World;
use rand::Rng;
use rand::seq::IndexedRandom;
use std::collections::BTreeSet;
use weft_engine::buffer::{Buffer, zeros};
use weft_engine::identity::{Generation, SnapshotId};
use weft_engine::interface::{Extent, RequestError};
use weft_engine::{FamilyId, Reply, Request, Ticket};

const BLOCK_SECTORS: u64 = 8;

/// A vDisk as its clients and its judge know it.
pub struct Family {
    pub layout: Layout,
    pub registers: Registers,
    pub snapshots: Snapshots,
    writes: Vec<Write>,
    /// Writes that nobody knows the outcome of, and the epoch they were given to.
    unknown: Vec<(u32, u32)>,
    open_reads: BTreeSet<Moment>,
    /// The newest epoch in which a shard said that it serves.
    pub ready_epoch: u32,
    /// It exists: clients use it.
    pub exists: bool,
    pub factor: u32,
    /// Sectors it had when it was made: those are inside at every owner.
    first_size: u64,
}

impl Family {
    pub fn new(index: usize, layout: Layout, factor: u32) -> Self {
        let registers = Registers::new(index, layout.blocks);
        let first_size = layout.size_blocks * BLOCK_SECTORS;
        Self {
            layout,
            registers,
            snapshots: Snapshots::default(),
            writes: Vec::new(),
            unknown: Vec::new(),
            open_reads: BTreeSet::new(),
            ready_epoch: 0,
            exists: true,
            factor,
            first_size,
        }
    }

    /// `blocks` more, all of them used.
    pub fn grow(&mut self, blocks: usize) {
        self.layout.grow(blocks);
        self.registers.grow(self.layout.blocks);
        self.snapshots.grow(self.layout.blocks);
    }

    /// The snapshot may be taken from now on: until it is, it is a read of everything.
    pub fn snapshot_asked(&mut self, snapshot: SnapshotId, at: Moment) {
        if self.snapshots.asked(snapshot, at) {
            self.open_reads.insert(at);
        }
    }

    pub fn snapshot_taken(
        &mut self,
        snapshot: SnapshotId,
        generation: Generation,
        epoch: u32,
        at: Moment,
    ) -> Result<(), String> {
        let asked = self.snapshots.taken(snapshot, generation, epoch, at, &self.registers)?;
        if let Some(asked) = asked {
            self.open_reads.remove(&asked);
        }
        Ok(())
    }

    pub fn snapshot_forgotten(&mut self, snapshot: SnapshotId) {
        if let Some(asked) = self.snapshots.forget_asked(snapshot) {
            self.open_reads.remove(&asked);
        }
    }

    fn oldest_read(&self, now: Moment) -> Moment {
        self.open_reads.first().copied().unwrap_or(now)
    }

    fn write(&self, number: u32) -> Write {
        self.writes[number as usize - 1]
    }

    /// From this moment on no owner of an epoch before `epoch` has anything left to say: what has not
    /// taken effect never will.
    pub fn owner_ready(&mut self, epoch: u32, at: Moment) {
        self.ready_epoch = self.ready_epoch.max(epoch);
        let unknown = std::mem::take(&mut self.unknown);
        for (number, of) in unknown {
            if of < epoch {
                let write = self.write(number);
                self.registers.settled(&self.layout, write, at);
            } else {
                self.unknown.push((number, of));
            }
        }
    }
}

/// Someone who keeps a few requests in flight on one vDisk.
pub struct Client {
    pub family: usize,
    open: usize,
    /// The next sector of its stream, within the run of blocks it is in.
    stream: (usize, u64),
    /// Likewise, of its sequential reads.
    read_stream: (usize, u64),
    planned: bool,
}

impl World {
    pub fn add_client(&mut self, family: usize) {
        let client = self.clients.len();
        self.clients.push(Client { family, open: 0, stream: (0, 0), read_stream: (0, 0), planned: true });
        let delay = self.rng.random_range(0..50_000);
        self.queue.push(self.now + delay, Event::Client(client));
    }

    /// How long clients rest: so that a round has about as many requests as wanted, in bursts.
    fn think_us(&mut self) -> u64 {
        let clients = self.clients.len().max(1) as u64;
        let mean = self.parameters.round_us * clients / self.parameters.requests.max(1);
        match self.rng.random_range(0..20) {
            0 => mean * self.rng.random_range(5..20),
            _ => self.rng.random_range(0..=mean / 2),
        }
    }

    pub fn client_asks(&mut self, client: usize) {
        self.clients[client].planned = false;
        let family = self.clients[client].family;
        if self.phase != Phase::Trouble || !self.families[family].exists {
            return;
        }
        self.plan_client(client);
        if self.clients[client].open >= self.parameters.load.depth {
            return;
        }
        let Some(shard) = self.control.route(family, &mut self.rng) else { return };
        if self.shards[shard].engine.is_none() {
            return;
        }
        let burst = if self.rng.random_range(0..8) == 0 { self.parameters.load.depth } else { 1 };
        for _ in 0..burst {
            if self.clients[client].open < self.parameters.load.depth {
                self.ask(client, family, shard);
            }
        }
    }

    pub fn plan_client(&mut self, client: usize) {
        if !self.clients[client].planned {
            self.clients[client].planned = true;
            let time = self.now + self.think_us();
            self.queue.push(time, Event::Client(client));
        }
    }

    fn ask(&mut self, client: usize, family: usize, shard: usize) {
        if self.ask_of_snapshot(client, family, shard) {
            return;
        }
        let load = self.parameters.load.clone();
        let total = load.read + load.write + load.zero + load.flush + load.extents + load.warm;
        let mut dice = self.rng.random_range(0..total);
        let mut is = |weight: u32| {
            let hit = dice < weight;
            dice = dice.wrapping_sub(weight);
            hit
        };
        if is(load.read) {
            let in_sequence = self.rng.random_range(0..100) < load.read_stream;
            let (first, sectors) = if in_sequence {
                self.place_in_sequence(client, family)
            } else {
                self.place(client, family, false)
            };
            self.ask_read(client, family, shard, first, sectors);
        } else if is(load.write) {
            let (first, sectors) = self.place(client, family, true);
            self.ask_write(client, family, shard, first, sectors);
        } else if is(load.zero) {
            let (mut first, mut sectors) = self.place(client, family, false);
            if self.rng.random_range(0..100) < load.huge_zero {
                let size = self.families[family].layout.size_blocks * BLOCK_SECTORS;
                first = self.rng.random_range(0..size) & !7;
                sectors = self.rng.random_range(1..=size - first);
            }
            self.ask_zero(client, family, shard, first, sectors);
        } else if is(load.flush) {
            self.open(client, family, shard, Asked::Flush, Request::Flush);
        } else if is(load.extents) {
            let (first, sectors) = self.place(client, family, false);
            self.ask_extents(client, family, shard, first, sectors);
        } else {
            let (first, sectors) = self.place(client, family, false);
            let (offset, len) = (first * SECTOR as u64, sectors * SECTOR as u64);
            let request = Request::Warm { offset, len, data: self.rng.random_bool(0.7) };
            self.open(client, family, shard, Asked::Warm { first, sectors }, request);
        }
    }

    /// Where the next request goes: sectors inside one run of used blocks.
    fn place(&mut self, client: usize, family: usize, write: bool) -> (u64, u64) {
        let load = &self.parameters.load;
        let layout = &self.families[family].layout;
        let rng = &mut self.rng;
        if write && rng.random_range(0..100) < load.stream {
            let (index, at) = self.clients[client].stream;
            let index = index % layout.runs.len();
            let run = layout.runs[index];
            let len = (u64::from(load.blocks_max) * 2).min(run.blocks as u64 - at.min(run.blocks as u64));
            if len > 0 {
                self.clients[client].stream = (index, at + len);
                return ((run.real + at) * BLOCK_SECTORS, len * BLOCK_SECTORS);
            }
            self.clients[client].stream = (rng.random_range(0..layout.runs.len()), 0);
        }
        let run: Run = layout.runs[rng.random_range(0..layout.runs.len())];
        let range = if rng.random_range(0..100) < load.hot { run.blocks.div_ceil(10) } else { run.blocks };
        let at = rng.random_range(0..range) as u64;
        let most = u64::from(load.blocks_max).min(run.blocks as u64 - at);
        let len = if rng.random_bool(0.6) { 1 } else { rng.random_range(1..=most) };
        let (mut first, mut sectors) = ((run.real + at) * BLOCK_SECTORS, len * BLOCK_SECTORS);
        if rng.random_range(0..100) < load.unaligned {
            let skip = rng.random_range(0..BLOCK_SECTORS);
            first += skip;
            sectors -= skip;
            sectors = rng.random_range(1..=sectors);
        }
        (first, sectors)
    }

    /// Behind the last read of the client's stream; at the end of a run of used blocks another stream begins.
    fn place_in_sequence(&mut self, client: usize, family: usize) -> (u64, u64) {
        let layout = &self.families[family].layout;
        let (index, at) = self.clients[client].read_stream;
        let run = layout.runs[index % layout.runs.len()];
        let end = run.blocks as u64 * BLOCK_SECTORS;
        if at >= end {
            let index = self.rng.random_range(0..layout.runs.len());
            let at = self.rng.random_range(0..layout.runs[index].blocks as u64) * BLOCK_SECTORS;
            self.clients[client].read_stream = (index, at);
            return self.place_in_sequence(client, family);
        }
        let parts = self.rng.random_range(0..100) < self.parameters.load.unaligned;
        let most = if parts { BLOCK_SECTORS } else { BLOCK_SECTORS * 4 };
        let len = most.min(end - at);
        let len = if parts { self.rng.random_range(1..=len) } else { len };
        self.clients[client].read_stream = (index, at + len);
        (run.real * BLOCK_SECTORS + at, len)
    }

    fn open(&mut self, client: usize, family: usize, shard: usize, asked: Asked, request: Request) -> Moment {
        let began = self.moment();
        let epoch = self.control.serving_epoch(shard, family);
        let open = Open { ticket: Ticket(0), family, client, shard, epoch, asked, began, since: self.now };
        if matches!(asked, Asked::Read { .. } | Asked::Extents { .. }) {
            self.families[family].open_reads.insert(began);
        }
        if let Asked::Write { number } = asked {
            self.families[family].writes[number as usize - 1].began = began;
            let state = &mut self.families[family];
            let write = state.write(number);
            state.registers.began(&state.layout, write);
        }
        self.clients[client].open += 1;
        let ticket = self.requests.open(open);
        self.coverage.count("requests");
        self.request(shard, ticket, FamilyId(family as u32), request);
        began
    }

    pub fn ask_read(&mut self, client: usize, family: usize, shard: usize, first: u64, sectors: u64) {
        let request = Request::Read { offset: first * SECTOR as u64, len: (sectors * SECTOR as u64) as u32 };
        self.open(client, family, shard, Asked::Read { first, sectors }, request);
    }

    fn ask_write(&mut self, client: usize, family: usize, shard: usize, first: u64, sectors: u64) {
        let zero = self.rng.random_range(0..50) == 0;
        let number = self.new_write(family, first, sectors, zero);
        let data: Buffer =
            if zero { zeros(sectors as usize * SECTOR) } else { content(family, number, first, sectors) };
        let request = Request::Write { offset: first * SECTOR as u64, data };
        self.open(client, family, shard, Asked::Write { number }, request);
    }

    pub fn ask_zero(&mut self, client: usize, family: usize, shard: usize, first: u64, sectors: u64) {
        let number = self.new_write(family, first, sectors, true);
        let request = Request::Zero { offset: first * SECTOR as u64, len: sectors * SECTOR as u64 };
        self.open(client, family, shard, Asked::Write { number }, request);
    }

    fn ask_extents(&mut self, client: usize, family: usize, shard: usize, first: u64, sectors: u64) {
        let limit = self.rng.random_range(1..20);
        let (offset, len) = (first * SECTOR as u64, sectors * SECTOR as u64);
        let request = Request::Extents { offset, len, limit };
        self.open(client, family, shard, Asked::Extents { first, sectors, limit }, request);
    }

    /// Some requests are of snapshots, if there are any; false: not this time.
    fn ask_of_snapshot(&mut self, client: usize, family: usize, shard: usize) -> bool {
        let Some(plan) = self.parameters.snapshots else { return false };
        if self.snapshot_rng.random_range(0..100) >= plan.reads {
            return false;
        }
        let snapshots = &self.families[family].snapshots;
        // Mostly of those that are there.
        let any = self.snapshot_rng.random_ratio(1, 16);
        let readable = if any { snapshots.readable() } else { snapshots.staying() };
        let Some(&snapshot) = readable.choose(&mut self.snapshot_rng) else { return false };
        let (first, sectors) = self.place(client, family, false);
        if self.snapshot_rng.random_ratio(1, 8) {
            let limit = self.snapshot_rng.random_range(1..20);
            let (offset, len) = (first * SECTOR as u64, sectors * SECTOR as u64);
            let request = Request::SnapshotExtents { snapshot, offset, len, limit };
            let asked = Asked::SnapshotExtents { snapshot, first, sectors, limit };
            self.open(client, family, shard, asked, request);
        } else {
            self.ask_snapshot_read(client, family, shard, snapshot, first, sectors);
        }
        true
    }

    pub fn ask_snapshot_read(
        &mut self,
        client: usize,
        family: usize,
        shard: usize,
        snapshot: Generation,
        first: u64,
        sectors: u64,
    ) {
        let (offset, len) = (first * SECTOR as u64, (sectors * SECTOR as u64) as u32);
        let request = Request::ReadSnapshot { snapshot, offset, len };
        self.open(client, family, shard, Asked::ReadSnapshot { snapshot, first, sectors }, request);
    }

    fn new_write(&mut self, family: usize, first: u64, sectors: u64, zero: bool) -> u32 {
        let writes = &mut self.families[family].writes;
        let number = writes.len() as u32 + 1;
        writes.push(Write { number, first, sectors, zero, began: Moment(0) });
        number
    }

    /// A shard answered.
    pub fn replied(&mut self, shard: usize, ticket: Ticket, reply: Reply) {
        let Some(open) = self.requests.close(ticket) else {
            self.fail(format!(
                "a second reply, or one to a request that nobody made: ticket {ticket} {reply:?}"
            ));
            return;
        };
        if open.shard != shard {
            self.fail(format!("shard {shard} answered what shard {} was asked", open.shard));
            return;
        }
        self.coverage.count("replies judged");
        let at = self.moment();
        let family = open.family;
        if let Err(what) = self.judge_reply(&open, reply, at) {
            self.fail(format!(
                "family {family}: {what} ({:?} at shard {shard}, epoch {}, asked at moment {})",
                open.asked, open.epoch, open.began.0
            ));
        }
        self.families[family].open_reads.remove(&open.began);
        self.clients[open.client].open -= 1;
        if self.phase == Phase::ReadBack {
            self.read_back(open.client);
        }
    }

    fn judge_reply(&mut self, open: &Open, reply: Reply, at: Moment) -> Result<(), String> {
        let error = match reply {
            Reply::Error(error) => error,
            reply => return self.judge_success(open, reply, at),
        };
        self.coverage.count(match error {
            RequestError::OutOfRange => "errors out of range",
            RequestError::NotServed => "errors not served",
            RequestError::NoSpace => "errors no space",
            RequestError::Damaged { .. } => "errors damaged",
            RequestError::Fenced => "errors fenced",
            RequestError::Busy => "errors busy",
            RequestError::NoSnapshot => "errors no snapshot",
        });
        let family = &mut self.families[open.family];
        let end = match open.asked {
            Asked::Read { first, sectors }
            | Asked::Extents { first, sectors, .. }
            | Asked::Warm { first, sectors }
            | Asked::ReadSnapshot { first, sectors, .. }
            | Asked::SnapshotExtents { first, sectors, .. } => first + sectors,
            Asked::Write { number } => family.write(number).first + family.write(number).sectors,
            Asked::Flush => 0,
        };
        // What was added later may be unknown to an owner whose order is still on its way.
        if error == RequestError::OutOfRange && end <= family.first_size {
            return Err("a request inside the vDisk was refused as outside".into());
        }
        if self.phase == Phase::ReadBack {
            return Err(format!("after everything was repaired a request failed: {error:?}"));
        }
        if error == RequestError::NoSnapshot {
            let missing = match open.asked {
                Asked::ReadSnapshot { snapshot, .. } | Asked::SnapshotExtents { snapshot, .. } => {
                    family.snapshots.may_be_missing(snapshot, open.epoch)
                }
                _ => false,
            };
            return if missing { Ok(()) } else { Err("there is no such snapshot, says an owner".into()) };
        }
        let Asked::Write { number } = open.asked else { return Ok(()) };
        let write = family.write(number);
        match error {
            RequestError::NoSnapshot => unreachable!("it was judged above"),
            RequestError::NotServed | RequestError::Busy | RequestError::OutOfRange => {
                family.registers.refused(&family.layout, write);
                family.snapshots.refused(&family.layout, write);
            }
            // Nobody knows what became of it until another owner has taken over.
            RequestError::Fenced | RequestError::NoSpace | RequestError::Damaged { .. } => {
                family.unknown.push((number, open.epoch));
            }
        }
        Ok(())
    }

    fn judge_success(&mut self, open: &Open, reply: Reply, at: Moment) -> Result<(), String> {
        if let Some(bytes) = self.bytes_of(open) {
            let (shard, family) = (open.shard, FamilyId(open.family as u32));
            let clock = self.now + self.shards[shard].clock_ahead;
            if self.ceilings.answered(shard, family, bytes, open.since, clock)? {
                self.coverage.count("requests judged by a limit");
            }
        }
        let stale_before = self.control.families[open.family].stale_before;
        let family = &mut self.families[open.family];
        let oldest = family.oldest_read(at);
        match (open.asked, reply) {
            (Asked::Flush, Reply::Done) => Ok(()),
            (Asked::Write { number }, Reply::Done) => {
                let write = family.write(number);
                family.registers.acknowledged(&family.layout, write, at, oldest);
                self.coverage.count("writes acknowledged");
                self.judge_copies(open.family, write)
            }
            (Asked::Read { first, sectors }, Reply::Data(pieces)) => {
                let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
                if len != sectors * SECTOR as u64 {
                    return Err(format!("a read of {sectors} sectors got {len} bytes"));
                }
                if open.epoch < stale_before {
                    // Somebody was put into its place although its lease was good: for once nothing but fences
                    // protects, and those keep nobody from reading.
                    self.coverage.count("reads of replaced owners, not judged");
                    return Ok(());
                }
                self.coverage.count("reads judged");
                family.registers.read(&family.layout, first, &pieces, open.began, at, oldest)
            }
            (Asked::Extents { first, sectors, limit }, Reply::Extents(extents)) => {
                if open.epoch < stale_before {
                    return Ok(());
                }
                self.coverage.count("extents judged");
                let (registers, layout) = (&family.registers, &family.layout);
                judge_extents(first, sectors, limit, &extents, |first, sectors| {
                    registers.may_be_zero(layout, first, sectors, open.began)
                })
            }
            // A snapshot never changes: also what a replaced owner knows of it is right.
            (Asked::ReadSnapshot { snapshot, first, sectors }, Reply::Data(pieces)) => {
                let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
                if len != sectors * SECTOR as u64 {
                    return Err(format!("a read of {sectors} sectors got {len} bytes"));
                }
                if !family.snapshots.may_be_found(snapshot, open.epoch, open.began) {
                    return Err("a snapshot that was dropped is still read".into());
                }
                self.coverage.count("snapshot reads judged");
                let Family { snapshots, registers, layout, .. } = family;
                let judged = snapshots.read(snapshot, layout, registers, first, &pieces);
                judged.map_err(|what| format!("generation {snapshot}: {what}"))
            }
            (Asked::SnapshotExtents { snapshot, first, sectors, limit }, Reply::Extents(extents)) => {
                if !family.snapshots.may_be_found(snapshot, open.epoch, open.began) {
                    return Err("extents of a snapshot that was dropped are still told".into());
                }
                self.coverage.count("snapshot extents judged");
                let (snapshots, layout) = (&family.snapshots, &family.layout);
                judge_extents(first, sectors, limit, &extents, |first, sectors| {
                    snapshots.may_be_zero(snapshot, layout, first, sectors)
                })
            }
            (Asked::Warm { first, sectors }, Reply::Warmed(warmed)) => {
                self.coverage.count("steps of warming");
                let (from, end) = (first * SECTOR as u64, (first + sectors) * SECTOR as u64);
                if warmed.to <= from || warmed.to > end {
                    return Err(format!("warming of {from} to {end} came to {}", warmed.to));
                }
                Ok(())
            }
            (_, reply) => Err(format!("the reply is of another kind: {reply:?}")),
        }
    }

    /// What a request moved, if limits count it.
    fn bytes_of(&self, open: &Open) -> Option<u64> {
        match open.asked {
            Asked::Read { sectors, .. } | Asked::ReadSnapshot { sectors, .. } => {
                Some(sectors * SECTOR as u64)
            }
            Asked::Write { number } => {
                let write = self.families[open.family].write(number);
                Some(if write.zero { 0 } else { write.sectors * SECTOR as u64 })
            }
            Asked::Flush | Asked::Extents { .. } | Asked::Warm { .. } | Asked::SnapshotExtents { .. } => None,
        }
    }

    /// Sometimes, at an acknowledgement, counts the drives that hold the write (I1).
    fn judge_copies(&mut self, family: usize, write: Write) -> Result<(), String> {
        let whole = write.first.is_multiple_of(BLOCK_SECTORS) && write.sectors.is_multiple_of(BLOCK_SECTORS);
        if write.zero || !whole || self.rng.random_range(0..32) != 0 {
            return Ok(());
        }
        // Rot may have eaten a copy between the write and now; that is not the engine's doing.
        if self.victim.is_some() {
            return Ok(());
        }
        let wanted = if self.control.all_well_since(self.now.saturating_sub(2_000_000)) && self.all_in_sight()
        {
            self.families[family].factor as usize
        } else {
            1
        };
        let last = write.first + write.sectors - BLOCK_SECTORS;
        for sector in [write.first, last] {
            let (mark, block) = (stamp(family, write.number, sector), sector / BLOCK_SECTORS);
            let copies = durable_copies(self.drives.iter(), FamilyId(family as u32), block, mark);
            if copies < wanted {
                return Err(format!(
                    "write {} was acknowledged with {copies} durable copies of sector {sector}, {wanted} are due",
                    write.number
                ));
            }
        }
        self.coverage.count("acknowledgements with copies counted");
        Ok(())
    }

    /// The process that was asked is dead: nobody will ever answer.
    pub fn forget_requests_of(&mut self, shard: usize) {
        for open in self.requests.close_all_at(shard) {
            self.forget_request(&open);
            self.coverage.count("requests cut off");
        }
    }

    /// The node must not answer any more: it drops the connection instead.
    pub fn withhold(&mut self, ticket: Ticket) {
        let Some(open) = self.requests.close(ticket) else {
            self.fail(format!("a second reply, or one to a request that nobody made: ticket {ticket}"));
            return;
        };
        self.forget_request(&open);
        self.coverage.count("replies withheld without a lease");
    }

    /// The client hears nothing: a write was done or not.
    fn forget_request(&mut self, open: &Open) {
        let family = &mut self.families[open.family];
        family.open_reads.remove(&open.began);
        if let Asked::Write { number } = open.asked {
            family.unknown.push((number, open.epoch));
        }
        self.clients[open.client].open -= 1;
    }
}

/// `may_be_zero` says whether sectors can read as zeros, or which one cannot.
fn judge_extents(
    first: u64,
    sectors: u64,
    limit: u32,
    extents: &[Extent],
    may_be_zero: impl Fn(u64, u64) -> Result<(), u64>,
) -> Result<(), String> {
    let len: u64 = extents.iter().map(|extent| extent.len).sum();
    if extents.is_empty() || extents.len() > limit as usize || extents.iter().any(|extent| extent.len == 0) {
        return Err(format!("{} extents, {limit} were allowed, none may be empty", extents.len()));
    }
    if len > sectors * SECTOR as u64 {
        return Err(format!("extents of {len} bytes for {sectors} sectors"));
    }
    if len < sectors * SECTOR as u64 && extents.len() < limit as usize {
        return Err(format!("extents end after {len} bytes although more were allowed"));
    }
    let mut at = first * SECTOR as u64;
    for extent in extents {
        if !extent.data {
            // Sectors that lie in it as a whole.
            let from = at.div_ceil(SECTOR as u64);
            let to = (at + extent.len) / SECTOR as u64;
            if from < to {
                may_be_zero(from, to - from)
                    .map_err(|sector| format!("sector {sector} is told to be a hole, but holds data"))?;
            }
        }
        at += extent.len;
    }
    Ok(())
}
