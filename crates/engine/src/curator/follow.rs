//! Data follows its vDisk: what is read often from drives of other nodes is moved to where its owner has a drive.
//! Promises: nothing moves that has a copy in this node, or whose new place would not be here; what is remembered of reads is
//! bounded, and in memory only; while clients ask, one job begins now and then.
//! Leaves to others: moving the units (`moves`), which group (`egroup/groups.rs`); reads find the new place with the next checkpoint,
//! which comes in time because there are moves (`map/checkpoint.rs`).

use super::compact::{VICTIMS_MAX, pause_us};
use super::moves::Whereto;
use crate::buffer::BLOCK;
use crate::context::Context;
use crate::egroup::groups;
use crate::egroup::units::units_max;
use crate::identity::{EgroupId, Time};
use crate::limits::{EGROUP_UNITS, Limits, Touches};
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A group with less room takes nothing that lies well where it is: what is emptied is free only after a checkpoint.
pub const ROOM_MIN: u64 = 4 * (EGROUP_UNITS * BLOCK) as u64;
/// Egroups looked at in one step.
const LOOKS: usize = 256;
/// Without a place here it is looked for one again after so long ...
const PLACE_AGAIN_US: u64 = 5_000_000;
/// ... which is doubled so often at most, to about ten minutes, while drives that tell of room have no run of it that is long enough.
const REFUSALS_MAX: u32 = 7;

/// How an egroup was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Random,
    Sequential,
}

impl Touch {
    /// What it counts, so that enough of either kind are [`enough`], and so are some of both.
    fn points(self, rule: &Touches) -> u32 {
        match self {
            Touch::Random => rule.sequential,
            Touch::Sequential => rule.random,
        }
    }
}

fn enough(rule: &Touches) -> u32 {
    rule.random * rule.sequential
}

/// How often one egroup was touched.
#[derive(Debug)]
struct Touched {
    since: Time,
    points: u32,
    /// The newest touch, and what it counts.
    touch: u64,
    counts: u32,
}

impl Touched {
    fn new(now: Time) -> Self {
        Self { since: now, points: 0, touch: u64::MAX, counts: 0 }
    }

    fn is_over(&self, rule: &Touches, now: Time) -> bool {
        now.since(self.since) >= rule.count_us
    }

