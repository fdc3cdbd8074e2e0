//! Requests that are open: exactly one reply comes for each (I9), or its shard dies and none does.

use crate::judge::registers::Moment;
use weft_engine::Ticket;
use weft_engine::identity::Generation;

/// What was asked. Sectors are of the vDisk.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    Read {
        first: u64,
        sectors: u64,
    },
    /// A write, or zeros: the number tells the rest.
    Write {
        number: u32,
    },
    Flush,
    Extents {
        first: u64,
        sectors: u64,
        limit: u32,
    },
    Warm {
        first: u64,
        sectors: u64,
    },
    ReadSnapshot {
        snapshot: Generation,
        first: u64,
        sectors: u64,
    },
    SnapshotExtents {
        snapshot: Generation,
        first: u64,
        sectors: u64,
        limit: u32,
    },
    /// Not by a client: the owner of a clone reads what its origin has.
    ForClone {
        ask: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub ticket: Ticket,
    pub family: usize,
    pub client: usize,
    pub shard: usize,
    /// The epoch in which the shard served the family, as far as anybody knows; 0 if it did not.
    pub epoch: u32,
    pub asked: Asked,
    pub began: Moment,
    pub since: u64,
    /// The same by the clock of the shard.
    pub clock: u64,
}

/// All open requests. A ticket is a count and the slot in which its request is found.
#[derive(Default)]
pub struct Requests {
    slots: Vec<Option<Open>>,
    free: Vec<usize>,
    given: u64,
    open: usize,
}

impl Requests {
    pub fn open(&mut self, mut request: Open) -> Ticket {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.given += 1;
        request.ticket = Ticket(self.given << 20 | slot as u64);
        self.slots[slot] = Some(request);
        self.open += 1;
        request.ticket
    }

    /// Takes the request out; None if there is none of that name (any more).
    pub fn close(&mut self, ticket: Ticket) -> Option<Open> {
        let slot = (ticket.0 & 0xf_ffff) as usize;
        let open = self.slots.get_mut(slot)?;
        if open.is_none_or(|open| open.ticket != ticket) {
            return None;
        }
        self.free.push(slot);
        self.open -= 1;
        open.take()
    }

    /// Takes out all requests at a shard.
    pub fn close_all_at(&mut self, shard: usize) -> Vec<Open> {
        let at: Vec<Ticket> =
            self.iter().filter(|open| open.shard == shard).map(|open| open.ticket).collect();
        at.into_iter().map(|ticket| self.close(ticket).expect("it was open a moment ago")).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Open> {
        self.slots.iter().flatten()
    }

    pub fn len(&self) -> usize {
        self.open
    }

    pub fn is_empty(&self) -> bool {
        self.open == 0
    }
}
