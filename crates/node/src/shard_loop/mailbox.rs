//! How other threads speak to a shard: a queue, and a bell that is rung only when the shard sleeps.
//! Promises: mail from one sender arrives in order; nothing is lost while the shard lives.
//! Leaves to others: what the mail means (`worker`).

use crate::config::cluster::Deadline;
use crate::drives::OpenDrive;
use crate::shard_loop::socket::Socket;
use crate::shard_loop::statistics::Question;
use crate::shard_loop::worker::Route;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_engine::formats::wire::Hello;
use weft_engine::interface::{Input, Order, Reply, Request, RequestError};
use weft_engine::{FamilyId, Generation, ShardId};
use weft_frontends::nbd::{Exports, Handle};

/// What clients use: a vDisk as it is, or a snapshot of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    pub family: FamilyId,
    pub snapshot: Option<Generation>,
}

impl Disk {
    pub fn present(family: FamilyId) -> Self {
        Self { family, snapshot: None }
    }

    pub fn snapshot(family: FamilyId, snapshot: Generation) -> Self {
        Self { family, snapshot: Some(snapshot) }
    }
}

/// What a shard can be told.
pub enum Mail {
    /// For the engine: a message of another shard.
    Input(Input),
    Order(Order),
    /// The files of a drive, sent before the order to open it.
    Drive(OpenDrive),
    /// Nothing is served behind this deadline; it takes the place of the one before.
    Lease(Deadline),
    /// A client has connected.
    Connection {
        socket: OwnedFd,
        exports: Arc<dyn Exports>,
        address: Arc<str>,
    },
    /// A connection that arrived at another shard and then chose a vDisk of this one. Nothing is in flight for it.
    Adopt(Box<Socket>),
    /// Where the shards of other nodes are. Connections to those that are not named any more end.
    Peers(BTreeMap<ShardId, SocketAddr>),
    /// Which shard serves which vDisk. Before the first such mail, the node is alone.
    Routes(BTreeMap<FamilyId, Route>),
    /// A drive that hangs counts as down on a node that is alone: what needs it all the same waits. Or there is none any more.
    Awaits(bool),
    /// A shard of another node has connected; its hello has been read, and is for this shard.
    PeerConnection {
        socket: OwnedFd,
        hello: Hello,
    },
    /// Somebody who is not a connection of this shard asks.
    Request {
        family: FamilyId,
        request: Request,
        answer: Answer,
    },
    /// Another shard has answered a request of a connection here.
    Answered {
        slot: u32,
        generation: u32,
        handle: Handle,
        reply: Reply,
    },
    /// Connections to this vDisk or snapshot (at this address only, if given) are closed.
    CloseConnections {
        disk: Disk,
        address: Option<Arc<str>>,
    },
    /// No request for these vDisks is taken for this long, as far as this holder is concerned: whoever asks waits. `done` when that
    /// is so, and whether it was so until now: then none of them has been taken since they were held first.
    Hold {
        holder: u64,
        families: Vec<FamilyId>,
        longest: Duration,
        done: tokio::sync::oneshot::Sender<bool>,
    },
    /// No more requests are taken from any connection; each closes when what is open has been answered.
    /// The sender is dropped when all are closed.
    Drain(tokio::sync::oneshot::Sender<()>),
    /// Answered when all that came before has been done.
    Question(Question),
    /// The times of stages are told as if they were counted from now on.
    ResetStages,
    Stop,
}

/// Where the reply to one request goes. It goes there exactly once: dropped unanswered, it says that nobody serves.
pub struct Answer {
    deliver: Option<Box<dyn FnOnce(Reply) + Send>>,
    has_ended: Option<Arc<AtomicBool>>,
    /// Whoever asked asks again itself.
    asks_again: bool,
}

impl Answer {
    pub fn new(deliver: impl FnOnce(Reply) + Send + 'static) -> Self {
        Self { deliver: Some(Box::new(deliver)), has_ended: None, asks_again: false }
    }

    /// Of somebody who may not have any more requests carried out, also none of before, once `has_ended` is set.
    pub fn until(has_ended: Arc<AtomicBool>, deliver: impl FnOnce(Reply) + Send + 'static) -> Self {
        Self { deliver: Some(Box::new(deliver)), has_ended: Some(has_ended), asks_again: false }
    }

    /// Likewise, of somebody who asks again what cannot be carried out now: it is not kept for later.
    pub fn at_once(has_ended: Arc<AtomicBool>, deliver: impl FnOnce(Reply) + Send + 'static) -> Self {
        let mut answer = Self::until(has_ended, deliver);
        answer.asks_again = true;
        answer
    }

    pub(super) fn asks_again(&self) -> bool {
        self.asks_again
    }

    /// Whether the request may (still) be carried out.
    pub(super) fn is_wanted(&self) -> bool {
        !self.has_ended.as_ref().is_some_and(|ended| ended.load(Ordering::SeqCst))
    }

    pub fn give(mut self, reply: Reply) {
        let deliver = self.deliver.take().expect("an answer is given once");
        deliver(reply);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(deliver) = self.deliver.take() {
            deliver(Reply::Error(RequestError::NotServed));
        }
    }
}

pub struct Mailbox {
    shard: ShardId,
    queue: Mutex<VecDeque<Mail>>,
    /// Something is in the queue; looked at in every turn of the loop, without taking the lock.
    has_mail: AtomicBool,
    /// The shard is asleep, or about to be: ring.
    sleeping: AtomicBool,
    bell: OwnedFd,
}

impl Mailbox {
    pub fn new(shard: ShardId) -> io::Result<Self> {
        // SAFETY: makes a new file descriptor.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            shard,
            queue: Mutex::new(VecDeque::new()),
            has_mail: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            // SAFETY: the descriptor is new and nobody else's.
            bell: unsafe { OwnedFd::from_raw_fd(bell) },
        })
    }

    /// The shard it belongs to.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Never waits.
    pub fn send(&self, mail: Mail) {
        {
            let mut queue = self.queue.lock().expect("no holder of this lock panics");
            queue.push_back(mail);
            // Under the lock, as in `take`: the flag and the queue agree.
            self.has_mail.store(true, Ordering::SeqCst);
        }
        // The shard says that it sleeps before it looks into the queue for the last time, and we look whether it
        // sleeps after putting the mail there: one of the two sees the other.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let one = 1u64;
            // SAFETY: eight bytes are written from a live variable. It cannot fail: the counter is far from full.
            unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Takes all that is there.
    pub(super) fn take(&self, into: &mut VecDeque<Mail>) {
        if self.has_mail() {
            let mut queue = self.queue.lock().expect("no holder of this lock panics");
            into.append(&mut queue);
            self.has_mail.store(false, Ordering::SeqCst);
        }
    }

    pub(super) fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::SeqCst)
    }

    /// The shard goes to sleep unless this gives false: mail has come meanwhile.
    pub(super) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.has_mail() {
            self.sleeping.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    pub(super) fn wake_up(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }
}
