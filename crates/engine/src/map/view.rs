//! What a snapshot sees of a leaf: put together from the leaf page of the present and the pages of its past.
//! Promises: a view is made of pages that belong together; made once, it costs a read as much as a leaf page does, however
//! many snapshots there are.
//! Leaves to others: the overlay and the edits, which come before it (`lookup`), keeping pages (`checkpoint`).

use super::leaf::{Leaf, LeafEdit, Run};
use super::lookup::{Located, MapPage, PRESENT, PageWaiter, Where, unread};
use super::past::Past;
use crate::context::Context;
use crate::formats::record::{PageKind, PagePlace};
use crate::identity::{Block, EgroupId, Generation};
use crate::limits::LEAF_BLOCKS;
use crate::volume::Volume;
use crate::volume::extents::ExtentsJob;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Views kept in memory. They are for snapshots that are being read; each is as large as a leaf page at most.
const VIEWS_MAX: usize = 256;

/// Who waits for a view.
#[derive(Debug)]
pub(crate) enum ViewWaiter {
    Read { job: u64, block: Block, count: u64 },
    Extents(ExtentsJob),
}

/// The pages that tell of a leaf at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sources {
    live: Option<PagePlace>,
    /// Without a leaf page: when the leaf was trimmed whole, in a clone.
    hole: Option<Generation>,
    past: Vec<(u64, PagePlace)>,
}

#[derive(Debug)]
struct Job {
    at: Generation,
    leaf: u64,
    sources: Sources,
    have: BTreeMap<PagePlace, MapPage>,
    waiters: Vec<ViewWaiter>,
}

#[derive(Debug, Default)]
pub(crate) struct Views {
    last: u64,
    jobs: BTreeMap<u64, Job>,
    under_way: BTreeMap<(Generation, u64), u64>,
    made: BTreeMap<(Generation, u64), (Sources, Arc<Leaf>)>,
    /// Those in the order in which they were first made.
    order: VecDeque<(Generation, u64)>,
}

impl Views {
    /// In place of the oldest, if there are as many as may be. Those who read a snapshot from end to end never come back to one.
    fn keep(&mut self, key: (Generation, u64), sources: Sources, view: &Arc<Leaf>) {
        if self.made.insert(key, (sources, Arc::clone(view))).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > VIEWS_MAX {
            let oldest = self.order.pop_front().expect("it has just got longer");
            self.made.remove(&oldest);
        }
    }
}

impl Volume {
    /// See `resolve` and `resolve_snapshot`.
    pub(crate) fn resolve_at(
        &mut self,
        at: Generation,
        block: Block,
        count: u64,
        ctx: &mut Context,
    ) -> Vec<Located> {
        if at == PRESENT { self.resolve(block, count, ctx) } else { self.resolve_snapshot(at, block, count) }
    }

    /// Where each block of the range was when the snapshot was taken, in order, without gaps.
    pub(crate) fn resolve_snapshot(&mut self, at: Generation, block: Block, count: u64) -> Vec<Located> {
        let (mut located, in_pages) = self.resolve_recent(at, block, count);
        for (block, count) in in_pages {
            let (mut from, end) = (block.0, block.0 + count);
            while from < end {
                let leaf = from / LEAF_BLOCKS;
                let base = leaf * LEAF_BLOCKS;
                let count = (base + LEAF_BLOCKS).min(end) - from;
                let block = Block(from);
                from += count;
                let Some(view) = self.view(at, leaf) else {
                    located.push(Located { block, count, place: Where::View { leaf } });
                    continue;
                };
                for run in view.over((block.0 - base) as u32, count as u32) {
                    self.locate_run(base, &run, &mut located);
                }
            }
        }
        located.sort_by_key(|part| part.block);
        located
    }

    fn sources(&self, at: Generation, leaf: u64) -> Sources {
        let past = self.map.index.past_of(leaf).filter(|(_, _, (_, last))| *last >= at);
        let live = self.map.index.get(PageKind::Leaf, leaf);
        Sources {
            live,
            hole: self.map.holes.get(leaf).filter(|_| live.is_none()),
            past: past.map(|(number, place, _)| (number, place)).collect(),
        }
    }

    /// The view, if it is in memory or what it is made of is.
    fn view(&mut self, at: Generation, leaf: u64) -> Option<Arc<Leaf>> {
        let sources = self.sources(at, leaf);
        if let Some((of, view)) = self.map.views.made.get(&(at, leaf))
            && *of == sources
        {
            return Some(Arc::clone(view));
        }
        let mut have = BTreeMap::new();
        for place in sources.places() {
            have.insert(place, self.map.pages.get(place)?);
        }
        Some(self.make_view(at, leaf, sources, &have))
    }

    fn make_view(
        &mut self,
        at: Generation,
        leaf: u64,
        sources: Sources,
        have: &BTreeMap<PagePlace, MapPage>,
    ) -> Arc<Leaf> {
        let live = sources.live.map(|place| match &have[&place] {
            MapPage::Leaf(leaf) => &**leaf,
            MapPage::Past(_) => unreachable!("a place holds one page for ever"),
        });
        let hole = sources.hole.map(Leaf::hole);
        let live = live.or(hole.as_ref());
        let past = sources.past.iter().map(|(_, place)| match &have[place] {
            MapPage::Past(past) => &**past,
            MapPage::Leaf(_) => unreachable!("a place holds one page for ever"),
        });
        let view = Arc::new(compose(at, live, past, |egroup| self.map.born(egroup)));
        self.map.views.keep((at, leaf), sources, &view);
        view
    }

