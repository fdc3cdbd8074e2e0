//! The overlay of a vDisk with snapshots: one layer for each generation that is not in egroups yet.
//! Promises: what is written after a snapshot never changes what the snapshot sees; the drain gets the oldest generation
//! first, so a block's versions reach the map in their order; without snapshots there is one layer.
//! Leaves to others: the blocks of one generation (`overlay`), taking snapshots (`volume/snapshots.rs`).

use super::overlay::{Content, Found, Overlay};
use crate::identity::{Block, Generation, Seq};
use crate::sabotage::{Bug, planted};
use std::collections::VecDeque;

#[derive(Debug)]
pub struct Layers {
    /// Oldest first; the last is that of the present, and always there. The others have something in them.
    layers: VecDeque<(Generation, Overlay)>,
}

impl Layers {
    /// Nothing; what comes is of `generation`.
    pub fn new(generation: Generation) -> Self {
        Self { layers: VecDeque::from([(generation, Overlay::default())]) }
    }

    /// What comes from here on is of `generation`.
    pub fn begin(&mut self, generation: Generation) {
        let (present, overlay) = self.layers.back_mut().expect("there is a present");
        assert!(*present <= generation, "generations follow each other");
        if overlay.is_empty() {
            *present = generation;
        } else if *present < generation {
            self.layers.push_back((generation, Overlay::default()));
        }
    }

    /// A record became durable everywhere. See [`Overlay::insert`].
    pub fn insert(&mut self, block: Block, count: u64, seq: Seq, content: Content) {
        let present = self.layers.len() - 1;
        let index = if planted(Bug::FrozenLayerWritten) { present.saturating_sub(1) } else { present };
        self.layers[index].1.insert(block, count, seq, content);
    }

    /// Lets go of what the range holds of `generation`, up to and including `covers`.
    pub fn release(&mut self, generation: Generation, block: Block, count: u64, covers: Seq) {
        if let Some(overlay) = self.layer_mut(generation) {
            overlay.release(block, count, covers);
        }
        while self.layers.len() > 1 && self.layers[0].1.is_empty() {
            self.layers.pop_front();
        }
    }

    /// The range as it was at the end of generation `at`, in order inside each part that is told, gaps included:
    /// the parts themselves come in no order.
    pub fn over(&self, at: Generation, block: Block, count: u64, each: &mut impl FnMut(Found)) {
        self.over_from(self.layers.len(), at, block, count, each);
    }

    fn over_from(
        &self,
        below: usize,
        at: Generation,
        block: Block,
        count: u64,
        each: &mut impl FnMut(Found),
    ) {
        let Some(index) = (0..below).rev().find(|&index| self.layers[index].0 <= at) else {
            return each(Found { block, count, version: None });
        };
        for found in self.layers[index].1.over(block, count) {
            match found.version {
                None if index > 0 => self.over_from(index, at, found.block, found.count, each),
                _ => each(found),
            }
        }
    }

    /// Whether nothing in the range is dirty in any generation before this one.
    pub fn is_clear_before(&self, generation: Generation, block: Block, count: u64) -> bool {
        !self.before(generation).any(|overlay| overlay.overlaps(block, count))
    }

    fn before(&self, generation: Generation) -> impl Iterator<Item = &Overlay> {
        let before = self.layers.iter().take_while(move |(other, _)| *other < generation);
        before.map(|(_, overlay)| overlay)
    }

    /// The parts of the range of which nothing is dirty in any generation before this one, in order.
    pub fn clear_before(&self, generation: Generation, block: Block, count: u64) -> Vec<(Block, u64)> {
        let mut clear = vec![(block, count)];
        for overlay in self.before(generation) {
            let gaps = |(block, count)| overlay.over(block, count).filter(|found| found.version.is_none());
            clear = clear.into_iter().flat_map(gaps).map(|gap| (gap.block, gap.count)).collect();
        }
        clear
    }

    /// The oldest generation with something in it: what is to be drained next.
    pub fn oldest_layer(&self) -> (Generation, &Overlay) {
        let newest_first =
            planted(Bug::GenerationsOutOfOrder) && self.layers.back().is_some_and(|l| !l.1.is_empty());
        let (generation, overlay) = &self.layers[if newest_first { self.layers.len() - 1 } else { 0 }];
        (*generation, overlay)
    }

