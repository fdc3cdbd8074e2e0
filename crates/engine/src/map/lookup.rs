//! Where blocks are now, and the leaf pages that tell it: fetched on demand, kept under their place.
//! Promises: a page in memory is never stale, because its place names content that never changes.
//! Leaves to others: writing pages (`map/checkpoint.rs`).

use crate::buffer::Buffer;
use crate::context::{Context, Purpose};
use crate::curator::audit::Fault;
use crate::formats::record::PageKind;
use crate::formats::record::PagePlace;
use crate::identity::{Block, DriveId, EgroupId, FamilyId, Generation, Time};
use crate::interface::{FamilyTrouble, Reply, RequestError};
use crate::limits::LEAF_BLOCKS;
use crate::log::overlay::Content;
use crate::map::edits::Place;
use crate::map::leaf::{Leaf, LeafEdit};
use crate::map::past::{self, Past};
use crate::message::{Answer, BadUnit, Question, Refusal, UnitRun};
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use crate::volume::extents::ExtentsJob;
use crate::volume::tried::Tried;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Later than any generation: what is newest.
pub(crate) const PRESENT: Generation = Generation(u32::MAX);

/// A part of a range and where its newest version is.
#[derive(Debug)]
pub(crate) struct Located {
    pub block: Block,
    pub count: u64,
    pub place: Where,
}

#[derive(Debug)]
pub(crate) enum Where {
    Dirty(Buffer),
    Zeroes,
    /// Nowhere: it was lost in the log.
    Lost,
    At {
        egroup: EgroupId,
        unit: u32,
    },
    /// The leaf page that knows is not in memory.
    Page {
        leaf: u64,
        place: PagePlace,
    },
    /// In what the family was cloned from.
    Origin,
    /// What a snapshot sees of this leaf has to be put together first.
    View {
        leaf: u64,
    },
}

/// Who waits for a page.
#[derive(Debug)]
pub(crate) enum PageWaiter {
    Read {
        job: u64,
        block: Block,
        count: u64,
    },
    Extents(ExtentsJob),
    /// The checkpoint, to merge this leaf.
    Merge {
        leaf: u64,
    },
    Compact {
        job: u64,
    },
    /// Somebody puts together what a snapshot sees of a leaf.
    View {
        job: u64,
    },
    /// This step of bringing a vDisk into memory.
    Warm(u64),
    /// It will be wanted by a stream of reads.
    Nobody,
}

/// A page in memory.
#[derive(Debug, Clone)]
pub(crate) enum MapPage {
    Leaf(Arc<Leaf>),
    Past(Arc<Past>),
}

impl MapPage {
    fn decode(kind: PageKind, page: &[u8], number: u64, family: FamilyId) -> Option<MapPage> {
        match kind {
            PageKind::Leaf => Some(MapPage::Leaf(Arc::new(Leaf::decode(page, number, family).ok()?))),
            PageKind::Past => Some(MapPage::Past(Arc::new(Past::decode(page, number, family).ok()?))),
            PageKind::Directory => unreachable!("directory pages are read when a family is opened"),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            MapPage::Leaf(leaf) => leaf.bytes(),
            MapPage::Past(past) => past.bytes(),
        }
    }
}

#[derive(Debug)]
struct Fetch {
    kind: PageKind,
    number: u64,
    place: PagePlace,
    waiters: Vec<PageWaiter>,
    tried: Tried,
    /// Its units as far as somebody gave them, once each copy was found bad somewhere.
    pieces: Option<Vec<Option<Buffer>>>,
}

#[derive(Debug)]
struct Cached {
    page: MapPage,
    /// Its place in the order in which pages go.
    turn: u64,
    /// Looked for since it got this place: it gets another one instead of going.
    wanted: bool,
}

/// Leaf pages and pages of the past in memory, and those on their way.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    last: u64,
    fetches: BTreeMap<u64, Fetch>,
    by_place: BTreeMap<PagePlace, u64>,
    /// No copy could be asked, but one may come back.
    stalled: Vec<u64>,
    stalled_until: Option<Time>,
    cached: BTreeMap<PagePlace, Cached>,
    /// Places in the order in which they go, but for those that were wanted meanwhile (second chance: a page that is found
    /// moves nothing).
    turns: BTreeMap<u64, PagePlace>,
    last_turn: u64,
    bytes: usize,
    /// Times that a page was looked for and found here, or not.
    pub hits: u64,
    pub misses: u64,
}

