//! Compaction: when space is wanted, and which egroups are emptied for it. (How is in `moves`.)
//! Promises: nothing is moved in families that waste little, or while their clients ask and there is space enough; little
//! at a time while clients of others ask; victims wait for the checkpoint that deletes them before many more are emptied; a
//! full pool, or a drive without room for copies it is owed, is worth more work; nothing is moved while every group misses a member
//! that may come back, because it would have fewer copies then (decision 0053).
//! Leaves to others: moving the units (`moves`), deleting the emptied egroups (`map/checkpoint.rs`).

use super::moves::{Job, Whereto};
use crate::buffer::BLOCK;
use crate::context::{Context, IDLE_US};
use crate::egroup::units::{UnitsMax, units_max};
use crate::identity::{EgroupId, Generation, Time};
use crate::interface::Compression;
use crate::limits::EGROUP_UNITS;
use crate::map::directory::{Directory, Entry};
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Between the beginnings of two jobs.
pub(super) const PAUSE_US: u64 = 20_000;
/// The same while clients ask for other families of the shard, and nobody waits for space: some 20 MiB/s.
pub(super) const PAUSE_BUSY_US: u64 = 200_000;
/// Between the beginnings of two jobs of what can wait.
pub(super) fn pause_us(ctx: &Context) -> u64 {
    if ctx.is_asked() { PAUSE_BUSY_US } else { PAUSE_US }
}

/// A log without room is asked again after so long.
pub(crate) const ROOM_AGAIN_US: u64 = 200_000;
/// An egroup that could not be read, or found no room, is left alone for so long.
const AVOID_US: u64 = 5_000_000;
/// Between two looks through all egroups that found none worth emptying, for each of them: a thousand times as long as a look takes.
const LOOK_US_EACH: u64 = 20;
/// That is doubled so often at most for one that cannot be read: to 80 s.
const UNREADABLE_MAX: u32 = 4;
/// Members that are away are waited for so long if the pool is full. By then the control plane has given their places to others,
/// if there are others; and a pool that refuses writes for ever helps nobody.
const MEMBERS_US_MAX: u64 = 900_000_000;
/// Egroups emptied by one job at most.
pub(super) const VICTIMS_MAX: usize = 16;
/// Egroups that are empty but not deleted yet: with more, the next checkpoint comes first. When the pool is full,
/// each of them stands for space of the reserve that pages need.
pub(super) const EMPTIED_MAX: usize = 32;
pub(super) const EMPTIED_MAX_WHEN_FULL: usize = 4;
/// In a full pool even an egroup with few dead units is worth its while.
const LIVE_PERCENT_WHEN_FULL: u32 = 95;
/// A percentage that every egroup is below.
const EVEN_FULL_ONES: u32 = 101;
/// Egroups with no more live units than this are small: a slow trickle of writes makes many of them.
const SMALL_UNITS: u32 = EGROUP_UNITS as u32 / 4;
/// So many more egroups than the data needs are nobody's concern.
const SCATTERED_MIN: usize = 16;
/// The pause between attempts that find no room is doubled so often at most: to about four minutes.
const REFUSALS_MAX: u32 = 9;
/// Dead units that nobody minds.
const SLACK_UNITS: u64 = 2 * EGROUP_UNITS as u64;

#[derive(Debug, Default)]
pub(crate) struct Compaction {
    pub(super) last: u64,
    pub(super) jobs: BTreeMap<u64, Job>,
    /// Emptied egroups that the next checkpoint will find dead.
    pub(super) emptied: BTreeSet<EgroupId>,
    avoid: BTreeMap<EgroupId, Time>,
    /// How many times in a row one could not be read: it is left alone for longer each time.
    unreadable: BTreeMap<EgroupId, u32>,
    /// Live units of one job.
    pub(super) units_max: UnitsMax,
    /// Nothing begins before this.
    not_before: Time,
    /// Nothing was found worth it, and is not looked for before this unless space is short.
    nothing_until: Time,
    /// Refusals in a row, and until when what could as well stay as it is is left alone for them.
    refusals: u32,
    pub(super) no_room_until: Time,
    /// There may be more to do then.
    more: bool,
    /// When space is wanted, it looks again when `nothing_until` is over.
    looks_again: bool,
    /// Since when nothing is moved because members are away that may come back.
    awaits_members: Option<Time>,
}

