//! Requests of clones to whoever serves their origin, on the way that nodes carry them.
//! Promises: a request is asked again for as long as nobody serves the origin, or whoever did has died or moved on; its answer
//! reaches only the process that asked.
//! Leaves to others: what the answer has to be (`answers`, when the clone's own clients get theirs).

use crate::event::Event;
use crate::judge::registers::Moment;
use crate::requests::{Asked, Open};
use crate::world::World;
use rand::Rng;
use std::collections::BTreeMap;
use weft_engine::interface::{OriginRequest, RequestError};
use weft_engine::{FamilyId, Input, Reply, Request, Ticket};

/// The owner was busy for a moment, or nobody serves the origin: then it is asked again ...
const BUSY_RETRY_US: u64 = 1_000;
const REFUSED_RETRY_US: u64 = 20_000;
/// ... for so long. (A node has ten times as much patience.)
const PATIENCE_US: u64 = 3_000_000;

/// A request on its way, or held until it can be asked.
struct Ask {
    shard: usize,
    incarnation: u32,
    request: OriginRequest,
    refused: Option<u64>,
}

#[derive(Default)]
pub struct Origins {
    last: u64,
    open: BTreeMap<u64, Ask>,
}

impl World {
    /// The engine of a shard wants to know something of an origin.
    pub fn origin_wanted(&mut self, shard: usize, request: OriginRequest) {
        self.coverage.count("requests to origins");
        self.origins.last += 1;
        let incarnation = self.shards[shard].incarnation;
        self.origins.open.insert(self.origins.last, Ask { shard, incarnation, request, refused: None });
        self.ask_origin(self.origins.last);
    }

    /// A message from shard to shard that keeps a connection: when it arrives; None if the connection breaks.
    fn travel(&mut self, from: usize, to: usize) -> Option<u64> {
        let (from_node, to_node) = (self.shards[from].node, self.shards[to].node);
        if from_node == to_node {
            return Some(self.network.inside(self.now, from, to, &mut self.rng));
        }
        self.network.between(self.now, from_node, to_node, &mut self.rng).first
    }

    /// Asks whoever serves the origin now.
    pub fn ask_origin(&mut self, ask: u64) {
        let Some(open) = self.origins.open.get(&ask) else { return };
        let (from, of) = (open.shard, open.request.family.0 as usize);
        if self.shards[from].incarnation != open.incarnation || self.shards[from].engine.is_none() {
            self.origins.open.remove(&ask);
            return;
        }
        let Some(to) = self.control.route(of, &mut self.rng) else {
            return self.refuse_origin(ask, RequestError::NotServed);
        };
        match self.travel(from, to) {
            Some(time) => {
                let incarnation = self.shards[to].incarnation;
                self.queue.push(time, Event::OriginAsked { ask, shard: to, incarnation });
            }
            None => self.origin_unheard(ask),
        }
    }

    /// The request is where the origin was served when it left.
    pub fn origin_asked(&mut self, ask: u64, shard: usize, incarnation: u32) {
        let Some(open) = self.origins.open.get(&ask) else { return };
        let (of, request): (FamilyId, Request) = (open.request.family, open.request.request.clone());
        if self.shards[shard].incarnation != incarnation || self.shards[shard].engine.is_none() {
            return self.origin_unheard(ask);
        }
        let family = of.0 as usize;
        let began: Moment = self.moment();
        let epoch = self.control.serving_epoch(shard, family);
        let ticket = self.requests.open(Open {
            ticket: Ticket(0),
            family,
            client: usize::MAX,
            shard,
            epoch,
            asked: Asked::ForClone { ask },
            began,
            since: self.now,
            clock: self.now + self.shards[shard].clock_ahead,
        });
        self.request(shard, ticket, of, request);
    }

    /// The connection broke before there was an answer.
    pub fn origin_unheard(&mut self, ask: u64) {
        self.coverage.count("requests to origins that were not heard");
        let pause = self.rng.random_range(REFUSED_RETRY_US..20 * REFUSED_RETRY_US);
        self.queue.push(self.now + pause, Event::OriginAgain(ask));
    }

    fn refuse_origin(&mut self, ask: u64, error: RequestError) {
        let now = self.now;
        let Some(open) = self.origins.open.get_mut(&ask) else { return };
        let (since, asker) = (*open.refused.get_or_insert(now), open.shard);
        if now - since > PATIENCE_US {
            // Its own node gives up, so nothing has to travel far.
            self.coverage.count("requests to origins given up");
            return self.tell_asker(ask, asker, Reply::Error(error));
        }
        self.queue.push(now + REFUSED_RETRY_US, Event::OriginAgain(ask));
    }

    /// Whoever was asked has answered.
    pub fn origin_answered(&mut self, open: &Open, ask: u64, reply: Reply) {
        let Some(Ask { request, .. }) = self.origins.open.get(&ask) else { return };
        let clone = &self.families[request.asker.0 as usize];
        match reply {
            Reply::Error(RequestError::Busy) => {
                self.queue.push(self.now + BUSY_RETRY_US, Event::OriginAgain(ask));
            }
            Reply::Error(error @ (RequestError::NotServed | RequestError::Fenced)) => {
                self.refuse_origin(ask, error);
            }
            Reply::Error(RequestError::NoSnapshot) if clone.exists => {
                let origin = clone.origin.expect("only clones ask origins");
                // An owner from before it was taken does not know it.
                if self.families[open.family].snapshots.may_be_missing(origin.snapshot, open.epoch) {
                    return self.refuse_origin(ask, RequestError::NotServed);
                }
                self.fail(format!(
                    "family {} is a clone of generation {} of family {}, whose owner in epoch {} does not know that",
                    request.asker, origin.snapshot, open.family, open.epoch
                ));
            }
            reply => self.tell_asker(ask, open.shard, reply),
        }
    }

    fn tell_asker(&mut self, ask: u64, from: usize, reply: Reply) {
        let Some(Ask { shard, .. }) = self.origins.open.get(&ask) else { return };
        let Some(time) = self.travel(from, *shard) else { return self.origin_unheard(ask) };
        let Ask { shard, incarnation, request, .. } =
            self.origins.open.remove(&ask).expect("it was just seen");
        self.coverage.count("answers of origins");
        let input = Input::Told { family: request.asker, ask: request.ask, reply };
        self.queue.push(time, Event::Input { shard, incarnation, input });
    }
}