impl Fetch {
    /// The leaf that the page is about.
    fn leaf(&self) -> u64 {
        if self.kind == PageKind::Past { past::leaf_of(self.number) } else { self.number }
    }

    /// What is to be asked for.
    fn runs(&self) -> Vec<UnitRun> {
        let PagePlace { unit, units, .. } = self.place;
        let Some(pieces) = &self.pieces else { return vec![UnitRun { first: unit, count: units }] };
        let missing = (unit..).zip(pieces).filter(|(_, piece)| piece.is_none());
        missing.map(|(first, _)| UnitRun { first, count: 1 }).collect()
    }

    /// The page, if nothing is lacking any more with what a drive has given of that.
    fn take(&mut self, mut results: Vec<Result<Buffer, BadUnit>>) -> Option<Buffer> {
        let Some(pieces) = &mut self.pieces else { return results.pop().and_then(Result::ok) };
        let missing = pieces.iter_mut().filter(|piece| piece.is_none());
        missing.zip(results).for_each(|(piece, result)| *piece = result.ok());
        let units: Option<Vec<&Buffer>> = pieces.iter().map(Option::as_ref).collect();
        let page = units?.iter().flat_map(|unit| unit.bytes()).copied().collect::<Vec<u8>>();
        // If that is no page, then because it was written wrong.
        pieces.fill(None);
        Some(Buffer::copied(&page))
    }
}

impl Pages {
    pub fn wake_at(&self) -> Option<Time> {
        self.stalled_until
    }

    /// The leaf page at this place.
    pub fn leaf(&mut self, place: PagePlace) -> Option<Arc<Leaf>> {
        match self.get(place)? {
            MapPage::Leaf(leaf) => Some(leaf),
            MapPage::Past(_) => unreachable!("a place holds one page for ever"),
        }
    }

    pub fn get(&mut self, place: PagePlace) -> Option<MapPage> {
        let cached = self.cached.get_mut(&place)?;
        cached.wanted = true;
        Some(cached.page.clone())
    }

    /// Whether it is in memory, looked for by nobody.
    pub fn holds(&self, place: PagePlace) -> bool {
        self.cached.contains_key(&place)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies of these egroups are deleted at a former member.
    pub fn copies_deleted(&mut self, egroups: &BTreeSet<EgroupId>) {
        for fetch in self.fetches.values_mut().filter(|fetch| egroups.contains(&fetch.place.egroup)) {
            fetch.tried.copy_deleted();
        }
    }

    fn next_turn(&mut self, place: PagePlace) -> u64 {
        self.last_turn += 1;
        self.turns.insert(self.last_turn, place);
        self.last_turn
    }

    pub fn put(&mut self, place: PagePlace, page: MapPage, bytes_max: usize) {
        if self.cached.contains_key(&place) {
            return;
        }
        self.bytes += page.bytes();
        let turn = self.next_turn(place);
        self.cached.insert(place, Cached { page, turn, wanted: false });
        while self.bytes > bytes_max && self.cached.len() > 1 {
            let (turn, oldest) = self.turns.pop_first().expect("each page in memory has a turn");
            let cached = self.cached.get_mut(&oldest).expect("a turn is that of a page in memory");
            assert_eq!(cached.turn, turn, "a page has one turn");
            // The newest one is what somebody waits for.
            if std::mem::take(&mut cached.wanted) || oldest == place {
                let turn = self.next_turn(oldest);
                self.cached.get_mut(&oldest).expect("it was just found").turn = turn;
                continue;
            }
            let gone = self.cached.remove(&oldest).expect("it was just found");
            self.bytes -= gone.page.bytes();
        }
    }
}

impl Volume {
    /// Where the newest durable version of each block of the range is, in order, without gaps.
    pub(crate) fn resolve(&mut self, block: Block, count: u64, ctx: &mut Context) -> Vec<Located> {
        let (mut located, in_pages) = self.resolve_recent(PRESENT, block, count);
        for (block, count) in in_pages {
            self.resolve_pages(block, count, &mut located, ctx);
        }
        located.sort_by_key(|part| part.block);
        located
    }

