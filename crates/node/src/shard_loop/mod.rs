//! The shards of this node: one thread each, on a core of its own where there are enough.
//! Promises: a shard thread never waits for anything but its ring; what others want of it goes through its mailbox.
//! Leaves to others: deciding (the engine), what drives and vDisks there are (`control`).

mod arena;
mod crowd;
mod drive_io;
mod engine_counters;
mod files;
mod hangs;
mod mailbox;
mod news;
mod peer;
mod pieces;
mod readers;
mod ring;
mod sending;
mod slow;
mod socket;
mod statistics;
mod tcp_info;
mod tickets;
mod worker;

#[cfg(test)]
mod tests;

pub use engine_counters::GAUGES;
pub use mailbox::{Answer, Disk, Mail, Mailbox};
pub use news::{News, PeerTrouble, PoorWay};
pub use peer::PeerListener;
pub use statistics::{
    FamilyFigures, Latencies, Question, RATED, Rated, ShardFigures, ShardStatistics, TouchedSet,
};
pub use worker::Route;
pub use worker::owner_of;

use crate::config::cluster::Deadline;
use crate::memory;
use crate::words::{self, say};
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use weft_engine::ShardId;
use worker::{Setup, Worker};

/// The exit code of a process whose engine failed one of its own assertions.
const EXIT_ASSERTION: i32 = 70;

/// Which node the shards are, to other nodes. The default is a node that is alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Identity {
    /// The number of the node's first shard.
    pub base: u32,
    pub cluster: u64,
    /// Higher than that of any process before that was this node. Others hear only the one with the highest.
    pub life: u64,
}

/// The running shards.
pub struct Shards {
    pub mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Shards {
    /// Starts `count` shards of the node `identity`. They answer requests until `deadline` has passed, and again when it
    /// moves on (None: always). What they notice goes to `notices`.
    pub fn start(
        count: u32,
        identity: Identity,
        deadline: Option<Deadline>,
        notices: &tokio::sync::mpsc::UnboundedSender<(ShardId, News)>,
    ) -> io::Result<Self> {
        assert!(count > 0, "a node has at least one shard");
        let base = identity.base;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mailboxes: Vec<_> = (base..base + count)
            .map(|number| Mailbox::new(ShardId(number)).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let limits = memory::limits(count, memory::machine_bytes());
        let mut threads = Vec::new();
        for mailbox in &mailboxes {
            let setup = Setup {
                limits: limits.clone(),
                clients_bytes: memory::clients_bytes(count, memory::machine_bytes()),
                shard: mailbox.shard(),
                seed: rand::random(),
                identity,
                deadline: deadline.clone(),
                mailbox: Arc::clone(mailbox),
                neighbours: mailboxes.clone(),
                notices: notices.clone(),
                may_spin: cores > count as usize,
            };
            let number = mailbox.shard().0;
            let (begun, has_begun) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("shard-{number}")).spawn(move || {
                // With as many shards as cores, each gets one; otherwise the kernel places them better.
                if count as usize == cores {
                    pin_to_core((number - base) as usize);
                }
                run(setup, &begun);
            })?;
            has_begun.recv().map_err(|_| io::Error::other("the shard thread ended at once"))??;
            threads.push(thread);
        }
        Ok(Self { mailboxes, threads })
    }

    /// Stops all shards. What is not settled is replayed at the next start.
    pub fn stop(self) {
        for mailbox in &self.mailboxes {
            mailbox.send(Mail::Stop);
        }
        for thread in self.threads {
            // A thread that panicked has ended the process already.
            let _ = thread.join();
        }
    }
}

/// The life of a shard thread. An engine that fails an assertion may not be trusted with another request: the process
/// ends, clients see their connections close, and the next start replays what was acknowledged.
fn run(setup: Setup, begun: &std::sync::mpsc::Sender<io::Result<()>>) {
    let shard = setup.shard;
    let life = catch_unwind(AssertUnwindSafe(|| match Worker::new(setup) {
        Ok(worker) => {
            let _ = begun.send(Ok(()));
            // One that panics is never dropped: the kernel may still be writing into its buffers, and other shards run on until
            // the process has ended.
            let mut worker = ManuallyDrop::new(worker);
            worker.run();
            drop(ManuallyDrop::into_inner(worker));
        }
        Err(error) => {
            let _ = begun.send(Err(error));
        }
    }));
    if life.is_err() {
        say!(
            "weft: shard {shard} failed an assertion (see above); the node stops rather than serve wrong data. \
             Nothing acknowledged is lost: start it again, and please report this"
        );
        words::last_words();
        std::process::exit(EXIT_ASSERTION);
    }
}

fn pin_to_core(core: usize) {
    // SAFETY: an all-zero set is a valid empty set; the macros write inside it; the call only reads it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result != 0 {
        tracing::warn!(core, "the shard's thread could not be pinned to its core");
    }
}
