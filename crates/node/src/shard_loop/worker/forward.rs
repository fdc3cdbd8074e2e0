//! Requests for vDisks, whoever serves them: the way there, the way back, and the time in between when nobody does.
//!
//! A request that got no answer, or was told that its vDisk is not served there (any more), is held and asked again, of
//! whoever serves it then, for [`PATIENCE_US_MAX`], or as long as a drive is awaited that hangs. All requests can be asked twice, and the client sees them happen
//! once: until it is answered, a request may take effect at any moment, and none takes effect after its answer, because
//!
//! - what went to one owner on one connection arrives there in order, so a copy that is still under way is carried out
//!   before whatever the client sends after the answer; of an older connection nothing is heard once there is a newer one; and one
//!   shard of this node asks for all of them (`routes`);
//! - an owner carries out only what was sent to it in its own epoch, and an owner of an older epoch can acknowledge
//!   nothing once the next one serves (I2).
//!
//! Leaves to others: the connections (`peer`), who serves what (`routes`, told by the control plane).

use super::Worker;
use super::routes::{Route, Way};
use super::windows::Windows;
use crate::shard_loop::mailbox::{Answer, Mail};
use crate::shard_loop::peer::{Arrived, RemoteRequest, is_of_owners, weight};
use crate::shard_loop::statistics::Kind;
use crate::shard_loop::tickets::{Open, Origin};
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_engine::interface::{Input, Reply, Request, RequestError};
use weft_engine::stages::Stage;
use weft_engine::{FamilyId, ShardId, Ticket, Time};
use weft_frontends::nbd::Handle;

/// Requests for which the engine was busy are tried again after this time ...
const BUSY_RETRY_US: u64 = 1_000;

/// ... those for a vDisk that nobody serves after this one, or as soon as somebody is known to.
const REFUSED_RETRY_US: u64 = 20_000;

/// So long a request waits for somebody who serves its vDisk. Then it fails.
pub(super) const PATIENCE_US_MAX: u64 = 30_000_000;

/// Requests on their way to shards of other nodes.
#[derive(Default)]
pub(super) struct Forwards {
    last: u64,
    open: BTreeMap<u64, Forward>,
    windows: Windows,
}

impl Forwards {
    /// A request is open no more.
    fn remove(&mut self, number: u64) -> Option<Forward> {
        let forward = self.open.remove(&number)?;
        if let Some(bytes) = forward.window {
            self.windows.close(forward.route.shard, forward.family, bytes);
        }
        Some(forward)
    }
}

struct Forward {
    family: FamilyId,
    route: Route,
    kind: Kind,
    since: Time,
    /// The bytes it has taken of the window of its vDisk's clients, if it is one of theirs.
    window: Option<usize>,
    origin: Origin,
}

/// A request of this node's that is not from a connection, held to be asked again.
pub(super) struct Held {
    family: FamilyId,
    request: Request,
    answer: Answer,
    /// When it was first told that nobody serves its vDisk.
    refused: Option<Time>,
}

/// What is to be done with a reply.
enum Verdict {
    Give,
    /// Another node may answer it, and this one ends.
    Leave,
    /// Ask again; it was first refused then.
    Again(Option<Time>),
}

impl Worker {
    /// Asks whoever serves the family. The reply comes to [`Worker::deliver`].
    pub(super) fn ask(&mut self, now: Time, family: FamilyId, request: Request, origin: Origin) {
        if let Origin::Elsewhere { answer, .. } = &origin
            && !answer.is_wanted()
        {
            // Dropped, it says so.
            return;
        }
        match self.routes.way(family) {
            // The engine would do it all and answer in vain, again and again. Of other nodes it is asked: they have leases of their own.
            Way::Here if self.lease_is_over => {
                self.deliver(now, family, origin, Reply::Error(RequestError::NotServed));
            }
            // To whoever asks the engine is busy for a moment: it asks again.
            Way::Here if self.is_held(now, family) => {
                self.deliver(now, family, origin, Reply::Error(RequestError::Busy));
            }
            Way::Here => {
                let ticket = self.open(now, family, &request, origin);
                self.inputs.push_back(Input::Request { ticket, family, request });
            }
            Way::Neighbour(index) => self.ask_neighbour(index, family, request, origin),
            Way::Remote(route) => self.forward(now, route, family, request, origin),
            Way::Nowhere => self.deliver(now, family, origin, Reply::Error(RequestError::NotServed)),
        }
    }

