//! The egroups of one drive: what is stored where, with the checksums of all units (of packed ones: of
//! their frames) in memory.
//! Promises: no two egroups have a block in their runs; an egroup is told as written only when it is durable (I4).
//! Leaves to others: writing and deleting (`egroup_change`, `egroup_drop`), reading (`egroup_read`), finding them again
//! (`egroup_load`), what egroups share (`sharing`, `proof`, `holds`), free runs (`space`).

use crate::buffer::BLOCK;
use crate::codec::Decompressor;
use crate::formats::layout::{Layout, RUN_BLOCKS_MAX, run_blocks, trailer_blocks};
use crate::formats::packing::{Frame, Packing, frame_of};
use crate::formats::references::References;
use crate::formats::table::own_blocks;
use crate::identity::{EgroupId, FamilyId};
use crate::keeper::StoredEgroup;
use crate::keeper::desk::{Caller, Desk};
use crate::keeper::egroup_change::{Change, DeleteCall, Later, newer};
use crate::keeper::egroup_drop::FamilyDrop;
use crate::keeper::egroup_read::{Describe, UnitRead};
use crate::keeper::holds::Holds;
use crate::keeper::proof::Proof;
use crate::keeper::refill::Refill;
use crate::keeper::sharing::Sharing;
use crate::keeper::space::Space;
use crate::keeper::untold::Untold;
use crate::message::{Answer, Class, Refusal};
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

pub(super) type Name = (FamilyId, EgroupId);

/// An egroup on the drive.
pub(super) struct Stored {
    pub slot: u32,
    pub revision: u32,
    /// First block of the run, in the data area.
    pub first: u64,
    pub trailer_crc: u32,
    /// The trailer has hashes too: others may refer to it.
    pub hashes_crc: Option<u32>,
    /// What of it lies elsewhere.
    pub references: References,
    /// One for each frame.
    pub checksums: Box<[u32]>,
    /// None: every unit is a frame.
    pub packing: Option<Arc<Packing>>,
    /// It was written and flushed since the drive was opened. Of one that was found at opening only the
    /// table page is known to be durable: its data may not be, if the power was cut while both were written. (With hashes the page
    /// comes behind the data.)
    pub flushed: bool,
    /// It was there when the drive was opened.
    pub is_found: bool,
    /// The damage was told already.
    pub told: bool,
    /// The number of the latest call of its owner that put it here or found it here; none since the opening.
    pub asked: Option<u64>,
}

impl Stored {
    pub fn units(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.units())
    }

    /// Bytes that all of its data takes, wherever that is.
    pub fn data_bytes(&self) -> u32 {
        let packing = self.packing.as_ref();
        packing.map_or(self.checksums.len() as u32 * BLOCK as u32, |packing| packing.bytes())
    }

    /// Blocks that all of its data takes, wherever that is.
    pub fn data_blocks(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.blocks())
    }

    /// Blocks of the run before the trailer.
    pub fn own_blocks(&self) -> u32 {
        own_blocks(self.packing.as_deref(), self.units(), &self.references)
    }

    /// Blocks that it need not have of its own.
    pub fn referred_blocks(&self) -> u64 {
        u64::from(self.data_blocks() - self.own_blocks())
    }

    pub fn hashes(&self) -> u32 {
        self.hashes_crc.map_or(0, |_| self.checksums.len() as u32)
    }

    pub fn blocks(&self) -> u64 {
        run_blocks(self.own_blocks(), self.units(), self.hashes())
    }

    /// First block of the trailer, and how many it has.
    pub fn trailer(&self) -> (u64, u64) {
        (self.first + u64::from(self.own_blocks()), trailer_blocks(self.units(), self.hashes()))
    }

    /// What becomes free when it goes.
    pub fn run(&self) -> Run {
        Run { slot: self.slot, first: self.first, blocks: self.blocks(), references: self.references.clone() }
    }

    pub fn frame_of(&self, unit: u32) -> Frame {
        frame_of(self.packing.as_deref(), unit)
    }

    /// The byte of the data area from which on the frame lies.
    pub fn place_of(&self, frame: &Frame) -> u64 {
        self.references.place_of(self.first, frame.offset)
    }
}

/// What a page of the table names: its slot, the blocks of its run, and what lies elsewhere.
#[derive(Debug)]
pub(super) struct Run {
    pub slot: u32,
    pub first: u64,
    pub blocks: u64,
    pub references: References,
}