impl Compaction {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn wake_at(&self) -> Option<Time> {
        let more = self.more.then_some(self.not_before);
        more.into_iter().chain(self.looks_again.then_some(self.nothing_until)).min()
    }

    /// Egroups that are durable but not in a map record yet: not orphans.
    pub fn naming(&self) -> impl Iterator<Item = EgroupId> + '_ {
        self.jobs.values().filter_map(Job::naming)
    }

    /// These are left alone for a while.
    pub(super) fn leave_alone(&mut self, egroups: impl IntoIterator<Item = EgroupId>, now: Time) {
        self.avoid.extend(egroups.into_iter().map(|egroup| (egroup, now.after(AVOID_US))));
    }

    /// Nobody has a good copy of this one at the moment.
    pub(super) fn leave_unreadable(&mut self, egroup: EgroupId, now: Time) {
        let times = self.unreadable.entry(egroup).or_default();
        self.avoid.insert(egroup, now.after(AVOID_US << (*times).min(UNREADABLE_MAX)));
        *times += 1;
    }

    /// A copy was made good.
    pub(super) fn may_read(&mut self, egroup: EgroupId) {
        if self.unreadable.remove(&egroup).is_some() {
            self.avoid.remove(&egroup);
        }
    }

    pub(super) fn avoids(&self, egroup: EgroupId) -> bool {
        self.avoid.contains_key(&egroup)
    }

    /// Drives came or went: what could not be read may be readable, and what found no group may find one. `movable`: there is a group
    /// by now that misses nobody, so nobody has been waited for any more.
    pub fn on_view(&mut self, movable: bool) {
        if self.awaits_members.is_some() {
            (self.not_before, self.no_room_until) = (Time(0), Time(0));
            (self.units_max, self.refusals) = (UnitsMax::default(), 0);
            self.more = true;
        }
        if movable {
            self.awaits_members = None;
        }
        for egroup in std::mem::take(&mut self.unreadable).into_keys() {
            self.avoid.remove(&egroup);
        }
    }

    /// No group had room for an egroup of so many units: less is tried, and not at once. Writing it again and again would
    /// only wear the drives that do have room.
    pub fn found_no_room(&mut self, units: usize, now: Time) {
        self.units_max.refused(units, 1);
        self.not_before = now.after(AVOID_US / 10);
        self.no_room_until = now.after((AVOID_US / 10) << self.refusals.min(REFUSALS_MAX));
        self.refusals += 1;
    }

    /// No group had as many members up as there are copies.
    pub fn found_no_members(&mut self, now: Time) {
        self.awaits_members.get_or_insert(now);
        self.not_before = now.after(AVOID_US);
    }

    /// Whether members have been away for so long that a full pool does not wait for them any more.
    pub fn goes_without(&self, full: bool, now: Time) -> bool {
        full && self.awaits_members.is_some_and(|since| now.since(since) >= MEMBERS_US_MAX)
    }

    /// There was room.
    pub(super) fn found_room(&mut self) {
        self.units_max.fitted();
        self.refusals = 0;
    }

    /// Forgets what is over. Whether so many are emptied and not deleted yet that the next checkpoint comes first.
    pub(super) fn has_emptied(&mut self, most: usize, directory: &Directory, now: Time) -> bool {
        self.avoid.retain(|_, until| *until > now);
        self.forget_gone(directory);
        self.emptied.len() >= most
    }

    /// What is gone is not asked for again in every step.
    fn forget_gone(&mut self, directory: &Directory) {
        self.emptied.retain(|&egroup| directory.contains(egroup));
        self.unreadable.retain(|&egroup, _| directory.contains(egroup));
    }

    pub fn emptied(&self) -> &BTreeSet<EgroupId> {
        &self.emptied
    }

    /// A checkpoint is durable, and these were emptied before it was cut: what is still there is not empty, and nothing to be waited
    /// for. It should not happen, and would keep others from being emptied.
    /// Gives how many they are.
    pub fn note_living(&mut self, emptied: BTreeSet<EgroupId>, directory: &Directory, now: Time) -> u64 {
        let living: Vec<EgroupId> = emptied
            .into_iter()
            .filter(|&egroup| directory.contains(egroup) && self.emptied.remove(&egroup))
            .collect();
        let count = living.len() as u64;
        self.leave_alone(living, now);
        self.forget_gone(directory);
        count
    }

    fn is_busy_with(&self, egroup: EgroupId) -> bool {
        self.jobs.values().any(|job| job.is_busy_with(egroup))
    }
}

