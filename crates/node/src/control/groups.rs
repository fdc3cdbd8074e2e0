//! Placement groups: which drives keep the copies of an egroup together.
//! Promises: every drive leads as many groups as any other, members are spread evenly, an existing group keeps its
//! number, and members change only when one is lost.

use super::{Control, Serving, Standing};
use crate::config::{ConfigError, GroupRecord};
use std::collections::BTreeMap;
use weft_engine::{DriveId, Epoch};

/// Groups led by each drive, for each factor.
const GROUPS_PER_DRIVE: u32 = 8;

impl Control {
    /// Makes the groups that drives lack for vDisks with `factor` copies, and replaces lost members. True if anything
    /// changed: the shards need a new view then.
    pub(super) fn arrange_groups(&mut self, factor: u32) -> Result<bool, ConfigError> {
        let up: Vec<u32> = self
            .drives
            .iter()
            .filter(|(_, drive)| drive.standing == Standing::Up)
            .map(|(id, _)| id.0)
            .collect();
        let lost: Vec<u32> = self
            .drives
            .iter()
            .filter(|(_, drive)| drive.standing == Standing::Lost)
            .map(|(id, _)| id.0)
            .collect();
        let alone = self.part.alone();
        let mut groups: Vec<GroupRecord> =
            alone.groups.values().filter(|group| group.factor == factor).cloned().collect();
        let mut changed = replace_lost(&mut groups, &lost, &up);
        let first_new = alone.node.next_group;
        let made = missing_groups(&groups, &up, factor, first_new);
        if !made.is_empty() {
            // The numbers are taken before they are used: a cut in between wastes some.
            alone.node.next_group = first_new + made.len() as u32;
            alone.store.put_node(&alone.node)?;
        }
        changed.extend(made);
        if changed.is_empty() {
            return Ok(false);
        }
        alone.store.put_groups(&changed)?;
        for group in changed {
            if !group.former.is_empty() {
                alone.whole.changed(group.id(), alone.view_version + 1);
            }
            alone.groups.insert(group.id(), group);
        }
        Ok(true)
    }

    /// Former members are forgotten when the owners of all vDisks have found everything on the present ones.
    pub(super) fn forget_former(&mut self) {
        let living = self.families.iter().filter(|(_, family)| family.serving != Serving::Dropping);
        let owners = living.map(|(&id, family)| (id, Epoch(family.config.epoch))).collect();
        let mut settled = Vec::new();
        let alone = self.part.alone();
        for group in alone.whole.take_settled(&owners) {
            let mut record = alone.groups[&group].clone();
            record.former.clear();
            settled.push(record);
        }
        if settled.is_empty() {
            return;
        }
        if let Err(error) = alone.store.put_groups(&settled) {
            // They are asked for a little longer than they must: at the next start everything is said again.
            tracing::error!(%error, "former members of groups could not be forgotten");
            return;
        }
        tracing::info!(groups = settled.len(), "all copies are where they belong");
        for record in settled {
            alone.groups.insert(record.id(), record);
        }
        self.send_view();
    }

    /// Drives that can be counted on: not given up.
    pub(super) fn drives_kept(&self) -> usize {
        self.drives.values().filter(|drive| drive.standing != Standing::Lost).count()
    }

    pub(super) fn drives_up(&self) -> Vec<DriveId> {
        self.drives.iter().filter(|(_, drive)| drive.standing == Standing::Up).map(|(&id, _)| id).collect()
    }
}

fn memberships(groups: &[GroupRecord]) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for drive in groups.iter().flat_map(|group| &group.members) {
        *counts.entry(*drive).or_insert(0) += 1;
    }
    counts
}

/// Puts drives that are up into the places of lost ones, as far as there are any. Gives the groups that changed.
fn replace_lost(groups: &mut [GroupRecord], lost: &[u32], up: &[u32]) -> Vec<GroupRecord> {
    let mut changed = Vec::new();
    for index in 0..groups.len() {
        let before = groups[index].clone();
        for place in 0..before.members.len() {
            let member = before.members[place];
            if !lost.contains(&member) {
                continue;
            }
            let counts = memberships(groups);
            let group = &mut groups[index];
            let next = up
                .iter()
                .filter(|drive| !group.members.contains(drive))
                .min_by_key(|drive| (counts.get(drive).copied().unwrap_or(0), **drive));
            if let Some(&next) = next {
                group.members[place] = next;
                group.former.retain(|&former| former != next);
                group.former.push(member);
            }
        }
        if groups[index] != before {
            changed.push(groups[index].clone());
        }
    }
    changed
}

/// New groups for the drives that lead none yet.
fn missing_groups(groups: &[GroupRecord], up: &[u32], factor: u32, first_new: u32) -> Vec<GroupRecord> {
    if up.len() < factor as usize {
        return Vec::new();
    }
    let mut made: Vec<GroupRecord> = Vec::new();
    // How often two drives are in a group together: others are chosen so that this is even, and a lost drive's
    // copies are spread over all others.
    let mut together: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for &leader in up {
        if groups.iter().any(|group| group.members.first() == Some(&leader)) {
            continue;
        }
        for turn in 0..GROUPS_PER_DRIVE {
            let mut members = vec![leader];
            while members.len() < factor as usize {
                let next = up
                    .iter()
                    .filter(|drive| !members.contains(drive))
                    .min_by_key(|&&drive| {
                        let met: u32 = members
                            .iter()
                            .map(|&member| together.get(&pair(member, drive)).copied().unwrap_or(0))
                            .sum();
                        (met, (drive + turn + leader) % up.len() as u32, drive)
                    })
                    .expect("there are at least as many drives as copies");
                members.push(*next);
            }
            for (index, &one) in members.iter().enumerate() {
                for &other in &members[index + 1..] {
                    *together.entry(pair(one, other)).or_insert(0) += 1;
                }
            }
            let group = first_new + made.len() as u32;
            made.push(GroupRecord { group, factor, members, former: Vec::new() });
        }
    }
    made
}

fn pair(one: u32, other: u32) -> (u32, u32) {
    (one.min(other), one.max(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_spread_evenly_over_distinct_drives() {
        let up = [0, 1, 2, 3, 4];
        let groups = missing_groups(&[], &up, 3, 1);
        assert_eq!(groups.len(), 40);
        let counts = memberships(&groups);
        assert!(counts.values().all(|&count| (22..=26).contains(&count)), "{counts:?}");
        for group in &groups {
            let mut members = group.members.clone();
            members.sort_unstable();
            members.dedup();
            assert_eq!(members.len(), 3, "copies are on distinct drives");
        }
        assert!(missing_groups(&groups, &up, 3, 41).is_empty(), "what is there is not made again");
        assert_eq!(missing_groups(&groups, &[0, 1, 2, 3, 4, 5], 3, 41).len(), 8, "a new drive leads its own");
        assert!(missing_groups(&[], &[0], 2, 1).is_empty(), "two copies need two drives");
    }

    #[test]
    fn a_lost_member_is_replaced_and_remembered() {
        let mut groups = missing_groups(&[], &[0, 1], 2, 1);
        assert!(replace_lost(&mut groups, &[1], &[0]).is_empty(), "nobody is left to take its place");
        let changed = replace_lost(&mut groups, &[1], &[0, 2]);
        assert_eq!(changed.len(), groups.len());
        for group in &groups {
            assert!(group.members.contains(&0) && group.members.contains(&2));
            assert_eq!(group.former, [1]);
        }
    }
}
