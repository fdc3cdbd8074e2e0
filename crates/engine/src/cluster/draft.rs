//! The groups of one factor while they are being rearranged, with the counts that decisions need.
//! Promises: counts always fit the groups, because members change only here.

use super::placement::{Group, Standing};
use super::pool::{NODE, Pool};
use super::shares::shares;
use super::spread::Spread;
use crate::context::Draw;
use crate::identity::GroupId;

pub(super) struct Draft<'a> {
    pub pool: &'a Pool,
    pub spread: Spread,
    /// Places each drive should have; empty if there are fewer drives than copies.
    pub shares: Vec<f64>,
    pub groups: Vec<DraftGroup>,
    factor: usize,
    /// Places each drive has, and how many of them lead.
    held: Vec<u32>,
    led: Vec<u32>,
    /// The groups each drive has a place in.
    places: Vec<Vec<usize>>,
    /// How often two drives are in a group together, counted by nodes (by drives if there is one node): partners
    /// are chosen so that this is even, and the copies of a lost drive come from all others.
    met: Vec<u32>,
    /// Copies that the changes so far make each drive read or write.
    busy: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct DraftGroup {
    pub id: GroupId,
    pub members: Vec<usize>,
    pub former: Vec<usize>,
    version: u64,
}

impl DraftGroup {
    /// Copies are owed: nobody may leave.
    pub fn is_moving(&self) -> bool {
        !self.former.is_empty()
    }
}

