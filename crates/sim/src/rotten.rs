//! A write becomes bad in every log that has it, or is not given any more, and whoever serves its vDisk is killed: what is left is where
//! it went.
//! Promises: only writes of which any opening knows that they were there, and nothing else becomes bad: no read of anything else may fail
//! for it, and no vDisk may be refused.
//! Leaves to others: all other faults (`atlas`), what answers are right (`answers`).

use crate::event::Event;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use rand::seq::IndexedRandom;
use weft_engine::interface::Area;
use weft_engine::keeper::Keeper;

/// Writes that become bad in a round.
const WRITES: u32 = 4;

impl World {
    /// In seeds that have it.
    pub fn plan_rotten_writes(&mut self) {
        if !self.parameters.rots {
            return;
        }
        for _ in 0..WRITES {
            let at = self.rng.random_range(0..self.parameters.round_us);
            self.queue.push(self.now + at, Event::WriteRots);
        }
    }

    pub fn write_rots(&mut self) {
        if self.phase != Phase::Trouble {
            return;
        }
        let written: Vec<_> = self.keepers().flat_map(|(_, keeper)| keeper.settled_writes()).collect();
        let Some(&(family, write, _)) = written.choose(&mut self.rng) else { return };
        let there = |(drive, keeper): (usize, &Keeper)| {
            let mut writes = keeper.settled_writes();
            let found = writes.find(|(of, other, _)| *of == family && other.seq == write.seq);
            found.map(|(_, _, at)| (drive, at))
        };
        let places: Vec<(usize, u64)> = self.keepers().filter_map(there).collect();
        let index = self.rng.random_range(0..write.count);
        for (drive, at) in places {
            let block = (at + index) as usize;
            if self.rng.random_bool(0.5) {
                self.flip(drive, Area::Log, block);
                continue;
            }
            self.drives[drive].area_mut(Area::Log).make_unreadable(block);
            self.families[family.0 as usize].is_withheld = true;
            self.coverage.count("writes that a drive does not give any more");
        }
        self.families[family.0 as usize].rotten.extend(write.block.0..write.block.0 + write.count);
        self.coverage.count("writes that became bad in all logs");
        // It is known by heart to whoever serves it.
        if let Some(owner) = self.control.families[family.0 as usize].owner {
            let node = self.shards[owner].node;
            let mood = self.rng.random_bool(0.5).then(|| self.mood());
            self.node_stops(node, mood);
            let time = self.rng.random_range(1_000..50_000);
            self.queue.push(self.now + time, Event::NodeStarts(node));
        }
    }

    /// All drives that are open somewhere.
    fn keepers(&self) -> impl Iterator<Item = (usize, &Keeper)> {
        let engines = self.shards.iter().filter_map(|shard| shard.engine.as_ref());
        engines.flat_map(|engine| engine.keepers()).map(|(drive, keeper)| (drive.0 as usize, keeper))
    }
}
