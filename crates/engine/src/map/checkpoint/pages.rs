//! Pages on their way into egroups: those of one checkpoint are gathered, placed, and named in memory when they are durable.
//! Promises: the pages of a leaf change at the same instant; what has no room as one goes in two.
//! Leaves to others: what is in the pages (`map/merge.rs`), writing egroups (`egroup/place.rs`).

use crate::buffer::Buffer;
use crate::context::Context;
use crate::egroup::place::Intent;
use crate::egroup::units::Units;
use crate::formats::record::{NamedEgroup, PageKind, PagePlace};
use crate::limits::EGROUP_UNITS;
use crate::map::leaf::Leaf;
use crate::map::lookup::MapPage;
use crate::map::past::Past;
use crate::message::Class;
use crate::volume::Volume;
use std::sync::Arc;

/// Pages that found no room are divided down to so many units: fewer would use up the entries of tables.
const SPLIT_UNITS_MIN: usize = 120;
/// To so many if they have waited for room: then nothing else will make some.
const SPLIT_UNITS_LAST: usize = 16;

#[derive(Debug)]
pub(in crate::map) enum Page {
    Leaf(u64, Arc<Leaf>),
    Past(u64, Arc<Past>),
    Directory(u64),
    Chunk(PageKind, u64),
    /// It goes when the others of its egroup come.
    Gone(PageKind, u64),
}

/// A page in an egroup.
#[derive(Debug)]
pub(super) struct Placed {
    pub page: Page,
    /// Its first unit, and how many it takes; those that go take none.
    pub first: u32,
    pub units: u32,
    /// Pages of one batch change at the same instant.
    pub batch: u64,
}

/// Pages gathered in an egroup.
pub(super) type Gathered = Vec<Placed>;

impl Volume {
    pub(super) fn gather_directory(&mut self, ctx: &mut Context) {
        for number in self.map.directory.dirty_pages() {
            match self.map.directory.encode_page(number, self.family) {
                Some(page) => {
                    self.begin_batch();
                    self.gather(Page::Directory(number), page, ctx);
                }
                None => drop(self.map.index.remove(PageKind::Directory, number)),
            }
            self.map.directory.page_written(number);
        }
    }

    pub(super) fn gather_index(&mut self, ctx: &mut Context) {
        for (kind, chunk) in self.map.index.changed_chunks() {
            match self.map.index.encode_chunk(kind, chunk, self.family) {
                Some(page) => {
                    self.begin_batch();
                    self.gather(Page::Chunk(kind, chunk), page, ctx);
                }
                None => drop(self.map.index.set_chunk(kind, chunk, None)),
            }
        }
    }

    /// So many units more go into one egroup.
    pub(super) fn make_room(&mut self, units: usize, ctx: &mut Context) {
        assert!(units <= EGROUP_UNITS, "pages that belong together fit into one egroup");
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        if job.units.len() + units > EGROUP_UNITS {
            self.flush_pages(ctx);
        }
    }

    /// What is gathered from now on changes together.
    pub(super) fn begin_batch(&mut self) {
        self.checkpointing.job.as_mut().expect("a checkpoint is running").batch += 1;
    }

    pub(super) fn gather(&mut self, page: Page, bytes: Buffer, ctx: &mut Context) {
        self.make_room(bytes.blocks(), ctx);
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        let first = job.units.len() as u32;
        for index in 0..bytes.blocks() {
            // Units of pages are told from those of blocks by the highest bit.
            job.units.push(1 << 63, bytes.block(index));
        }
        let (units, batch) = (bytes.blocks() as u32, job.batch);
        job.gathered.push(Placed { page, first, units, batch });
    }

    pub(super) fn flush_pages(&mut self, ctx: &mut Context) {
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        if job.units.is_empty() {
            return;
        }
        let (units, gathered) = (std::mem::take(&mut job.units), std::mem::take(&mut job.gathered));
        ctx.counters.pages_written += gathered.len() as u64;
        let number = self.place(units, Class::Pages, Intent::Pages, ctx);
        let job = self.checkpointing.job.as_mut().expect("placing takes messages, so it cannot be done yet");
        job.placing.insert(number, gathered);
    }

    /// No group has a run for an egroup of pages this large: its last pages are placed apart from it. What is kept for pages may
    /// lie in pieces, and nothing is freed before all of them are written. Gives how many units stay; None: they are few.
    pub(crate) fn split_pages(
        &mut self,
        number: u64,
        units: &Units,
        has_waited: bool,
        ctx: &mut Context,
    ) -> Option<usize> {
        let least = if has_waited { SPLIT_UNITS_LAST } else { SPLIT_UNITS_MIN };
        let job = self.checkpointing.job.as_mut().expect("pages are placed for a checkpoint");
        let gathered = job.placing.get_mut(&number).expect("the egroup is placed for this checkpoint");
        // What changes at the same instant stays together, and so does what goes with it.
        let divides = |at: usize| {
            let Placed { first, units: count, batch, .. } = gathered[at];
            let (before, behind) = (first as usize, units.len() - first as usize);
            gathered[at - 1].batch != batch && count > 0 && before.min(behind) >= least
        };
        let half = units.len().div_ceil(2);
        let far = |at: &usize| half.abs_diff(gathered[*at].first as usize);
        let at = (1..gathered.len()).filter(|&at| divides(at)).min_by_key(far)?;
        let stay = gathered[at].first;
        let mut behind = gathered.split_off(at);
        behind.iter_mut().filter(|placed| placed.units > 0).for_each(|placed| placed.first -= stay);
        let apart = Units {
            data: units.data[stay as usize..].to_vec(),
            blocks: units.blocks[stay as usize..].to_vec(),
            are_lost: false,
        };
        let number = self.place(apart, Class::Pages, Intent::Pages, ctx);
        let job = self.checkpointing.job.as_mut().expect("placing takes messages, so it cannot be done yet");
        job.placing.insert(number, behind);
        Some(stay as usize)
    }

    /// An egroup of pages is durable on all members: reads may find them there from now on.
    pub(crate) fn on_pages_placed(&mut self, number: u64, named: NamedEgroup, ctx: &mut Context) {
        let job = self.checkpointing.job.as_mut().expect("pages are placed for a checkpoint");
        let gathered = job.placing.remove(&number).expect("the egroup was placed for this checkpoint");
        self.map.map_egroups.insert(named.egroup, named);
        for Placed { page, first, units, batch: _ } in gathered {
            let place = PagePlace { egroup: named.egroup, unit: first, units };
            match page {
                Page::Leaf(number, leaf) => {
                    self.map.index.set(PageKind::Leaf, number, place);
                    self.map.pages.put(place, MapPage::Leaf(leaf), ctx.limits.pages_bytes_max);
                }
                Page::Past(number, past) => {
                    let range = past.range().expect("a page of the past has groups");
                    self.map.index.set_past(number, place, range);
                    self.map.pages.put(place, MapPage::Past(past), ctx.limits.pages_bytes_max);
                }
                Page::Gone(kind, number) => drop(self.map.index.remove(kind, number)),
                Page::Directory(number) => drop(self.map.index.set(PageKind::Directory, number, place)),
                Page::Chunk(kind, chunk) => drop(self.map.index.set_chunk(kind, chunk, Some(place))),
            }
        }
        self.check_copies(named.egroup, named.group, ctx);
        self.continue_checkpoint(ctx);
    }
}
