//! Drives of this node that hang: what was asked of them is neither done nor refused.
//! Promises: in a cluster such a drive counts as down at once. On a node that is alone it does when everything lies on another drive
//! as well, as far as is known, and otherwise what needs it waits: that is better than an error. Whichever it is, it
//! ends when the drive answers.
//! Leaves to others: which drives hang (`shard_loop/hangs.rs`), the wait of what turns out to need one that counts as
//! down (`shard_loop/worker/forward.rs`).

use super::{Control, Drive, Part, Serving, Standing};
use crate::config::GroupRecord;
use crate::shard_loop::Mail;
use std::collections::BTreeSet;
use std::time::Instant;
use weft_engine::{DriveId, Epoch, FamilyId};

impl Control {
    /// A drive of this node does not answer for seconds, or does again.
    pub(super) fn on_drive_hangs(&mut self, drive: DriveId, hangs: bool) {
        tracing::warn!(%drive, hangs, "a drive has not answered for seconds, or answers again");
        if hangs {
            self.hanging.entry(drive).or_insert_with(Instant::now);
        } else {
            self.hanging.remove(&drive);
        }
        if self.part.member().is_some() {
            self.announce();
            return self.tell_view();
        }
        self.review_hanging();
    }

    /// An owner says that there are so many copies of everything. Only a node that is alone asks for that.
    pub(super) fn on_factor_reached(&mut self, family: FamilyId, epoch: Epoch, factor: u32) {
        let Part::Alone(alone) = &mut self.part else { return };
        alone.reached.insert(family, (epoch, factor));
        self.review_hanging();
    }

    /// Drives that are left out stay so: everything was on others when they were. Of those that hang from now on everything is waited for,
    /// until all copies were found again.
    pub(super) fn on_factor_missed(&mut self, family: FamilyId, epoch: Epoch) {
        let Part::Alone(alone) = &mut self.part else { return };
        if alone.reached.get(&family).is_some_and(|&(told, _)| told == epoch) {
            alone.reached.remove(&family);
        }
    }

    /// What a node that is alone makes of drives that hang may have become something else.
    pub(super) fn review_hanging(&mut self) {
        // Before the first view nobody has to be told: the start sends it.
        let is_told = matches!(&self.part, Part::Alone(alone) if alone.view_version > 0);
        if is_told && self.leave_out_hanging() {
            self.send_view();
        }
    }

    /// Decides which drives that hang count as down, and has the shards wait for them where they are needed all the same.
    /// Whether that has changed.
    pub(super) fn leave_out_hanging(&mut self) -> bool {
        let lies_twice = self.lies_twice();
        let is_up =
            |drive: &&DriveId| self.drives.get(drive).is_some_and(|drive| drive.standing == Standing::Up);
        let up: BTreeSet<DriveId> = self.drives.keys().filter(is_up).copied().collect();
        let mut hanging: Vec<(Instant, DriveId)> =
            self.hanging.iter().map(|(&drive, &since)| (since, drive)).collect();
        hanging.sort_unstable();
        let hanging: Vec<DriveId> =
            hanging.into_iter().map(|(_, drive)| drive).filter(|drive| up.contains(drive)).collect();
        let alone = self.part.alone();
        let groups = if lies_twice { Some(alone.groups.values()) } else { None };
        let left_out = left_out(&hanging, &alone.left_out, &up, groups);
        let before = std::mem::replace(&mut alone.left_out, left_out);
        let awaits = !alone.left_out.is_empty();
        if awaits == before.is_empty() {
            for shard in &self.shards {
                shard.send(Mail::Awaits(awaits));
            }
        }
        self.part.alone().left_out != before
    }

    /// Whether there are two copies of everything that all vDisks have, and all of them were found.
    fn lies_twice(&self) -> bool {
        let Part::Alone(alone) = &self.part else { return false };
        self.families.iter().filter(|(_, family)| family.serving != Serving::Dropping).all(|(id, family)| {
            let factor = self.policy(&family.config).factor;
            factor >= 2 && alone.reached.get(id) == Some(&(Epoch(family.config.epoch), factor))
        })
    }

    /// How a drive stands, and why it is not up: for people.
    pub(super) fn standing_view(&self, id: DriveId, drive: &Drive) -> (&'static str, String) {
        match (&drive.standing, self.hanging.get(&id), self.slow.get(&id)) {
            (Standing::Down(reason), ..) => ("down", reason.clone()),
            (Standing::Up, Some(since), _) => {
                let seconds = since.elapsed().as_secs().max(2);
                let goes_on = match &self.part {
                    Part::Alone(alone) => alone.left_out.contains(&id),
                    Part::Member(_) => true,
                };
                let meanwhile = if goes_on {
                    "vDisks go on without it"
                } else {
                    "what needs it waits, because not everything is known to be on another drive that answers"
                };
                ("hangs", format!("it has not answered for {seconds} s; {meanwhile}"))
            }
            (Standing::Up, None, Some(since)) => ("slow", Self::slow_reason(*since)),
            (standing, ..) => (standing.word(), String::new()),
        }
    }
}

