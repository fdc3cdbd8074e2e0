//! The connections of one shard to shards of other nodes.
//!
//! Each pair of shards has a connection for each lane ([`Lane`]) and asker: whoever has something to ask makes the
//! connection, and what is answered comes back on it. So when a connection ends, the asker knows at once which of its
//! questions and requests got no answer, and an answer needs no address. The lane `log` to every shard that has an address
//! is made and asked after at once, the others when there is something to say.
//!
//! Promises: nothing here waits; what cannot be sent (nobody there, too much queued) is dropped and counted, as a network
//! would, except requests of clients, whose asker is told; of two connections for the same thing, the newer one counts,
//! and nothing of the older one is heard any more, nor of a process that was the node before; a shard that does not answer
//! is told of within the times of `weft_engine::cluster::detection`.
//! Leaves to others: when connections are made (`dialling`), bytes and memory of one connection (`link`), who may connect
//! (`listener`), repeating what was lost (the engine, and `worker/forward`).

mod dialling;
pub(super) mod link;
mod listener;
mod options;
mod watch;
mod ways;

#[cfg(test)]
mod tests;

pub use listener::PeerListener;

use crate::api::{LaneStatsView, PeerStatsView};
use crate::shard_loop::arena::Arena;
use crate::shard_loop::ring::Ring;
use crate::shard_loop::{Identity, News};
use dialling::Dialled;
use link::{Link, Next};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use watch::{Standing, Verdict, Watches};
use ways::Ways;
use weft_engine::formats::wire::{self, Hello, Lane, Packet, lane_of};
use weft_engine::interface::{Reply, Request, RequestError};
use weft_engine::message::Message;
use weft_engine::{Epoch, FamilyId, ShardId, Time};

/// Connections that others have made to this shard.
const ACCEPTED_MAX: usize = 4096;

/// What completions of the ring are called: each tag has the number of the link in its low half.
pub struct Tags {
    pub connect: u64,
    pub receive: u64,
    pub send: u64,
}

pub struct Peers {
    own: ShardId,
    cluster: u64,
    /// Of this node's process.
    life: u64,
    tags: Tags,
    addresses: BTreeMap<ShardId, SocketAddr>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Connections that this shard makes.
    dialled: BTreeMap<(ShardId, Lane), Dialled>,
    /// Connections that were made to this shard.
    accepted: BTreeMap<(ShardId, Lane), u32>,
    /// The newest life of each node that was heard of.
    lives: BTreeMap<u32, u64>,
    /// The number of the last connection of that life that was taken.
    newest: BTreeMap<(ShardId, Lane), u32>,
    /// Connections made so far.
    dials: u32,
    connecting: Vec<u32>,
    watches: Watches,
    ways: Ways,
    verdicts: Vec<(ShardId, Verdict)>,
    touched: Vec<u32>,
    to_send: Vec<u32>,
    counted: PeerStatsView,
    lanes: [LaneStatsView; 3],
}

/// A place for a link, used again with another generation.
#[derive(Default)]
struct Place {
    generation: u32,
    link: Option<Link>,
    touched: bool,
    to_send: bool,
}

/// Names a link as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkName {
    place: u32,
    generation: u32,
}

/// What came of looking at the connections.
pub enum Arrived {
    Message {
        from: ShardId,
        message: Message,
    },
    Request(RemoteRequest),
    Reply {
        from: ShardId,
        number: u64,
        reply: Reply,
    },
    /// What was asked of this shard for clients and has no answer will get none.
    Lost(ShardId),
    /// What the engine asked of this shard may not have arrived.
    Unheard(ShardId),
    News(News),
}

/// A client's request that another shard forwards. It is answered by [`Peers::reply`], once.
pub struct RemoteRequest {
    pub asker: RemoteAsker,
    pub family: FamilyId,
    pub epoch: Epoch,
    pub request: Request,
}

#[derive(Debug, Clone, Copy)]
pub struct RemoteAsker {
    pub from: ShardId,
    link: LinkName,
    number: u64,
    /// What the request carries or will bring, if it is a client's: those count.
    bytes: Option<usize>,
}

