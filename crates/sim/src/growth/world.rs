//! The simulated cluster: shards on cores, drives, interfaces and the one loop that moves them, in nanoseconds.
//! Promises: nothing fails and nothing is lost; the same settings are the same history. A shard takes all that has come
//! when its core is free, as the node does, and what follows leaves it when the core has done the work.
//! Leaves to others: how long things take (`hdd`, `ssd`, `nic`, `hardware`), groups and families (`control`), what is
//! asked (`load`).

use super::contents::Contents;
use super::control::{Control, shard_of};
use super::device::{Device, Ends, Work};
use super::hardware::{DISKS_PER_NODE, SECOND, US, cpu, disk, ssd};
use super::hdd::Hdd;
use super::load::Load;
use super::nic::Network;
use super::ssd::Ssd;
use std::collections::{BTreeMap, VecDeque};
use weft_engine::buffer::{Buffer, zeros};
use weft_engine::formats::wire::{self, Packet, lane_of};
use weft_engine::interface::{Area, DriveOperation, DriveResult, DriveWork, Geometry};
use weft_engine::message::Message;
use weft_engine::shard::{Settings, Shard};
use weft_engine::{FamilyId, Input, Limits, Notice, Order, Outputs, Reply, Request, Ticket, Time};

/// The engine's clock at the beginning of the world.
const ORIGIN_US: u64 = 1_000_000;
/// The ring of each drive, as the node makes it if nothing else is wished.
const LOG_BYTES: u64 = 512 << 20;
/// An order to a shard, or its news, by way of the config store.
const STORE: u64 = 5_000 * US;

#[derive(Debug)]
enum Event {
    DeviceEnds {
        device: usize,
        id: u64,
    },
    /// A drive operation that no device works on.
    Ends(u64),
    /// A node's interface is free to send.
    Turn(usize),
    Arrives(u64),
    ShardFree(usize),
    Wake(usize),
    Order {
        shard: usize,
        order: Order,
    },
    Notice {
        shard: usize,
        notice: Notice,
    },
    Tick,
}

struct ShardState {
    engine: Shard,
    inbox: VecDeque<Input>,
    /// What the core is working on will lead to this.
    doing: Option<Outputs>,
    wake: Option<u64>,
}

struct DriveState {
    shard: usize,
    device: usize,
    log_device: usize,
    contents: Contents,
}

pub struct World {
    pub now: u64,
    planned: BTreeMap<(u64, u64), Event>,
    last: u64,
    shards: Vec<ShardState>,
    drives: Vec<DriveState>,
    devices: Vec<Device>,
    network: Network,
    operations: BTreeMap<u64, DriveOperation>,
    messages: BTreeMap<u64, (usize, Input)>,
    pub control: Control,
    pub load: Load,
    pub geometry: Geometry,
    seed: u64,
    pub events: u64,
}

/// Bytes that a question carries or an answer brings: what the core has to look at.
fn data_bytes(input: &Input) -> f64 {
    match input {
        Input::Request { request: Request::Write { data, .. }, .. } => {
            data.len() as f64 * cpu::WRITE_NS_PER_BYTE
        }
        Input::DriveDone { result: Ok(DriveResult::Read(data)), .. } => {
            data.len() as f64 * cpu::READ_NS_PER_BYTE
        }
        _ => 0.0,
    }
}

impl World {
    pub fn new(data_bytes: u64, load: Load, seed: u64) -> Self {
        let geometry = Geometry { log: LOG_BYTES, data: data_bytes >> 20 << 20 };
        let mut world = Self {
            now: 0,
            planned: BTreeMap::new(),
            last: 0,
            shards: Vec::new(),
            drives: Vec::new(),
            devices: Vec::new(),
            network: Network::default(),
            operations: BTreeMap::new(),
            messages: BTreeMap::new(),
            control: Control::default(),
            load,
            geometry,
            seed,
            events: 0,
        };
        world.plan(SECOND, Event::Tick);
        world
    }

