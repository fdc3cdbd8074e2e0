//! How good the ways to shards of other nodes are: of what this shard sends there, how much gets lost, and how long an answer takes.
//! Promises: a way is told to be poor, and to be poor no more, once each, by turns; a shard that is lost has no way at all, and
//! that is told elsewhere (`watch`).
//! Leaves to others: counting (the kernel, for each connection), what follows from it (the control plane).

use crate::shard_loop::PoorWay;
use std::collections::BTreeMap;
use weft_engine::{ShardId, Time};

/// The kernel is asked so often.
const ASK_US: u64 = 5_000_000;

/// A way is judged by as much as was sent in this time, and by so many segments at least.
const SPAN_US: u64 = 10_000_000;
const SEGMENTS_LEAST: u64 = 100;

/// A connection that sent less than this since it was asked last says nothing new of how long an answer takes.
const SEGMENTS_OF_ONE_LEAST: u32 = 10;

/// Judgements in a row before something is told.
const SPANS: u32 = 2;

/// Sent again, of a thousand segments: that many are poor, and fewer than these are fine.
const POOR_PER_MILLE: u64 = 20;
const FINE_PER_MILLE: u64 = 10;

/// Less than this happens: a machine that stood still for a moment sends again what was not lost.
const AGAIN_LEAST: u64 = 5;

/// There and back.
const POOR_US: u32 = 100_000;
const FINE_US: u32 = 50_000;

/// What the kernel has counted of one connection: segments with data, confirmations aside, and those of them that were sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub segments: u32,
    pub again: u32,
    pub there_and_back_us: u32,
}

impl Counted {
    /// What has come since.
    pub fn after(self, before: Counted) -> Counted {
        Counted {
            segments: self.segments.wrapping_sub(before.segments),
            again: self.again.wrapping_sub(before.again),
            there_and_back_us: self.there_and_back_us,
        }
    }
}

#[derive(Default)]
pub struct Ways {
    of: BTreeMap<ShardId, Way>,
    ask_at: Time,
}

#[derive(Default)]
struct Way {
    since: Option<Time>,
    segments: u64,
    again: u64,
    /// Of the best connection that had something to say (one that is full waits for itself), or without one (true) of any.
    there_and_back_us: Option<(bool, u32)>,
    poor: u32,
    fine: u32,
    is_told: bool,
}

impl Ways {
    pub fn is_due(&mut self, now: Time) -> bool {
        let is_due = now >= self.ask_at;
        if is_due {
            self.ask_at = now.after(ASK_US);
        }
        is_due
    }

    pub fn ask_now(&mut self) {
        self.ask_at = Time(0);
    }

    /// What one connection to this shard has done since it was asked last.
    pub fn count(&mut self, now: Time, shard: ShardId, counted: Counted) {
        let way = self.of.entry(shard).or_default();
        way.since.get_or_insert(now);
        way.segments += u64::from(counted.segments);
        way.again += u64::from(counted.again);
        if counted.segments > 0 {
            let told = (counted.segments < SEGMENTS_OF_ONE_LEAST, counted.there_and_back_us);
            way.there_and_back_us = way.there_and_back_us.into_iter().chain([told]).min();
        }
    }

    /// When all connections were counted: those shards whose ways have become poor, or are no more (None). `is_there`: not lost, and
    /// known at all.
    pub fn judge(
        &mut self,
        now: Time,
        is_there: impl Fn(ShardId) -> bool,
    ) -> Vec<(ShardId, Option<PoorWay>)> {
        let mut told = Vec::new();
        self.of.retain(|&shard, way| {
            let stays = is_there(shard);
            if !stays && way.is_told {
                told.push((shard, None));
            }
            stays
        });
        for (&shard, way) in &mut self.of {
            if let Some(verdict) = way.judge(now) {
                told.push((shard, verdict));
            }
        }
        told
    }
}