    /// Reads that come together are one touch, which counts what the weightiest of them does.
    fn add(&mut self, touch: Touch, rule: &Touches, now: Time) {
        if self.is_over(rule, now) {
            *self = Self::new(now);
        }
        let number = now.0 / rule.touch_us;
        if self.touch != number {
            (self.touch, self.counts) = (number, 0);
        }
        let more = touch.points(rule).saturating_sub(self.counts);
        self.counts += more;
        self.points += more;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Following {
    /// Egroups without a copy in this node that were read lately.
    touched: BTreeMap<EgroupId, Touched>,
    /// The touch in which those were looked through last.
    swept: u64,
    /// Touched often enough.
    wanted: BTreeSet<EgroupId>,
    not_before: Time,
    /// Jobs in a row that found no place here.
    refusals: u32,
    wake_at: Option<Time>,
}

impl Following {
    /// A group that was to take some of it had no room. What is written elsewhere in vain wears the drives.
    pub fn found_no_place(&mut self, now: Time) {
        self.not_before = now.after(PLACE_AGAIN_US << self.refusals.min(REFUSALS_MAX));
        self.refusals += 1;
    }

    /// Some of it has come.
    pub fn found_place(&mut self) {
        self.refusals = 0;
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.wake_at
    }

    fn note(&mut self, egroup: EgroupId, touch: Touch, limits: &Limits, now: Time) {
        let rule = &limits.touches;
        if self.wanted.contains(&egroup) || planted(Bug::NothingFollows) {
            return;
        }
        if self.touched.len() >= rule.egroups_max && !self.touched.contains_key(&egroup) {
            // Looking through all of them takes time: not for each read.
            if self.swept != now.0 / rule.touch_us {
                self.swept = now.0 / rule.touch_us;
                self.touched.retain(|_, touched| !touched.is_over(rule, now));
            }
            if self.touched.len() >= rule.egroups_max {
                return;
            }
        }
        let touched = self.touched.entry(egroup).or_insert_with(|| Touched::new(now));
        touched.add(touch, rule, now);
        if touched.points >= enough(rule) && self.wanted.len() < rule.egroups_max {
            self.touched.remove(&egroup);
            self.wanted.insert(egroup);
        }
    }
}

impl Volume {
    /// Units of the egroup are asked of a drive of another node, for a client or ahead of one.
    pub(crate) fn note_touch(&mut self, egroup: EgroupId, touch: Touch, ctx: &Context) {
        // What has another place already is found there soon.
        if !self.is_near(egroup, ctx) && !self.compaction.emptied().contains(&egroup) {
            self.following.note(egroup, touch, ctx.limits, ctx.now);
        }
    }

    /// Whether it has a copy in this node, though perhaps one that is away at the moment.
    fn is_near(&self, egroup: EgroupId, ctx: &Context) -> bool {
        let group = self.map.group_of(egroup);
        group.is_some_and(|group| ctx.members(group).iter().any(|&drive| ctx.is_near(drive)))
    }

    /// Begins a job if something is to be moved here and it is time.
    pub(crate) fn start_following(&mut self, ctx: &mut Context) {
        self.following.wake_at = None;
        if self.following.wanted.is_empty() {
            return;
        }
        if !self.compaction.is_empty() || self.checkpointing.is_running() {
            // Each of these ends with an input that comes here again.
            return;
        }
        let mut not_before = self.following.not_before;
        let due = self.is_due(&mut not_before, ctx);
        self.following.not_before = not_before;
        if let Err(again) = due {
            self.following.wake_at = again;
            return;
        }
        // Whoever settles would never come to rest: what is moved has to go into pages, and by then the next may begin. And copies
        // that are owed go first.
        let is_short = self.placing.is_full() || !self.audit.copies.cramped().is_empty();
        if is_short || self.wants_to_settle() || !groups::is_here(self.factor as usize, ROOM_MIN, ctx) {
            // What is touched often now will be so again.
            self.following.wanted.clear();
            self.following.not_before = ctx.now.after(PLACE_AGAIN_US);
            return;
        }
        self.following.not_before = ctx.now.after(pause_us(ctx));
        let victims = self.wanted_egroups(ctx);
        if !self.following.wanted.is_empty() {
            self.following.wake_at = Some(self.following.not_before);
        }
        if victims.is_empty() {
            return;
        }
        ctx.counters.egroups_followed += victims.len() as u64;
        let packing = self.packing_of_moved(&victims);
        self.start_moving(victims, packing, Whereto::Here, ctx);
    }

    /// The next that fit into one egroup together. Those that cannot be moved now have to be touched again.
    fn wanted_egroups(&mut self, ctx: &Context) -> VecDeque<EgroupId> {
        let mut victims = VecDeque::new();
        let (mut live, mut between) = (0, None);
        for _ in 0..LOOKS {
            let Some(&egroup) = self.following.wanted.first() else { break };
            let entry = self.map.directory.get(egroup).filter(|&entry| self.may_be_victim(egroup, entry));
            let Some(entry) = entry.filter(|_| !self.is_near(egroup, ctx)) else {
                self.following.wanted.remove(&egroup);
                continue;
            };
            // What is in an egroup is seen by the same snapshots.
            let after = self.snapshot_before(entry.generation);
            live += entry.live as usize;
            let too_many = live > units_max(self.compression).min(self.compaction.units_max.get());
            let too_far = *between.get_or_insert(after) != after;
            if !victims.is_empty() && (too_many || too_far) || victims.len() == VICTIMS_MAX {
                break;
            }
            self.following.wanted.remove(&egroup);
            victims.push_back(egroup);
        }
        victims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: EgroupId = EgroupId(1);
    const S: u64 = 1_000_000;

    /// Notes a touch at each of these seconds. Gives whether it is wanted then.
    fn is_wanted(touch: Touch, seconds: &[u64]) -> bool {
        let mut following = Following::default();
        let limits = Limits::default();
        for &second in seconds {
            assert!(!following.wanted.contains(&ONE), "not before {second} s");
            following.note(ONE, touch, &limits, Time(second * S));
        }
        following.wanted.contains(&ONE)
    }

    #[test]
    fn three_random_touches_or_ten_sequential_ones_are_enough() {
        assert!(is_wanted(Touch::Random, &[0, 10, 20]));
        assert!(!is_wanted(Touch::Random, &[0, 9, 10]), "reads within ten seconds are one touch");
        assert!(!is_wanted(Touch::Random, &[0, 300, 600]), "ten minutes later they count no more");
        assert!(is_wanted(Touch::Sequential, &[0, 10, 20, 30, 40, 50, 60, 70, 80, 90]));
        assert!(!is_wanted(Touch::Sequential, &[0, 10, 20, 30, 40, 50, 60, 70, 80]));
    }

    #[test]
    fn of_reads_that_come_together_the_random_ones_count() {
        let mut following = Following::default();
        let limits = Limits::default();
        for second in [0, 10, 20] {
            for touch in [Touch::Sequential, Touch::Random, Touch::Sequential, Touch::Random] {
                assert!(!following.wanted.contains(&ONE));
                following.note(ONE, touch, &limits, Time(second * S));
                if following.wanted.contains(&ONE) {
                    assert_eq!((second, touch), (20, Touch::Random));
                    return;
                }
            }
        }
        panic!("three random touches are enough");
    }

    #[test]
    fn without_a_place_here_it_is_tried_less_and_less_often() {
        let mut following = Following::default();
        let pauses: Vec<u64> = (0..9)
            .map(|_| {
                following.found_no_place(Time(0));
                following.not_before.0 / S
            })
            .collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 640]);
        following.found_place();
        following.found_no_place(Time(0));
        assert_eq!(following.not_before, Time(5 * S));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_makes_room_for_others() {
        let mut limits = Limits::default();
        limits.touches.egroups_max = 10;
        let mut following = Following::default();
        for egroup in 1..=100 {
            following.note(EgroupId(egroup), Touch::Random, &limits, Time(0));
        }
        assert_eq!(following.touched.len(), 10);
        for second in [600, 610, 620] {
            following.note(EgroupId(50), Touch::Random, &limits, Time(second * S));
        }
        assert!(following.touched.is_empty() && following.wanted.contains(&EgroupId(50)));
    }
}