    /// One more node: a shard, an SSD for the logs, disks for the data.
    pub fn add_node(&mut self) {
        let shard = self.shards.len();
        let settings = Settings {
            shard: shard_of(shard as u32),
            seed: self.seed.wrapping_mul(1_000_003).wrapping_add(shard as u64),
            // The databases are small models of large ones, which would not fit in memory: nothing is kept for reads, and
            // little of what is written. Their disks are as small, and the room on them bounds nothing.
            limits: Limits {
                cache_bytes: 0,
                dirty_bytes_max: 192 << 20,
                dirty_bytes_least: 192 << 20,
                drain_bytes_begin: 64 << 20,
                log_bytes_checkpoint: 256 << 20,
                ..Limits::default()
            },
        };
        let engine = Shard::new(settings);
        self.shards.push(ShardState { engine, inbox: VecDeque::new(), doing: None, wake: None });
        self.network.add_node();
        let log_device = self.devices.len();
        self.devices.push(Device::Ssd(Ssd::default()));
        for _ in 0..DISKS_PER_NODE {
            let device = self.devices.len();
            self.devices.push(Device::Hdd(Hdd::new(self.geometry.data)));
            let contents = Contents::new(self.geometry.data);
            self.drives.push(DriveState { shard, device, log_device, contents });
            let drive = self.control.add_drive(shard as u32);
            self.order(
                shard,
                Order::OpenDrive { drive, geometry: self.geometry, format: true, incarnation: None },
            );
        }
    }

    pub fn nodes(&self) -> usize {
        self.shards.len()
    }

    /// Nanoseconds that the disks of these nodes have worked so far, together.
    pub fn disks_busy(&self, nodes: std::ops::Range<usize>) -> u64 {
        let of = self.drives.iter().filter(|drive| nodes.contains(&drive.shard));
        of.map(|drive| self.devices[drive.device].busy()).sum()
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.last += 1;
        self.planned.insert((at.max(self.now), self.last), event);
    }

    /// Lets time pass until then.
    pub fn run_until(&mut self, end: u64) {
        while let Some((&(at, _), _)) = self.planned.first_key_value()
            && at <= end
        {
            let ((at, _), event) = self.planned.pop_first().expect("it was just seen");
            self.now = at;
            self.events += 1;
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::DeviceEnds { device, id } => {
                let mut ends = Ends::new();
                self.devices[device].on_end(self.now, &mut ends);
                self.plan_ends(device, &ends);
                self.operation_ends(id);
            }
            Event::Ends(id) => self.operation_ends(id),
            Event::Turn(node) => self.turn(node),
            Event::Arrives(message) => {
                let (shard, input) = self.messages.remove(&message).expect("a message arrives once");
                self.give(shard, input);
            }
            Event::ShardFree(shard) => self.shard_free(shard),
            Event::Wake(shard) => self.wake(shard),
            Event::Order { shard, order } => self.give(shard, Input::Order(order)),
            Event::Notice { shard, notice } => {
                for (shard, order) in self.control.on_notice(shard, notice) {
                    self.order(shard, order);
                }
            }
            Event::Tick => {
                let shards = self.shards.len();
                for (shard, order) in self.control.tick(shards) {
                    self.order(shard, order);
                }
                self.plan(self.now + SECOND, Event::Tick);
            }
        }
    }

    pub fn order(&mut self, shard: usize, order: Order) {
        self.plan(self.now + STORE, Event::Order { shard, order });
    }

    /// A client beside the owner asks.
    pub fn ask(&mut self, family: FamilyId, ticket: Ticket, request: Request) {
        let shard = self.control.owner(family);
        self.give(shard, Input::Request { ticket, family, request });
    }

    fn give(&mut self, shard: usize, input: Input) {
        self.shards[shard].inbox.push_back(input);
        self.start_shard(shard);
    }

    /// The core takes everything that is there, if it is free.
    fn start_shard(&mut self, shard: usize) {
        let now = Time(ORIGIN_US + self.now / US);
        let state = &mut self.shards[shard];
        if state.doing.is_some() || state.inbox.is_empty() {
            return;
        }
        let (mut outputs, mut cost) = (Outputs::default(), 0);
        for input in std::mem::take(&mut state.inbox) {
            cost += cpu::INPUT + data_bytes(&input) as u64;
            state.engine.take(now, input, &mut outputs);
        }
        state.engine.settle(now, &mut outputs);
        cost += outputs.messages.len() as u64 * cpu::INPUT;
        state.doing = Some(outputs);
        self.plan(self.now + cost, Event::ShardFree(shard));
    }

    fn shard_free(&mut self, shard: usize) {
        let outputs = self.shards[shard].doing.take().expect("a core is free after it was busy");
        for operation in outputs.operations {
            self.submit(shard, operation);
        }
        for (to, message) in outputs.messages {
            self.send(shard, to.node() as usize, message);
        }
        for notice in outputs.notices {
            self.plan(self.now + STORE, Event::Notice { shard, notice });
        }
        for (ticket, reply) in outputs.replies {
            self.replied(ticket, &reply);
        }
        self.plan_wake(shard);
        self.start_shard(shard);
    }

