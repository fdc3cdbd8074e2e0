//! The pretend machine: nodes, shards, drives, a network and time, and the one loop that moves them.
//! Promises: one thread, one source of randomness, one order of events: the same plan and seed is the same
//! history, to the last byte. Leaves to others: what clients ask (`client`), what the control plane wants
//! (`control`), what goes wrong (`atlas`), when it is over (`phase`).

use crate::client::Client;
use crate::control::{Control, Lease, Sight};
use crate::coverage::Coverage;
use crate::drive::Drive;
use crate::event::{Event, Queue};
use crate::family::Family;
use crate::judge::ceilings::Ceilings;
use crate::judge::deletions::Deletions;
use crate::judge::idling::Idling;
use crate::judge::refusals::Refusals;
use crate::judge::registers::Moment;
use crate::judge::thin::Thin;
use crate::judge::undrained::Undrained;
use crate::network::Network;
use crate::origins::Origins;
use crate::phase::{Phase, Progress};
use crate::plan::Parameters;
use crate::requests::Requests;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::counters::Source;
use weft_engine::identity::Generation;
use weft_engine::interface::{Area, DriveOperation, DriveWork, RequestError, View};
use weft_engine::message::Message;
use weft_engine::sabotage::{Bug, planted};
use weft_engine::shard::{Settings, Shard};
use weft_engine::{
    DriveId, EgroupId, FamilyId, Input, Order, Outputs, Reply, Request, ShardId, Ticket, Time,
};

/// A run that takes more events than this has got stuck in a circle.
const EVENTS_MAX: u64 = 20_000_000;

pub struct NodeState {
    pub shards: std::ops::Range<usize>,
    pub up: bool,
    /// When it went down.
    pub away_since: Option<u64>,
    /// What waits for a process that sleeps; None while it does not.
    pub waiting: Option<Vec<Event>>,
    pub pauses: u32,
    /// Orders that wait until the config store can be reached again; None while it can.
    pub store_cut: Option<Vec<(usize, u32, Order)>>,
    pub lease: Lease,
    /// What it thinks of each node.
    pub sights: Vec<Sight>,
    pub rack: u32,
    /// It serves vDisks only when nobody else can.
    pub storage_only: bool,
    /// It is to be left alone.
    pub draining: bool,
    /// It was taken away for good.
    pub removed: bool,
}

pub struct ShardState {
    /// As engines call it: shards of one node are told by their names.
    pub id: ShardId,
    pub node: usize,
    pub engine: Option<Box<Shard>>,
    pub incarnation: u32,
    /// The time of the next planned wake-up.
    wake: Option<u64>,
    /// The engine's clock shows this much more than the world's.
    pub clock_ahead: u64,
    /// The last view that the control plane told.
    pub common: Option<View>,
    /// The version of the view that was made of it.
    pub view: u64,
    /// vDisks for which no request is taken, and until when.
    pub holds: BTreeMap<usize, u64>,
}

pub struct World {
    pub parameters: Parameters,
    pub now: u64,
    moment: u64,
    pub rng: SmallRng,
    /// Of snapshots only: seeds without them are the same histories as if there were none.
    pub snapshot_rng: SmallRng,
    pub image_rng: SmallRng,
    /// Likewise, of clones and of rolling back.
    pub clone_rng: SmallRng,
    /// Likewise, of numbers of copies.
    pub factor_rng: SmallRng,
    /// Likewise, of drives that are told to be slow.
    pub slow_rng: SmallRng,
    pub queue: Queue,
    pub nodes: Vec<NodeState>,
    pub shards: Vec<ShardState>,
    pub drives: Vec<Drive>,
    pub network: Network,
    pub control: Control,
    /// Snapshots that were taken together: of what vDisk, and which.
    pub together: Vec<Vec<(usize, Generation)>>,
    pub families: Vec<Family>,
    pub clients: Vec<Client>,
    pub requests: Requests,
    pub origins: Origins,
    pub ceilings: Ceilings,
    deletions: Deletions,
    undrained: Undrained,
    idling: Idling,
    pub thin: Thin,
    pub refusals: Refusals,
    pub coverage: Coverage,
    pub phase: Phase,
    pub progress: Progress,
    /// The drive whose copies are not to be trusted in this round.
    pub victim: Option<usize>,
    /// The node that may be away beside it in this round.
    pub absentee: Option<usize>,
    /// When the victim may have had last what nobody else that is there has.
    pub alone_at: u64,
    /// The victim's node has come back after the power had gone everywhere, and the victim is to be lost.
    pub blacked_out: bool,
    /// All drives that were victims so far.
    pub lied: BTreeSet<DriveId>,
    /// Of which something became bad in all copies, and the blocks of a copy that frames lie on of which that is true.
    pub rotten_egroups: BTreeMap<(FamilyId, EgroupId), BTreeSet<u64>>,
    /// Of which each copy became bad somewhere else.
    pub scattered: BTreeSet<(FamilyId, EgroupId)>,
    /// Blocks of drives' data areas that cannot be read for a while.
    pub faltering: BTreeSet<(usize, usize)>,
    pub failure: Option<String>,
    pub trace: bool,
    outputs: Outputs,
    tokens: u64,
}