impl Volume {
    /// Begins a job if space is wanted and it is time.
    pub(crate) fn start_compaction(&mut self, ctx: &mut Context) {
        let full = self.placing.is_full();
        // A drive that has no room for the copies it is owed: what lies on it goes to groups that have some.
        let cramped = !self.audit.copies.cramped().is_empty();
        self.compaction.more = false;
        self.compaction.looks_again = false;
        let allowed = full || self.requests.waiting.is_empty() && !self.checkpointing.is_running();
        if self.compaction.jobs.len() >= ctx.limits.compact_egroups_max
            || !allowed
            || !(cramped || self.may_be_wasteful(full))
        {
            return;
        }
        let can_wait = !cramped && !self.is_space_wanted(full);
        if can_wait && self.wants_to_settle() {
            // It would never come to rest: what is moved has to go into pages, and by then the next may begin.
            self.compaction.not_before = self.compaction.not_before.max(ctx.now.after(IDLE_US));
        }
        let idle_at = self.requests.last_asked.after(IDLE_US);
        if ctx.now < idle_at && can_wait {
            // The longer it waits, the emptier egroups become, and the less there is to move.
            self.compaction.not_before = self.compaction.not_before.max(idle_at);
        }
        if !full && !cramped && ctx.now < self.compaction.nothing_until {
            // What there is to do since the last look is found then, whether anything else happens or not.
            self.compaction.looks_again = true;
            return;
        }
        if ctx.now < self.compaction.not_before {
            self.compaction.more = true;
            return;
        }
        if self.room() == 0 {
            // What is left of the log is for what frees some of it.
            self.log.ask_for_room(ROOM_AGAIN_US, ctx);
            self.compaction.not_before = ctx.now.after(ROOM_AGAIN_US);
            self.compaction.more = true;
            return;
        }
        if self.snapshots.wants_pages() && self.overlay.is_empty() {
            // All that was written is drained: pages come next, and what they free is not known before.
            return;
        }
        if self.may_move() {
            self.compaction.awaits_members = None;
        } else if !self.compaction.goes_without(full, ctx.now) {
            self.compaction.found_no_members(ctx.now);
            self.compaction.more = true;
            return;
        }
        self.compaction.not_before = ctx.now.after(PAUSE_US);
        let emptied_max = if full { EMPTIED_MAX_WHEN_FULL } else { EMPTIED_MAX };
        if self.compaction.has_emptied(emptied_max, &self.map.directory, ctx.now)
            || !(cramped || self.is_wasteful(full))
        {
            return;
        }
        let percent = if full { LIVE_PERCENT_WHEN_FULL } else { ctx.limits.compact_live_percent };
        let victims = self.choose_victims(percent, ctx);
        if victims.is_empty() {
            if !full && !cramped {
                // Nothing is worth it, and looking through all of them takes time: the more there are, the later the next look.
                let pause = (self.map.directory.len() as u64 * LOOK_US_EACH).min(AVOID_US);
                self.compaction.nothing_until = ctx.now.after(pause);
            }
            if self.compaction.refusals > 0 {
                // What was refused is left alone for a while, and then tried again.
                let (again, room) = (ctx.now.after(AVOID_US), self.compaction.no_room_until);
                self.compaction.not_before = if ctx.now < room { room.min(again) } else { again };
                self.compaction.more = true;
            }
            return;
        }
        self.compaction.more = true;
        if can_wait && ctx.is_asked() {
            // What one vDisk left behind is not to be paid for by the clients of another.
            self.compaction.not_before = ctx.now.after(PAUSE_BUSY_US);
        }
        let packing = self.packing_of_moved(&victims);
        self.start_moving(victims, packing, Whereto::Anywhere, ctx);
    }