    fn replied(&mut self, ticket: Ticket, reply: &Reply) {
        assert!(!matches!(reply, Reply::Error(_)), "nothing fails here, but a request did: {reply:?}");
        for (family, ticket, request) in self.load.on_reply(self.now, ticket) {
            self.ask(family, ticket, request);
        }
    }

    fn plan_wake(&mut self, shard: usize) {
        let Some(wanted) = self.shards[shard].engine.wake_at() else { return };
        let at = (wanted.0.saturating_sub(ORIGIN_US) * US).max(self.now + US);
        let state = &mut self.shards[shard];
        if state.wake.is_none_or(|planned| at < planned) {
            state.wake = Some(at);
            self.plan(at, Event::Wake(shard));
        }
    }

    fn wake(&mut self, shard: usize) {
        let state = &mut self.shards[shard];
        if state.wake != Some(self.now) {
            return;
        }
        state.wake = None;
        if state.engine.wake_at().is_some_and(|wanted| wanted.0 <= ORIGIN_US + self.now / US) {
            self.give(shard, Input::Wake);
        } else {
            self.plan_wake(shard);
        }
    }

    fn submit(&mut self, shard: usize, operation: DriveOperation) {
        let drive = &self.drives[operation.drive.0 as usize];
        assert_eq!(drive.shard, shard, "a shard uses its own drives");
        let is_log = operation.area == Area::Log;
        let device = if is_log { drive.log_device } else { drive.device };
        self.last += 1;
        let id = self.last;
        let work = match &operation.work {
            DriveWork::Read { offset, len } => {
                Some(Work { is_write: false, offset: *offset, bytes: u64::from(*len) })
            }
            DriveWork::Write { offset, pieces, .. } => {
                let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
                Some(Work { is_write: true, offset: *offset, bytes })
            }
            DriveWork::Flush | DriveWork::Discard { .. } => None,
        };
        self.operations.insert(id, operation);
        let Some(work) = work else {
            // Nothing waits in a cache that could lose it, so it is one empty command.
            self.plan(self.now + if is_log { ssd::WRITE } else { disk::COMMAND }, Event::Ends(id));
            return;
        };
        let mut ends = Ends::new();
        self.devices[device].submit(self.now, id, work, &mut ends);
        self.plan_ends(device, &ends);
    }

    fn plan_ends(&mut self, device: usize, ends: &Ends) {
        for &(at, id) in ends {
            self.plan(at, Event::DeviceEnds { device, id });
        }
    }

    fn operation_ends(&mut self, id: u64) {
        let DriveOperation { token, drive, area, work } =
            self.operations.remove(&id).expect("an operation ends once");
        let drive = &mut self.drives[drive.0 as usize];
        // The log is read when a drive is opened and when an owner takes over. These drives begin empty and nobody
        // takes over, so what is in it need not be kept.
        let result = match (area, work) {
            (Area::Log, DriveWork::Read { len, .. }) => DriveResult::Read(log_zeros(len)),
            (Area::Data, DriveWork::Read { offset, len }) => {
                DriveResult::Read(drive.contents.read(offset, len))
            }
            (Area::Data, DriveWork::Write { offset, pieces, .. }) => {
                drive.contents.write(offset, &pieces);
                DriveResult::Done
            }
            (Area::Data, DriveWork::Discard { offset, len }) => {
                drive.contents.discard(offset, len);
                DriveResult::Done
            }
            _ => DriveResult::Done,
        };
        let shard = drive.shard;
        self.give(shard, Input::DriveDone { token, result: Ok(result) });
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let lane = lane_of(&message) as u32;
        let packet = Packet::Message(message);
        let bytes = wire::encode(&packet).expect("the engine's messages fit the wire").bytes() as u64;
        let Packet::Message(message) = packet else { unreachable!("it was just made") };
        self.last += 1;
        let number = self.last;
        let input = Input::Message { from: shard_of(from as u32), message };
        self.messages.insert(number, (to, input));
        if self.network.send(from, (to, lane), number, bytes) {
            self.turn(from);
        }
    }

    fn turn(&mut self, node: usize) {
        let Some(turn) = self.network.turn(node, self.now) else { return };
        self.plan(turn.over, Event::Turn(node));
        if let Some((at, message)) = turn.arrived {
            self.plan(at, Event::Arrives(message));
        }
    }
}

fn log_zeros(len: u32) -> Buffer {
    if len <= 1 << 20 {
        return zeros(len as usize);
    }
    weft_engine::buffer::Pages::zeroed(len as usize).freeze()
}
