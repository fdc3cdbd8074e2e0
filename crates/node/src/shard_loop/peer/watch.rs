//! Which shards of other nodes answer: who is asked whether it is there, and when it is taken for lost.
//!
//! Heard is only what comes back on connections that this shard has made: who speaks to us and does not hear us is
//! of no use to us. So both sides of a wire that is cut in one direction take each other for lost.
//!
//! Promises: being lost and being back are told once each, by turns; silence is counted only while this shard itself was
//! awake and asked.
//! Leaves to others: connections (`peer`), what follows from it (the control plane).

use crate::shard_loop::PeerTrouble;
use std::collections::BTreeMap;
use weft_engine::cluster::detection::{CRASHED_US, SILENT_US};
use weft_engine::{ShardId, Time};

/// All are looked at so often, together: a sleeping shard is woken by nothing else.
const LOOK_US: u64 = 250_000;

/// One that was not heard, and not asked, for so long is asked whether it is there: at every other look.
const PING_US: u64 = 400_000;

/// If looks lie further apart than that, this shard stood still: what came meanwhile was not heard.
const PAUSE_US: u64 = 500_000;

#[derive(Default)]
pub struct Watches {
    of: BTreeMap<ShardId, Watch>,
    looked: Time,
    look_at: Time,
}

/// What is known of one shard.
#[derive(Debug, Clone, Copy)]
struct Watch {
    /// When it was heard last, or the watch began.
    heard: Time,
    pinged: Time,
    /// A connection to it was closed or refused then, and it was not heard since.
    failed: Option<Time>,
    was_reached: bool,
    is_lost: bool,
}

/// How it stands with the connection that pings take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    None,
    /// Nobody has taken it yet, or refused.
    Making,
    Stands,
}

/// What is to be done about a shard.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A connection is to be made.
    Dial,
    Ping,
    Lost(PeerTrouble),
}

impl Watches {
    /// This shard is watched from now on, or at a new address.
    pub fn begin(&mut self, now: Time, shard: ShardId) {
        if self.of.is_empty() {
            self.looked = now;
        }
        let is_lost = self.of.get(&shard).is_some_and(|watch| watch.is_lost);
        let watch = Watch { heard: now, pinged: Time(0), failed: None, was_reached: false, is_lost };
        self.of.insert(shard, watch);
        self.look_at = now;
    }

    pub fn forget(&mut self, shard: ShardId) {
        self.of.remove(&shard);
    }

    /// It answered. True if it was lost.
    pub fn hear(&mut self, now: Time, shard: ShardId) -> bool {
        let Some(watch) = self.of.get_mut(&shard) else { return false };
        (watch.heard, watch.failed, watch.was_reached) = (now, None, true);
        std::mem::replace(&mut watch.is_lost, false)
    }

    /// A connection to it ended, or was not made.
    pub fn fail(&mut self, now: Time, shard: ShardId) {
        if let Some(watch) = self.of.get_mut(&shard) {
            watch.failed.get_or_insert(now);
            // What was asked there is not answered any more.
            watch.pinged = Time(0);
            self.look_at = self.look_at.min(now);
        }
    }

    pub fn is_lost(&self, shard: ShardId) -> bool {
        self.of.get(&shard).is_some_and(|watch| watch.is_lost)
    }

    /// How many answer, and how many are lost.
    pub fn counts(&self) -> (u64, u64) {
        let count = |is_it: fn(&Watch) -> bool| self.of.values().filter(|watch| is_it(watch)).count() as u64;
        (count(|watch| watch.was_reached && !watch.is_lost), count(|watch| watch.is_lost))
    }

    /// Something may be due before the next look.
    pub fn look_by(&mut self, at: Time) {
        self.look_at = self.look_at.min(at);
    }

    /// When the next look is due.
    pub fn look_at(&self) -> Option<Time> {
        (!self.of.is_empty()).then_some(self.look_at)
    }

    /// Looks at all of them, if it is time: tells what is to be done.
    pub fn look(
        &mut self,
        now: Time,
        standing: impl Fn(ShardId) -> Standing,
        verdicts: &mut Vec<(ShardId, Verdict)>,
    ) {
        if self.of.is_empty() || now < self.look_at {
            return;
        }
        let was_paused = now.since(self.looked) > PAUSE_US;
        self.looked = now;
        self.look_at = now.after(LOOK_US);
        for (&shard, watch) in &mut self.of {
            if was_paused {
                watch.heard = now;
                watch.failed = watch.failed.map(|_| now);
            }
            let standing = standing(shard);
            if let Some(trouble) = watch.trouble(now, standing) {
                watch.is_lost = true;
                verdicts.push((shard, Verdict::Lost(trouble)));
            }
            if standing == Standing::None {
                verdicts.push((shard, Verdict::Dial));
            } else if standing == Standing::Stands && watch.wants_ping(now) {
                watch.pinged = now;
                verdicts.push((shard, Verdict::Ping));
            }
            if let Some(failed) = watch.failed.filter(|_| !watch.is_lost) {
                self.look_at = self.look_at.min(failed.after(CRASHED_US).max(now.after(CRASHED_US / 10)));
            }
        }
    }
}

impl Watch {
    /// Why it is lost from now on.
    fn trouble(&self, now: Time, standing: Standing) -> Option<PeerTrouble> {
        if self.is_lost {
            return None;
        }
        // One whose connection stands again may only be slow to say so.
        let is_gone =
            standing != Standing::Stands && self.failed.is_some_and(|failed| now.since(failed) >= CRASHED_US);
        let is_silent = now.since(self.heard) >= SILENT_US;
        match (is_gone, is_silent) {
            (false, false) => None,
            _ if !self.was_reached => Some(PeerTrouble::NeverReached),
            (true, _) => Some(PeerTrouble::Gone),
            (false, true) => Some(PeerTrouble::Silent),
        }
    }

    fn wants_ping(&self, now: Time) -> bool {
        // The first one at once: until it is answered, nobody knows who has taken the connection.
        let is_due = now.since(self.heard) >= PING_US || !self.was_reached || self.failed.is_some();
        let spacing = if self.is_lost { LOOK_US / 2 } else { PING_US };
        is_due && (self.pinged == Time(0) || now.since(self.pinged) >= spacing)
    }
}
