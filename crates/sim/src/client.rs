//! What clients ask: reads, writes, zeros, flushes and extents, aligned or not, hot or spread, alone or in streams; of vDisks and of
//! their snapshots.
//! Leaves to others: what they are told (`answers`).

use crate::event::Event;
use crate::family::BLOCK_SECTORS;
use crate::judge::registers::{Moment, Write};
use crate::layout::Run;
use crate::phase::Phase;
use crate::requests::{Asked, Open};
use crate::stamp::{SECTOR, content, image_content};
use crate::world::World;
use rand::Rng;
use rand::seq::IndexedRandom;
use weft_engine::buffer::{Buffer, zeros};
use weft_engine::identity::Generation;
use weft_engine::{FamilyId, Request, Ticket};

/// Someone who keeps a few requests in flight on one vDisk.
pub struct Client {
    pub family: usize,
    pub(crate) open: usize,
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
        let (since, clock) = (self.now, self.now + self.shards[shard].clock_ahead);
        let open = Open { ticket: Ticket(0), family, client, shard, epoch, asked, began, since, clock };
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
        let image = if zero { None } else { self.some_image() };
        let number = self.new_write(family, first, sectors, zero, image);
        let data: Buffer = match image {
            Some(image) => image_content(image, first, sectors),
            None if zero => zeros(sectors as usize * SECTOR),
            None => content(family, number, first, sectors),
        };
        let request = Request::Write { offset: first * SECTOR as u64, data };
        self.open(client, family, shard, Asked::Write { number }, request);
    }

    /// Writes one block somewhere.
    pub fn ask_block(&mut self, client: usize, family: usize, shard: usize) {
        let (first, _) = self.place(client, family, false);
        self.ask_write(client, family, shard, first - first % BLOCK_SECTORS, BLOCK_SECTORS);
    }

    pub fn ask_zero(&mut self, client: usize, family: usize, shard: usize, first: u64, sectors: u64) {
        let number = self.new_write(family, first, sectors, true, None);
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

    /// Whether a write copies a part of an image, in runs where there are some.
    fn some_image(&mut self) -> Option<u8> {
        let plan = self.parameters.images?;
        let copies = self.image_rng.random_range(0..100) < plan.percent;
        copies.then(|| self.image_rng.random_range(0..plan.images))
    }

    fn new_write(&mut self, family: usize, first: u64, sectors: u64, zero: bool, image: Option<u8>) -> u32 {
        let writes = &mut self.families[family].writes;
        let number = writes.len() as u32 + 1;
        writes.push(Write { number, first, sectors, zero, image, began: Moment(0) });
        number
    }
}