impl Way {
    fn judge(&mut self, now: Time) -> Option<Option<PoorWay>> {
        if now.since(self.since?) < SPAN_US || self.segments < SEGMENTS_LEAST {
            return None;
        }
        let again_per_mille = self.again * 1000 / self.segments;
        let us = self.there_and_back_us.map_or(0, |(_, us)| us);
        let gets_lost = |per_mille| self.again >= AGAIN_LEAST && again_per_mille >= per_mille;
        let is_poor = gets_lost(POOR_PER_MILLE) || us >= POOR_US;
        let is_fine = !gets_lost(FINE_PER_MILLE) && us < FINE_US;
        self.poor = if is_poor { self.poor + 1 } else { 0 };
        self.fine = if is_fine { self.fine + 1 } else { 0 };
        (self.since, self.segments, self.again, self.there_and_back_us) = (Some(now), 0, 0, None);
        if !self.is_told && self.poor >= SPANS {
            self.is_told = true;
            return Some(Some(PoorWay { again_per_mille: again_per_mille as u32, there_and_back_us: us }));
        }
        if self.is_told && self.fine >= SPANS {
            self.is_told = false;
            return Some(None);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: ShardId = ShardId(64);

    /// What is told while so much is sent every five seconds.
    fn pass(ways: &mut Ways, now: &mut Time, asks: u32, counted: Counted) -> Vec<Option<PoorWay>> {
        let mut told = Vec::new();
        for _ in 0..asks {
            *now = now.after(ASK_US);
            assert!(ways.is_due(*now) && !ways.is_due(*now));
            ways.count(*now, OTHER, counted);
            told.extend(ways.judge(*now, |_| true).into_iter().map(|(shard, verdict)| {
                assert_eq!(shard, OTHER);
                verdict
            }));
        }
        told
    }

    fn counted(segments: u32, again: u32, there_and_back_us: u32) -> Counted {
        Counted { segments, again, there_and_back_us }
    }

    #[test]
    fn a_way_on_which_much_gets_lost_is_told_once_and_so_is_its_end() {
        let (mut ways, mut now) = (Ways::default(), Time(7_000_000));
        assert_eq!(pass(&mut ways, &mut now, 20, counted(500, 2, 300)), [], "hardly anything gets lost");
        let poor = PoorWay { again_per_mille: 40, there_and_back_us: 300 };
        assert_eq!(pass(&mut ways, &mut now, 20, counted(500, 20, 300)), [Some(poor)]);
        assert_eq!(pass(&mut ways, &mut now, 20, counted(500, 7, 300)), [], "in between");
        assert_eq!(pass(&mut ways, &mut now, 20, counted(500, 1, 300)), [None]);
    }

    #[test]
    fn a_way_that_takes_long_is_poor_as_well() {
        let (mut ways, mut now) = (Ways::default(), Time(0));
        let poor = PoorWay { again_per_mille: 0, there_and_back_us: 250_000 };
        assert_eq!(pass(&mut ways, &mut now, 10, counted(500, 0, 250_000)), [Some(poor)]);
        assert_eq!(pass(&mut ways, &mut now, 10, counted(500, 0, 2_000)), [None]);
    }

    #[test]
    fn one_connection_that_is_full_makes_no_way_poor_and_idle_ones_make_none_fine() {
        let (mut ways, mut now) = (Ways::default(), Time(0));
        let mut story = |of_two: [Counted; 2]| {
            let mut told = Vec::new();
            for _ in 0..10 {
                now = now.after(ASK_US);
                of_two.into_iter().for_each(|counted| ways.count(now, OTHER, counted));
                told.extend(ways.judge(now, |_| true).into_iter().map(|(_, verdict)| verdict.is_some()));
            }
            told
        };
        assert_eq!(story([counted(5_000, 0, 250_000), counted(50, 0, 300)]), Vec::<bool>::new());
        assert_eq!(story([counted(5_000, 0, 250_000), counted(5, 0, 300)]), [true]);
        assert_eq!(story([counted(5_000, 0, 900), counted(5, 0, 250_000)]), [false]);
    }

    #[test]
    fn a_way_that_takes_long_is_poor_also_when_nothing_but_signs_of_life_go_there() {
        let (mut ways, mut now) = (Ways::default(), Time(0));
        let poor = PoorWay { again_per_mille: 0, there_and_back_us: 250_000 };
        assert_eq!(pass(&mut ways, &mut now, 200, counted(7, 0, 250_000)), [Some(poor)]);
    }

    #[test]
    fn little_is_not_judged_before_it_is_enough() {
        let (mut ways, mut now) = (Ways::default(), Time(0));
        assert_eq!(pass(&mut ways, &mut now, 5, counted(10, 1, 300)), [], "a hundred segments take longer");
        assert_eq!(pass(&mut ways, &mut now, 30, counted(10, 1, 300)).len(), 1);
        let (mut ways, mut now) = (Ways::default(), Time(0));
        assert_eq!(
            pass(&mut ways, &mut now, 100, counted(25, 1, 300)),
            [],
            "four of a hundred may be a moment"
        );
    }

    #[test]
    fn one_that_is_lost_has_no_way() {
        let (mut ways, mut now) = (Ways::default(), Time(0));
        assert_eq!(pass(&mut ways, &mut now, 10, counted(500, 50, 300)).len(), 1);
        assert_eq!(ways.judge(now, |_| false), [(OTHER, None)]);
        assert_eq!(ways.judge(now, |_| false), []);
    }

    #[test]
    fn counters_of_the_kernel_may_turn_over() {
        let since = counted(4, 1, 9).after(counted(u32::MAX - 5, u32::MAX, 700));
        assert_eq!(since, counted(10, 2, 9));
    }
}
