//! Requests that the engine has not answered: whom each reply is for.
//! Promises: a ticket is given out once and answered once (I9).

use super::mailbox::Answer;
use super::peer::RemoteAsker;
use super::statistics::Kind;
use weft_engine::interface::Request;
use weft_engine::{FamilyId, Ticket, Time};
use weft_frontends::nbd::Handle;

/// Who asked.
pub enum Origin {
    /// A connection of this shard, if it is still the same one.
    Socket { slot: u32, generation: u32, handle: Handle },
    /// Another thread. The request is kept to be asked again should the engine be busy, or not serve the vDisk: that it
    /// does not was first heard at `refused`.
    Elsewhere { answer: Answer, request: Request, refused: Option<Time> },
    /// A shard of another node.
    Remote(RemoteAsker),
}

/// A request that waits for its reply.
pub struct Open {
    pub family: FamilyId,
    pub kind: Kind,
    pub since: Time,
    /// Requests of the vDisk that were outstanding with it when it came.
    pub depth: u32,
    pub origin: Origin,
}

#[derive(Default)]
pub struct Tickets {
    slots: Vec<(u64, Option<Open>)>,
    free: Vec<u32>,
    given: u64,
}

/// The low bits of a ticket are its slot, the others count.
const SLOT_BITS: u32 = 24;

impl Tickets {
    pub fn open(&mut self, open: Open) -> Ticket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        assert!(index < 1 << SLOT_BITS, "connections limit how many requests are open");
        self.given += 1;
        let ticket = self.given << SLOT_BITS | u64::from(index);
        self.slots[index as usize] = (ticket, Some(open));
        Ticket(ticket)
    }

    /// Requests without a reply so far.
    pub fn open_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Its reply has come.
    pub fn close(&mut self, ticket: Ticket) -> Open {
        let index = (ticket.0 & ((1 << SLOT_BITS) - 1)) as u32;
        let (given, open) = &mut self.slots[index as usize];
        assert!(*given == ticket.0, "a reply carries a ticket that was given out and not answered before");
        let open = open.take().expect("a request is answered exactly once");
        self.free.push(index);
        open
    }
}
