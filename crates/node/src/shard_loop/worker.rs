//! The loop of one shard: take what has ended, let the engine decide, hand in what it wants done. One thread, one
//! ring, one system call for each turn; nothing in here waits except that call.
//! Promises: every request gets one reply or its connection ends; the engine's outputs are carried out in order.
//! Leaves to others: deciding (the engine), memory (`arena`), drives (`drive_io`), sockets (`socket`), other nodes
//! (`peer`), who is asked what (`forward`).

mod budget;
mod clients;
mod departed;
mod forward;
mod questions;
mod routes;
mod waiting;
mod windows;

#[cfg(test)]
mod tests;

pub use routes::Route;

use super::arena::Arena;
use super::drive_io::DriveTable;
use super::mailbox::{Answer, Mail, Mailbox};
use super::news::News;
use super::peer::{Arrived, Peers, RemoteRequest, Tags};
use super::ring::Ring;
use super::socket::Socket;
use super::statistics::{FamilyStatistics, Observer, Question};
use super::tickets::{Origin, Tickets};
use crate::config::cluster::Deadline;
use crate::shard_loop::Identity;
use budget::Budget;
use clients::Slot;
use departed::Departed;
use forward::{Forwards, Held};
use routes::Routes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use weft_engine::counters::Source;
use weft_engine::interface::{Input, Order, OriginRequest, Outputs, Reply, RequestError};
use weft_engine::shard::{Settings, Shard};
use weft_engine::stages::Stage;
use weft_engine::{FamilyId, Limits, ShardId, Ticket, Time};

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
const TAG_LINK_CONNECT: u64 = 5 << 56;
const TAG_LINK_RECEIVE: u64 = 6 << 56;
const TAG_LINK_SEND: u64 = 7 << 56;
const TAG_MASK: u64 = 0xff << 56;

/// Connections that are refused are told so often at most.
const REFUSAL_TOLD_US: u64 = 10_000_000;

/// A shard that comes back to its work so much later than it should stood still, and its clients may have gone on elsewhere.
const STOOD_STILL_US: u64 = 1_000_000;

/// How often replies are sent in one turn, at most; what follows from that is done in between.
const ROUNDS_MAX: u32 = 8;

/// What a shard thread is given.
pub struct Setup {
    pub shard: ShardId,
    pub seed: u64,
    pub limits: Limits,
    /// What clients may make the shard keep in memory.
    pub clients_bytes: usize,
    pub identity: Identity,
    /// Of the node's lease, if it has one.
    pub deadline: Option<Deadline>,
    pub mailbox: Arc<Mailbox>,
    /// The mailboxes of all shards of this node, in the order of their numbers.
    pub neighbours: Vec<Arc<Mailbox>>,
    pub notices: tokio::sync::mpsc::UnboundedSender<(ShardId, News)>,
    /// Whether a second core exists, so that looking for completions takes nothing from others.
    pub may_spin: bool,
}

pub struct Worker {
    id: ShardId,
    began: Instant,
    deadline: Option<Deadline>,
    /// Of the next lease, behind one that is over: in force when all that came ahead of it has been done.
    next_deadline: Option<Deadline>,
    /// The deadline has passed, as seen in this turn.
    lease_is_over: bool,
    shard: Shard,
    ring: Ring,
    reads: Arc<Arena>,
    payloads: Arc<Arena>,
    drives: DriveTable,
    sockets: Vec<Slot>,
    budget: Budget,
    departed: Departed,
    free_slots: Vec<u32>,
    tickets: Tickets,
    mailbox: Arc<Mailbox>,
    neighbours: Vec<Arc<Mailbox>>,
    peers: Peers,
    routes: Routes,
    forwards: Forwards,
    notices: tokio::sync::mpsc::UnboundedSender<(ShardId, News)>,
    families: BTreeMap<FamilyId, FamilyStatistics>,
    observer: Observer,
    /// For the engine, in the order in which it came.
    inputs: VecDeque<Input>,
    outputs: Outputs,
    /// Sockets that something happened to in this turn.
    touched: Vec<u32>,
    /// Sockets that may have something to send.
    to_send: Vec<u32>,
    /// What has come from other nodes, while it is sorted.
    arrived: Vec<Arrived>,
    /// Requests of other nodes for the engine, in the order in which they came.
    remote: VecDeque<RemoteRequest>,
    /// vDisks of which no request is taken, until when, and by whom: a vDisk may be in several groups.
    holds: BTreeMap<(FamilyId, u64), Time>,
    /// Until then nothing is refused because nobody serves it: a drive that hangs is awaited, or has answered just now.
    awaited_until: Time,
    /// Requests of other threads that could not be answered yet.
    held: Vec<Held>,
    /// When the engine was busy for somebody, or a vDisk not served: when to try again.
    retry_at: Option<Time>,
    /// The place of the client that is looked at first then.
    retry_from: u32,
    look_at_negotiations: Time,
    /// When it was last told that connections are refused.
    refusal_told: Option<Time>,
    bell_value: Box<u64>,
    bell_armed: bool,
    draining: Option<tokio::sync::oneshot::Sender<()>>,
    /// Answered when all that came before has been done.
    questions: Vec<Question>,
    /// The node is about to stop: nobody is made to wait for somebody who might serve a vDisk.
    ending: bool,
    stopping: bool,
    /// The last turn was cut short: there is more to do at once.
    hurries: bool,
    /// When it should be back at its work, at the latest.
    back_by: Time,
    /// This turn began much later than it should.
    is_late: bool,
    may_spin: bool,
    pace: waiting::Pace,
    statistics: crate::api::ShardStatsView,
}

