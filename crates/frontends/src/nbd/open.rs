//! The requests that the engine has not answered yet.
//! Promises: a handle names one open request until it is answered, and is an index below the limit of requests.

use super::limits::REQUESTS_MAX;
use super::protocol::Command;
use weft_engine::interface::Request;

/// Names one open request of one connection: a small number, used again after the answer. A node makes a ticket of it
/// together with the number of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// What is needed to answer.
#[derive(Debug)]
pub(super) struct Open {
    /// The client's own name of the request.
    pub(super) cookie: u64,
    pub(super) command: Command,
    /// The client does not want the data in parts (reads), or wants one extent (block status).
    pub(super) whole: bool,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// To hand it out once more, should the engine be too busy. Shares its payload.
    pub(super) request: Request,
}

impl Open {
    /// Memory the request stands for: payload of a write, or the data a read will bring.
    pub(super) fn bytes(&self) -> usize {
        match self.command {
            Command::Read | Command::Write => self.len as usize,
            _ => 0,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    slots: Vec<Option<Open>>,
    free: Vec<u32>,
    bytes: usize,
}

impl OpenRequests {
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The sum of [`Open::bytes`].
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, open: Open) -> Handle {
        assert!(self.count() < REQUESTS_MAX, "no request is taken at the limit");
        self.bytes += open.bytes();
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        assert!(self.slots[index as usize].is_none(), "a free slot holds nothing");
        self.slots[index as usize] = Some(open);
        Handle(index)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (Handle, &Open)> {
        let open = |(index, slot): (usize, _)| Option::as_ref(slot).map(|open| (Handle(index as u32), open));
        self.slots.iter().enumerate().filter_map(open)
    }

    pub(super) fn get(&self, handle: Handle) -> &Open {
        self.slots
            .get(handle.0 as usize)
            .and_then(Option::as_ref)
            .expect("a handle is used between the request and its one reply")
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Open {
        let open = self
            .slots
            .get_mut(handle.0 as usize)
            .and_then(Option::take)
            .expect("a request is answered exactly once");
        self.free.push(handle.0);
        self.bytes -= open.bytes();
        open
    }
}
