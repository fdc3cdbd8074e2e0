//! Merging the edits of one leaf into its page, and what they replace into its past, if a snapshot sees it.
//! Promises: every unit that is replaced is either counted as dead, or told of in a page of the past; pages of a leaf between which
//! something goes change together; a page that tells what it told stays where it is.
//! Leaves to others: which leaves, and writing the pages (`checkpoint`).
//!
//! A unit of generation b that is replaced by data of generation g is seen by the snapshots from b on that are before g. The
//! newest of them names the group that it is put into; with none left it is dead.

use super::checkpoint::Page;
use super::directory::Directory;
use super::edit_layers::EditLayers;
use super::holes::Holes;
use super::index::PageIndex;
use super::leaf::{Leaf, LeafEdit, Run};
use super::lookup::MapPage;
use super::moves::Moves;
use super::past::{self, Past};
use crate::formats::record::{PageKind, PagePlace};
use crate::identity::{EgroupId, Generation, SnapshotId};
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A leaf on its way into new pages, or what is left of its past.
#[derive(Debug)]
pub(super) struct LeafMerge {
    /// Pages of its past that could be changed at another instant than these, because nothing goes from one into the other: those that
    /// had no room here, in order. (All pages of a merge go into one egroup.)
    rest: Vec<u64>,
    /// Only pages of the past are changed, and this is the number of the next new one. None: the leaf as well.
    next_past: Option<u32>,
    live: Option<PagePlace>,
    /// The pages of the past that may change, by number; at first the last of the leaf is among them.
    past: BTreeMap<u64, PagePlace>,
    have: BTreeMap<PagePlace, MapPage>,
}

/// More pages of the past of one leaf that may change, behind those that are on their way.
#[derive(Debug)]
pub(super) struct Rest {
    pub leaf: u64,
    pages: Vec<u64>,
    next_past: u32,
}

/// What a merge comes to.
pub(super) struct Merged {
    pub pages: Vec<Page>,
    /// Pages that go.
    pub gone: Vec<(PageKind, u64)>,
    pub rest: Option<Rest>,
}

/// What a checkpoint puts into pages, and by which rules.
pub(super) struct Changes<'a> {
    pub edits: &'a EditLayers,
    pub moves: &'a Moves,
    pub snapshots: &'a BTreeMap<Generation, SnapshotId>,
    pub index: &'a PageIndex,
    /// Generations whose groups are to be emptied.
    pub purged: &'a BTreeSet<Generation>,
    /// Pages of the past that are to be written elsewhere.
    pub rewritten: &'a BTreeSet<u64>,
    /// Everything newer than this snapshot goes, and what it saw is the present again.
    pub rollback: Option<Generation>,
    /// Pages of the past are filled so far.
    pub past_page_bytes: usize,
    /// Of a clone, leaves that its origin may have something of: what is trimmed there is not the origin's any more.
    pub origin_leaves: u64,
    /// Of a clone, leaves without a page that were trimmed, before this checkpoint and behind it.
    pub holes: &'a Holes,
    pub holes_behind: &'a Holes,
}

impl LeafMerge {
    /// What has to be known of leaf `number`. So many pages of its past are changed together, but for those that have to.
    pub fn new(number: u64, together: usize, changes: &Changes) -> Self {
        let Changes { index, purged, rewritten, rollback, .. } = changes;
        let has_moves = changes.moves.concern(number);
        let may_become_past = !changes.snapshots.is_empty();
        let (mut past, mut rest) = (BTreeMap::new(), Vec::new());
        let last = index.past_of(number).last().map(|(page, ..)| page);
        for (page, place, (from, to)) in index.past_of(number) {
            let is_restored = rollback.is_some_and(|rollback| rollback <= to);
            if is_restored || may_become_past && Some(page) == last {
                past.insert(page, place);
            } else if has_moves || rewritten.contains(&page) || purged.range(from..=to).next().is_some() {
                rest.push(page);
            }
        }
        if planted(Bug::PastRestForgotten) {
            rest.truncate(together);
        }
        let mut merge = Self {
            rest,
            next_past: None,
            live: index.get(PageKind::Leaf, number),
            past,
            have: BTreeMap::new(),
        };
        merge.take_rest(together, index);
        merge
    }

    /// The next pages of what was left.
    pub fn of_rest(rest: Rest, together: usize, changes: &Changes) -> Self {
        let Rest { leaf: _, pages, next_past } = rest;
        let (past, have) = (BTreeMap::new(), BTreeMap::new());
        let mut merge = Self { rest: pages, next_past: Some(next_past), live: None, past, have };
        merge.take_rest(together, changes.index);
        merge
    }

    fn take_rest(&mut self, together: usize, index: &PageIndex) {
        for page in self.rest.drain(..together.max(1).min(self.rest.len())) {
            let place = index.get(PageKind::Past, page).expect("only its own checkpoint takes a page away");
            self.past.insert(page, place);
        }
    }