impl Worker {
    pub fn new(setup: Setup) -> std::io::Result<Self> {
        let ring = Ring::new()?;
        let mut reads = Arena::new(READ_ARENA_BYTES)?;
        // SAFETY: `reads` is kept by the worker beside the ring, and by every piece of it.
        if unsafe { ring.register_memory(reads.span()) } {
            reads.set_registered(0);
        }
        let tags = Tags { connect: TAG_LINK_CONNECT, receive: TAG_LINK_RECEIVE, send: TAG_LINK_SEND };
        Ok(Self {
            id: setup.shard,
            began: Instant::now(),
            // A member begins without a lease; that it has none yet is no news.
            lease_is_over: setup.deadline.as_ref().is_some_and(Deadline::has_passed),
            deadline: setup.deadline,
            next_deadline: None,
            shard: Shard::new(Settings { shard: setup.shard, seed: setup.seed, limits: setup.limits }),
            ring,
            reads: Arc::new(reads),
            payloads: Arc::new(Arena::new(PAYLOAD_ARENA_BYTES)?),
            drives: DriveTable::new(TAG_DRIVE),
            sockets: Vec::new(),
            budget: Budget::new(setup.clients_bytes),
            departed: Departed::default(),
            free_slots: Vec::new(),
            tickets: Tickets::default(),
            peers: Peers::new(setup.shard, setup.identity, tags),
            routes: Routes::new(setup.shard, setup.identity.base, setup.neighbours.len()),
            forwards: Forwards::default(),
            mailbox: setup.mailbox,
            neighbours: setup.neighbours,
            notices: setup.notices,
            families: BTreeMap::new(),
            observer: Observer::new(),
            inputs: VecDeque::new(),
            outputs: Outputs::default(),
            touched: Vec::new(),
            to_send: Vec::new(),
            arrived: Vec::new(),
            remote: VecDeque::new(),
            holds: BTreeMap::new(),
            awaited_until: Time(0),
            held: Vec::new(),
            retry_at: None,
            retry_from: 0,
            look_at_negotiations: Time(0),
            refusal_told: None,
            bell_value: Box::new(0),
            bell_armed: false,
            draining: None,
            questions: Vec::new(),
            ending: false,
            stopping: false,
            hurries: false,
            back_by: Time(0),
            is_late: false,
            may_spin: setup.may_spin,
            pace: waiting::Pace::default(),
            statistics: crate::api::ShardStatsView { shard: setup.shard.0, ..Default::default() },
        })
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_micros() as u64 + 1)
    }

    /// Runs until it is told to stop and everything in flight has ended.
    pub fn run(&mut self) {
        let mut completions = Vec::new();
        let mut mail = VecDeque::new();
        loop {
            self.turn(&mut completions, &mut mail);
            if self.stopping && self.is_idle() {
                return;
            }
            self.rest();
        }
    }

    /// Does all that there is to do. Both lists are empty before and behind it: their memory is used again.
    fn turn(&mut self, completions: &mut Vec<(u64, i32)>, mail: &mut VecDeque<Mail>) {
        self.statistics.turns += 1;
        let now = self.now();
        let was_over = self.lease_is_over;
        self.look_at_lease();
        // Leases go by a clock that goes on while the machine sleeps.
        self.note_stand(now, self.lease_is_over && !was_over);
        self.observer.note(now, &self.shard, &mut self.families);
        self.ring.completions(completions);
        for (tag, result) in completions.drain(..) {
            self.on_completed(now, tag, result);
        }
        self.mailbox.take(mail);
        for mail in mail.drain(..) {
            self.on_mail(now, mail);
        }
        self.on_time(now);
        self.work(now);
        if self.next_deadline.is_some() {
            self.deadline = self.next_deadline.take();
        }
        // Who takes replies as fast as they come gets the next ones in the next turn: completions, other shards and what
        // has become due wait meanwhile.
        self.hurries = false;
        for round in 1.. {
            if !self.send_replies() {
                break;
            }
            self.hurries = round == ROUNDS_MAX;
            if self.hurries {
                break;
            }
            self.work(now);
        }
        while let Some(question) = self.questions.pop() {
            self.tell_figures(now, question);
        }
    }

    /// Nothing that the kernel works on needs this thread's memory any more.
    fn is_idle(&self) -> bool {
        let sockets = self.sockets.iter().all(|slot| slot.socket.is_none());
        self.drives.in_flight() == 0 && sockets && self.peers.is_idle()
    }

    /// Goes on until nothing more can be done without the kernel.
    fn work(&mut self, now: Time) {
        loop {
            while let Some(slot) = self.touched.pop() {
                self.sockets[slot as usize].touched = false;
                self.pump(now, slot);
            }
            self.hear(now);
            if !self.touched.is_empty() {
                continue;
            }
            if self.inputs.is_empty() && self.remote.is_empty() {
                return;
            }
            let began = Instant::now();
            while let Some(input) = self.inputs.pop_front() {
                self.statistics.steps += 1;
                self.take(now, input);
            }
            self.take_remote(now);
            // What came together is settled together: one frame of the log, one flush, for many writes.
            self.shard.settle(now, &mut self.outputs);
            self.observer.stages.record_ns(Stage::Decide, began.elapsed().as_nanos() as u64);
            self.carry_out(now);
        }
    }

    /// Gives the engine an input. Unpacking what a drive gave is the longest thing it does in one step.
    fn take(&mut self, now: Time, input: Input) {
        if let Input::Order(Order::OpenFamily(record)) = &input
            && self.shard.volume(record.family).is_none_or(|volume| volume.epoch() < record.epoch)
        {
            // The volume counts from here on, and so does everybody.
            self.families.remove(&record.family);
            self.observer.begin(record.family);
        }
        let is_from_drive = matches!(input, Input::DriveDone { .. });
        let before = is_from_drive.then(|| (Instant::now(), self.shard.counters().frames_unpacked));
        self.shard.take(now, input, &mut self.outputs);
        if let Some((began, unpacked)) = before
            && self.shard.counters().frames_unpacked > unpacked
        {
            self.observer.stages.record_ns(Stage::Decompress, began.elapsed().as_nanos() as u64);
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
            if let Some(input) = self.drives.start(now, operation, &self.reads, &mut self.ring) {
                self.inputs.push_back(input);
            }
        }
        self.outputs.operations = operations;
        let mut replies = std::mem::take(&mut self.outputs.replies);
        if !replies.is_empty() {
            // Not before now: the thread may have stood still since the turn began.
            self.look_at_lease();
        }
        let told = if replies.is_empty() { now } else { self.now() };
        let mut sources = std::mem::take(&mut self.outputs.sources);
        let mut source_of = sources.drain(..).peekable();
        for (ticket, reply) in replies.drain(..) {
            let source = source_of.next_if(|(other, _)| *other == ticket).map(|(_, source)| source);
            let reply = if self.lease_is_over { Reply::Error(RequestError::NotServed) } else { reply };
            self.on_reply(now, told, ticket, reply, source);
        }
        assert!(source_of.next().is_none(), "sources are told of replies, in their order");
        drop(source_of);
        (self.outputs.replies, self.outputs.sources) = (replies, sources);
        let mut messages = std::mem::take(&mut self.outputs.messages);
        for (to, message) in messages.drain(..) {
            let from = self.id;
            match self.routes.neighbour(to) {
                Some(_) if to == from => self.inputs.push_back(Input::Message { from, message }),
                Some(index) => self.neighbours[index].send(Mail::Input(Input::Message { from, message })),
                None => self.peers.say(now, to, message, &mut self.ring),
            }
        }
        self.outputs.messages = messages;
        for OriginRequest { asker, ask, family, request } in std::mem::take(&mut self.outputs.requests) {
            // As another thread would ask: held and asked again for as long as nobody serves the origin.
            let home = Arc::clone(&self.mailbox);
            let told = move |reply| home.send(Mail::Input(Input::Told { family: asker, ask, reply }));
            let answer = Answer::new(told);
            self.ask(now, family, request.clone(), Origin::Elsewhere { answer, request, refused: None });
        }
        for notice in self.outputs.notices.drain(..) {
            // The control plane is gone only when the node ends.
            let _ = self.notices.send((self.id, News::Engine(notice)));
        }
    }

    fn tell(&self, news: News) {
        let _ = self.notices.send((self.id, news));
    }

    /// Behind the deadline somebody else may serve what this shard does. Writes are fenced by their members, reads by
    /// nothing else (I2), so no answer of the engine is given any more. To look once for all answers that are handed on
    /// together is enough: what was read before the deadline was true while its request was open, whenever the answer
    /// arrives. Whoever asked asks again, and gets an answer from here if the lease was only late.
    fn look_at_lease(&mut self) {
        let Some(deadline) = &self.deadline else { return };
        let is_over = deadline.has_passed();
        if is_over != self.lease_is_over {
            self.lease_is_over = is_over;
            if self.ending {
                // It has given the lease back.
                return;
            }
            if is_over {
                tracing::warn!(
                    shard = self.id.0,
                    "the node's lease was not renewed in time: nothing is served"
                );
            } else {
                tracing::info!(shard = self.id.0, "the node's lease is renewed: requests are answered again");
            }
        }
    }

    /// The node has a new lease. If the one before is over, somebody else may have served meanwhile what was open here: an answer
    /// that came ahead of this, and waits for the engine with the order to close its vDisk behind it, is one of the old lease.
    fn on_lease(&mut self, deadline: Deadline) {
        let is_over = self.deadline.as_ref().is_some_and(Deadline::has_passed);
        let place = if is_over { &mut self.next_deadline } else { &mut self.deadline };
        *place = Some(deadline);
    }

    /// `told`: when it is, which may be later in the turn than `now`.
    fn on_reply(&mut self, now: Time, told: Time, ticket: Ticket, reply: Reply, source: Option<Source>) {
        let mut open = self.tickets.close(ticket);
        let again = match reply {
            Reply::Error(RequestError::Busy) => true,
            Reply::Error(RequestError::NotServed | RequestError::Fenced) => self.may_be_served(now),
            _ => false,
        };
        let took_us = told.since(open.since);
        self.observer.answered(&open, &reply, source, (!again).then_some(took_us));
        if !again {
            let asker = match &open.origin {
                Origin::Remote(asker) => asker.from,
                Origin::Socket { .. } | Origin::Elsewhere { .. } => self.id,
            };
            self.families.entry(open.family).or_default().count(asker.node(), open.kind, took_us, &reply);
        }
        self.note_served(&mut open.origin, &reply);
        self.deliver(now, open.family, open.origin, reply);
    }

    fn on_completed(&mut self, now: Time, tag: u64, result: i32) {
        let index = tag as u32;
        match tag & TAG_MASK {
            TAG_BELL => self.bell_armed = false,
            TAG_DRIVE => {
                if let Some(input) =
                    self.drives.on_completed(now, index, result, &mut self.observer.stages, &mut self.ring)
                {
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
            TAG_LINK_CONNECT => self.peers.on_connected(index),
            TAG_LINK_RECEIVE => self.peers.on_received(index, result),
            TAG_LINK_SEND => self.peers.on_sent(index, result),
            other => panic!("a completion of nothing we asked for: {other:#x}"),
        }
    }

    fn on_mail(&mut self, now: Time, mail: Mail) {
        match mail {
            Mail::Input(input) => self.inputs.push_back(input),
            Mail::Order(order) => self.inputs.push_back(Input::Order(order)),
            Mail::Drive(open) => self.drives.add(open, &self.ring),
            Mail::Lease(deadline) => self.on_lease(deadline),
            Mail::Connection { socket, exports, address } => {
                if self.draining.is_some() || self.stopping || self.has_all_connections(&address) {
                    // Whoever knocks on does not fill the log.
                    if self.refusal_told.is_none_or(|told| now.since(told) >= REFUSAL_TOLD_US) {
                        self.refusal_told = Some(now);
                        tracing::warn!(%address, "connections are refused: there are too many, or the node stops");
                    }
                    return;
                }
                self.adopt(Socket::new(socket, exports, address, now.0));
            }
            Mail::Adopt(mut socket) => {
                // While it was on its way, neither shard had it to close it.
                if !socket.connection.is_offered() {
                    socket.break_off();
                }
                // Nor did either look whether its client is still there, if it lay here for long.
                if self.is_late {
                    socket.note_stand();
                }
                self.adopt(*socket);
                if self.draining.is_some() || self.stopping {
                    self.end_sockets(Socket::finish);
                }
            }
            // When it stops, nothing may be in flight in the end: no connection is made any more.
            Mail::Peers(addresses) if !self.stopping => self.peers.set_addresses(now, addresses),
            Mail::Peers(_) => {}
            Mail::Routes(table) => self.on_routes(now, table),
            Mail::Awaits(awaits) => self.await_drives(now, awaits),
            Mail::PeerConnection { socket, hello } => {
                if !self.stopping {
                    self.peers.accept(now, socket, hello);
                }
            }
            // It may have lain here for as long. Its own shard looks whether the client is still there before it asks again.
            Mail::Request { answer, .. } if self.is_late && answer.asks_again() => {
                answer.give(Reply::Error(RequestError::Busy));
            }
            Mail::Request { family, request, answer } => {
                let origin = Origin::Elsewhere { answer, request: request.clone(), refused: None };
                self.ask(now, family, request, origin);
            }
            Mail::Answered { slot, generation, handle, reply } => {
                self.answer_socket(now, slot, generation, handle, reply);
            }
            Mail::CloseConnections { disk, address } => {
                self.end_sockets(|socket| {
                    if socket.connection.family() == Some(disk.family)
                        && socket.connection.snapshot() == disk.snapshot
                        && address.as_ref().is_none_or(|address| *address == socket.address)
                    {
                        socket.break_off();
                    }
                });
            }
            Mail::Hold { holder, families, longest, done } => {
                let until = now.after(longest.as_micros() as u64);
                self.holds.retain(|_, until| *until > now);
                let held = families.iter().all(|family| self.holds.contains_key(&(*family, holder)));
                self.holds.extend(families.into_iter().map(|family| ((family, holder), until)));
                // Whoever asked may have gone away; the holds end by themselves.
                let _ = done.send(held);
            }
            Mail::Drain(done) => {
                self.draining = Some(done);
                self.ending = true;
                self.retry_at = Some(now);
                self.end_sockets(Socket::finish);
            }
            Mail::Question(question) => self.questions.push(question),
            Mail::ResetStages => self.observer.reset(now, &self.shard),
            Mail::Stop => {
                self.stopping = true;
                self.ending = true;
                self.end_sockets(Socket::break_off);
                self.peers.break_all();
            }
        }
    }

    /// What has become due.
    fn on_time(&mut self, now: Time) {
        if !self.stopping && self.shard.wake_at().is_some_and(|at| at <= now) {
            self.inputs.push_back(Input::Wake);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.retry(now);
        }
        if !self.stopping {
            let is_used = |drive| self.shard.keeper(drive).is_some();
            self.drives.probe(now, is_used, &self.reads, &mut self.ring);
        }
        self.peers.on_time(now);
        let (notices, id) = (&self.notices, self.id);
        self.drives.on_time(now, &mut self.ring, |news| {
            let _ = notices.send((id, news));
        });
        self.look_at_clients(now);
        if self.draining.is_some() && self.statistics.connections == 0 {
            // Dropping the sender would do as well, but this says what is meant.
            let done = self.draining.take().expect("it was just looked at");
            let _ = done.send(());
        }
    }
}

/// Which of `shards` shards serves a vDisk.
pub fn owner_of(family: FamilyId, shards: usize) -> ShardId {
    ShardId(family.0 % shards as u32)
}