impl<'a> Draft<'a> {
    pub fn new<'g>(pool: &'a Pool, factor: u32, groups: impl Iterator<Item = &'g Group>) -> Self {
        let spread = Spread::of(pool, factor as usize);
        let circles = if pool.domains[NODE] > 1 { pool.domains[NODE] } else { pool.len() };
        let mut draft = Self {
            pool,
            spread,
            shares: Vec::new(),
            groups: Vec::new(),
            factor: factor as usize,
            held: vec![0; pool.len()],
            led: vec![0; pool.len()],
            places: vec![Vec::new(); pool.len()],
            met: vec![0; circles * circles],
            busy: vec![0; pool.len()],
        };
        for group in groups {
            assert_eq!(group.factor, factor, "a draft is of one factor");
            assert_eq!(group.members.len(), factor as usize, "a group has as many members as copies");
            let members = group.members.iter().map(|&drive| pool.number(drive)).collect();
            let former = group.former.iter().map(|&drive| pool.number(drive)).collect();
            draft.add(group.id, members, former, group.version);
        }
        draft.expect_groups(draft.groups.len());
        draft
    }

    pub fn into_groups(self) -> impl Iterator<Item = Group> {
        let Self { pool, factor, groups, .. } = self;
        groups.into_iter().map(move |group| Group {
            id: group.id,
            factor: factor as u32,
            members: group.members.iter().map(|&drive| pool.drives[drive].id).collect(),
            former: group.former.iter().map(|&drive| pool.drives[drive].id).collect(),
            version: group.version,
        })
    }

    pub fn factor(&self) -> u32 {
        self.factor as u32
    }

    /// Groups to which copies are owed.
    pub fn moving(&self) -> usize {
        self.groups.iter().filter(|group| group.is_moving()).count()
    }

    /// Counts shares for so many groups.
    pub fn expect_groups(&mut self, groups: usize) {
        let shares = shares(self.pool, self.factor, &self.spread.limits, groups as f64);
        self.shares = shares.unwrap_or_default();
    }

    pub fn add(&mut self, id: GroupId, members: Vec<usize>, former: Vec<usize>, version: u64) {
        let number = self.groups.len();
        self.led[members[0]] += 1;
        for &member in &members {
            self.held[member] += 1;
            self.places[member].push(number);
        }
        self.count_meetings(&members, 1);
        self.groups.push(DraftGroup { id, members, former, version });
    }

    /// `new` takes the place of `old`, who is remembered. A new member comes last: it has no copies to lead with.
    pub fn replace(&mut self, number: usize, old: usize, new: usize) {
        let mut members = self.groups[number].members.clone();
        assert!(!members.contains(&new), "a member does not join again");
        self.count_meetings(&members, -1);
        self.led[members[0]] -= 1;
        members.retain(|&member| member != old);
        members.push(new);
        self.led[members[0]] += 1;
        self.count_meetings(&members, 1);
        self.held[old] -= 1;
        self.held[new] += 1;
        self.busy[new] += 1;
        self.places[old].retain(|&place| place != number);
        self.places[new].push(number);
        let group = &mut self.groups[number];
        group.members = members;
        group.former.retain(|&former| former != new);
        group.former.push(old);
    }

    /// The member at `place` leads from now on.
    pub fn lead(&mut self, number: usize, place: usize) {
        let members = &mut self.groups[number].members;
        self.led[members[0]] -= 1;
        members.swap(0, place);
        self.led[members[0]] += 1;
    }

    pub fn held(&self, drive: usize) -> f64 {
        f64::from(self.held[drive])
    }

    pub fn led(&self, drive: usize) -> f64 {
        f64::from(self.led[drive])
    }

    pub fn groups_of(&self, drive: usize) -> &[usize] {
        &self.places[drive]
    }

    /// Places it has beyond its share; below 0 what it lacks.
    pub fn surplus(&self, drive: usize) -> f64 {
        self.held(drive) - self.shares.get(drive).copied().unwrap_or(0.0)
    }

    /// Who joins `others` in this group: of the drives with the fewest places for their share, the one with the
    /// least to copy, which has met the others least often; then by a draw that is the same whenever it is asked for.
    pub fn choose(&self, others: &[usize], group: GroupId, spread: &Spread) -> Option<usize> {
        if self.shares.is_empty() {
            return None;
        }
        let filled = |drive: usize, places: f64| (self.held(drive) + places) / self.shares[drive];
        // Not only the emptiest, but all that are less than half a place fuller: without some choice, partners
        // would repeat.
        let mut emptiest = f64::INFINITY;
        let mut candidates: Vec<usize> = Vec::new();
        for &drive in &self.pool.open {
            // What is too full is not looked at any further: there are many drives.
            let may = self.shares[drive] > 0.0 && filled(drive, 0.5) <= emptiest;
            if may && !others.contains(&drive) && spread.allows(self.pool, others, drive) {
                emptiest = emptiest.min(filled(drive, 1.0));
                candidates.push(drive);
            }
        }
        candidates
            .into_iter()
            .filter(|&drive| filled(drive, 0.5) <= emptiest)
            .min_by_key(|&drive| (self.busy[drive], self.meetings(others, drive), self.draw(group, drive)))
    }

    /// This drive has to be read for a repair.
    pub fn note_source(&mut self, drive: usize) {
        self.busy[drive] += 1;
    }

    pub fn meetings(&self, others: &[usize], drive: usize) -> u32 {
        others.iter().map(|&other| self.met[self.pair(other, drive)]).sum()
    }

    /// Whether every member works, so that one of them may be moved for comfort.
    pub fn is_well(&self, number: usize) -> bool {
        self.groups[number].members.iter().all(|&member| self.pool.drives[member].standing == Standing::In)
    }

    fn pair(&self, one: usize, other: usize) -> usize {
        if self.pool.domains[NODE] > 1 {
            self.pool.sites[one][NODE] * self.pool.domains[NODE] + self.pool.sites[other][NODE]
        } else {
            one * self.pool.len() + other
        }
    }

    fn count_meetings(&mut self, members: &[usize], by: i32) {
        for &one in members {
            for &other in members {
                if one != other {
                    let pair = self.pair(one, other);
                    self.met[pair] = self.met[pair].checked_add_signed(by).expect("who parts has met");
                }
            }
        }
    }

    /// A number that looks random, and is the same for the same group and drive.
    pub fn draw(&self, group: GroupId, drive: usize) -> u64 {
        Draw::new(u64::from(group.0) << 32 | u64::from(self.pool.drives[drive].id.0)).number()
    }
}
