//! What is going to happen, in order of time; what was planned first happens first among equals.
//! Promises: the order depends on nothing but what was pushed, so a seed is a whole history.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use weft_engine::identity::Generation;
use weft_engine::{Input, Notice, Order};

/// Something that will happen. Shards are named by index, and by incarnation: what was meant for a process
/// that has died since does not reach the one that took its place.
#[derive(Debug)]
pub enum Event {
    /// A message or completion arrives at a shard.
    Input {
        shard: usize,
        incarnation: u32,
        input: Input,
    },
    /// A drive ends an operation that was submitted before its power was cut `cuts` times.
    DriveEnds {
        drive: usize,
        operation: usize,
        cuts: u32,
    },
    Wake {
        shard: usize,
        incarnation: u32,
    },
    /// The control plane's order arrives.
    Order {
        shard: usize,
        incarnation: u32,
        order: Order,
    },
    /// A shard's news arrives at the control plane.
    Notice {
        shard: usize,
        incarnation: u32,
        notice: Notice,
    },
    /// A client may ask again.
    Client(usize),
    /// The atlas does the next bad thing.
    Fault,
    /// Somebody wants a snapshot, or wants one gone.
    Snapshot,
    /// Somebody wants a clone, or wants one gone, or a vDisk as it was.
    Clone,
    /// Somebody wants another number of copies.
    Factor,
    /// A shard is to take no request for a vDisk, and says that it takes none.
    Hold {
        shard: usize,
        incarnation: u32,
        family: usize,
    },
    Held {
        family: usize,
    },
    /// A clone's request reaches a shard that served its origin ...
    OriginAsked {
        ask: u64,
        shard: usize,
        incarnation: u32,
    },
    /// ... or has to be asked (again).
    OriginAgain(u64),
    /// The process of a node starts again.
    NodeStarts(usize),
    /// A sleeping process goes on, if it is still the same sleep.
    NodeWakes {
        node: usize,
        pause: u32,
    },
    /// The next read of everything.
    ReadBack {
        client: usize,
        family: usize,
        shard: usize,
        /// None: of the present.
        snapshot: Option<Generation>,
        first: u64,
        sectors: u64,
    },
    /// A node reaches the config store again.
    StoreHeals(usize),
    /// A drive that was taken out is there again.
    DriveReturns(usize),
    /// A drive that was taken out is replaced by an empty one.
    DriveReplaced(usize),
    /// The node of the round's victim ends, and what the drive wrote last is bad.
    EndsBadly(usize),
    /// The victim of this round is lost at once.
    DriveLost(usize),
    /// The power goes everywhere; and it is back, for all but the node of this drive.
    Blackout,
    PowerIsBack(usize),
    /// It goes again, and this drive with it.
    BlackoutAgain(usize),
    /// A write becomes bad in every log that has it.
    WriteRots,
    /// A block of an egroup becomes bad in all copies, or cannot be read for a while, and then can be again.
    UnitsRot,
    UnitsHeal(Vec<(usize, usize)>),
    /// Each copy of an egroup becomes bad somewhere else.
    CopiesRot,
    /// The control plane compares what is with what should be.
    ControlTick,
    /// The phase of the run is looked at.
    PhaseTick,
}

/// All coming events.
#[derive(Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    pushed: u64,
}

impl Queue {
    /// `event` happens at `time` (microseconds of the world).
    pub fn push(&mut self, time: u64, event: Event) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.events[slot] = Some(event);
                slot
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.pushed += 1;
        self.heap.push(Reverse((time, self.pushed, slot)));
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((time, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        Some((time, self.events[slot].take().expect("a planned slot holds its event")))
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_first_and_among_equals_in_order_of_planning() {
        let mut queue = Queue::default();
        queue.push(5, Event::Client(1));
        queue.push(3, Event::Client(2));
        queue.push(5, Event::Client(3));
        let mut order = Vec::new();
        while let Some((time, event)) = queue.pop() {
            let Event::Client(client) = event else { panic!("only clients were planned") };
            order.push((time, client));
        }
        assert_eq!(order, [(3, 2), (5, 1), (5, 3)]);
    }
}
