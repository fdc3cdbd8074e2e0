//! What the map of a vDisk takes, for each TiB of it: memory of its owner, and space on drives.
//!
//!     cargo run --release -p weft-engine --example map_memory
//!
//! *sequential*: written once, from the beginning to the end. *fragmented*: every block was written at random since, so no two
//! neighbours lie together and each leaf names as many egroups as it has blocks. Memory is counted by the allocator. What is
//! always in memory: the directory of egroups, and the places of leaves. Leaves are brought in when they are needed, and
//! kept up to a limit; a read that misses one reads it first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use weft_engine::buffer::BLOCK;
use weft_engine::formats::recipe::Recipe;
use weft_engine::formats::record::{NamedEgroup, PageKind, PagePlace};
use weft_engine::identity::{EgroupId, Epoch, FamilyId, Generation, GroupId};
use weft_engine::limits::{EGROUP_UNITS, LEAF_BLOCKS, Limits};
use weft_engine::map::directory::Directory;
use weft_engine::map::index::PageIndex;
use weft_engine::map::leaf::Leaf;

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of this function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FAMILY: FamilyId = FamilyId(1);
const BLOCKS: u64 = (1 << 40) / BLOCK as u64;
const EGROUPS: u64 = BLOCKS.div_ceil(EGROUP_UNITS as u64);
const LEAVES: u64 = BLOCKS / LEAF_BLOCKS;
/// Leaves that are made to find out how large one is.
const SAMPLE: u64 = 256;

fn main() {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    println!(
        "| a vDisk of 1 TiB | always in memory | all of its leaves in memory | leaves on a drive | leaves kept at most |"
    );
    println!("|---|---|---|---|---|");
    for (name, leaf) in [("sequential", sequential as fn(u64) -> Leaf), ("fragmented", fragmented)] {
        let before = IN_USE.load(Ordering::Relaxed);
        let leaves: Vec<Leaf> = (0..SAMPLE).map(leaf).collect();
        let each = (IN_USE.load(Ordering::Relaxed) - before) as f64 / SAMPLE as f64;
        let pages: Vec<usize> =
            leaves.iter().zip(0..).map(|(leaf, number)| leaf.encode(number, FAMILY).len()).collect();
        let page = pages.iter().sum::<usize>() as f64 / SAMPLE as f64;
        drop(leaves);
        let always = always_in_memory(page as usize / BLOCK);
        println!(
            "| {name} | {:.0} MiB | {:.0} MiB | {:.0} MiB | {:.0} MiB |",
            mib(always as f64),
            mib(each * LEAVES as f64),
            mib(page * LEAVES as f64),
            mib(Limits::default().pages_bytes_max as f64)
        );
    }
}

/// Bytes of the directory, and of the places of leaves that take so many units each.
fn always_in_memory(units: usize) -> usize {
    let before = IN_USE.load(Ordering::Relaxed);
    let mut directory = Directory::default();
    for number in 0..EGROUPS {
        let egroup = egroup(number);
        let units = EGROUP_UNITS as u32;
        let (group, recipe, generation) = (GroupId(number as u32 % 64), Recipe::PLAIN, Generation(1));
        directory.insert(NamedEgroup { egroup, group, units, stored: units, recipe, generation });
        directory.add_live(egroup, units);
    }
    for number in directory.dirty_pages() {
        directory.page_written(number);
    }
    let mut index = PageIndex::default();
    let each = (EGROUP_UNITS / units) as u64;
    for leaf in 0..LEAVES {
        let unit = (leaf % each) as u32 * units as u32;
        let place = PagePlace { egroup: egroup(EGROUPS + leaf / each), unit, units: units as u32 };
        index.set(PageKind::Leaf, leaf, place);
    }
    let bytes = IN_USE.load(Ordering::Relaxed) - before;
    drop((directory, index));
    bytes
}

fn egroup(number: u64) -> EgroupId {
    EgroupId::new(Epoch(1), number as u32 + 1)
}

fn sequential(number: u64) -> Leaf {
    leaf_of(number, |block| block)
}

/// As if everything had been written once in an order that never has two neighbours together.
fn fragmented(number: u64) -> Leaf {
    leaf_of(number, |block| block.wrapping_mul(0x9E37_79B1) % BLOCKS)
}

fn leaf_of(number: u64, written: impl Fn(u64) -> u64) -> Leaf {
    let mut leaf = Leaf::default();
    for block in 0..LEAF_BLOCKS {
        let order = written(number * LEAF_BLOCKS + block);
        let place = (egroup(order / EGROUP_UNITS as u64), (order % EGROUP_UNITS as u64) as u32);
        leaf.set(block as u32, 1, Some(place), &mut |_| {});
    }
    leaf
}
