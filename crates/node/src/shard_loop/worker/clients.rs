//! The clients of a shard: their connections and the places these take, what is taken from them in a turn, and what leaves for them.
//! Promises: a place that is free again has another generation, so an answer that comes late finds nobody; one client cannot
//! make the shard keep more than its share of memory, and one that does nothing while memory is short is sent away.
//! Leaves to others: bytes (`socket`), memory that all share (`budget`), who is asked (`forward`).

use super::budget::Share;
use super::routes::Way;
use super::{TAG_RECEIVE, TAG_SEND, Worker};
use crate::shard_loop::mailbox::Mail;
use crate::shard_loop::peer::weight;
use crate::shard_loop::socket::{Next, Socket};
use crate::shard_loop::tickets::Origin;
use std::collections::BTreeMap;
use std::time::Instant;
use weft_engine::Time;
use weft_engine::interface::{Reply, Request, RequestError};
use weft_engine::stages::Stage;
use weft_frontends::nbd::{Event, Handle};

/// A client that has not chosen an export after this time is sent away.
const NEGOTIATION_US_MAX: u64 = 30_000_000;

/// Connections of one shard, and of those the most that came to one address: whoever fills one up does not shut out the others.
const CONNECTIONS_MAX: usize = 1024;
const OF_ONE_ADDRESS_MAX: usize = CONNECTIONS_MAX / 4 * 3;

/// A place for a connection, used again with another generation.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) socket: Option<Socket>,
    pub(super) touched: bool,
    to_send: bool,
    share: Share,
    /// When requests that are still open were first told that nobody serves the vDisk.
    pub(super) refused: BTreeMap<Handle, Time>,
}

impl Worker {
    pub(super) fn touch(&mut self, slot: u32) {
        let place = &mut self.sockets[slot as usize];
        if !place.touched {
            place.touched = true;
            self.touched.push(slot);
        }
    }

    /// Takes the requests that a connection has, and sends its replies.
    pub(super) fn pump(&mut self, now: Time, slot: u32) {
        loop {
            let place = &mut self.sockets[slot as usize];
            let generation = place.generation;
            let Some(socket) = &mut place.socket else { return };
            let routes = &self.routes;
            // A vDisk of another node is served from here, by asking there.
            let is_here = |family| !matches!(routes.way(family), Way::Neighbour(_));
            self.budget.count(&mut place.share, socket.memory_bytes());
            let (budget, share) = (&self.budget, &place.share);
            let departed = &self.departed;
            let has_room = |family, bytes| budget.has_room(share, departed.bytes_of(family), bytes);
            let tag = TAG_RECEIVE | u64::from(slot);
            match socket.next(is_here, has_room, &self.payloads, tag, &mut self.ring) {
                // What it would bring has no room: as if the engine were busy. (What it carries has been received.)
                Next::Event(Event::Request { handle, family, request })
                    if !carries(&request) && !has_room(family, weight(&request)) =>
                {
                    socket.connection.reply(handle, Reply::Error(RequestError::Busy));
                    self.retry_soon(now);
                }
                Next::Event(Event::Request { handle, family, request }) => {
                    self.ask(now, family, request, Origin::Socket { slot, generation, handle });
                }
                Next::NoRoom => {
                    self.retry_soon(now);
                    break;
                }
                Next::Nothing => break,
                Next::Elsewhere(family) => {
                    let Way::Neighbour(index) = routes.way(family) else {
                        unreachable!("a connection goes to the shard that was found to serve its vDisk");
                    };
                    let socket = place.socket.take().expect("it was just asked");
                    self.neighbours[index].send(Mail::Adopt(Box::new(socket)));
                    self.free_slot(slot);
                    return;
                }
                Next::Over => {
                    if socket.is_in_flight() {
                        socket.break_off();
                    } else {
                        self.let_go(slot);
                    }
                    return;
                }
            }
        }
        let place = &mut self.sockets[slot as usize];
        if !place.to_send {
            place.to_send = true;
            self.to_send.push(slot);
        }
    }