    /// All generations, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Generation, &Overlay)> {
        self.layers.iter().map(|(generation, overlay)| (*generation, overlay))
    }

    pub fn layer_mut(&mut self, generation: Generation) -> Option<&mut Overlay> {
        self.layers.iter_mut().find(|(other, _)| *other == generation).map(|(_, overlay)| overlay)
    }

    pub fn layer(&self, generation: Generation) -> Option<&Overlay> {
        self.layers.iter().find(|(other, _)| *other == generation).map(|(_, overlay)| overlay)
    }

    /// How many generations have something in them that is not of the present.
    pub fn frozen(&self) -> usize {
        self.layers.len() - 1
    }

    /// See [`Overlay::dirty_bytes`].
    pub fn dirty_bytes(&self) -> u64 {
        self.layers.iter().map(|(_, overlay)| overlay.dirty_bytes()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.layers.iter().all(|(_, overlay)| overlay.is_empty())
    }

    /// The lowest record still needed here: replay has to begin there.
    pub fn oldest(&self) -> Option<Seq> {
        self.layers.iter().find_map(|(_, overlay)| overlay.oldest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BLOCK, Buffer};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeMap;

    fn seen(layers: &Layers, at: u32) -> BTreeMap<u64, Seq> {
        let mut seen = BTreeMap::new();
        let mut told = 0;
        layers.over(Generation(at), Block(0), 64, &mut |found| {
            told += found.count;
            if let Some((seq, _)) = found.version {
                seen.extend((0..found.count).map(|i| (found.block.0 + i, seq)));
            }
        });
        assert_eq!(told, 64, "every block is told of once");
        seen
    }

    #[test]
    fn every_generation_sees_what_was_written_up_to_its_end_and_is_not_drained_yet() {
        let mut random = SmallRng::seed_from_u64(8);
        for _ in 0..200 {
            let mut layers = Layers::new(Generation(0));
            // By generation and block.
            let mut model: BTreeMap<(u32, u64), Seq> = BTreeMap::new();
            let mut present = 0;
            for seq in (1..80).map(Seq) {
                let (block, count) = (random.random_range(0..56), random.random_range(1..8));
                match random.random_range(0..6) {
                    0 => {
                        present += 1;
                        layers.begin(Generation(present));
                    }
                    1 => {
                        // As the drain does it: a piece of the oldest generation.
                        let (generation, _) = layers.oldest_layer();
                        layers.release(generation, Block(block), count, seq);
                        model.retain(|(of, at), _| {
                            *of != generation.0 || !(block..block + count).contains(at)
                        });
                    }
                    _ => {
                        let data = Content::Data(Buffer::copied(&vec![0; count as usize * BLOCK]));
                        layers.insert(Block(block), count, seq, data);
                        model.extend((block..block + count).map(|block| ((present, block), seq)));
                    }
                }
                for at in 0..=present {
                    let known = model.iter().filter(|((generation, _), _)| *generation <= at);
                    let wanted: BTreeMap<u64, Seq> = known.map(|((_, block), seq)| (*block, *seq)).collect();
                    assert_eq!(seen(&layers, at), wanted, "generation {at}");
                }
                let generation = Generation(random.random_range(0..=present));
                let clear = layers.clear_before(generation, Block(3), 50);
                let clear: Vec<u64> =
                    clear.iter().flat_map(|&(block, count)| block.0..block.0 + count).collect();
                assert_eq!(layers.is_clear_before(generation, Block(3), 50), clear.len() == 50);
                let older = |block: u64| model.keys().any(|&(of, at)| of < generation.0 && at == block);
                assert_eq!(clear, (3..53).filter(|&block| !older(block)).collect::<Vec<_>>());
                assert_eq!(layers.is_empty(), model.is_empty());
                assert_eq!(layers.dirty_bytes(), (model.len() * BLOCK) as u64);
                let frozen: std::collections::BTreeSet<u32> =
                    model.keys().map(|(generation, _)| *generation).filter(|g| *g < present).collect();
                assert_eq!(layers.frozen(), frozen.len());
            }
        }
    }
}