    /// A page that is not here yet, with its kind and number.
    pub fn missing(&self, leaf: u64) -> Vec<(PageKind, u64, PagePlace)> {
        let live = self.live.map(|place| (PageKind::Leaf, leaf, place));
        let past = self.past.iter().map(|(&page, &place)| (PageKind::Past, page, place));
        live.into_iter().chain(past).filter(|(_, _, place)| !self.have.contains_key(place)).collect()
    }

    pub fn give(&mut self, place: PagePlace, page: MapPage) {
        self.have.insert(place, page);
    }

    /// The new pages. Counts in the directory what died and what is live now.
    pub fn finish(self, number: u64, changes: &Changes, directory: &mut Directory) -> Merged {
        match self.next_past {
            None => self.finish_leaf(number, changes, directory),
            Some(next) => self.finish_rest(number, next, changes, directory),
        }
    }

    /// Only pages of the past, of which each stays what it was for everybody.
    fn finish_rest(self, number: u64, mut next: u32, changes: &Changes, directory: &mut Directory) -> Merged {
        let (mut pages, mut gone) = (Vec::new(), Vec::new());
        for (&page, place) in &self.past {
            let new = self.changed_past(number, place, changes, directory);
            if new == *self.past_at(place) && !changes.rewritten.contains(&page) {
                continue;
            }
            add_pages(number, Some(page), new, changes.past_page_bytes, &mut next, &mut pages);
            if old_is_gone(page, &pages) {
                gone.push((PageKind::Past, page));
            }
        }
        Merged { pages, gone, rest: rest_of(number, self.rest, next) }
    }

    fn past_at(&self, place: &PagePlace) -> &Past {
        match &self.have[place] {
            MapPage::Past(past) => past,
            MapPage::Leaf(_) => unreachable!("a place holds one page for ever"),
        }
    }

    /// A page of the past with what has moved, and without what no snapshot sees any more.
    fn changed_past(
        &self,
        number: u64,
        place: &PagePlace,
        changes: &Changes,
        directory: &mut Directory,
    ) -> Past {
        let old = changes.moves.apply_to_past(number, self.past_at(place), directory);
        regroup(&old, changes.snapshots, directory)
    }

    fn finish_leaf(self, number: u64, changes: &Changes, directory: &mut Directory) -> Merged {
        let Changes { snapshots, index, rollback, .. } = *changes;
        let seen = |born: Generation, until: Generation| {
            // (Compaction may have put it beside what is newer, with no snapshot between.)
            snapshots.range(born.min(until)..until).next_back().map(|(generation, _)| *generation)
        };
        let mut leaf = match self.live.map(|place| &self.have[&place]) {
            Some(MapPage::Leaf(leaf)) => Leaf::clone(leaf),
            Some(MapPage::Past(_)) => unreachable!("a place holds one page for ever"),
            None => changes.holes.get(number).map_or_else(Leaf::default, Leaf::hole),
        };
        leaf = changes.moves.apply(number, leaf, directory);
        let mut restored: Vec<Run> = Vec::new();
        if let Some(to) = rollback.filter(|_| !planted(Bug::RollbackKeepsNewer)) {
            leaf = without_newer(&leaf, to, directory);
        }
        let mut groups: BTreeMap<Generation, Vec<Run>> = BTreeMap::new();
        for (generation, edits) in changes.edits.iter() {
            let mut edits: Vec<LeafEdit> = edits.in_leaf(number).collect();
            if edits.is_empty() {
                continue;
            }
            if number < changes.origin_leaves && !planted(Bug::CloneTrimForgotten) {
                edits =
                    edits.into_iter().flat_map(|edit| trimmed_in_clone(&leaf, edit, generation)).collect();
            }
            let mut removed = Vec::new();
            leaf = leaf.merge(edits.iter().copied(), &mut |run| removed.push(run));
            for run in removed {
                let until = seen(born(directory, run.egroup), generation);
                match until.filter(|_| !planted(Bug::SnapshotUnitsDeleted)) {
                    Some(until) => {
                        if !run.egroup.is_hole() {
                            directory.add_past(run.egroup, run.count());
                        }
                        groups.entry(until).or_default().push(run);
                    }
                    None if run.egroup.is_hole() => {}
                    None => drop(directory.remove_live(run.egroup, run.count())),
                }
            }
            for edit in edits {
                if let Some((egroup, _)) = edit.place
                    && !egroup.is_hole()
                {
                    directory.add_live(egroup, edit.count);
                }
            }
        }
        let mut pages = Vec::new();
        let mut gone = Vec::new();
        // Numbers of pages that are new.
        let last = index.past_of(number).last().map(|(page, ..)| page);
        let mut next = last.map_or(0, |page| past::page_of(page) + 1);
        for (&page, place) in &self.past {
            let mut new = self.changed_past(number, place, changes, directory);
            // What the snapshot saw of this is the present again, and the snapshot sees it there.
            if let Some(group) = rollback.and_then(|to| new.take(to)) {
                group.iter().filter(|run| !run.egroup.is_hole()).for_each(|run| {
                    directory.leave_past(run.egroup, run.count());
                });
                restored.extend(group.iter());
            }
            if Some(page) == last {
                for (generation, runs) in std::mem::take(&mut groups) {
                    new.add(generation, runs);
                }
            }
            if new == *self.past_at(place) && !changes.rewritten.contains(&page) {
                continue;
            }
            add_pages(number, Some(page), new, changes.past_page_bytes, &mut next, &mut pages);
            if old_is_gone(page, &pages) {
                gone.push((PageKind::Past, page));
            }
        }
        let mut new = Past::default();
        for (generation, runs) in groups {
            new.add(generation, runs);
        }
        add_pages(number, None, new, changes.past_page_bytes, &mut next, &mut pages);
        restored.sort_unstable_by_key(Run::start);
        let edits = restored.iter().map(|run| LeafEdit {
            start: run.start(),
            count: run.count(),
            place: Some((run.egroup, run.unit())),
        });
        let leaf = leaf.merge(edits, &mut |_| unreachable!("what is newer than the snapshot is gone"));
        let trimmed = changes.holes_behind.get(number);
        assert!(
            !leaf.is_empty() || trimmed.is_none() || planted(Bug::CloneTrimForgotten),
            "what was trimmed in a clone is not the origin's again"
        );
        if !leaf.is_empty() && (trimmed.is_none() || leaf.as_hole() != trimmed) {
            pages.push(Page::Leaf(number, Arc::new(leaf)));
        } else if self.live.is_some() {
            gone.push((PageKind::Leaf, number));
        }
        Merged { pages, gone, rest: rest_of(number, self.rest, next) }
    }
}