impl Peers {
    pub fn new(own: ShardId, identity: Identity, tags: Tags) -> Self {
        Self {
            own,
            cluster: identity.cluster,
            life: identity.life,
            tags,
            addresses: BTreeMap::new(),
            places: Vec::new(),
            free: Vec::new(),
            dialled: BTreeMap::new(),
            accepted: BTreeMap::new(),
            lives: BTreeMap::new(),
            newest: BTreeMap::new(),
            dials: 0,
            connecting: Vec::new(),
            watches: Watches::default(),
            ways: Ways::default(),
            verdicts: Vec::new(),
            touched: Vec::new(),
            to_send: Vec::new(),
            counted: PeerStatsView::default(),
            lanes: std::array::from_fn(|_| LaneStatsView::default()),
        }
    }

    /// Where the shards of other nodes are from now on. Connections to those that are not there any more, or elsewhere,
    /// end.
    pub fn set_addresses(&mut self, now: Time, addresses: BTreeMap<ShardId, SocketAddr>) {
        let former = std::mem::replace(&mut self.addresses, addresses);
        // Ways to who is gone are none any more, also if nothing wakes this shard for long.
        self.ways.ask_now();
        let is_moved = |shard: &ShardId| former.get(shard) != self.addresses.get(shard);
        let moved: Vec<ShardId> = former.keys().copied().filter(is_moved).collect();
        for index in 0..self.places.len() as u32 {
            let Some(link) = &mut self.places[index as usize].link else { continue };
            let gone = !self.addresses.contains_key(&link.shard);
            if moved.contains(&link.shard) && (link.dialled || gone) {
                link.break_off();
                self.touch(index);
            }
        }
        for (shard, address) in &self.addresses {
            if former.get(shard) != Some(address) {
                self.watches.begin(now, *shard);
            }
        }
        for shard in former.keys().filter(|shard| !self.addresses.contains_key(shard)) {
            self.watches.forget(*shard);
        }
        // At a new address there may be somebody at once.
        self.dialled.retain(|(shard, _), dialled| {
            dialled.not_before = Time(0);
            dialled.link.is_some() || self.addresses.contains_key(shard)
        });
    }

    /// Says something to a shard of another node, if that is possible now.
    pub fn say(&mut self, now: Time, to: ShardId, message: Message, ring: &mut Ring) {
        let lane = lane_of(&message);
        let link = match &message {
            Message::Ask { .. } => self.towards(now, to, lane, ring),
            Message::Answer { .. } | Message::Press { .. } => self.back_to(to, lane),
        };
        let taken = link.is_some_and(|index| self.push(index, &Packet::Message(message)));
        self.counted.dropped += u64::from(!taken);
    }

    /// Asks for a client. An error means that it was not asked: nobody is there, or too much is queued.
    #[expect(clippy::too_many_arguments, reason = "the fields of a request on the wire")]
    pub fn forward(
        &mut self,
        now: Time,
        to: ShardId,
        number: u64,
        family: FamilyId,
        epoch: Epoch,
        request: Request,
        ring: &mut Ring,
    ) -> Result<(), RequestError> {
        let index = self.towards(now, to, Lane::Client, ring).ok_or(RequestError::NotServed)?;
        if self.link(index).is_queue_full() {
            return Err(RequestError::Busy);
        }
        let taken = self.push(index, &Packet::Request { number, family, epoch, request });
        taken.then_some(()).ok_or(RequestError::NotServed)
    }

    /// Answers a request that came from elsewhere. Should the connection be gone, its asker knows that already.
    pub fn reply(&mut self, asker: RemoteAsker, reply: Reply) {
        let RemoteAsker { link: LinkName { place: index, generation }, number, bytes, .. } = asker;
        let place = &mut self.places[index as usize];
        let Some(link) = place.link.as_mut().filter(|_| place.generation == generation) else { return };
        let resumed = bytes.is_some_and(|bytes| link.close_request(bytes));
        match wire::encode(&Packet::Reply { number, reply }) {
            Ok(frame) if !link.is_broken() => {
                link.push_answer(frame);
                self.wants_to_send(index);
                if resumed {
                    self.touch(index);
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "something was not sent");
                // The asker must not wait for ever: with the connection gone it asks again.
                self.break_off(index);
            }
        }
    }

    /// The connection to this shard said something that makes no sense, or is of no use: it ends.
    pub fn distrust(&mut self, shard: ShardId) {
        if let Some(index) = self.dialled.get(&(shard, Lane::Client)).and_then(|dialled| dialled.link) {
            self.break_off(index);
        }
    }

