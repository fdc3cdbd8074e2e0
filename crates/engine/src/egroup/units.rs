//! The units of an egroup to be, and how many one may have.

use crate::buffer::{BLOCK, Buffer};
use crate::formats::packing::SINGLE_UNITS_MAX;
use crate::interface::{Compression, Method};
use crate::limits::EGROUP_UNITS;
use crate::message::Content;
use crate::volume::write;

/// The units of an egroup to be, each with the vDisk block (or page) it is written for.
#[derive(Debug, Clone, Default)]
pub struct Units {
    pub data: Vec<Buffer>,
    pub blocks: Vec<u64>,
    /// What they had is lost: see [`crate::message::Content::Lost`].
    pub are_lost: bool,
}

impl Units {
    pub fn lost() -> Self {
        Self { are_lost: true, ..Self::default() }
    }

    /// As they are, not packed.
    pub fn content(&self) -> Content {
        match self.are_lost {
            true => Content::Lost { units: self.len() as u32 },
            false => Content::Units(self.data.clone()),
        }
    }

    /// Adds one unit and gives its number.
    pub fn push(&mut self, block: u64, data: Buffer) -> u32 {
        assert_eq!(data.len(), BLOCK, "a unit is one block");
        assert!(self.len() < EGROUP_UNITS, "an egroup has a limit");
        self.data.push(write::aligned(data));
        self.blocks.push(block);
        self.data.len() as u32 - 1
    }

    pub fn len(&self) -> usize {
        self.data.len()
    }

    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
}

/// Units of an egroup at most: compressed one by one, fewer fit into the table page.
pub(crate) fn units_max(compression: Compression) -> usize {
    match compression {
        Compression { method: Method::Lz4 | Method::Zstd { .. }, frame_units: 1, .. } => SINGLE_UNITS_MAX,
        _ => EGROUP_UNITS,
    }
}

/// Packed by this one as far as it goes: more units than fit one by one are packed in pairs.
pub(super) fn fitting(compression: Compression, units: usize) -> Compression {
    if units > units_max(compression) { Compression { frame_units: 2, ..compression } } else { compression }
}

/// Units that an egroup may have: fewer than most when a pool in pieces had no room for more.
#[derive(Debug, Default)]
pub(crate) struct UnitsMax(Option<usize>);

impl UnitsMax {
    pub fn get(&self) -> usize {
        self.0.unwrap_or(EGROUP_UNITS)
    }

    /// No group had room for so many; `least` are always tried.
    pub fn refused(&mut self, units: usize, least: usize) {
        self.0 = Some((units / 4).max(least));
    }

    /// What fits once may fit larger the next time.
    pub fn fitted(&mut self) {
        self.0 = self.0.map(|units| units * 2).filter(|&units| units < EGROUP_UNITS);
    }
}