    /// Once for each connection: all replies that came together leave together. False if nothing follows from it.
    pub(super) fn send_replies(&mut self) -> bool {
        let mut to_send = std::mem::take(&mut self.to_send);
        for slot in to_send.drain(..) {
            let place = &mut self.sockets[slot as usize];
            place.to_send = false;
            if let Some(socket) = &mut place.socket {
                let began = socket.has_replies().then(Instant::now);
                let looks_again = socket.send(TAG_SEND | u64::from(slot), &mut self.ring);
                if let Some(began) = began {
                    self.observer.stages.record_ns(Stage::Reply, began.elapsed().as_nanos() as u64);
                }
                self.budget.count(&mut place.share, socket.memory_bytes());
                if looks_again {
                    self.touch(slot);
                }
            }
        }
        self.to_send = to_send;
        // A link that has something to be looked at makes another turn as well as a socket does.
        self.peers.send(&mut self.ring) || !self.touched.is_empty()
    }

    pub(super) fn socket(&mut self, slot: u32) -> &mut Socket {
        self.sockets[slot as usize]
            .socket
            .as_mut()
            .expect("a socket stays while something is in flight for it")
    }

    pub(super) fn adopt(&mut self, socket: Socket) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.sockets.push(Slot::default());
            (self.sockets.len() - 1) as u32
        });
        self.sockets[slot as usize].socket = Some(socket);
        self.statistics.connections += 1;
        self.touch(slot);
    }

    /// A connection is over. What the engine still has of it stays counted.
    fn let_go(&mut self, slot: u32) {
        let place = &mut self.sockets[slot as usize];
        let Socket { connection, .. } = place.socket.take().expect("there is one");
        let generation = place.generation;
        self.free_slot(slot);
        if let Some(family) = connection.family() {
            self.departed.leave((slot, generation), family, connection.open_bytes(), &mut self.budget);
        }
    }

    /// The connection of this place is gone; replies that still come for it are nobody's.
    fn free_slot(&mut self, slot: u32) {
        let place = &mut self.sockets[slot as usize];
        place.generation = place.generation.wrapping_add(1);
        place.refused.clear();
        self.budget.count(&mut place.share, 0);
        place.share = Share::default();
        self.free_slots.push(slot);
        self.statistics.connections -= 1;
    }

    /// Ends connections whose clients do nothing while memory is short.
    fn send_away(&mut self, now: Time) {
        for slot in 0..self.sockets.len() as u32 {
            let place = &mut self.sockets[slot as usize];
            let Some(socket) = &mut place.socket else { continue };
            let (moved, waits) = socket.progress();
            if self.budget.is_in_the_way(&mut place.share, now, moved, waits) {
                tracing::warn!(address = %socket.address, "a client took no answers, or did not give what it had announced, while memory was short: its connection is ended");
                socket.break_off();
                self.touch(slot);
            }
        }
    }

    /// Does something to all sockets that may end them.
    pub(super) fn end_sockets(&mut self, mut end: impl FnMut(&mut Socket)) {
        for slot in 0..self.sockets.len() as u32 {
            if let Some(socket) = &mut self.sockets[slot as usize].socket {
                end(socket);
                self.touch(slot);
            }
        }
    }

    /// Whether another connection to this address would be one too many.
    pub(super) fn has_all_connections(&self, address: &str) -> bool {
        let connections = self.statistics.connections as usize;
        connections >= CONNECTIONS_MAX
            || connections >= OF_ONE_ADDRESS_MAX && self.connections_to(address) >= OF_ONE_ADDRESS_MAX
    }

    fn connections_to(&self, address: &str) -> usize {
        let sockets = self.sockets.iter().filter_map(|place| place.socket.as_ref());
        sockets.filter(|socket| &*socket.address == address).count()
    }

    /// Now and then: those who do not choose an export, or do nothing while memory is short, go.
    pub(super) fn look_at_clients(&mut self, now: Time) {
        if self.look_at_negotiations > now {
            return;
        }
        self.look_at_negotiations = now.after(NEGOTIATION_US_MAX / 8);
        self.send_away(now);
        self.end_sockets(|socket| {
            let since = Time(socket.since_us);
            if socket.connection.is_negotiating() && now.since(since) > NEGOTIATION_US_MAX {
                socket.break_off();
            }
        });
    }
}

/// Whether a request has its payload with it.
fn carries(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}