    /// Another shard has made a connection, and said hello.
    pub fn accept(&mut self, now: Time, socket: OwnedFd, hello: Hello) {
        let Hello { cluster, life, number, from, to, lane } = hello;
        assert!(cluster == self.cluster && to == self.own, "the listener knows who is meant");
        let key = (from, lane);
        // What a process said before it died may come late, after what its node's next one said, and two connections of
        // one life may be handed over in the wrong order. An old write must not land on a newer one.
        let known = self.lives.get(&from.node()).copied().unwrap_or(0);
        let outdated =
            life < known || (life == known && self.newest.get(&key).is_some_and(|newest| *newest >= number));
        if outdated || self.accepted.len() >= ACCEPTED_MAX || from == self.own {
            tracing::warn!(from = from.0, ?lane, outdated, "a connection of another shard was not taken");
            return;
        }
        if life > known {
            self.begin_life(from.node(), life);
        }
        if self.newest.len() >= 2 * ACCEPTED_MAX {
            self.newest.retain(|key, _| self.accepted.contains_key(key));
        }
        self.newest.insert(key, number);
        if let Some(former) = self.accepted.get(&key).copied() {
            self.break_off(former);
        }
        let link = Link::new(socket2::Socket::from(socket), from, lane, false, false, now);
        let index = self.put(link);
        self.accepted.insert(key, index);
        self.counted.accepted += 1;
        // Whoever reaches us is there.
        self.try_at_once(from);
        self.watches.look_by(now);
    }

    /// Another process is this node now: what the one before it said and nobody has heard yet is not heard any more.
    fn begin_life(&mut self, node: u32, life: u64) {
        if self.lives.len() >= ACCEPTED_MAX {
            let is_here = |node| self.accepted.keys().any(|(shard, _)| shard.node() == node);
            self.lives.retain(|node, _| is_here(*node));
        }
        self.lives.insert(node, life);
        self.newest.retain(|(shard, _), _| shard.node() != node);
        self.break_off_accepted(|shard, _| shard.node() == node);
    }

    /// Ends those of the connections made to this shard.
    fn break_off_accepted(&mut self, is_meant: impl Fn(ShardId, Lane) -> bool) {
        let meant: Vec<u32> = self
            .accepted
            .iter()
            .filter(|((shard, lane), _)| is_meant(*shard, *lane))
            .map(|(_, index)| *index)
            .collect();
        meant.into_iter().for_each(|index| self.break_off(index));
    }

    /// Takes what has arrived, and asks for more.
    pub fn pump(&mut self, now: Time, payloads: &Arc<Arena>, ring: &mut Ring, arrived: &mut Vec<Arrived>) {
        while let Some(index) = self.touched.pop() {
            self.places[index as usize].touched = false;
            self.pump_link(now, index, payloads, ring, arrived);
        }
    }

    fn pump_link(
        &mut self,
        now: Time,
        index: u32,
        payloads: &Arc<Arena>,
        ring: &mut Ring,
        arrived: &mut Vec<Arrived>,
    ) {
        let place = &mut self.places[index as usize];
        let name = LinkName { place: index, generation: place.generation };
        let Some(link) = &mut place.link else { return };
        let counted = &mut self.lanes[lane_index(link.lane)];
        let tag = self.tags.receive | u64::from(index);
        let (mut heard, mut asked) = (false, false);
        let over = loop {
            let packet = match link.next(payloads, counted, tag, ring) {
                Next::Packet(packet) => packet,
                Next::Nothing => break false,
                Next::Over => break true,
            };
            heard = true;
            arrived.push(match packet {
                Packet::Message(message) => Arrived::Message { from: link.shard, message },
                Packet::Request { number, family, epoch, request } => {
                    let bytes = (!is_of_owners(&request)).then(|| weight(&request));
                    if let Some(bytes) = bytes {
                        link.open_request(bytes);
                    }
                    let asker = RemoteAsker { from: link.shard, link: name, number, bytes };
                    Arrived::Request(RemoteRequest { asker, family, epoch, request })
                }
                Packet::Reply { number, reply } => Arrived::Reply { from: link.shard, number, reply },
                Packet::Ping => {
                    asked = true;
                    continue;
                }
                Packet::Pong => continue,
                Packet::Hello(_) => unreachable!("no lane carries a hello"),
            });
        };
        let (shard, lane, is_in_flight) = (link.shard, link.lane, link.is_in_flight());
        if over && is_in_flight {
            link.break_off();
        }
        if heard && link.dialled {
            self.heard(now, shard, lane, arrived);
        }
        if over {
            // What is in flight comes back, and it is looked at again.
            if !is_in_flight {
                self.end(now, index, arrived);
            }
            return;
        }
        if asked {
            self.push(index, &Packet::Pong);
        }
        self.wants_to_send(index);
    }