pub(super) struct Store {
    pub layout: Layout,
    pub incarnation: u64,
    /// Changed by `put` and `take` alone.
    pub egroups: BTreeMap<Name, Stored>,
    /// How many families have egroups here.
    families_count: usize,
    pub space: Space,
    pub untold: Untold,
    pub free_slots: BTreeSet<u32>,
    /// For each slot, reads in flight of its run.
    pub readers: Vec<u32>,
    /// What nothing names any more but is still being read, by slot.
    pub leaving: BTreeMap<u32, Run>,
    /// What references hold.
    pub holds: Holds,
    /// Blocks that egroups need not have of their own.
    pub referred_blocks: u64,
    pub sharing: Sharing,
    pub refill: Refill,
    /// Egroups that wait for a look at what they may refer to, by the number of their change.
    pub proofs: BTreeMap<u64, Proof>,

    pub changes: BTreeMap<u64, Change>,
    /// Of these, pages that are being erased.
    pub erasures: usize,
    /// The change that a name is going through; it goes through one at a time ...
    pub changing: BTreeMap<Name, u64>,
    /// ... and these wait for it to end.
    pub later: BTreeMap<Name, VecDeque<Later>>,
    pub deletes: BTreeMap<u64, DeleteCall>,
    /// Those of them that delete whole families and have not come to the last egroup.
    pub drops: BTreeMap<u64, FamilyDrop>,
    /// Changes whose writes have ended and wait for a flush that covers them.
    pub ended: Vec<u64>,
    /// Those that the flush in flight covers.
    pub covered: Option<Vec<u64>>,

    pub reads: BTreeMap<u64, UnitRead>,
    pub describes: BTreeMap<u64, Describe>,
    pub decompressor: Decompressor,
    counter: u64,
}

impl Store {
    /// A data area of `bytes` without any egroup.
    pub fn empty(bytes: u64, incarnation: u64, shared_entries_max: usize) -> Self {
        let layout = Layout::of(bytes);
        Self {
            layout,
            incarnation,
            egroups: BTreeMap::new(),
            families_count: 0,
            space: Space::all_free(layout.units, layout.end),
            untold: Untold::default(),
            free_slots: (0..layout.entries).collect(),
            readers: vec![0; layout.entries as usize],
            leaving: BTreeMap::new(),
            holds: Holds::default(),
            referred_blocks: 0,
            sharing: Sharing::new(incarnation, shared_entries_max),
            refill: Refill::default(),
            proofs: BTreeMap::new(),
            changes: BTreeMap::new(),
            erasures: 0,
            changing: BTreeMap::new(),
            later: BTreeMap::new(),
            deletes: BTreeMap::new(),
            drops: BTreeMap::new(),
            ended: Vec::new(),
            covered: None,
            reads: BTreeMap::new(),
            describes: BTreeMap::new(),
            decompressor: Decompressor::default(),
            counter: 0,
        }
    }

    /// A number for a job that no other has.
    pub fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// An egroup is stored under this name, in place of the former one.
    pub fn put(&mut self, name: Name, stored: Stored) {
        self.families_count += usize::from(!self.has_some_of(name.0));
        self.referred_blocks += stored.referred_blocks();
        if let Some(former) = self.egroups.insert(name, stored) {
            self.referred_blocks -= former.referred_blocks();
        }
    }

    /// Nothing is stored under this name any more.
    pub fn take(&mut self, name: Name) -> Option<Stored> {
        let former = self.egroups.remove(&name)?;
        self.referred_blocks -= former.referred_blocks();
        self.families_count -= usize::from(!self.has_some_of(name.0));
        Some(former)
    }

    /// Blocks that client data leaves untouched, so that what frees space in the end can be written.
    pub fn reserve_blocks(&self) -> u64 {
        let units = self.layout.end - self.layout.units;
        (units / 25).max(2 * RUN_BLOCKS_MAX)
    }

    /// Entries of the table that client data leaves. A checkpoint takes some before it gives any back, and families make theirs
    /// side by side: two thirds are for pages, which are two for each family. Small tables cannot give as many.
    fn reserve_slots(&self) -> usize {
        let entries = self.layout.entries as usize;
        let families = if planted(Bug::ReserveOfFew) { 0 } else { self.families_count };
        (3 * (families + 1)).min(entries / 6).max(entries / 16).max(24)
    }

    /// Bytes that client data may still take. What is in the log already needs entries as well, one for each generation: they
    /// are kept from what is not.
    pub fn free_bytes(&self) -> u64 {
        if self.free_slots.len() <= 2 * self.reserve_slots() {
            return 0;
        }
        self.spare_blocks() * BLOCK as u64
    }

    /// Free blocks beyond the reserve.
    pub fn spare_blocks(&self) -> u64 {
        self.space.free_blocks().saturating_sub(self.reserve_blocks())
    }