    pub(super) fn open(&mut self, now: Time, family: FamilyId, request: &Request, origin: Origin) -> Ticket {
        let depth = self.observer.opened(now, family, request);
        self.tickets.open(Open { family, kind: Kind::of(request), since: now, depth, origin })
    }

    /// Snapshots of this vDisk and others are being taken at one instant: what is asked now comes behind it.
    fn is_held(&self, now: Time, family: FamilyId) -> bool {
        self.holds.range((family, 0)..=(family, u64::MAX)).any(|(_, until)| *until > now)
    }

    fn ask_neighbour(&mut self, index: usize, family: FamilyId, request: Request, origin: Origin) {
        let answer = match origin {
            Origin::Socket { slot, generation, handle } => {
                let home = Arc::clone(&self.mailbox);
                // Kept there until somebody serves the vDisk, it could come behind what the client, back on another connection, has
                // had answered meanwhile: only its own shard sees that it has gone.
                let ended = self.socket(slot).ended();
                Answer::at_once(ended, move |reply| {
                    home.send(Mail::Answered { slot, generation, handle, reply })
                })
            }
            Origin::Elsewhere { answer, .. } => answer,
            Origin::Remote(_) => unreachable!("what comes from other nodes is not passed on"),
        };
        self.neighbours[index].send(Mail::Request { family, request, answer });
    }

    fn forward(&mut self, now: Time, route: Route, family: FamilyId, request: Request, origin: Origin) {
        self.forwards.last += 1;
        let number = self.forwards.last;
        let kind = Kind::of(&request);
        let Route { shard, epoch } = route;
        // What an owner needs of another one clients wait for who have their room already.
        let window = (!is_of_owners(&request)).then(|| weight(&request));
        if let Some(bytes) = window
            && !self.forwards.windows.open(shard, family, bytes)
        {
            return self.deliver(now, family, origin, Reply::Error(RequestError::Busy));
        }
        match self.peers.forward(now, shard, number, family, epoch, request, &mut self.ring) {
            Ok(()) => {
                self.forwards
                    .open
                    .insert(number, Forward { family, route, kind, since: now, window, origin });
            }
            Err(error) => {
                if let Some(bytes) = window {
                    self.forwards.windows.close(shard, family, bytes);
                }
                self.deliver(now, family, origin, Reply::Error(error));
            }
        }
    }

    /// Whoever serves it has answered, if only to be asked again: for how long nobody does is counted anew.
    pub(super) fn note_served(&mut self, origin: &mut Origin, reply: &Reply) {
        if !matches!(reply, Reply::Error(RequestError::Busy)) {
            return;
        }
        match origin {
            Origin::Socket { slot, generation, handle } => {
                let place = &mut self.sockets[*slot as usize];
                if place.generation == *generation {
                    place.refused.remove(handle);
                }
            }
            Origin::Elsewhere { refused, .. } => *refused = None,
            Origin::Remote(_) => {}
        }
    }

    /// A reply goes to whoever asked, unless it is to be asked again.
    pub(super) fn deliver(&mut self, now: Time, family: FamilyId, origin: Origin, reply: Reply) {
        match origin {
            Origin::Socket { slot, generation, handle } => {
                self.answer_socket(now, slot, generation, handle, reply);
            }
            Origin::Elsewhere { answer, .. } if answer.asks_again() => answer.give(reply),
            Origin::Elsewhere { answer, request, refused } => match self.verdict(now, &reply, refused) {
                Verdict::Give | Verdict::Leave => answer.give(reply),
                Verdict::Again(refused) => self.held.push(Held { family, request, answer, refused }),
            },
            Origin::Remote(asker) => self.peers.reply(asker, reply),
        }
    }

    pub(super) fn answer_socket(
        &mut self,
        now: Time,
        slot: u32,
        generation: u32,
        handle: Handle,
        reply: Reply,
    ) {
        let place = &self.sockets[slot as usize];
        if place.generation != generation || place.socket.is_none() {
            // The client left before its answer came.
            return self.departed.on_answered((slot, generation), handle, &mut self.budget);
        }
        // No client asks for more than it was told there is. Whoever serves the vDisk has not heard yet that it has grown.
        let not_yet = Reply::Error(RequestError::NotServed);
        let lags = matches!(reply, Reply::Error(RequestError::OutOfRange));
        let verdict =
            self.verdict(now, if lags { &not_yet } else { &reply }, place.refused.get(&handle).copied());
        let place = &mut self.sockets[slot as usize];
        let socket = place.socket.as_mut().expect("just seen");
        match verdict {
            // Whose connection ends asks another node; an error would be final, and a file system would stop writing.
            Verdict::Leave => {
                socket.break_off();
                // Nobody hears it, but nothing is waited for any more.
                socket.connection.reply(handle, reply);
            }
            Verdict::Give => {
                place.refused.remove(&handle);
                socket.connection.reply(handle, reply);
            }
            Verdict::Again(since) => {
                if let Some(since) = since {
                    place.refused.insert(handle, since);
                }
                // To the connection it is all the same why it has to ask again.
                socket.connection.reply(handle, Reply::Error(RequestError::Busy));
            }
        }
        self.touch(slot);
    }

