//! The egroups of one drive: what is stored where, with the checksums of all units (of packed ones: of
//! their frames) in memory.
//! Promises: no two egroups share a block; an egroup is told as written only when it is durable (I4).
//! Leaves to others: writing and deleting (`egroup_change`), reading (`egroup_read`), finding them again
//! (`egroup_load`), free runs (`space`).

use crate::buffer::BLOCK;
use crate::codec::Decompressor;
use crate::formats::layout::{Layout, RUN_BLOCKS_MAX, run_blocks};
use crate::formats::packing::{Frame, Packing, frame_of};
use crate::identity::{EgroupId, FamilyId};
use crate::interface::{Area, DriveWork};
use crate::keeper::StoredEgroup;
use crate::keeper::desk::{Caller, Desk, Work};
use crate::keeper::egroup_change::{Change, DeleteCall, Later};
use crate::keeper::egroup_read::{Describe, UnitRead};
use crate::keeper::space::Space;
use crate::message::{Answer, Class, Refusal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(super) type Name = (FamilyId, EgroupId);

/// Names given in one answer at most.
const NAMES_MAX: usize = 4096;
/// Runs of at least this many blocks are worth a hint to the drive when they are freed.
const DISCARD_BLOCKS_MIN: u64 = 16;

/// An egroup on the drive.
pub(super) struct Stored {
    pub slot: u32,
    pub revision: u32,
    /// First block of the run, in the data area.
    pub first: u64,
    pub trailer_crc: u32,
    /// One for each frame.
    pub checksums: Box<[u32]>,
    /// None: every unit is a frame.
    pub packing: Option<Arc<Packing>>,
    /// It was written and flushed since the drive was opened. Of one that was found at opening only the
    /// table page is known to be durable: its data may not be, if the power was cut while both were written.
    pub flushed: bool,
    /// The damage was told already.
    pub told: bool,
}

impl Stored {
    pub fn units(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.units())
    }

    /// Blocks of the run before the trailer.
    pub fn data_blocks(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.blocks())
    }

    pub fn blocks(&self) -> u64 {
        run_blocks(self.data_blocks(), self.units())
    }

    pub fn frame_of(&self, unit: u32) -> Frame {
        frame_of(self.packing.as_deref(), unit)
    }
}

pub(super) struct Store {
    pub layout: Layout,
    pub incarnation: u64,
    pub egroups: BTreeMap<Name, Stored>,
    pub space: Space,
    pub free_slots: BTreeSet<u32>,
    /// For each slot, reads in flight of its run.
    pub readers: Vec<u32>,
    /// Runs that nothing names any more but that are still being read, by slot.
    pub leaving: BTreeMap<u32, (u64, u64)>,

    pub changes: BTreeMap<u64, Change>,
    /// The change that a name is going through; it goes through one at a time ...
    pub changing: BTreeMap<Name, u64>,
    /// ... and these wait for it to end.
    pub later: BTreeMap<Name, VecDeque<Later>>,
    pub deletes: BTreeMap<u64, DeleteCall>,
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
    pub fn empty(bytes: u64, incarnation: u64) -> Self {
        let layout = Layout::of(bytes);
        Self {
            layout,
            incarnation,
            egroups: BTreeMap::new(),
            space: Space::all_free(layout.units, layout.end),
            free_slots: (0..layout.entries).collect(),
            readers: vec![0; layout.entries as usize],
            leaving: BTreeMap::new(),
            changes: BTreeMap::new(),
            changing: BTreeMap::new(),
            later: BTreeMap::new(),
            deletes: BTreeMap::new(),
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

    /// Blocks that client data leaves untouched, so that what frees space in the end can be written.
    fn reserve_blocks(&self) -> u64 {
        let units = self.layout.end - self.layout.units;
        (units / 25).max(2 * RUN_BLOCKS_MAX)
    }

    /// Entries of the table that client data leaves. A checkpoint takes some before it gives any back, and families make theirs
    /// side by side.
    fn reserve_slots(&self) -> usize {
        (self.layout.entries as usize / 16).max(24)
    }

    /// Bytes that client data may still take. What is in the log already needs entries as well, one for each generation: they
    /// are kept from what is not.
    pub fn free_bytes(&self) -> u64 {
        if self.free_slots.len() <= 2 * self.reserve_slots() {
            return 0;
        }
        self.space.free_blocks().saturating_sub(self.reserve_blocks()) * BLOCK as u64
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
        let slot = self.free_slots.pop_first().expect("there are more than are left");
        Some((slot, first))
    }

    /// Nothing durable names this run any more. It is free when nobody reads it.
    pub fn release(&mut self, slot: u32, first: u64, blocks: u64, desk: &mut Desk) {
        if self.readers[slot as usize] > 0 {
            let former = self.leaving.insert(slot, (first, blocks));
            assert!(former.is_none(), "a slot names one run");
            return;
        }
        self.free_slots.insert(slot);
        if blocks >= DISCARD_BLOCKS_MIN {
            // Drives may take hints and writes in any order: the run is free when the hint has ended.
            let (offset, len) = (first * BLOCK as u64, blocks * BLOCK as u64);
            desk.submit(Area::Data, DriveWork::Discard { offset, len }, Work::Discard { first, blocks });
        } else if blocks > 0 {
            self.space.release(first, blocks);
        }
    }

    pub fn on_discarded(&mut self, first: u64, blocks: u64) {
        self.space.release(first, blocks);
    }

    /// A read of the run of `slot` ended.
    pub fn end_reading(&mut self, slot: u32, desk: &mut Desk) {
        let readers = &mut self.readers[slot as usize];
        *readers -= 1;
        if *readers == 0
            && let Some((first, blocks)) = self.leaving.remove(&slot)
        {
            self.release(slot, first, blocks, desk);
        }
    }

    /// See [`crate::message::Question::ListEgroups`].
    pub fn list(&self, caller: Caller, after: EgroupId, desk: &mut Desk) {
        let Some(from) = after.0.checked_add(1).map(EgroupId) else {
            return desk.answer(caller, Ok(Answer::Listed { egroups: Vec::new(), end: true }));
        };
        let mut names = self
            .egroups
            .range((caller.family, from)..=(caller.family, EgroupId(u64::MAX)))
            .map(|((_, egroup), _)| *egroup);
        let egroups: Vec<EgroupId> = names.by_ref().take(NAMES_MAX).collect();
        let end = names.next().is_none();
        desk.answer(caller, Ok(Answer::Listed { egroups, end }));
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
            data_blocks: stored.data_blocks(),
        })
    }
}