    /// What the overlay and the edits know of the range as it was at the end of generation `at`, and the ranges that they
    /// know nothing of.
    pub(super) fn resolve_recent(
        &self,
        at: Generation,
        block: Block,
        count: u64,
    ) -> (Vec<Located>, Vec<(Block, u64)>) {
        let mut located = Vec::new();
        let mut below = Vec::new();
        self.overlay.over(at, block, count, &mut |found| {
            let place = match found.version {
                Some((_, Content::Data(data))) => Where::Dirty(data),
                Some((_, Content::Zero)) => Where::Zeroes,
                Some((_, Content::Lost(_))) => Where::Lost,
                None => return below.push((found.block, found.count)),
            };
            located.push(Located { block: found.block, count: found.count, place });
        });
        let mut in_pages = Vec::new();
        for (block, count) in below {
            self.resolve_mapped(at, block, count, &mut located, &mut in_pages);
        }
        (located, in_pages)
    }

    /// In the edits; what they do not know goes to `in_pages`.
    fn resolve_mapped(
        &self,
        at: Generation,
        block: Block,
        count: u64,
        located: &mut Vec<Located>,
        in_pages: &mut Vec<(Block, u64)>,
    ) {
        let told = |place| match place {
            Place::At { egroup, unit } => Where::At { egroup, unit },
            Place::Nowhere => Where::Zeroes,
        };
        self.map.edits.over(at, block, count, &mut |block, count, place| {
            if let Some(place) = place {
                return located.push(Located { block, count, place: told(place) });
            }
            let Some(merging) = &self.map.merging else {
                return in_pages.push((block, count));
            };
            merging.over(at, block, count, &mut |block, count, place| match place {
                Some(place) => located.push(Located { block, count, place: told(place) }),
                None => in_pages.push((block, count)),
            });
        });
    }

    fn resolve_pages(&mut self, block: Block, count: u64, located: &mut Vec<Located>, ctx: &mut Context) {
        let (mut at, end) = (block.0, block.0 + count);
        while at < end {
            let number = at / LEAF_BLOCKS;
            let base = number * LEAF_BLOCKS;
            let count = (base + LEAF_BLOCKS).min(end) - at;
            let block = Block(at);
            at += count;
            let Some(place) = self.map.index.get(PageKind::Leaf, number) else {
                if self.map.holes.get(number).is_some() {
                    located.push(Located { block, count, place: Where::Zeroes });
                } else {
                    self.locate_unmapped(block, count, located);
                }
                continue;
            };
            let Some(leaf) = self.map.pages.leaf(place) else {
                ctx.counters.page_misses += 1;
                self.map.pages.misses += 1;
                located.push(Located { block, count, place: Where::Page { leaf: number, place } });
                continue;
            };
            ctx.counters.page_hits += 1;
            self.map.pages.hits += 1;
            for run in leaf.over((block.0 - base) as u32, count as u32) {
                self.locate_run(base, &run, located);
            }
        }
    }

    /// Leaf pages of the range that are in memory.
    pub(crate) fn pages_in_memory(&self, block: Block, count: u64) -> u64 {
        let leaves = block.0 / LEAF_BLOCKS..(block.0 + count).div_ceil(LEAF_BLOCKS);
        let place = |number| self.map.index.get(PageKind::Leaf, number);
        leaves.filter_map(place).filter(|&place| self.map.pages.holds(place)).count() as u64
    }

    /// Where the blocks of a run of a leaf page or a view are; `base` is the first block of the leaf.
    pub(super) fn locate_run(&self, base: u64, run: &LeafEdit, located: &mut Vec<Located>) {
        let (block, count) = (Block(base + u64::from(run.start)), u64::from(run.count));
        let place = match run.place {
            None => return self.locate_unmapped(block, count, located),
            Some((egroup, _)) if egroup.is_hole() => Where::Zeroes,
            Some((egroup, unit)) => Where::At { egroup, unit },
        };
        located.push(Located { block, count, place });
    }

    /// Whether the map, as far as it is in memory, still says that the block is there. A page that is not in
    /// memory counts as yes: then the copy is really missing, or the next look-up finds out. `at`: the snapshot that is read,
    /// or the present.
    pub(crate) fn is_place_of(&mut self, at: Generation, block: Block, egroup: EgroupId, unit: u32) -> bool {
        if self.map.group_of(egroup).is_none() {
            return false;
        }
        if at != PRESENT {
            let found = if self.has_version(at) { self.resolve_snapshot(at, block, 1) } else { Vec::new() };
            return found.iter().any(|part| match part.place {
                Where::At { egroup: other, unit: at } => other == egroup && at == unit,
                Where::View { .. } => true,
                _ => false,
            });
        }
        let (mut found, mut in_pages) = (Vec::new(), Vec::new());
        self.resolve_mapped(PRESENT, block, 1, &mut found, &mut in_pages);
        if let Some(part) = found.first() {
            return matches!(part.place, Where::At { egroup: other, unit: at } if other == egroup && at == unit);
        }
        let number = block.0 / LEAF_BLOCKS;
        let Some(place) = self.map.index.get(PageKind::Leaf, number) else { return false };
        let Some(leaf) = self.map.pages.leaf(place) else { return true };
        let found = leaf.find((block.0 - number * LEAF_BLOCKS) as u32);
        found.is_some_and(|(other, at, _)| other == egroup && at == unit)
    }