impl World {
    pub fn new(parameters: Parameters, trace: bool) -> Self {
        let rng =
            SmallRng::seed_from_u64(parameters.seed.wrapping_mul(31).wrapping_add(parameters.plan as u64));
        let mut world = Self {
            now: 1,
            moment: 1,
            rng,
            snapshot_rng: SmallRng::seed_from_u64(!parameters.seed),
            image_rng: SmallRng::seed_from_u64(parameters.seed ^ 0x1a6e),
            clone_rng: SmallRng::seed_from_u64(!parameters.seed.rotate_left(20)),
            factor_rng: SmallRng::seed_from_u64(!parameters.seed.rotate_left(40)),
            slow_rng: SmallRng::seed_from_u64(parameters.seed ^ 0x510e),
            queue: Queue::default(),
            nodes: Vec::new(),
            shards: Vec::new(),
            drives: Vec::new(),
            network: Network::new(parameters.network_us),
            control: Control::default(),
            together: Vec::new(),
            families: Vec::new(),
            clients: Vec::new(),
            requests: Requests::default(),
            origins: Origins::default(),
            ceilings: Ceilings::default(),
            deletions: Deletions::default(),
            undrained: Undrained::default(),
            idling: Idling::default(),
            thin: Thin::default(),
            refusals: Refusals::default(),
            coverage: Coverage::default(),
            phase: Phase::Starting,
            progress: Progress::new(),
            victim: None,
            absentee: None,
            alone_at: 0,
            blacked_out: false,
            lied: BTreeSet::new(),
            rotten_egroups: BTreeMap::new(),
            scattered: BTreeSet::new(),
            faltering: BTreeSet::new(),
            failure: None,
            trace,
            outputs: Outputs::default(),
            tokens: 0,
            parameters,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        for node in 0..self.parameters.nodes {
            self.add_node(self.parameters.shards[node]);
        }
        if !self.is_cluster() {
            self.make_groups();
        }
        for plan in self.parameters.families.clone() {
            self.create_family(&plan);
        }
        for node in 0..self.nodes.len() {
            let delay = self.rng.random_range(0..2_000);
            self.queue.push(self.now + delay, Event::NodeStarts(node));
        }
        self.queue.push(self.now + 1_000, Event::ControlTick);
        self.queue.push(self.now + 1_000, Event::PhaseTick);
    }

    /// A node whose process does not run yet, with its shards and empty drives.
    pub fn add_node(&mut self, shards: usize) -> usize {
        let (node, first) = (self.nodes.len(), self.shards.len());
        for number in 0..shards {
            let shard = self.shards.len();
            let id = ShardId::of(node as u32, number as u32);
            let clock_ahead = self.parameters.clock_origin + self.rng.random_range(0..1 << 30);
            self.shards.push(ShardState {
                id,
                node,
                engine: None,
                incarnation: 0,
                wake: None,
                clock_ahead,
                common: None,
                view: 0,
                holds: BTreeMap::new(),
            });
            for _ in 0..self.parameters.drives {
                self.add_drive(shard);
            }
        }
        let rack = self.rng.random_range(0..self.parameters.racks);
        self.nodes.push(NodeState {
            shards: first..self.shards.len(),
            up: false,
            away_since: None,
            waiting: None,
            pauses: 0,
            store_cut: None,
            lease: Lease::new(&mut self.rng),
            sights: Vec::new(),
            rack,
            storage_only: self.parameters.storage_only.contains(&node),
            draining: false,
            removed: false,
        });
        for state in &mut self.nodes {
            state.sights.resize(node + 1, Sight::default());
        }
        self.network.set_shards(self.shards.len());
        node
    }

    /// A new, empty drive at `shard`.
    pub fn add_drive(&mut self, shard: usize) -> DriveId {
        let drive = DriveId(self.drives.len() as u32);
        let node = self.shards[shard].node;
        let mut geometry = self.parameters.geometry;
        if self.parameters.small_node == Some(node) {
            geometry.data /= 2;
        }
        self.drives.push(Drive::new(shard, geometry));
        let domain = if self.parameters.nodes == 1 { drive.0 } else { node as u32 };
        self.control.add_drive(shard, self.shards[shard].id, domain);
        drive
    }

    /// A point in history that is unlike any other.
    pub fn moment(&mut self) -> Moment {
        self.moment += 1;
        Moment(self.moment)
    }

    /// The first failure is the one that counts.
    pub fn fail(&mut self, what: String) {
        if self.failure.is_none() {
            self.failure = Some(format!("at {} us, event {}: {what}", self.now, self.coverage.events));
        }
    }

    /// Runs until the phases are through or something failed.
    pub fn run(&mut self) {
        while self.failure.is_none() && self.phase != Phase::Over {
            let Some((time, event)) = self.queue.pop() else {
                self.fail("nothing will ever happen again".into());
                break;
            };
            self.now = self.now.max(time);
            self.coverage.events += 1;
            if self.coverage.events > EVENTS_MAX {
                self.fail(format!("more than {EVENTS_MAX} events: something goes round in a circle"));
            }
            self.happen(event);
        }
        self.coverage.seeds = 1;
        self.coverage.virtual_us = self.now;
        self.count_reads();
    }

    /// Where the shards that live at the end had their reads from.
    fn count_reads(&mut self) {
        let engines = self.shards.iter().filter_map(|shard| shard.engine.as_ref());
        for engine in engines {
            let blocks = &engine.counters().sources.blocks;
            let (units, ahead) = (&engine.cache().units.counters, &engine.cache().ahead.counters);
            let held = engine.keepers().map(|(_, keeper)| keeper.held_back());
            let (reads, background) =
                held.fold((0, 0), |sum, held| (sum.0 + held.reads, sum.1 + held.background));
            for (what, number) in [
                ("requests that limits made wait", engine.counters().throttled.requests),
                ("reads that waited for their turn", reads),
                ("background work that waited for its turn", background),
                ("blocks read from the overlay", blocks[Source::Overlay as usize]),
                ("blocks read from the cache", blocks[Source::Cache as usize]),
                ("blocks read that were read ahead", blocks[Source::Ahead as usize]),
                ("blocks read from drives", blocks[Source::Local as usize] + blocks[Source::Remote as usize]),
                ("egroups that followed their vDisk", engine.counters().egroups_followed),
                ("copies of parts of logs made late", engine.counters().late_copies),
                ("copies of parts of logs made late", engine.counters().late_copies),
                ("units that came back to the cache", units.returned),
                ("units evicted from the cache", units.evicted),
                ("units read ahead in vain", ahead.wasted),
                ("reads that waited for read-ahead", ahead.waited),
                ("read-ahead refused for lack of room", ahead.refused),
            ] {
                self.coverage.add(what, number);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input { shard, incarnation, input } => self.deliver(shard, incarnation, input),
            Event::DriveEnds { drive, operation, cuts } => self.drive_ends(drive, operation, cuts),
            Event::Wake { shard, incarnation } => self.wake(shard, incarnation),
            Event::Order { shard, incarnation, order } => self.order_arrives(shard, incarnation, order),
            Event::Notice { shard, incarnation, notice } => self.notice_arrives(shard, incarnation, notice),
            Event::Client(client) => self.client_asks(client),
            Event::Fault => self.fault(),
            Event::Snapshot => self.snapshot_tick(),
            Event::Clone => self.clone_tick(),
            Event::Factor => self.factor_tick(),
            Event::Hold { shard, incarnation, family } => self.hold(shard, incarnation, family),
            Event::Held { family } => self.held(family),
            Event::OriginAsked { ask, shard, incarnation } => self.origin_asked(ask, shard, incarnation),
            Event::OriginAgain(ask) => self.ask_origin(ask),
            Event::NodeStarts(node) => self.node_starts(node),
            Event::NodeWakes { node, pause } => self.node_wakes(node, pause),
            Event::ReadBack { client, family, shard, snapshot, first, sectors } => match snapshot {
                None => self.ask_read(client, family, shard, first, sectors),
                Some(snapshot) => self.ask_snapshot_read(client, family, shard, snapshot, first, sectors),
            },
            Event::StoreHeals(node) => self.store_heals(node),
            Event::DriveReturns(drive) => self.drives[drive].gone = false,
            // Only while it is the victim and still away: in the next round another drive may be the victim,
            // and two lost ones are more than anybody promises to survive.
            Event::DriveReplaced(drive) if self.victim == Some(drive) && self.drives[drive].gone => {
                self.drive_replaced(drive);
            }
            Event::DriveReplaced(_) => {}
            Event::DriveLost(drive) => self.lose(drive),
            Event::EndsBadly(drive) => self.end_badly_again(drive),
            Event::Blackout => self.blackout(),
            Event::PowerIsBack(drive) => self.power_is_back(drive),
            Event::BlackoutAgain(drive) => self.blackout_again(drive),
            Event::WriteRots => self.write_rots(),
            Event::UnitsRot => self.units_rot(),
            Event::CopiesRot => self.copies_rot(),
            Event::UnitsHeal(places) => self.units_heal(&places),
            Event::ControlTick => self.control_tick(),
            Event::PhaseTick => self.phase_tick(),
        }
    }

    /// Where what comes to a shard has to wait, if its process sleeps.
    fn waiting(&mut self, shard: usize) -> Option<&mut Vec<Event>> {
        self.nodes[self.shards[shard].node].waiting.as_mut()
    }

    /// A process that slept goes on with what came in the meantime: it does not know that it slept.
    pub fn node_wakes(&mut self, node: usize, pause: u32) {
        if self.nodes[node].pauses != pause {
            return;
        }
        let Some(waiting) = self.nodes[node].waiting.take() else { return };
        for event in waiting {
            match event {
                // It had come before, whatever has become of the link to the store since.
                Event::Order { shard, incarnation, order } => self.order_received(shard, incarnation, order),
                event => self.happen(event),
            }
        }
    }

    /// Gives `input` to a shard, unless the process it was meant for is dead.
    pub fn deliver(&mut self, shard: usize, incarnation: u32, input: Input) {
        if self.shards[shard].incarnation != incarnation || self.shards[shard].engine.is_none() {
            return;
        }
        if let Some(waiting) = self.waiting(shard) {
            waiting.push(Event::Input { shard, incarnation, input });
            return;
        }
        if let Input::Request { ticket, family, .. } = &input
            && self.shards[shard].holds.get(&(family.0 as usize)).is_some_and(|&until| until > self.now)
        {
            return self.replied(shard, *ticket, Reply::Error(RequestError::Busy));
        }
        self.step(shard, input);
    }

    fn step(&mut self, shard: usize, input: Input) {
        if self.trace {
            self.trace_input(shard, &input);
        }
        let state = &mut self.shards[shard];
        let engine = state.engine.as_mut().expect("only living shards are stepped");
        let now = Time(self.now + state.clock_ahead);
        self.ceilings.told(shard, &input, now.0, self.now);
        self.undrained.told(shard, &input);
        self.refusals.given(&input, engine);
        let mut outputs = std::mem::take(&mut self.outputs);
        let is_woken = matches!(input, Input::Wake);
        // A node settles once for all that came together; here sometimes a microsecond later.
        if self.rng.random_ratio(1, 4) && !is_woken {
            engine.take(now, input, &mut outputs);
        } else {
            engine.step(now, input, &mut outputs);
        }
        // Whoever has nothing of a drive gets something of it at once, whatever others want.
        for (drive, keeper) in engine.keepers() {
            for (family, in_flight) in keeper.readers_waiting() {
                self.coverage.count("reads seen waiting for their turn");
                if in_flight == 0 && self.failure.is_none() {
                    let what = format!("family {family} reads nothing of drive {drive}, and has to wait");
                    self.failure = Some(format!("at {} us: {what}", self.now));
                }
            }
        }
        if engine.counters().victims_living > 0 && self.failure.is_none() {
            let what = format!("shard {shard} emptied egroups that are not empty");
            self.failure = Some(format!("at {} us: {what}", self.now));
        }
        let volumes = engine.volumes().count();
        // What is computed goes on in slices, and puts out nothing before its end.
        let computes = engine.volumes().any(|(_, volume)| volume.is_packing())
            || engine.keepers().any(|(_, keeper)| keeper.is_hashing());
        let did = !outputs.is_empty() || computes;
        let idling = self.idling.stepped(shard, volumes, is_woken, did, self.now);
        match self.undrained.stepped(shard, engine, &self.parameters.limits) {
            Ok(true) => self.coverage.count("steps in which much was not drained"),
            Ok(false) => {}
            Err(what) => self.fail(format!("shard {shard}: {what}")),
        }
        if let Err(what) = idling {
            self.fail(format!("shard {shard} {what}"));
        }
        self.coverage.steps += 1;
        if self.trace {
            self.trace_outputs(shard, &outputs);
        }
        for operation in outputs.operations.drain(..) {
            self.submit(shard, operation);
        }
        for (to, message) in outputs.messages.drain(..) {
            // A bug in the keeper's half as well is seen by what it does.
            if !planted(Bug::LateDeletion)
                && let Err(what) = self.deletions.said(shard, &message)
            {
                self.fail(what);
            }
            self.send(shard, to, message);
        }
        let may_reply = self.nodes[self.shards[shard].node].lease.may_reply(self.now);
        for (ticket, reply) in outputs.replies.drain(..) {
            if may_reply {
                self.replied(shard, ticket, reply);
            } else {
                self.withhold(ticket);
            }
        }
        outputs.sources.clear();
        for request in outputs.requests.drain(..) {
            self.origin_wanted(shard, request);
        }
        for notice in outputs.notices.drain(..) {
            self.noticed(shard, notice);
        }
        self.outputs = outputs;
        self.plan_wake(shard);
    }

    pub fn plan_wake(&mut self, shard: usize) {
        let state = &mut self.shards[shard];
        let Some(wanted) = state.engine.as_ref().and_then(|engine| engine.wake_at()) else { return };
        // A wish in the past is granted a microsecond from now.
        let time = wanted.0.saturating_sub(state.clock_ahead).max(self.now + 1);
        if state.wake.is_none_or(|planned| time < planned) {
            state.wake = Some(time);
            self.queue.push(time, Event::Wake { shard, incarnation: state.incarnation });
        }
    }

    fn wake(&mut self, shard: usize, incarnation: u32) {
        let state = &mut self.shards[shard];
        if state.incarnation != incarnation
            || state.engine.is_none()
            || state.wake.is_none_or(|at| at > self.now)
        {
            return;
        }
        if let Some(waiting) = self.waiting(shard) {
            waiting.push(Event::Wake { shard, incarnation });
            return;
        }
        self.shards[shard].wake = None;
        let clock = self.now + self.shards[shard].clock_ahead;
        let wanted = self.shards[shard].engine.as_ref().and_then(|engine| engine.wake_at());
        if wanted.is_some_and(|wanted| wanted.0 <= clock) {
            self.step(shard, Input::Wake);
        } else {
            self.plan_wake(shard);
        }
    }

    fn submit(&mut self, shard: usize, operation: DriveOperation) {
        let drive = operation.drive.0 as usize;
        assert_eq!(self.drives[drive].shard, shard, "a shard uses its own drives");
        let incarnation = self.shards[shard].incarnation;
        if operation.area == Area::Log && matches!(operation.work, DriveWork::Write { .. }) {
            self.coverage.count("log frames written");
        }
        let state = &mut self.drives[drive];
        let (slot, time) =
            state.submit(incarnation, operation.token, operation.area, operation.work, &mut self.rng);
        let event = Event::DriveEnds { drive, operation: slot, cuts: state.cuts };
        self.queue.push(self.now + time, event);
    }

    fn drive_ends(&mut self, drive: usize, operation: usize, cuts: u32) {
        let state = &mut self.drives[drive];
        if state.cuts != cuts {
            return;
        }
        if state.hung_until > self.now {
            let time = state.hung_until + self.rng.random_range(0..1_000);
            self.queue.push(time, Event::DriveEnds { drive, operation, cuts });
            return;
        }
        let (flight, result) = state.end(operation, &mut self.rng, &mut self.coverage);
        let shard = state.shard;
        self.deliver(shard, flight.incarnation, Input::DriveDone { token: flight.token, result });
    }

    /// Where this one is among all.
    pub fn shard_of(&self, id: ShardId) -> usize {
        let shards = self.shards.binary_search_by_key(&id, |shard| shard.id);
        shards.expect("only shards that there are are spoken of")
    }

    fn send(&mut self, from: usize, to: ShardId, message: Message) {
        let to = self.shard_of(to);
        let (from_node, to_node) = (self.shards[from].node, self.shards[to].node);
        let incarnation = self.shards[to].incarnation;
        let arrive = |message| Event::Input {
            shard: to,
            incarnation,
            input: Input::Message { from: self.shards[from].id, message },
        };
        if from_node == to_node {
            let time = self.network.inside(self.now, from, to, &mut self.rng);
            self.queue.push(time, arrive(message));
            return;
        }
        let delivery = self.network.between(self.now, from_node, to_node, &mut self.rng);
        if let Some(again) = delivery.again {
            self.coverage.count("messages repeated");
            self.queue.push(again, arrive(message.clone()));
        }
        match delivery.first {
            Some(time) => self.queue.push(time, arrive(message)),
            None => self.coverage.count("messages lost"),
        }
    }

    /// Gives a client's request to a shard; the ticket names it.
    pub fn request(&mut self, shard: usize, ticket: Ticket, family: weft_engine::FamilyId, request: Request) {
        let incarnation = self.shards[shard].incarnation;
        self.deliver(shard, incarnation, Input::Request { ticket, family, request });
    }

    /// A process starts: new engines that know nothing, and the orders that tell them what is theirs.
    pub fn node_starts(&mut self, node: usize) {
        if self.nodes[node].up || self.nodes[node].removed {
            return;
        }
        self.nodes[node].up = true;
        self.nodes[node].away_since = None;
        self.nodes[node].sights.fill(Sight::default());
        self.coverage.count("nodes started");
        for shard in self.nodes[node].shards.clone() {
            self.tokens += 1;
            self.deletions.started(shard);
            let settings = Settings {
                shard: self.shards[shard].id,
                seed: self.parameters.seed.wrapping_mul(1_000_003).wrapping_add(self.tokens),
                limits: self.parameters.limits.clone(),
            };
            let clock_ahead = self.parameters.clock_origin + self.rng.random_range(0..1 << 30);
            let state = &mut self.shards[shard];
            state.engine = Some(Box::new(Shard::new(settings)));
            state.wake = None;
            state.view = 0;
            state.holds.clear();
            state.common = None;
            state.clock_ahead = clock_ahead;
        }
        self.node_registers(node);
    }

    /// A process dies, with the power of its drives if `cut`.
    pub fn node_stops(&mut self, node: usize, cut: Option<crate::platter::Mood>) {
        if !self.nodes[node].up {
            return;
        }
        self.nodes[node].up = false;
        self.nodes[node].waiting = None;
        self.nodes[node].lease.forget();
        self.nodes[node].away_since.get_or_insert(self.now);
        for shard in self.nodes[node].shards.clone() {
            self.shards[shard].engine = None;
            self.shards[shard].incarnation += 1;
            self.forget_requests_of(shard);
            self.control.shard_died(shard);
        }
        for drive in 0..self.drives.len() {
            if self.nodes[node].shards.contains(&self.drives[drive].shard) {
                let state = &mut self.drives[drive];
                match cut {
                    Some(mood) => state.power_cut(mood, &mut self.rng),
                    None => state.process_dies(&mut self.rng),
                }
            }
        }
    }
}