    fn verdict(&mut self, now: Time, reply: &Reply, refused: Option<Time>) -> Verdict {
        match reply {
            Reply::Error(RequestError::Busy) => {
                self.retry_after(now, BUSY_RETRY_US);
                Verdict::Again(refused)
            }
            Reply::Error(RequestError::NotServed | RequestError::Fenced) if self.may_be_served(now) => {
                let since = refused.unwrap_or(now);
                if self.ending {
                    return Verdict::Leave;
                }
                if now.since(since) >= PATIENCE_US_MAX && now >= self.awaited_until {
                    return Verdict::Give;
                }
                self.retry_after(now, REFUSED_RETRY_US);
                Verdict::Again(Some(since))
            }
            _ => Verdict::Give,
        }
    }

    /// Whether what nobody can serve now somebody may serve soon.
    pub(super) fn may_be_served(&self, now: Time) -> bool {
        self.routes.may_change() || now < self.awaited_until
    }

    /// A drive that hangs counts as down: what lies only there, or is served only with it, is awaited for as long as that lasts, as
    /// if the drive were asked. When it answers, vDisks that could not do without it may have to be opened again first.
    pub(super) fn await_drives(&mut self, now: Time, awaits: bool) {
        self.awaited_until = if awaits { Time(u64::MAX) } else { now.after(PATIENCE_US_MAX) };
        self.retry_at = Some(now);
    }

    /// There was no room for something of a client's.
    pub(super) fn retry_soon(&mut self, now: Time) {
        self.retry_after(now, BUSY_RETRY_US);
    }

    fn retry_after(&mut self, now: Time, us: u64) {
        let at = now.after(us);
        self.retry_at = Some(self.retry_at.map_or(at, |other| other.min(at)));
    }

    /// Asks again what could not be answered.
    pub(super) fn retry(&mut self, now: Time) {
        for Held { family, request, answer, refused } in std::mem::take(&mut self.held) {
            let origin = Origin::Elsewhere { answer, request: request.clone(), refused };
            self.ask(now, family, request, origin);
        }
        // Another one is first each time: room that was given back is not always for the same.
        let count = self.sockets.len() as u32;
        self.retry_from = if self.retry_from < count { self.retry_from + 1 } else { 0 };
        for slot in (self.retry_from..count).chain(0..self.retry_from.min(count)) {
            if let Some(socket) = &mut self.sockets[slot as usize].socket
                && (socket.waits_for_room() || socket.connection.is_holding())
            {
                if !socket.leave_if_closed() {
                    socket.connection.resume();
                }
                self.touch(slot);
            }
        }
    }

    /// The control plane tells who serves what. What is on its way to somebody who does not any more is asked again.
    pub(super) fn on_routes(&mut self, now: Time, table: BTreeMap<FamilyId, Route>) {
        self.routes.set(table);
        let routes = &self.routes;
        let outdated = |forward: &Forward| routes.way(forward.family) != Way::Remote(forward.route);
        let outdated: Vec<u64> = self
            .forwards
            .open
            .iter()
            .filter(|(_, forward)| outdated(forward))
            .map(|(number, _)| *number)
            .collect();
        self.refuse_forwards(now, &outdated);
        // Whoever waits for an owner may have one now.
        self.retry_at = Some(now);
    }