    /// Has a leaf page fetched for `waiter`; several may wait for one page.
    pub(crate) fn fetch_leaf(&mut self, leaf: u64, place: PagePlace, waiter: PageWaiter, ctx: &mut Context) {
        self.fetch_page(PageKind::Leaf, leaf, place, waiter, ctx);
    }

    pub(crate) fn fetch_page(
        &mut self,
        kind: PageKind,
        page: u64,
        place: PagePlace,
        waiter: PageWaiter,
        ctx: &mut Context,
    ) {
        if let Some(fetch) = self.map.pages.by_place.get(&place) {
            let fetch = self.map.pages.fetches.get_mut(fetch).expect("a place under way has a fetch");
            fetch.waiters.push(waiter);
            return;
        }
        self.map.pages.last += 1;
        let number = self.map.pages.last;
        self.map.pages.by_place.insert(place, number);
        self.map.pages.fetches.insert(
            number,
            Fetch { kind, number: page, place, waiters: vec![waiter], tried: Tried::default(), pieces: None },
        );
        self.ask_page(number, ctx);
    }

    fn ask_page(&mut self, number: u64, ctx: &mut Context) {
        let Some(fetch) = self.map.pages.fetches.get(&number) else { return };
        let (place, tried) = (fetch.place, fetch.tried.drives().to_vec());
        if let Some(drive) = self.nearest_copy(place.egroup, &tried, ctx) {
            let runs = fetch.runs();
            let question = Question::ReadUnits { egroup: place.egroup, runs, frames: false, behind: false };
            return ctx.ask(self.family, self.epoch, drive, question, Purpose::Page(number));
        }
        // A page that was replaced meanwhile may be deleted: those who wait look again.
        if self.map.index.get(fetch.kind, fetch.number) != Some(place) {
            let fetch = self.end_fetch(number);
            return self.wake_page_waiters(fetch.waiters, place, None, ctx);
        }
        let fetch = self.map.pages.fetches.get_mut(&number).expect("it was just found");
        if fetch.tried.begins_anew() {
            return self.ask_page(number, ctx);
        }
        let has_pieces = place.units > 1 && fetch.pieces.is_none() && !planted(Bug::PagesGivenUpWhole);
        if has_pieces && fetch.tried.begins_in_pieces() {
            fetch.pieces = Some(vec![None; place.units as usize]);
            return self.ask_page(number, ctx);
        }
        if may_come_back(self, place.egroup, &tried, ctx) {
            let fetch = self.map.pages.fetches.get_mut(&number).expect("it was just found");
            fetch.tried.clear();
            // Clients do not wait for a drive that is away.
            let (stay, go): (Vec<_>, Vec<_>) =
                fetch.waiters.drain(..).partition(|waiter| matches!(waiter, PageWaiter::Merge { .. }));
            let leaf = fetch.leaf();
            if stay.is_empty() {
                // Nor does anybody ask again for what nobody waits for: there may be as many of these as the map has pages.
                self.end_fetch(number);
            } else {
                fetch.waiters = stay;
                self.map.pages.stalled.push(number);
                self.map.pages.stalled_until.get_or_insert(ctx.now.after(100_000));
            }
            return self.fail_page_waiters(go, leaf, true, ctx);
        }
        let fetch = self.end_fetch(number);
        let leaf = fetch.leaf();
        self.fail_page_waiters(fetch.waiters, leaf, false, ctx);
    }

    fn end_fetch(&mut self, number: u64) -> Fetch {
        let fetch = self.map.pages.fetches.remove(&number).expect("a fetch ends once");
        self.map.pages.by_place.remove(&fetch.place);
        fetch
    }

    pub(crate) fn retry_pages(&mut self, ctx: &mut Context) {
        if self.map.pages.stalled_until.is_some_and(|at| at <= ctx.now) {
            self.map.pages.stalled_until = None;
            for number in std::mem::take(&mut self.map.pages.stalled) {
                if self.is_failed() {
                    return;
                }
                self.ask_page(number, ctx);
            }
        }
    }

