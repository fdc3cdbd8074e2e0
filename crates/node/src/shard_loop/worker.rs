//! The loop of one shard: take what has ended, let the engine decide, hand in what it wants done. One thread, one
//! ring, one system call for each turn; nothing in here waits except that call.
//! Promises: every request gets one reply or its connection ends; the engine's outputs are carried out in order.
//! Leaves to others: deciding (the engine), memory (`arena`), drives (`drive_io`), sockets (`socket`).

mod waiting;

use super::arena::Arena;
use super::drive_io::DriveTable;
use super::mailbox::{Answer, Mail, Mailbox};
use super::ring::Ring;
use super::socket::{Next, Socket};
use super::statistics::{FamilyStatistics, Kind, ShardStatistics};
use super::tickets::{Origin, Tickets};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use weft_engine::interface::{Input, Notice, Outputs, Reply, Request, RequestError};
use weft_engine::shard::{Settings, Shard};
use weft_engine::{FamilyId, Limits, ShardId, Ticket, Time};
use weft_frontends::nbd::{Event, Handle};

/// Memory for what is read from drives; registered with the ring.
const READ_ARENA_BYTES: usize = 32 << 20;

/// Memory for what is received from clients. Taken from the machine as it is touched; the engine keeps what is not
/// drained yet in it, so it is larger than its limit on that.
const PAYLOAD_ARENA_BYTES: usize = 256 << 20;

/// Completions belong to one of these; the kind is in the top byte of what comes back.
const TAG_BELL: u64 = 1 << 56;
const TAG_DRIVE: u64 = 2 << 56;
const TAG_RECEIVE: u64 = 3 << 56;
const TAG_SEND: u64 = 4 << 56;
const TAG_MASK: u64 = 0xff << 56;

/// Requests for which the engine was busy are tried again after this time.
const BUSY_RETRY_US: u64 = 1_000;

/// A client that has not chosen an export after this time is sent away.
const NEGOTIATION_US_MAX: u64 = 30_000_000;

/// Connections of one shard.
const CONNECTIONS_MAX: usize = 1024;

/// What a shard thread is given.
pub struct Setup {
    pub shard: ShardId,
    pub seed: u64,
    pub mailbox: Arc<Mailbox>,
    /// The mailboxes of all shards of this node, in the order of their numbers.
    pub peers: Vec<Arc<Mailbox>>,
    pub notices: tokio::sync::mpsc::UnboundedSender<(ShardId, Notice)>,
    /// Whether a second core exists, so that looking for completions takes nothing from others.
    pub may_spin: bool,
}

pub struct Worker {
    id: ShardId,
    began: Instant,
    shard: Shard,
    ring: Ring,
    reads: Arc<Arena>,
    payloads: Arc<Arena>,
    drives: DriveTable,
    sockets: Vec<Slot>,
    free_slots: Vec<u32>,
    tickets: Tickets,
    mailbox: Arc<Mailbox>,
    peers: Vec<Arc<Mailbox>>,
    notices: tokio::sync::mpsc::UnboundedSender<(ShardId, Notice)>,
    families: BTreeMap<FamilyId, FamilyStatistics>,
    /// For the engine, in the order in which it came.
    inputs: VecDeque<Input>,
    outputs: Outputs,
    /// Sockets that something happened to in this turn.
    touched: Vec<u32>,
    /// Sockets that may have something to send.
    to_send: Vec<u32>,
    /// Requests from elsewhere for which the engine was busy.
    held: Vec<(FamilyId, Request, Answer)>,
    /// When the engine was busy for somebody: when to try again.
    retry_at: Option<Time>,
    look_at_negotiations: Time,
    bell_value: Box<u64>,
    bell_armed: bool,
    draining: Option<tokio::sync::oneshot::Sender<()>>,
    stopping: bool,
    may_spin: bool,
    pace: waiting::Pace,
    statistics: crate::api::ShardStatsView,
}

/// A place for a connection, used again with another generation.
#[derive(Default)]
struct Slot {
    generation: u32,
    socket: Option<Socket>,
    touched: bool,
    to_send: bool,
}