    /// A slot and a run of so many blocks.
    pub fn allocate(&mut self, blocks: u64, class: Class) -> Option<(u32, u64)> {
        let (blocks_left, slots_left) = match class {
            Class::Data => (self.reserve_blocks(), self.reserve_slots()),
            Class::Pressed => (self.reserve_blocks() / 2, self.reserve_slots() * 5 / 6),
            Class::Reserve => (self.reserve_blocks() / 4, self.reserve_slots() * 2 / 3),
            Class::Pages => (0, 0),
        };
        if self.space.free_blocks() < blocks + blocks_left || self.free_slots.len() <= slots_left {
            return None;
        }
        let first = self.space.allocate(blocks)?;
        self.untold.note_used(first..first + blocks);
        let slot = self.free_slots.pop_first().expect("there are more than are left");
        Some((slot, first))
    }

    /// Nothing durable names this any more. It is free when nobody reads it, but for what others refer to.
    pub fn release(&mut self, run: Run) {
        if self.readers[run.slot as usize] > 0 {
            let former = self.leaving.insert(run.slot, run);
            assert!(former.is_none(), "a slot names one run");
            return;
        }
        self.free_slots.insert(run.slot);
        if run.blocks > 0 {
            let blocks = run.first..run.first + run.blocks;
            let free = if planted(Bug::SharedFreed) { vec![blocks] } else { self.holds.leave(blocks) };
            free.into_iter().for_each(|blocks| self.free(blocks));
        }
        for reference in run.references.iter() {
            if planted(Bug::ReferencesKept) {
                continue;
            }
            for blocks in self.holds.lower(reference.blocks()) {
                self.free(blocks);
            }
        }
    }

    /// Nothing names these blocks, and nobody refers to them.
    fn free(&mut self, blocks: Range<u64>) {
        if !planted(Bug::SharedAfterFreed) {
            self.sharing.index.forget(blocks.start * BLOCK as u64..blocks.end * BLOCK as u64);
        }
        self.space.release(blocks.start, blocks.end - blocks.start);
        self.untold.note_free(blocks);
    }

    /// A read of the run of `slot` ended.
    pub fn end_reading(&mut self, slot: u32) {
        let readers = &mut self.readers[slot as usize];
        *readers -= 1;
        if *readers == 0
            && let Some(run) = self.leaving.remove(&slot)
        {
            self.release(run);
        }
    }

    /// See [`crate::message::Question::ListEgroups`]. What it names its owner knows to be here from now on, and relies on: a deletion
    /// that was asked for before takes none of it. (If it should go all the same, its owner sees that in the list.)
    pub fn list(&mut self, caller: Caller, after: EgroupId, names_max: usize, desk: &mut Desk) {
        let Some(from) = after.0.checked_add(1).map(EgroupId) else {
            return desk.answer(caller, Ok(Answer::Listed { egroups: Vec::new(), end: true }));
        };
        let Self { egroups, later, .. } = self;
        let all = (caller.family, from)..=(caller.family, EgroupId(u64::MAX));
        let goes = |name: &Name| {
            later.get(name).is_some_and(|later| later.iter().any(Later::is_delete))
                && !planted(Bug::LateDeletion)
        };
        let mut stays = egroups.range_mut(all).filter(|(name, _)| !goes(name));
        let listed = stays.by_ref().take(names_max).map(|((_, egroup), stored)| {
            stored.asked = newer(stored.asked, caller.call);
            *egroup
        });
        let egroups: Vec<EgroupId> = listed.collect();
        let end = stays.next().is_none();
        desk.answer(caller, Ok(Answer::Listed { egroups, end }));
    }

    pub fn has_some_of(&self, family: FamilyId) -> bool {
        let all = (family, EgroupId(0))..=(family, EgroupId(u64::MAX));
        self.egroups.range(all).next().is_some()
    }

    /// Of which families something is stored or being written.
    pub fn families(&self) -> BTreeSet<FamilyId> {
        let mut families: BTreeSet<FamilyId> = self.changing.keys().map(|(family, _)| *family).collect();
        let mut next = Some(FamilyId(0));
        // From family to family: each may have very many.
        while let Some(((family, _), _)) =
            next.and_then(|first| self.egroups.range((first, EgroupId(0))..).next())
        {
            families.insert(*family);
            next = family.0.checked_add(1).map(FamilyId);
        }
        families
    }

    pub fn refuse_unknown(caller: Caller, desk: &mut Desk) {
        desk.refuse(caller, Refusal::NotFound);
    }

    /// Everything stored; for judges, checks and statistics.
    pub fn iter(&self) -> impl Iterator<Item = StoredEgroup> + '_ {
        self.egroups.iter().map(|((family, egroup), stored)| StoredEgroup {
            family: *family,
            egroup: *egroup,
            first: stored.first,
            blocks: stored.blocks(),
            units: stored.units(),
            data_bytes: stored.data_bytes(),
            data_blocks: stored.data_blocks(),
            references: stored.references.clone(),
        })
    }
}
