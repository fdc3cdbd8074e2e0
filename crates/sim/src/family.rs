//! A vDisk as its clients and its judges know it.

use crate::judge::registers::{Moment, Registers, Write};
use crate::judge::snapshots::Snapshots;
use crate::layout::Layout;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::identity::{Generation, SnapshotId};
use weft_engine::interface::Origin;

pub const BLOCK_SECTORS: u64 = 8;

/// A vDisk as its clients and its judge know it.
pub struct Family {
    pub layout: Layout,
    pub registers: Registers,
    pub snapshots: Snapshots,
    pub(crate) writes: Vec<Write>,
    /// Writes that nobody knows the outcome of, and the epoch they were given to.
    pub(crate) unknown: Vec<(u32, u32)>,
    pub(crate) open_reads: BTreeSet<Moment>,
    /// The newest epoch in which a shard said that it serves.
    pub ready_epoch: u32,
    /// It exists: clients use it.
    pub exists: bool,
    /// Copies that are due of what is acknowledged: fewer than wished for while it changes.
    pub factor: u32,
    /// Sectors it had when it was made: those are inside at every owner.
    pub(crate) first_size: u64,
    /// What it began as, if it is a clone.
    pub origin: Option<Origin>,
    /// Blocks of which a write has become bad in every log that had it: reads of them may fail from then on.
    pub rotten: BTreeSet<u64>,
    /// Blocks that could not be read for a while: then reads of them may fail, and not when everything is read back.
    pub faltered: BTreeSet<u64>,
    /// Some of these are not given by a drive, which counts as lost only after a while: it may not be served until then.
    pub is_withheld: bool,
    /// Owners of these epochs are rolling it back, and serve nobody who asks from that moment on.
    pub rolling_back: BTreeMap<u32, Moment>,
    /// What an owner of this epoch said it is now, until it is told that clients may be let in again.
    pub rolled_back: Option<(u32, Generation)>,
}

impl Family {
    pub fn new(index: usize, layout: Layout, factor: u32, origin: Option<Origin>) -> Self {
        let registers = Registers::new(index, layout.blocks, origin.is_some());
        let first_size = layout.size_blocks * BLOCK_SECTORS;
        Self {
            layout,
            registers,
            snapshots: Snapshots::default(),
            writes: Vec::new(),
            unknown: Vec::new(),
            open_reads: BTreeSet::new(),
            ready_epoch: 0,
            exists: true,
            factor,
            first_size,
            origin,
            rotten: BTreeSet::new(),
            faltered: BTreeSet::new(),
            is_withheld: false,
            rolling_back: BTreeMap::new(),
            rolled_back: None,
        }
    }

    /// `blocks` more, all of them used.
    pub fn grow(&mut self, blocks: usize) {
        self.layout.grow(blocks);
        self.registers.grow(self.layout.blocks);
        self.snapshots.grow(self.layout.blocks);
    }

    /// The snapshot may be taken from now on: until it is, it is a read of everything.
    pub fn snapshot_asked(&mut self, snapshot: SnapshotId, at: Moment) {
        if self.snapshots.asked(snapshot, at) {
            self.open_reads.insert(at);
        }
    }

    pub fn snapshot_taken(
        &mut self,
        snapshot: SnapshotId,
        generation: Generation,
        epoch: u32,
        at: Moment,
    ) -> Result<(), String> {
        let asked = self.snapshots.taken(snapshot, generation, epoch, at, &self.registers)?;
        if let Some(asked) = asked {
            self.open_reads.remove(&asked);
        }
        Ok(())
    }

    pub fn snapshot_forgotten(&mut self, snapshot: SnapshotId) {
        if let Some(asked) = self.snapshots.forget_asked(snapshot) {
            self.open_reads.remove(&asked);
        }
    }

    pub(crate) fn oldest_read(&self, now: Moment) -> Moment {
        self.open_reads.first().copied().unwrap_or(now)
    }

    pub(crate) fn write(&self, number: u32) -> Write {
        self.writes[number as usize - 1]
    }

    /// An owner of `epoch` says that it is what this snapshot was, and that nobody has been served since.
    pub fn rolled_back(&mut self, to: Generation, epoch: u32, at: Moment) -> Result<(), String> {
        // An owner that was replaced has nothing to say; the next one does it again.
        if epoch < self.ready_epoch {
            return Ok(());
        }
        // It may be told twice to go back. What clients ask of a node that stands still between the two comes behind both.
        if self.rolled_back == Some((epoch, to)) {
            return Ok(());
        }
        self.rolled_back = Some((epoch, to));
        self.snapshots.roll_back(to, &mut self.registers, at)
    }

    /// From this moment on no owner of an epoch before `epoch` has anything left to say: what has not
    /// taken effect never will.
    pub fn owner_ready(&mut self, epoch: u32, at: Moment) {
        self.ready_epoch = self.ready_epoch.max(epoch);
        let unknown = std::mem::take(&mut self.unknown);
        for (number, of) in unknown {
            if of < epoch {
                let write = self.write(number);
                self.registers.settled(&self.layout, write, at);
            } else {
                self.unknown.push((number, of));
            }
        }
    }
}
