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

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: ShardId = ShardId(64);

    /// Looks every few milliseconds, and answers nothing. Gives when it was lost and why, and how often it was asked.
    fn look_until_lost(watches: &mut Watches, from: Time, standing: Standing) -> (Time, PeerTrouble, usize) {
        let (mut now, mut pings) = (from, 0);
        loop {
            for (shard, verdict) in look(watches, now, standing) {
                assert_eq!(shard, OTHER);
                match verdict {
                    Verdict::Lost(why) => return (now, why, pings),
                    Verdict::Ping => pings += 1,
                    Verdict::Dial => assert_eq!(standing, Standing::None),
                }
            }
            now = now.after(5_000);
            assert!(now.since(from) < 10_000_000, "it is lost in the end");
        }
    }

    fn look(watches: &mut Watches, now: Time, standing: Standing) -> Vec<(ShardId, Verdict)> {
        let mut verdicts = Vec::new();
        watches.look(now, |_| standing, &mut verdicts);
        verdicts
    }

    fn reached(now: Time) -> Watches {
        let mut watches = Watches::default();
        watches.begin(now, OTHER);
        assert_eq!(look(&mut watches, now, Standing::Stands), [(OTHER, Verdict::Ping)], "asked at once");
        assert!(!watches.hear(now, OTHER), "it was not lost");
        watches
    }

    #[test]
    fn silence_and_closed_connections_are_told_apart_and_each_has_its_time() {
        let began = Time(77_000_000);
        let mut silent = reached(began);
        let (at, why, pings) = look_until_lost(&mut silent, began, Standing::Stands);
        assert_eq!((why, pings), (PeerTrouble::Silent, 3), "it was asked before it was judged");
        assert!((SILENT_US..SILENT_US + LOOK_US + 5_000).contains(&at.since(began)), "{at:?}");
        let mut gone = reached(began);
        gone.fail(began, OTHER);
        let (at, why, _) = look_until_lost(&mut gone, began, Standing::None);
        assert_eq!(why, PeerTrouble::Gone);
        assert!((CRASHED_US..CRASHED_US + 50_000).contains(&at.since(began)), "{at:?}");
        let mut refused = Watches::default();
        refused.begin(began, OTHER);
        refused.fail(began, OTHER);
        let (at, why, _) = look_until_lost(&mut refused, began, Standing::None);
        assert_eq!(why, PeerTrouble::NeverReached);
        assert!(at.since(began) < CRASHED_US + 50_000, "{at:?}");
        let mut nothing = Watches::default();
        nothing.begin(began, OTHER);
        let (at, why, _) = look_until_lost(&mut nothing, began, Standing::Making);
        assert_eq!(why, PeerTrouble::NeverReached);
        assert!(at.since(began) >= SILENT_US, "{at:?}");
    }

    #[test]
    fn a_connection_that_stands_again_in_time_is_not_lost_and_nothing_is_told_twice() {
        let began = Time(5_000_000);
        let mut watches = reached(began);
        watches.fail(began, OTHER);
        assert!(look(&mut watches, began, Standing::None).contains(&(OTHER, Verdict::Dial)));
        // Made again, and slow to answer.
        let later = began.after(CRASHED_US + 10_000);
        assert_eq!(look(&mut watches, later, Standing::Stands), [(OTHER, Verdict::Ping)]);
        watches.hear(later, OTHER);
        let (lost, _, _) = look_until_lost(&mut watches, later, Standing::Stands);
        let mut now = lost;
        for _ in 0..100 {
            now = now.after(LOOK_US);
            watches.fail(now, OTHER);
            let verdicts = look(&mut watches, now, Standing::None);
            assert_eq!(verdicts, [(OTHER, Verdict::Dial)], "tried again and again, and told once");
        }
        assert_eq!(watches.counts(), (0, 1));
        assert!(watches.hear(now, OTHER), "it is back");
        assert!(!watches.hear(now, OTHER), "that is told once");
        assert_eq!(watches.counts(), (1, 0));
        watches.forget(OTHER);
        assert_eq!(watches.look_at(), None, "nobody is left to look at");
    }

    #[test]
    fn whoever_slept_takes_nobody_for_lost_because_of_it() {
        let began = Time(5_000_000);
        let mut watches = reached(began);
        // Everything stood still for a minute, in the middle of a silence and of a failure.
        look(&mut watches, began.after(LOOK_US), Standing::Stands);
        watches.fail(began.after(LOOK_US), OTHER);
        let awake = began.after(60_000_000);
        let verdicts = look(&mut watches, awake, Standing::None);
        assert_eq!(verdicts, [(OTHER, Verdict::Dial)]);
        let (at, _, _) = look_until_lost(&mut watches, awake, Standing::Stands);
        assert!(at.since(awake) >= SILENT_US, "the silence counts from here: {at:?}");
    }
}
