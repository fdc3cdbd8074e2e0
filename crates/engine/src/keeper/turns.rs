//! Whose turn it is on a drive: reads of clients by vDisk, and background work behind them.
//! Promises: while several vDisks read, none has more in flight than is left by the others or than an equal share, and
//! whoever has nothing in flight never waits; while clients of others read, background work has one thing in flight, or
//! what fits beside it, and passes nobody by who waits; alone, everybody has the whole drive.
//! Leaves to others: the log, which has frames of its own (`ring_write`); what is done in a turn.
//!
//! Nobody waits for ever: what is in flight ends by itself, since it needs nothing but the drive, and with each end somebody
//! is let in. What frees space (drains, checkpoints, repair) is held back by reads, never the other way round. (While a pool is not full,
//! compaction reads in the background too.)

use crate::buffer::BLOCK;
use crate::identity::{Epoch, FamilyId, ShardId, Time};
use crate::keeper::desk::Caller;
use crate::message::{Question, UnitRun};
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, VecDeque};

/// Every operation costs a drive this much beside its bytes.
const OPERATION_BYTES: u64 = 8 << 10;

/// Who has asked for something within this time is counted among those who share.
const REMEMBERED_US: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Client,
    Background,
}

/// What a question takes of the drive; None: it needs no turn.
fn cost_of(question: &Question) -> Option<(Class, u64)> {
    let of_runs = |runs: &[UnitRun]| runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
    let (class, blocks) = match question {
        Question::ReadUnits { runs, behind, .. } => {
            (if *behind { Class::Background } else { Class::Client }, of_runs(runs))
        }
        Question::ReadFrames { runs, .. } => (Class::Background, of_runs(runs)),
        Question::WriteEgroup { content, .. } => (Class::Background, content.blocks() as u64),
        Question::Fence { .. }
        | Question::Append { .. }
        | Question::AppendLate { .. }
        | Question::Trim { .. }
        | Question::ReadLog { .. }
        | Question::DescribeEgroup { .. }
        | Question::DeleteEgroups { .. }
        | Question::ListEgroups { .. }
        | Question::DropFamily => return None,
    };
    Some((class, blocks * BLOCK as u64 + OPERATION_BYTES))
}

/// A question that waits for its turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub caller: Caller,
    pub epoch: Epoch,
    pub question: Question,
    cost: u64,
    since: Time,
}

#[derive(Debug, Default)]
struct Tenant {
    in_flight: u64,
    waiting: VecDeque<Turn>,
    asked_at: Time,
}

impl Tenant {
    fn is_active(&self, now: Time) -> bool {
        self.in_flight > 0 || !self.waiting.is_empty() || now.since(self.asked_at) < REMEMBERED_US
    }
}

#[derive(Debug, Default)]
struct Lane {
    in_flight: u64,
    tenants: BTreeMap<FamilyId, Tenant>,
}

impl Lane {
    /// Forgets those that have left, and counts the others.
    fn active(&mut self, now: Time) -> u64 {
        self.tenants.retain(|_, tenant| tenant.is_active(now));
        self.tenants.len() as u64
    }

    /// The front of each queue, of whom has least in flight first.
    fn fronts(&self) -> Vec<(FamilyId, u64)> {
        let waiting = self.tenants.iter().filter_map(|(&family, tenant)| {
            let front = tenant.waiting.front()?;
            Some((tenant.in_flight, front.since, family, front.cost))
        });
        let mut fronts: Vec<_> = waiting.collect();
        fronts.sort_unstable();
        fronts.into_iter().map(|(_, _, family, cost)| (family, cost)).collect()
    }

    fn begin(&mut self, family: FamilyId, cost: u64) {
        self.in_flight += cost;
        self.tenants.get_mut(&family).expect("whoever begins has asked").in_flight += cost;
    }

    fn end(&mut self, family: FamilyId, cost: u64) {
        self.in_flight -= cost;
        self.tenants.get_mut(&family).expect("whoever has something in flight stays").in_flight -= cost;
    }
}

/// What waited for a turn on a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldBack {
    pub reads: u64,
    pub read_us: u64,
    pub background: u64,
    pub background_us: u64,
}

#[derive(Debug)]
pub(super) struct Turns {
    /// Bytes in flight while several share.
    most: u64,
    clients: Lane,
    background: Lane,
    /// Turns that were begun, by who asked.
    begun: BTreeMap<(ShardId, u64), (FamilyId, Class, u64)>,
    pub held: HeldBack,
}

impl Turns {
    pub fn new(most: u64) -> Self {
        Self {
            most,
            clients: Lane::default(),
            background: Lane::default(),
            begun: BTreeMap::new(),
            held: HeldBack::default(),
        }
    }

    fn lane(&mut self, class: Class) -> &mut Lane {
        match class {
            Class::Client => &mut self.clients,
            Class::Background => &mut self.background,
        }
    }

