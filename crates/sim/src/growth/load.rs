//! The database load: on each of the first nodes one VM with databases and a log for each, and threads that ask, wait
//! for the answer, and ask again.
//!
//! A turn of a thread is that of Jetstress (Exchange's storage tester), which made the published figures: read a page of 32 KiB anywhere in
//! a database; in two of three turns (3 reads to 2 writes) append 8 KiB to the database's log, wait until that is durable,
//! and write the page back.

use super::hardware::US;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use weft_engine::buffer::{BLOCK, Buffer, Pages};
use weft_engine::{FamilyId, Request, Ticket};

pub const PAGE: u64 = 32 << 10;
const LOG_WRITE: u64 = 8 << 10;
const FILL: u64 = 1 << 20;
/// Writes of a vDisk under way at once while it is filled.
const FILL_DEPTH: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    LogWrite,
    PageWrite,
}

/// One answer: when, of what, and after how many microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub at: u64,
    pub kind: Kind,
    pub us: u32,
}

#[derive(Debug, Clone, Copy)]
struct Database {
    data: FamilyId,
    log: FamilyId,
    log_at: u64,
}

#[derive(Debug)]
enum Asker {
    Fill(FamilyId),
    Thread { vm: usize, database: usize, page: u64, kind: Kind },
}

struct Asked {
    asker: Asker,
    since: u64,
}

type Asks = Vec<(FamilyId, Ticket, Request)>;

pub struct Load {
    pub data_bytes: u64,
    pub log_bytes: u64,
    vms: Vec<Vec<Database>>,
    /// How far each vDisk is filled, and to where it shall be.
    filling: BTreeMap<FamilyId, (u64, u64)>,
    asked: BTreeMap<Ticket, Asked>,
    last: u64,
    rng: SmallRng,
    /// Memory that all writes come from: bytes that look random, at different places.
    pool: Buffer,
    pub samples: Vec<Sample>,
}

impl Load {
    pub fn new(data_bytes: u64, log_bytes: u64, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut pages = Pages::zeroed(8 << 20);
        rng.fill(pages.bytes_mut());
        Self {
            data_bytes,
            log_bytes,
            vms: Vec::new(),
            filling: BTreeMap::new(),
            asked: BTreeMap::new(),
            last: 0,
            rng,
            pool: pages.freeze(),
            samples: Vec::new(),
        }
    }

    /// A VM with these databases, each (data, log).
    pub fn add_vm(&mut self, databases: &[(FamilyId, FamilyId)]) {
        self.vms.push(databases.iter().map(|&(data, log)| Database { data, log, log_at: 0 }).collect());
    }

    fn bytes(&mut self, len: u64) -> Buffer {
        let last = (self.pool.len() - len as usize) / BLOCK;
        let start = self.rng.random_range(0..=last) * BLOCK;
        self.pool.slice(start..start + len as usize)
    }

    fn ask(
        &mut self,
        now: u64,
        asker: Asker,
        family: FamilyId,
        request: Request,
    ) -> (FamilyId, Ticket, Request) {
        self.last += 1;
        let ticket = Ticket(self.last);
        self.asked.insert(ticket, Asked { asker, since: now });
        (family, ticket, request)
    }

    /// Writes every vDisk from the beginning to the end.
    pub fn fill(&mut self, now: u64) -> Asks {
        for database in self.vms.iter().flatten() {
            self.filling.insert(database.data, (0, self.data_bytes));
            self.filling.insert(database.log, (0, self.log_bytes));
        }
        let families: Vec<FamilyId> = self.filling.keys().copied().collect();
        let twice = families.iter().flat_map(|&family| [family; FILL_DEPTH]);
        twice.filter_map(|family| self.fill_next(now, family)).collect()
    }

    fn fill_next(&mut self, now: u64, family: FamilyId) -> Option<(FamilyId, Ticket, Request)> {
        let (at, end) = self.filling.get_mut(&family)?;
        let offset = *at;
        if offset == *end {
            return None;
        }
        *at += FILL;
        let data = self.bytes(FILL);
        Some(self.ask(now, Asker::Fill(family), family, Request::Write { offset, data }))
    }

    /// Nothing is asked that has no answer.
    pub fn is_quiet(&self) -> bool {
        self.asked.is_empty()
    }

    /// So many threads of every VM begin.
    pub fn start(&mut self, now: u64, threads: usize) -> Asks {
        let vms = 0..self.vms.len();
        vms.flat_map(|vm| std::iter::repeat_n(vm, threads)).map(|vm| self.turn(now, vm)).collect()
    }

    fn turn(&mut self, now: u64, vm: usize) -> (FamilyId, Ticket, Request) {
        let database = self.rng.random_range(0..self.vms[vm].len());
        let page = self.rng.random_range(0..self.data_bytes / PAGE);
        let family = self.vms[vm][database].data;
        let request = Request::Read { offset: page * PAGE, len: PAGE as u32 };
        self.ask(now, Asker::Thread { vm, database, page, kind: Kind::Read }, family, request)
    }

    pub fn on_reply(&mut self, now: u64, ticket: Ticket) -> Asks {
        let Asked { asker, since } = self.asked.remove(&ticket).expect("a request has one reply");
        let next = match asker {
            Asker::Fill(family) => self.fill_next(now, family),
            Asker::Thread { vm, database, page, kind } => {
                self.samples.push(Sample { at: now, kind, us: ((now - since) / US) as u32 });
                Some(self.after(now, vm, database, page, kind))
            }
        };
        next.into_iter().collect()
    }

    fn after(
        &mut self,
        now: u64,
        vm: usize,
        database: usize,
        page: u64,
        kind: Kind,
    ) -> (FamilyId, Ticket, Request) {
        let thread = |kind| Asker::Thread { vm, database, page, kind };
        match kind {
            Kind::Read if self.rng.random_ratio(2, 3) => {
                let data = self.bytes(LOG_WRITE);
                let to = &mut self.vms[vm][database];
                let offset = to.log_at;
                to.log_at = (to.log_at + LOG_WRITE) % self.log_bytes;
                let log = to.log;
                self.ask(now, thread(Kind::LogWrite), log, Request::Write { offset, data })
            }
            Kind::LogWrite => {
                let data = self.bytes(PAGE);
                let family = self.vms[vm][database].data;
                self.ask(now, thread(Kind::PageWrite), family, Request::Write { offset: page * PAGE, data })
            }
            Kind::Read | Kind::PageWrite => self.turn(now, vm),
        }
    }
}