fn rest_of(leaf: u64, pages: Vec<u64>, next_past: u32) -> Option<Rest> {
    (!pages.is_empty()).then_some(Rest { leaf, pages, next_past })
}

/// What an edit of a clone's leaf comes to: a trim leaves holes, where there are none yet.
fn trimmed_in_clone(leaf: &Leaf, edit: LeafEdit, generation: Generation) -> Vec<LeafEdit> {
    if edit.place.is_some() {
        return vec![edit];
    }
    let is_hole = |part: &LeafEdit| part.place.is_some_and(|(egroup, _)| egroup.is_hole());
    let hole = Some((EgroupId::hole(generation), 0));
    let parts = leaf.over(edit.start, edit.count).filter(|part| !is_hole(part));
    parts.map(|part| LeafEdit { place: hole, ..part }).collect()
}

/// The leaf without what is newer than this generation.
fn without_newer(leaf: &Leaf, to: Generation, directory: &mut Directory) -> Leaf {
    let newer: Vec<Run> = leaf.iter().filter(|run| born(directory, run.egroup) > to).copied().collect();
    let edits = newer.iter().map(|run| LeafEdit { start: run.start(), count: run.count(), place: None });
    leaf.merge(edits, &mut |run| {
        if !run.egroup.is_hole() {
            directory.remove_live(run.egroup, run.count());
        }
    })
}

/// The generation of what lies in a mapped egroup, or of a hole.
fn born(directory: &Directory, egroup: EgroupId) -> Generation {
    directory.born(egroup).expect("a mapped egroup is in the directory")
}

/// The page with groups only of snapshots that there are: what was in others is seen by the next older one, or is dead.
fn regroup(old: &Past, snapshots: &BTreeMap<Generation, SnapshotId>, directory: &mut Directory) -> Past {
    let mut new = old.clone();
    for (generation, group) in old.iter() {
        if snapshots.contains_key(&generation) {
            continue;
        }
        new.take(generation);
        let mut groups: BTreeMap<Generation, Vec<Run>> = BTreeMap::new();
        for run in group.iter() {
            let born = born(directory, run.egroup).min(generation);
            match snapshots.range(born..generation).next_back() {
                Some((until, _)) => groups.entry(*until).or_default().push(*run),
                None if run.egroup.is_hole() || planted(Bug::PastLeak) => {}
                None => directory.remove_past(run.egroup, run.count()),
            }
        }
        for (until, runs) in groups {
            new.add(until, runs);
        }
    }
    new
}

/// Cuts a past into pages: the first keeps the number, others get new ones.
fn add_pages(
    leaf: u64,
    number: Option<u64>,
    past: Past,
    bytes_max: usize,
    next: &mut u32,
    pages: &mut Vec<Page>,
) {
    let mut number = number;
    for page in past.into_pages(bytes_max) {
        let number = number.take().unwrap_or_else(|| {
            *next += 1;
            past::page_number(leaf, *next - 1)
        });
        pages.push(Page::Past(number, Arc::new(page)));
    }
}

fn old_is_gone(number: u64, pages: &[Page]) -> bool {
    !pages.iter().any(|page| matches!(page, Page::Past(other, _) if *other == number))
}