    /// Gives the question back if it may go on at once.
    pub fn ask(&mut self, now: Time, caller: Caller, epoch: Epoch, question: Question) -> Option<Question> {
        let Some((class, cost)) = cost_of(&question) else { return Some(question) };
        let family = caller.family;
        let tenant = self.lane(class).tenants.entry(family).or_default();
        tenant.asked_at = now;
        let mut is_first = tenant.waiting.is_empty();
        self.background.active(now);
        if class == Class::Background {
            is_first = self.background.fronts().is_empty();
        }
        if is_first && self.admits(now, class, family, cost) {
            self.begin(class, caller, cost);
            return Some(question);
        }
        let waiting = Turn { caller, epoch, question, cost, since: now };
        self.lane(class).tenants.get_mut(&family).expect("just made").waiting.push_back(waiting);
        None
    }

    fn admits(&mut self, now: Time, class: Class, family: FamilyId, cost: u64) -> bool {
        let active = self.clients.active(now);
        match class {
            Class::Client => {
                let own = self.clients.tenants.get(&family).map_or(0, |tenant| tenant.in_flight);
                let is_due = own == 0 || own + cost <= self.most / active.max(1);
                active <= 1
                    || is_due && !planted(Bug::TurnsByGreed)
                    || self.clients.in_flight == 0
                    || self.clients.in_flight + cost <= self.most
            }
            Class::Background => {
                let others = active - u64::from(self.clients.tenants.contains_key(&family));
                others == 0 || self.background.in_flight == 0 || self.background.in_flight + cost <= self.most
            }
        }
    }

    fn begin(&mut self, class: Class, caller: Caller, cost: u64) {
        self.lane(class).begin(caller.family, cost);
        self.begun.insert((caller.from, caller.call), (caller.family, class, cost));
    }

    /// A question was answered, whatever it was.
    pub fn ended(&mut self, caller: Caller) {
        if let Some((family, class, cost)) = self.begun.remove(&(caller.from, caller.call))
            && !(planted(Bug::TurnsKept) && class == Class::Client)
        {
            self.lane(class).end(family, cost);
        }
    }

    /// The next whose turn it is.
    pub fn next(&mut self, now: Time) -> Option<Turn> {
        for (family, cost) in self.clients.fronts() {
            if self.admits(now, Class::Client, family, cost) {
                return self.take(now, Class::Client, family);
            }
        }
        // Nobody is passed by: something large would wait for ever behind many small ones.
        let (family, cost) = self.background.fronts().into_iter().next()?;
        if self.admits(now, Class::Background, family, cost) {
            return self.take(now, Class::Background, family);
        }
        None
    }

    fn take(&mut self, now: Time, class: Class, family: FamilyId) -> Option<Turn> {
        let turn = self.lane(class).tenants.get_mut(&family)?.waiting.pop_front()?;
        self.begin(class, turn.caller, turn.cost);
        let (count, us) = match class {
            Class::Client => (&mut self.held.reads, &mut self.held.read_us),
            Class::Background => (&mut self.held.background, &mut self.held.background_us),
        };
        *count += 1;
        *us += now.since(turn.since);
        Some(turn)
    }

    /// Background work that waits, without a turn: the question of its owner relies on finding it begun.
    pub fn take_before(&mut self, now: Time, family: FamilyId, question: &Question) -> Option<Turn> {
        let tenant = self.background.tenants.get(&family)?;
        let is_due = match question {
            Question::DropFamily => true,
            Question::DeleteEgroups { egroups } => tenant.waiting.iter().any(|turn| match &turn.question {
                Question::WriteEgroup { egroup, .. } => egroups.contains(egroup),
                _ => false,
            }),
            _ => false,
        };
        if is_due { self.take(now, Class::Background, family) } else { None }
    }

    /// Nobody waits any longer, and nothing comes back.
    pub fn abandon(&mut self) {
        (self.clients, self.background) = (Lane::default(), Lane::default());
        self.begun.clear();
    }

    /// vDisks whose reads wait, and bytes of each that are in flight; for judges.
    pub fn readers_waiting(&self) -> impl Iterator<Item = (FamilyId, u64)> + '_ {
        let waiting = self.clients.tenants.iter().filter(|(_, tenant)| !tenant.waiting.is_empty());
        waiting.map(|(&family, tenant)| (family, tenant.in_flight))
    }

    pub fn describe(&self) -> String {
        let waiting = |lane: &Lane| lane.tenants.values().map(|tenant| tenant.waiting.len()).sum::<usize>();
        format!(
            "turns: {} bytes read for clients, {} reads wait; {} bytes in the background, {} wait",
            self.clients.in_flight,
            waiting(&self.clients),
            self.background.in_flight,
            waiting(&self.background)
        )
    }
}