    /// Has the pages fetched that the view is made of.
    pub(crate) fn fetch_view(&mut self, at: Generation, leaf: u64, waiter: ViewWaiter, ctx: &mut Context) {
        if let Some(number) = self.map.views.under_way.get(&(at, leaf)) {
            let job = self.map.views.jobs.get_mut(number).expect("a view under way has a job");
            return job.waiters.push(waiter);
        }
        self.map.views.last += 1;
        let number = self.map.views.last;
        self.map.views.under_way.insert((at, leaf), number);
        let sources = self.sources(at, leaf);
        let job = Job { at, leaf, sources, have: BTreeMap::new(), waiters: vec![waiter] };
        self.map.views.jobs.insert(number, job);
        self.gather_view(number, ctx);
    }

    /// Takes what is in memory, and asks for the first page that is not.
    fn gather_view(&mut self, number: u64, ctx: &mut Context) {
        let Some(job) = self.map.views.jobs.get_mut(&number) else { return };
        for place in job.sources.places() {
            if job.have.contains_key(&place) {
                continue;
            }
            if let Some(page) = self.map.pages.get(place) {
                job.have.insert(place, page);
                continue;
            }
            let past = job.sources.past.iter().find(|(_, other)| *other == place);
            let (kind, page) = past.map_or((PageKind::Leaf, job.leaf), |(page, _)| (PageKind::Past, *page));
            return self.fetch_page(kind, page, place, PageWaiter::View { job: number }, ctx);
        }
        let (at, leaf) = (job.at, job.leaf);
        let now = self.sources(at, leaf);
        let job = self.map.views.jobs.get_mut(&number).expect("it was just found");
        if job.sources != now {
            // A checkpoint has put pages elsewhere meanwhile: those that stayed need not be fetched again.
            job.sources = now;
            return self.gather_view(number, ctx);
        }
        let job = self.map.views.jobs.remove(&number).expect("it was just found");
        self.map.views.under_way.remove(&(at, leaf));
        self.make_view(at, leaf, job.sources, &job.have);
        for waiter in job.waiters {
            if self.is_failed() {
                return;
            }
            match waiter {
                ViewWaiter::Read { job, block, count } => {
                    self.look_up(job, block, count, ctx);
                    self.finish_job(job, ctx);
                }
                ViewWaiter::Extents(job) => self.continue_extents(job, ctx),
            }
        }
    }

    /// A page is here, or (None) is not what it was any more.
    pub(crate) fn on_page_to_view(
        &mut self,
        number: u64,
        place: PagePlace,
        page: Option<MapPage>,
        ctx: &mut Context,
    ) {
        let Some(job) = self.map.views.jobs.get(&number) else { return };
        let (at, leaf) = (job.at, job.leaf);
        let now = self.sources(at, leaf);
        let job = self.map.views.jobs.get_mut(&number).expect("it was just found");
        match page {
            Some(page) => drop(job.have.insert(place, page)),
            None => job.sources = now,
        }
        self.gather_view(number, ctx);
    }

    /// A page of it cannot be read.
    pub(crate) fn fail_view(&mut self, number: u64, leaf: u64, away: bool, ctx: &mut Context) {
        let Some(job) = self.map.views.jobs.remove(&number) else { return };
        self.map.views.under_way.remove(&(job.at, job.leaf));
        for waiter in job.waiters {
            match waiter {
                ViewWaiter::Read { job, block, .. } => self.fail_read(job, block, away, ctx),
                ViewWaiter::Extents(job) => {
                    self.reply(job.request, unread(Block(leaf * LEAF_BLOCKS), away), ctx)
                }
            }
        }
    }

    /// Nobody reads this snapshot any more.
    pub(crate) fn forget_views(&mut self, at: Generation) {
        self.map.views.made.retain(|(of, _), _| *of != at);
        self.map.views.order.retain(|(of, _)| *of != at);
    }
}

impl Sources {
    fn places(&self) -> Vec<PagePlace> {
        self.live.into_iter().chain(self.past.iter().map(|(_, place)| *place)).collect()
    }
}

/// What snapshot `at` sees. `born` tells the generation of an egroup's data.
pub fn compose<'a>(
    at: Generation,
    live: Option<&Leaf>,
    past: impl Iterator<Item = &'a Past>,
    born: impl Fn(EgroupId) -> Option<Generation>,
) -> Leaf {
    let mut runs: Vec<Run> = Vec::new();
    if let Some(live) = live {
        runs.extend(live.iter().filter(|run| born(run.egroup).is_some_and(|born| born <= at)));
    }
    for past in past {
        past.show(at, &born, &mut runs);
    }
    runs.sort_unstable_by_key(Run::start);
    let edits = runs.iter().map(|run| LeafEdit {
        start: run.start(),
        count: run.count(),
        place: Some((run.egroup, run.unit())),
    });
    Leaf::default().merge(edits, &mut |_| unreachable!("nothing was there"))
}