/// Of the drives that hang, longest first, those that count as down. `groups`: None if something may lie on one drive only.
/// Who counted as down does so until it answers: what has gone on without it need not stop. Of several that hang
/// together, those are waited for without which no member of some group would be left.
fn left_out<'a>(
    hanging: &[DriveId],
    before: &BTreeSet<DriveId>,
    up: &BTreeSet<DriveId>,
    groups: Option<impl Iterator<Item = &'a GroupRecord> + Clone>,
) -> BTreeSet<DriveId> {
    let mut left_out: BTreeSet<DriveId> =
        hanging.iter().copied().filter(|drive| before.contains(drive)).collect();
    let Some(groups) = groups else { return left_out };
    for &drive in hanging {
        let can_do_without = |group: &GroupRecord| {
            let is_named = group.members.iter().chain(&group.former).any(|&member| member == drive.0);
            let others = group.members.iter().map(|&member| DriveId(member));
            let mut others =
                others.filter(|other| *other != drive && up.contains(other) && !left_out.contains(other));
            // While there are former members, the present ones may lack something. Groups of one hold nothing when
            // there are two copies of everything.
            group.factor < 2 || !is_named || group.former.is_empty() && others.next().is_some()
        };
        let is_last = up.len() <= left_out.len() + 1;
        if !is_last && groups.clone().all(can_do_without) {
            left_out.insert(drive);
        }
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drives(numbers: &[u32]) -> BTreeSet<DriveId> {
        numbers.iter().map(|&number| DriveId(number)).collect()
    }

    fn group(members: &[u32], former: &[u32]) -> GroupRecord {
        let factor = members.len() as u32;
        GroupRecord { group: 1, factor, members: members.to_vec(), former: former.to_vec() }
    }

    fn decide(hanging: &[u32], before: &[u32], up: &[u32], groups: &[GroupRecord]) -> BTreeSet<DriveId> {
        let hanging: Vec<DriveId> = hanging.iter().map(|&number| DriveId(number)).collect();
        left_out(&hanging, &drives(before), &drives(up), Some(groups.iter()))
    }

    #[test]
    fn a_drive_that_hangs_counts_as_down_where_others_have_everything() {
        let groups = [group(&[1, 2], &[]), group(&[2, 3], &[]), group(&[1], &[])];
        assert_eq!(decide(&[1], &[], &[1, 2, 3], &groups), drives(&[1]));
        assert_eq!(decide(&[1], &[], &[1, 3], &groups), drives(&[]), "the other member is away");
        let moving = [group(&[1, 3], &[2])];
        assert_eq!(decide(&[1], &[], &[1, 2, 3], &moving), drives(&[]), "3 may not have everything yet");
        assert_eq!(decide(&[2], &[], &[1, 2, 3], &moving), drives(&[]), "2 may have what 3 lacks");
        let none = None::<std::slice::Iter<GroupRecord>>;
        assert_eq!(left_out(&[DriveId(1)], &drives(&[]), &drives(&[1, 2]), none), drives(&[]));
        assert_eq!(decide(&[1], &[], &[1], &[]), drives(&[]), "there is no other");
    }

    #[test]
    fn of_several_that_hang_together_one_of_each_group_is_waited_for() {
        let pairs = [group(&[1, 2], &[]), group(&[3, 4], &[]), group(&[4, 1], &[])];
        let up = [1, 2, 3, 4];
        assert_eq!(decide(&[2, 1, 3, 4], &[], &up, &pairs), drives(&[2, 3]));
        assert_eq!(decide(&[1, 2, 3, 4], &[], &up, &pairs), drives(&[1, 3]));
        let threes = [group(&[1, 2, 3], &[])];
        assert_eq!(decide(&[3, 1, 2], &[], &up, &threes), drives(&[1, 3]));
    }

    #[test]
    fn what_has_gone_on_without_a_drive_goes_on_until_it_answers() {
        let groups = [group(&[1, 2], &[]), group(&[2, 3], &[])];
        assert_eq!(decide(&[1], &[1], &[1, 3], &groups), drives(&[1]), "2 has failed meanwhile");
        let none = None::<std::slice::Iter<GroupRecord>>;
        let now = left_out(&[DriveId(1)], &drives(&[1]), &drives(&[1, 2, 3]), none);
        assert_eq!(now, drives(&[1]), "there is a new vDisk meanwhile");
        assert_eq!(
            decide(&[2], &[1], &[1, 2, 3], &groups),
            drives(&[2]),
            "1 answers, and 2 is done without now"
        );
        assert_eq!(decide(&[], &[1], &[1, 2, 3], &groups), drives(&[]));
    }
}