    /// What has arrived from other nodes.
    pub(super) fn hear(&mut self, now: Time) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.peers.pump(now, &self.payloads, &mut self.ring, &mut arrived);
        self.peers.look(now, &mut self.ring, &mut arrived);
        for arrived in arrived.drain(..) {
            match arrived {
                Arrived::Message { from, message } => {
                    self.inputs.push_back(Input::Message { from, message });
                }
                Arrived::Unheard(shard) => self.inputs.push_back(Input::Unheard { shard }),
                Arrived::News(news) => self.tell(news),
                Arrived::Request(request) => self.remote.push_back(request),
                Arrived::Reply { from, number, reply } => self.on_forwarded(now, from, number, reply),
                Arrived::Lost(shard) => {
                    let lost = |forward: &Forward| forward.route.shard == shard;
                    let open = self.forwards.open.iter();
                    let lost: Vec<u64> =
                        open.filter(|(_, forward)| lost(forward)).map(|(number, _)| *number).collect();
                    self.refuse_forwards(now, &lost);
                }
            }
        }
        self.arrived = arrived;
    }

    fn refuse_forwards(&mut self, now: Time, numbers: &[u64]) {
        for number in numbers {
            let forward = self.forwards.remove(*number).expect("its number was just listed");
            let reply = Reply::Error(RequestError::NotServed);
            self.deliver(now, forward.family, forward.origin, reply);
        }
    }

    /// The owner has answered. Numbers that are not known are of requests that were asked again meanwhile.
    fn on_forwarded(&mut self, now: Time, from: ShardId, number: u64, reply: Reply) {
        let Some(mut forward) = self.forwards.remove(number) else { return };
        if forward.route.shard != from || !answers(forward.kind, &reply) {
            tracing::error!(shard = from.0, "a shard answered something else than it was asked");
            self.peers.distrust(from);
            let refused = Reply::Error(RequestError::NotServed);
            return self.deliver(now, forward.family, forward.origin, refused);
        }
        self.observer.stages.record_us(Stage::Forward, now.since(forward.since));
        self.note_served(&mut forward.origin, &reply);
        self.deliver(now, forward.family, forward.origin, reply);
    }

    /// Gives the engine what other nodes forward to it. Only now, when all else has been taken, is it known who is
    /// served in which epoch.
    pub(super) fn take_remote(&mut self, now: Time) {
        while let Some(RemoteRequest { asker, family, epoch, request }) = self.remote.pop_front() {
            let is_served = self.shard.volume(family).is_some_and(|volume| volume.epoch() == epoch);
            if is_served && self.is_held(now, family) {
                self.peers.reply(asker, Reply::Error(RequestError::Busy));
            } else if is_served && !self.lease_is_over {
                let ticket = self.open(now, family, &request, Origin::Remote(asker));
                self.statistics.steps += 1;
                self.shard.take(now, Input::Request { ticket, family, request }, &mut self.outputs);
            } else {
                self.peers.reply(asker, Reply::Error(RequestError::NotServed));
            }
        }
    }
}

/// Whether this is a reply to such a request: what comes from elsewhere is not believed without looking.
fn answers(kind: Kind, reply: &Reply) -> bool {
    match (kind, reply) {
        (_, Reply::Error(_)) | (Kind::Write { .. } | Kind::Zero | Kind::Flush, Reply::Done) => true,
        (Kind::Read { bytes } | Kind::ReadOrigin { bytes }, Reply::Data(pieces)) => {
            pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() == bytes
        }
        // Who asks for the next step gets further each time.
        (Kind::Warm { offset }, Reply::Warmed(warmed)) => warmed.to > offset,
        (Kind::Other, Reply::Extents(extents)) => extents.iter().any(|extent| extent.len > 0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_engine::buffer::zeros;
    use weft_engine::interface::{Extent, Warmed};

    #[test]
    fn a_reply_has_to_fit_its_request() {
        let read = Kind::Read { bytes: 100 };
        assert!(answers(read, &Reply::Data(vec![zeros(60), zeros(40)])));
        assert!(!answers(read, &Reply::Data(vec![zeros(60)])));
        assert!(!answers(read, &Reply::Done));
        assert!(answers(Kind::ReadOrigin { bytes: 60 }, &Reply::Data(vec![zeros(60)])));
        assert!(answers(Kind::Write { bytes: 1 }, &Reply::Done));
        assert!(!answers(Kind::Flush, &Reply::Data(Vec::new())));
        assert!(answers(Kind::Other, &Reply::Extents(vec![Extent { len: 1, data: true }])));
        assert!(!answers(Kind::Other, &Reply::Extents(Vec::new())));
        let warmed = |to| Reply::Warmed(Warmed { to, ..Warmed::default() });
        assert!(
            answers(Kind::Warm { offset: 4 }, &warmed(5)) && !answers(Kind::Warm { offset: 4 }, &warmed(4))
        );
        assert!(answers(Kind::Zero, &Reply::Error(RequestError::Busy)));
    }
}