impl Worker {
    pub fn new(setup: Setup) -> std::io::Result<Self> {
        let ring = Ring::new()?;
        let mut reads = Arena::new(READ_ARENA_BYTES)?;
        // SAFETY: `reads` is kept by the worker beside the ring, and by every piece of it.
        if unsafe { ring.register_memory(reads.span()) } {
            reads.set_registered(0);
        }
        Ok(Self {
            id: setup.shard,
            began: Instant::now(),
            shard: Shard::new(Settings { shard: setup.shard, seed: setup.seed, limits: Limits::default() }),
            ring,
            reads: Arc::new(reads),
            payloads: Arc::new(Arena::new(PAYLOAD_ARENA_BYTES)?),
            drives: DriveTable::new(TAG_DRIVE),
            sockets: Vec::new(),
            free_slots: Vec::new(),
            tickets: Tickets::default(),
            mailbox: setup.mailbox,
            peers: setup.peers,
            notices: setup.notices,
            families: BTreeMap::new(),
            inputs: VecDeque::new(),
            outputs: Outputs::default(),
            touched: Vec::new(),
            to_send: Vec::new(),
            held: Vec::new(),
            retry_at: None,
            look_at_negotiations: Time(0),
            bell_value: Box::new(0),
            bell_armed: false,
            draining: None,
            stopping: false,
            may_spin: setup.may_spin,
            pace: waiting::Pace::default(),
            statistics: crate::api::ShardStatsView { shard: setup.shard.0, ..Default::default() },
        })
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_micros() as u64 + 1)
    }

    /// Runs until it is told to stop and everything in flight has ended.
    pub fn run(mut self) {
        let mut completions = Vec::new();
        let mut mail = VecDeque::new();
        loop {
            self.statistics.turns += 1;
            let now = self.now();
            self.ring.completions(&mut completions);
            for (tag, result) in completions.drain(..) {
                self.on_completed(tag, result);
            }
            self.mailbox.take(&mut mail);
            for mail in mail.drain(..) {
                self.on_mail(now, mail);
            }
            self.on_time(now);
            self.work(now);
            while self.send_replies() {
                self.work(now);
            }
            if self.stopping && self.is_idle() {
                return;
            }
            self.rest();
        }
    }

    /// Nothing that the kernel works on needs this thread's memory any more.
    fn is_idle(&self) -> bool {
        self.drives.in_flight() == 0 && self.sockets.iter().all(|slot| slot.socket.is_none())
    }

    /// Goes on until nothing more can be done without the kernel.
    fn work(&mut self, now: Time) {
        loop {
            while let Some(slot) = self.touched.pop() {
                self.sockets[slot as usize].touched = false;
                self.pump(now, slot);
            }
            if self.inputs.is_empty() {
                return;
            }
            while let Some(input) = self.inputs.pop_front() {
                self.statistics.steps += 1;
                self.shard.take(now, input, &mut self.outputs);
            }
            // What came together is settled together: one frame of the log, one flush, for many writes.
            self.shard.settle(now, &mut self.outputs);
            self.carry_out(now);
        }
    }

    /// Does what the engine wants done.
    fn carry_out(&mut self, now: Time) {
        // Each list is taken out while it is worked on, and put back empty: its memory is used again.
        let mut operations = std::mem::take(&mut self.outputs.operations);
        if self.stopping {
            // The engine is about to be dropped; what it still wants is done again by its next life.
            operations.clear();
        }
        for operation in operations.drain(..) {
            if let Some(input) = self.drives.start(operation, &self.reads, &mut self.ring) {
                self.inputs.push_back(input);
            }
        }
        self.outputs.operations = operations;
        let mut replies = std::mem::take(&mut self.outputs.replies);
        for (ticket, reply) in replies.drain(..) {
            self.on_reply(now, ticket, reply);
        }
        self.outputs.replies = replies;
        let mut messages = std::mem::take(&mut self.outputs.messages);
        for (to, message) in messages.drain(..) {
            let input = Input::Message { from: self.id, message };
            match self.peers.get(to.0 as usize) {
                Some(_) if to == self.id => self.inputs.push_back(input),
                Some(peer) => peer.send(Mail::Input(input)),
                // A shard that is not here any more: as if the network had lost it.
                None => tracing::warn!(to = to.0, "a message to a shard that does not exist was dropped"),
            }
        }
        self.outputs.messages = messages;
        for notice in self.outputs.notices.drain(..) {
            // The control plane is gone only when the node ends.
            let _ = self.notices.send((self.id, notice));
        }
    }

    fn on_reply(&mut self, now: Time, ticket: Ticket, reply: Reply) {
        let open = self.tickets.close(ticket);
        let is_busy = reply == Reply::Error(RequestError::Busy);
        if is_busy {
            self.retry_at.get_or_insert(now.after(BUSY_RETRY_US));
        } else {
            let took_us = now.since(open.since);
            self.families.entry(open.family).or_default().count(open.kind, took_us, &reply);
        }
        match open.origin {
            Origin::Socket { slot, generation, handle } => {
                self.answer_socket(slot, generation, handle, reply)
            }
            Origin::Elsewhere { answer, request } => {
                if is_busy {
                    self.held.push((open.family, request, answer));
                } else {
                    answer.give(reply);
                }
            }
        }
    }

    fn answer_socket(&mut self, slot: u32, generation: u32, handle: Handle, reply: Reply) {
        let place = &mut self.sockets[slot as usize];
        if place.generation != generation {
            // The client left before its answer came.
            return;
        }
        if let Some(socket) = &mut place.socket {
            if reply == Reply::Error(RequestError::Busy) {
                self.retry_at.get_or_insert(Time(self.began.elapsed().as_micros() as u64 + BUSY_RETRY_US));
            }
            socket.connection.reply(handle, reply);
            self.touch(slot);
        }
    }

    fn touch(&mut self, slot: u32) {
        let place = &mut self.sockets[slot as usize];
        if !place.touched {
            place.touched = true;
            self.touched.push(slot);
        }
    }

    /// Takes the requests that a connection has, and sends its replies.
    fn pump(&mut self, now: Time, slot: u32) {
        let place = &mut self.sockets[slot as usize];
        let generation = place.generation;
        let Some(socket) = &mut place.socket else { return };
        let (id, shards) = (self.id, self.peers.len());
        let is_here = |family| owner_of(family, shards) == id;
        loop {
            match socket.next(is_here, &self.payloads, TAG_RECEIVE | u64::from(slot), &mut self.ring) {
                Next::Event(Event::Request { handle, family, request }) => {
                    let owner = owner_of(family, self.peers.len());
                    if owner == self.id {
                        let kind = Kind::of(&request);
                        let origin = Origin::Socket { slot, generation, handle };
                        let ticket = self.tickets.open(family, kind, now, origin);
                        self.inputs.push_back(Input::Request { ticket, family, request });
                    } else {
                        let home = Arc::clone(&self.mailbox);
                        let answer = Answer::new(move |reply| {
                            home.send(Mail::Answered { slot, generation, handle, reply });
                        });
                        self.peers[owner.0 as usize].send(Mail::Request { family, request, answer });
                    }
                }
                Next::Nothing => break,
                Next::Elsewhere(family) => {
                    let socket = place.socket.take().expect("it was just asked");
                    self.peers[owner_of(family, shards).0 as usize].send(Mail::Adopt(Box::new(socket)));
                    self.free_slot(slot);
                    return;
                }
                Next::Over => {
                    if socket.is_in_flight() {
                        socket.break_off();
                    } else {
                        place.socket = None;
                        self.free_slot(slot);
                    }
                    return;
                }
            }
        }
        if !place.to_send {
            place.to_send = true;
            self.to_send.push(slot);
        }
    }

    /// Once for each connection: all replies that came together leave together. False if nothing follows from it.
    fn send_replies(&mut self) -> bool {
        let mut to_send = std::mem::take(&mut self.to_send);
        for slot in to_send.drain(..) {
            let place = &mut self.sockets[slot as usize];
            place.to_send = false;
            if let Some(socket) = &mut place.socket
                && socket.send(TAG_SEND | u64::from(slot), &mut self.ring)
            {
                self.touch(slot);
            }
        }
        self.to_send = to_send;
        !self.touched.is_empty()
    }

    fn on_completed(&mut self, tag: u64, result: i32) {
        let index = tag as u32;
        match tag & TAG_MASK {
            TAG_BELL => self.bell_armed = false,
            TAG_DRIVE => {
                if let Some(input) = self.drives.on_completed(index, result, &mut self.ring) {
                    self.inputs.push_back(input);
                }
            }
            TAG_RECEIVE => {
                self.socket(index).on_received(result);
                self.touch(index);
            }
            TAG_SEND => {
                self.socket(index).on_sent(result);
                self.touch(index);
            }
            other => panic!("a completion of nothing we asked for: {other:#x}"),
        }
    }

    fn socket(&mut self, slot: u32) -> &mut Socket {
        self.sockets[slot as usize]
            .socket
            .as_mut()
            .expect("a socket stays while something is in flight for it")
    }

    fn on_mail(&mut self, now: Time, mail: Mail) {
        match mail {
            Mail::Input(input) => self.inputs.push_back(input),
            Mail::Order(order) => self.inputs.push_back(Input::Order(order)),
            Mail::Drive(open) => self.drives.add(open, &self.ring),
            Mail::Connection { socket, exports, address } => {
                if self.draining.is_some()
                    || self.stopping
                    || self.statistics.connections as usize >= CONNECTIONS_MAX
                {
                    tracing::warn!(%address, "a connection was refused: there are too many, or the node stops");
                    return;
                }
                self.adopt(Socket::new(socket, exports, address, now.0));
            }
            Mail::Adopt(socket) => {
                self.adopt(*socket);
                if self.draining.is_some() || self.stopping {
                    self.end_sockets(Socket::finish);
                }
            }
            Mail::Request { family, request, answer } => self.ask(now, family, request, answer),
            Mail::Answered { slot, generation, handle, reply } => {
                self.answer_socket(slot, generation, handle, reply);
            }
            Mail::CloseConnections { family, address } => {
                self.end_sockets(|socket| {
                    if socket.connection.family() == Some(family)
                        && address.as_ref().is_none_or(|address| *address == socket.address)
                    {
                        socket.break_off();
                    }
                });
            }
            Mail::Drain(done) => {
                self.draining = Some(done);
                self.end_sockets(Socket::finish);
            }
            Mail::Statistics(to) => {
                // Whoever asked may have gone away.
                let _ = to.send(self.statistics());
            }
            Mail::Stop => {
                self.stopping = true;
                self.end_sockets(Socket::break_off);
            }
        }
    }

    fn adopt(&mut self, socket: Socket) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.sockets.push(Slot::default());
            (self.sockets.len() - 1) as u32
        });
        self.sockets[slot as usize].socket = Some(socket);
        self.statistics.connections += 1;
        self.touch(slot);
    }

    /// The connection of this place is gone; replies that still come for it are nobody's.
    fn free_slot(&mut self, slot: u32) {
        let place = &mut self.sockets[slot as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free_slots.push(slot);
        self.statistics.connections -= 1;
    }

    /// Does something to all sockets that may end them.
    fn end_sockets(&mut self, mut end: impl FnMut(&mut Socket)) {
        for slot in 0..self.sockets.len() as u32 {
            if let Some(socket) = &mut self.sockets[slot as usize].socket {
                end(socket);
                self.touch(slot);
            }
        }
    }

    /// A request that did not come from a connection of this shard.
    fn ask(&mut self, now: Time, family: FamilyId, request: Request, answer: Answer) {
        let origin = Origin::Elsewhere { answer, request: request.clone() };
        let ticket = self.tickets.open(family, Kind::of(&request), now, origin);
        self.inputs.push_back(Input::Request { ticket, family, request });
    }

    /// What has become due.
    fn on_time(&mut self, now: Time) {
        if self.shard.wake_at().is_some_and(|at| at <= now) {
            self.inputs.push_back(Input::Wake);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            for (family, request, answer) in std::mem::take(&mut self.held) {
                self.ask(now, family, request, answer);
            }
            for slot in 0..self.sockets.len() as u32 {
                if let Some(socket) = &mut self.sockets[slot as usize].socket
                    && socket.connection.is_holding()
                {
                    socket.connection.resume();
                    self.touch(slot);
                }
            }
        }
        if self.look_at_negotiations <= now {
            self.look_at_negotiations = now.after(NEGOTIATION_US_MAX / 8);
            self.end_sockets(|socket| {
                if socket.connection.is_negotiating() && now.since(Time(socket.since_us)) > NEGOTIATION_US_MAX
                {
                    socket.break_off();
                }
            });
        }
        if self.draining.is_some() && self.statistics.connections == 0 {
            // Dropping the sender would do as well, but this says what is meant.
            let done = self.draining.take().expect("it was just looked at");
            let _ = done.send(());
        }
    }

    fn statistics(&self) -> ShardStatistics {
        let mut shard = self.statistics.clone();
        shard.enters = self.ring.enters;
        shard.engine = super::engine_counters::named(self.shard.counters());
        let mut drives = self.drives.statistics();
        for (&drive, statistics) in &mut drives {
            super::engine_counters::fill_drive(&self.shard, drive, statistics);
        }
        ShardStatistics { shard, drives, families: self.families.clone() }
    }
}

/// Which of `shards` shards serves a vDisk.
pub fn owner_of(family: FamilyId, shards: usize) -> ShardId {
    ShardId(family.0 % shards as u32)
}