    /// Whether a job of what can wait may begin, while nothing is being moved and no checkpoint runs. Err: when to look again; None:
    /// with an input that comes here again.
    pub(super) fn is_due(&mut self, not_before: &mut Time, ctx: &Context) -> Result<(), Option<Time>> {
        // A pool in pieces may have no run that is long enough: what is written for nothing wears the drives.
        let earliest = (*not_before).max(self.compaction.no_room_until);
        if ctx.now < earliest {
            return Err(Some(earliest));
        }
        if self.compaction.has_emptied(EMPTIED_MAX, &self.map.directory, ctx.now) {
            // The checkpoint comes first.
            return Err(None);
        }
        if self.room() == 0 {
            *not_before = ctx.now.after(ROOM_AGAIN_US);
            return Err(Some(*not_before));
        }
        if !self.may_move() {
            *not_before = ctx.now.after(AVOID_US);
            return Err(Some(*not_before));
        }
        Ok(())
    }

    /// Moves what is live in these, of which there is one at least, into one egroup that is packed so.
    pub(super) fn start_moving(
        &mut self,
        victims: VecDeque<EgroupId>,
        packing: Compression,
        whereto: Whereto,
        ctx: &mut Context,
    ) {
        // No snapshot lies between theirs, so the newest is right for all of them.
        let generation = victims.iter().filter_map(|&egroup| self.map.born(egroup)).max();
        let generation = generation.expect("what is in the directory has a generation");
        self.compaction.last += 1;
        self.describe_victim(self.compaction.last, Job::new(generation, victims, packing, whereto), ctx);
    }

    /// A quick look that may say yes wrongly: what was named since the last checkpoint counts as dead here.
    fn may_be_wasteful(&self, full: bool) -> bool {
        let (units, live) = (self.map.directory.units(), self.map.directory.live());
        self.is_scattered() || if full { units > live } else { units > live + live / 3 + SLACK_UNITS }
    }

    /// Whether the dead units would be missed: what is free for new data is no more than twice as much.
    fn is_space_wanted(&self, full: bool) -> bool {
        let (units, live) = (self.map.directory.units(), self.map.directory.live());
        full || self.is_scattered() || units.saturating_sub(live) * 2 * BLOCK as u64 > self.placing.pool()
    }

    /// Far more egroups than what was written would fill, dead or alive: each takes an entry in the table of its drives.
    fn is_scattered(&self) -> bool {
        let directory = &self.map.directory;
        let uncounted = self.map.fresh.len() + self.compaction.emptied.len();
        // What lies between two snapshots can become one.
        let apart =
            directory.generations().min(self.snapshots.taken.len() + self.snapshots.dropped.len() + 1);
        let needed = directory.units() as usize / EGROUP_UNITS + apart;
        directory.len().saturating_sub(uncounted) > SCATTERED_MIN + 2 * needed
    }

    fn is_wasteful(&self, full: bool) -> bool {
        let (mut units, mut live) = (self.map.directory.units(), self.map.directory.live());
        let fresh = self.map.fresh.iter().filter_map(|&egroup| self.map.directory.get(egroup));
        live += fresh.map(|entry| u64::from(entry.units - entry.live)).sum::<u64>();
        for entry in self.compaction.emptied.iter().filter_map(|&egroup| self.map.directory.get(egroup)) {
            units -= u64::from(entry.units);
            live -= u64::from(entry.live);
        }
        self.is_scattered() || if full { units > live } else { units > live + live / 3 + SLACK_UNITS }
    }