    pub(crate) fn on_page(
        &mut self,
        number: u64,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        ctx: &mut Context,
    ) {
        let Some(fetch) = self.map.pages.fetches.get_mut(&number) else { return };
        // A drive that is away may come back with its copy, and is not accused of a bad one.
        let is_missing = answer == Err(Refusal::NotFound);
        let is_away = answer.is_err() && !is_missing;
        if answer != Err(Refusal::DriveGone) {
            fetch.tried.add(drive);
        }
        fetch.tried.note(&answer);
        let (place, kind, page_number) = (fetch.place, fetch.kind, fetch.number);
        let page = match answer {
            Ok(Answer::Units(results)) => fetch.take(results),
            Ok(other) => unreachable!("a read of units is answered by {other:?}"),
            Err(_) => None,
        };
        // Its units were verified, so a page that cannot be decoded was written wrong: no copy is better.
        let page = page.and_then(|page| MapPage::decode(kind, page.bytes(), page_number, self.family));
        let Some(page) = page else {
            if !is_away && self.map.index.get(kind, page_number) == Some(place) {
                let fault = if is_missing { Fault::Missing } else { Fault::Damaged };
                self.on_bad_copy(place.egroup, drive, fault, ctx);
            }
            return self.ask_page(number, ctx);
        };
        let fetch = self.end_fetch(number);
        self.map.pages.put(place, page.clone(), ctx.limits.pages_bytes_max);
        self.wake_page_waiters(fetch.waiters, place, Some(page), ctx);
    }

    /// The page is here (or, with None, is not the page any more): go on.
    fn wake_page_waiters(
        &mut self,
        waiters: Vec<PageWaiter>,
        place: PagePlace,
        page: Option<MapPage>,
        ctx: &mut Context,
    ) {
        for waiter in waiters {
            // For one of them another page may have been asked for, and be lost.
            if self.is_failed() {
                return;
            }
            match waiter {
                PageWaiter::Read { job, block, count } => {
                    self.look_up(job, block, count, ctx);
                    self.finish_job(job, ctx);
                }
                PageWaiter::Extents(job) => self.continue_extents(job, ctx),
                PageWaiter::Merge { leaf } => {
                    let page =
                        page.clone().expect("only a checkpoint replaces pages, and it waits for this one");
                    self.on_page_to_merge(leaf, place, page, ctx);
                }
                PageWaiter::Compact { job } => self.on_compact_page(job, ctx),
                PageWaiter::Warm(step) => self.on_warm_page(step, ctx),
                PageWaiter::Nobody => {}
                PageWaiter::View { job } => self.on_page_to_view(job, place, page.clone(), ctx),
            }
        }
    }

    /// `away`: a copy of the page is on a drive that may come back.
    fn fail_page_waiters(&mut self, waiters: Vec<PageWaiter>, leaf: u64, away: bool, ctx: &mut Context) {
        for waiter in waiters {
            match waiter {
                PageWaiter::Read { job, block, .. } => self.fail_read(job, block, away, ctx),
                PageWaiter::Extents(job) => {
                    self.reply(job.request, unread(Block(leaf * LEAF_BLOCKS), away), ctx)
                }
                PageWaiter::Merge { .. } => self.fail(FamilyTrouble::PageLost(leaf), ctx),
                PageWaiter::View { job } => self.fail_view(job, leaf, away, ctx),
                PageWaiter::Compact { job } => self.abandon_compaction(job, ctx),
                PageWaiter::Warm(step) => self.on_warm_page(step, ctx),
                PageWaiter::Nobody => {}
            }
            if self.is_failed() {
                return;
            }
        }
    }
}

/// The answer to who cannot be given what is at this block.
pub(crate) fn unread(block: Block, away: bool) -> Reply {
    Reply::Error(if away { RequestError::NotServed } else { RequestError::Damaged { block: block.0 } })
}

/// Whether a copy lies on a drive that was not tried and may be up again.
pub(crate) fn may_come_back(volume: &Volume, egroup: EgroupId, tried: &[DriveId], ctx: &Context) -> bool {
    let Some(group) = volume.map.group_of(egroup).and_then(|group| ctx.view.groups.get(&group)) else {
        return false;
    };
    group.members.iter().chain(&group.former).any(|drive| !tried.contains(drive) && !ctx.is_lost(*drive))
}