    /// A shard has answered on a connection that was made to it.
    fn heard(&mut self, now: Time, shard: ShardId, lane: Lane, arrived: &mut Vec<Arrived>) {
        let is_back = self.watches.hear(now, shard);
        // What was said while no attempt was made, or between two, was dropped.
        let dialled = self.dialled.get_mut(&(shard, lane));
        let after_failures = dialled.is_some_and(|dialled| std::mem::take(&mut dialled.back_off_us) > 0);
        if is_back {
            arrived.push(Arrived::News(News::PeerBack { shard }));
            if lane != Lane::Client {
                // What clients asked there is asked again at once: the kernel would only try again when that becomes due, after as
                // long as nothing came through.
                self.distrust(shard);
            }
        }
        if is_back || (after_failures && lane != Lane::Client) {
            self.try_at_once(shard);
            arrived.push(Arrived::Unheard(shard));
        }
    }

    /// Asks after the shards that were not heard for a while, and tells which are lost. To be called when all that has come
    /// was taken.
    pub fn look(&mut self, now: Time, ring: &mut Ring, arrived: &mut Vec<Arrived>) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let (dialled, places) = (&self.dialled, &self.places);
        let standing = |shard| {
            let index = dialled.get(&(shard, Lane::Log)).and_then(|dialled| dialled.link);
            match index.and_then(|index| places[index as usize].link.as_ref()) {
                None => Standing::None,
                Some(link) if link.stands() => Standing::Stands,
                Some(_) => Standing::Making,
            }
        };
        self.watches.look(now, standing, &mut verdicts);
        for (shard, verdict) in verdicts.drain(..) {
            match verdict {
                Verdict::Dial => {
                    self.towards(now, shard, Lane::Log, ring);
                }
                Verdict::Ping => {
                    let index = self.dialled[&(shard, Lane::Log)].link.expect("a connection stands");
                    // What finds no room is not missed: something else wants an answer there.
                    self.push(index, &Packet::Ping);
                }
                Verdict::Lost(why) => {
                    // Its clients may go on elsewhere: what they wrote here and has not come by now comes too late. Should
                    // it live after all, it asks again.
                    self.break_off_accepted(|other, lane| other == shard && lane == Lane::Client);
                    arrived.push(Arrived::News(News::PeerLost { shard, why }));
                }
            }
        }
        self.verdicts = verdicts;
        if self.ways.is_due(now) {
            self.look_at_ways(now, arrived);
        }
    }

    fn look_at_ways(&mut self, now: Time, arrived: &mut Vec<Arrived>) {
        for link in self.places.iter_mut().filter_map(|place| place.link.as_mut()) {
            if let Some(counted) = link.count_segments() {
                self.ways.count(now, link.shard, counted);
            }
        }
        let is_there = |shard| self.addresses.contains_key(&shard) && !self.watches.is_lost(shard);
        let told = self.ways.judge(now, is_there);
        arrived.extend(told.into_iter().map(|(shard, how)| Arrived::News(News::WayPoor { shard, how })));
    }

    /// A link is gone; whoever waits for something on it hears so.
    fn end(&mut self, now: Time, index: u32, arrived: &mut Vec<Arrived>) {
        let place = &mut self.places[index as usize];
        let link = place.link.take().expect("a link ends once");
        place.generation = place.generation.wrapping_add(1);
        self.free.push(index);
        self.connecting.retain(|other| *other != index);
        let key = (link.shard, link.lane);
        if link.lane != Lane::Client {
            self.counted.dropped += link.unsent() as u64;
        }
        if !link.dialled {
            if self.accepted.get(&key) == Some(&index) {
                self.accepted.remove(&key);
            }
            return;
        }
        if let Some(dialled) = self.dialled.get_mut(&key) {
            dialled.link = None;
            dialled.fail(now, link.was_heard());
        }
        self.watches.fail(now, link.shard);
        if link.lane == Lane::Client {
            arrived.push(Arrived::Lost(link.shard));
        } else if link.was_heard() {
            // The next connection is made at once. Should that fail, all is asked again when one works.
            arrived.push(Arrived::Unheard(link.shard));
        }
    }

    /// All that was said in this turn leaves. False if nothing follows from it.
    pub fn send(&mut self, ring: &mut Ring) -> bool {
        let mut to_send = std::mem::take(&mut self.to_send);
        for index in to_send.drain(..) {
            let place = &mut self.places[index as usize];
            place.to_send = false;
            if let Some(link) = &mut place.link
                && link.send(&mut self.lanes[lane_index(link.lane)], self.tags.send | u64::from(index), ring)
            {
                self.touch(index);
            }
        }
        self.to_send = to_send;
        !self.touched.is_empty()
    }

    pub fn on_received(&mut self, index: u32, result: i32) {
        self.link(index).on_received(result);
        self.touch(index);
    }

    pub fn on_sent(&mut self, index: u32, result: i32) {
        let link = self.places[index as usize].link.as_mut().expect("a link stays while it is in flight");
        link.on_sent(result, &mut self.lanes[lane_index(link.lane)]);
        self.touch(index);
    }

    /// When something is to be done although nothing happens.
    pub fn wake_at(&self) -> Option<Time> {
        let given_up = self.connecting.iter().map(|index| self.given_up_at(*index)).min();
        given_up.into_iter().chain(self.watches.look_at()).min()
    }

    /// The shard stops.
    pub fn break_all(&mut self) {
        self.addresses.clear();
        self.watches = Watches::default();
        for index in 0..self.places.len() as u32 {
            if self.places[index as usize].link.is_some() {
                self.break_off(index);
            }
        }
    }

    /// No connection is left.
    pub fn is_idle(&self) -> bool {
        self.places.iter().all(|place| place.link.is_none())
    }

    pub fn statistics(&self) -> PeerStatsView {
        let mut view = self.counted.clone();
        (view.answering, view.lost) = self.watches.counts();
        view.links = self.places.iter().filter(|place| place.link.is_some()).count() as u64;
        for lane in Lane::ALL {
            let name = match lane {
                Lane::Log => "log",
                Lane::Bulk => "bulk",
                Lane::Client => "client",
            };
            view.lanes.insert(name.to_string(), self.lanes[lane_index(lane)].clone());
        }
        view
    }

    /// A connection that this shard has made to us, the one of this lane first.
    fn back_to(&self, to: ShardId, lane: Lane) -> Option<u32> {
        let other = if lane == Lane::Log { Lane::Bulk } else { Lane::Log };
        self.accepted.get(&(to, lane)).or_else(|| self.accepted.get(&(to, other))).copied()
    }

    /// Puts a packet behind those that wait. False: it is not taken.
    fn push(&mut self, index: u32, packet: &Packet) -> bool {
        let link = self.link(index);
        if link.is_broken() || link.is_queue_full() {
            return false;
        }
        match wire::encode(packet) {
            Ok(frame) => {
                let taken = link.push(frame);
                self.wants_to_send(index);
                taken
            }
            Err(error) => {
                tracing::error!(%error, "something was not sent");
                false
            }
        }
    }

    fn put(&mut self, link: Link) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        self.places[index as usize].link = Some(link);
        // A receive is always in flight, also where only the other side hears: so the end of a connection is noticed.
        self.touch(index);
        index
    }

    fn link(&mut self, index: u32) -> &mut Link {
        self.places[index as usize].link.as_mut().expect("a link stays while it is in flight")
    }

    fn break_off(&mut self, index: u32) {
        self.link(index).break_off();
        self.touch(index);
    }

    fn touch(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if !place.touched {
            place.touched = true;
            self.touched.push(index);
        }
    }

    fn wants_to_send(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if !place.to_send {
            place.to_send = true;
            self.to_send.push(index);
        }
    }
}

fn lane_index(lane: Lane) -> usize {
    lane as usize - 1
}

/// Whether the owner of a clone asks this, and not a client. Clients wait for the answer, so it may not wait for clients.
pub(super) fn is_of_owners(request: &Request) -> bool {
    matches!(request, Request::ReadOrigin { .. } | Request::SnapshotExtents { .. })
}

/// The memory a request stands for until it is answered.
pub(super) fn weight(request: &Request) -> usize {
    match request {
        Request::Read { len, .. } | Request::ReadSnapshot { len, .. } | Request::ReadOrigin { len, .. } => {
            *len as usize
        }
        Request::Write { data, .. } => data.len(),
        Request::Zero { .. }
        | Request::Flush
        | Request::Extents { .. }
        | Request::SnapshotExtents { .. }
        | Request::Differences { .. }
        | Request::Warm { .. } => 0,
    }
}