    /// The emptiest that fit into one egroup together; first those on drives without room for what they are owed.
    fn choose_victims(&self, percent: u32, ctx: &Context) -> VecDeque<EgroupId> {
        let mut victims = VecDeque::new();
        let mut live = 0;
        let mut between = None;
        // One alone would only be written again: there have to be two that can become one.
        let mut small: BTreeMap<Option<Generation>, Vec<EgroupId>> = BTreeMap::new();
        if self.is_scattered() {
            for (egroup, entry) in self.map.directory.iter() {
                if entry.live <= SMALL_UNITS && self.may_be_victim(egroup, entry) {
                    small.entry(self.snapshot_before(entry.generation)).or_default().push(egroup);
                }
            }
        }
        let small = small.into_values().filter(|egroups| egroups.len() > 1).flatten();
        let cramped = self.audit.copies.cramped();
        let is_cramped = |egroup: &EgroupId| {
            let group = self.map.group_of(*egroup);
            group.is_some_and(|group| ctx.members(group).iter().any(|drive| cramped.contains(drive)))
        };
        let all = self.map.directory.least_live(if cramped.is_empty() { 0 } else { EVEN_FULL_ONES });
        for egroup in all.filter(is_cramped).chain(small).chain(self.map.directory.least_live(percent)) {
            let entry =
                self.map.directory.get(egroup).expect("an egroup with a live share is in the directory");
            if victims.contains(&egroup) || !self.may_be_victim(egroup, entry) {
                continue;
            }
            // What is in an egroup is seen by the same snapshots.
            let after = self.snapshot_before(entry.generation);
            if *between.get_or_insert(after) != after {
                continue;
            }
            live += entry.live as usize;
            // One that is too full to be packed is better moved less packed than left.
            let unpacked = live > units_max(self.compression) && !victims.is_empty();
            // What found no room once may have some by now, and only trying finds that out.
            let again = victims.is_empty() && ctx.now >= self.compaction.no_room_until;
            let too_large = live > self.compaction.units_max.get() && !again;
            if too_large || unpacked || victims.len() == VICTIMS_MAX {
                break;
            }
            victims.push_back(egroup);
        }
        victims
    }

    /// The newest snapshot that does not see data of this generation, also if it is gone and pages still tell of it.
    pub(super) fn snapshot_before(&self, generation: Generation) -> Option<Generation> {
        let taken = self.snapshots.taken.range(..generation).next_back().map(|(before, _)| *before);
        taken.max(self.snapshots.dropped.range(..generation).next_back().copied())
    }

    pub(super) fn may_be_victim(&self, egroup: EgroupId, entry: Entry) -> bool {
        let taken = self.compaction.emptied.contains(&egroup)
            || self.compaction.avoids(egroup)
            || self.compaction.is_busy_with(egroup);
        // Nothing of a fresh one is counted, or not all, and what is dead goes by itself.
        let fresh = self.map.fresh.contains(&egroup)
            || self.map.fresh_before.contains(&egroup) && !planted(Bug::VictimsNotCounted);
        entry.live > 0 && !taken && !fresh
    }

    /// So much is emptied that a checkpoint should free it.
    pub(crate) fn owes_compacted_space(&self) -> bool {
        let emptied = &self.compaction.emptied;
        emptied.len() >= EMPTIED_MAX
            && self.map.is_changed()
            && emptied.iter().filter(|&&egroup| self.map.directory.contains(egroup)).count() >= EMPTIED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_waited_for_anew_when_they_have_been_back() {
        let (begin, late) = (Time(0), Time(MEMBERS_US_MAX));
        let mut compaction = Compaction::default();
        assert!(!compaction.goes_without(true, late), "nobody is waited for");
        compaction.found_no_members(begin);
        compaction.on_view(false);
        assert!(compaction.goes_without(true, late), "another drive came or went meanwhile");
        assert!(!compaction.goes_without(false, late), "nothing hurries");
        compaction.on_view(true);
        assert!(!compaction.goes_without(true, late));
    }
}
