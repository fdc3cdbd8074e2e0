//! Whether every unit of a family's data is counted exactly once (I8), by counting anew: the pages as they lie on the
//! drives say which units blocks are mapped to, now or in snapshots; the directory says how many those are.

use std::collections::{BTreeMap, BTreeSet};
use weft_engine::EgroupId;
use weft_engine::identity::Generation;
use weft_engine::map::directory::Entry;
use weft_engine::map::leaf::{Leaf, Run};
use weft_engine::map::past::Past;

/// All pages of one family's map.
#[derive(Default)]
pub struct Pages {
    pub leaves: Vec<Leaf>,
    /// With the number of the leaf that each tells of.
    pub past: Vec<(u64, Past)>,
}

#[derive(Default, Clone, Copy, Debug)]
struct Counted {
    live: u32,
    past: u32,
}

/// What was counted: units, and those of them that only snapshots see.
pub type Units = (u64, u64);

/// The directory says what the pages say; every unit is mapped in one place at most; only `snapshots` have groups.
pub fn is_exact(
    pages: &Pages,
    directory: &BTreeMap<EgroupId, Entry>,
    snapshots: &BTreeSet<Generation>,
) -> Result<Units, String> {
    let mut taken: BTreeSet<(EgroupId, u32)> = BTreeSet::new();
    let mut counted: BTreeMap<EgroupId, Counted> = BTreeMap::new();
    let mut take = |run: &Run, past: bool| -> Result<(), String> {
        if run.egroup.is_hole() {
            return Ok(());
        }
        let Some(entry) = directory.get(&run.egroup) else {
            return Err(format!("a page names egroup {}, which the directory does not know", run.egroup));
        };
        for unit in run.unit()..run.unit() + run.count() {
            if unit >= entry.units || !taken.insert((run.egroup, unit)) {
                return Err(format!("unit {unit} of egroup {} is named twice, or is not there", run.egroup));
            }
        }
        let counted = counted.entry(run.egroup).or_default();
        counted.live += run.count();
        counted.past += if past { run.count() } else { 0 };
        Ok(())
    };
    for leaf in &pages.leaves {
        leaf.iter().try_for_each(|run| take(run, false))?;
    }
    let mut seen: BTreeSet<(u64, Generation, u32)> = BTreeSet::new();
    for (leaf, past) in &pages.past {
        for (generation, group) in past.iter() {
            if !snapshots.contains(&generation) {
                return Err(format!(
                    "the past of leaf {leaf} has a group of generation {generation}, which is gone"
                ));
            }
            for run in group.iter() {
                take(run, true)?;
                if directory.get(&run.egroup).is_some_and(|entry| entry.generation > generation) {
                    return Err(format!(
                        "the past of leaf {leaf} has newer data in the group of generation {generation}: {run:?}"
                    ));
                }
                let mut blocks = run.start()..run.start() + run.count();
                if let Some(block) = blocks.find(|&block| !seen.insert((*leaf, generation, block))) {
                    return Err(format!("block {block} of leaf {leaf} is in two places for {generation}"));
                }
            }
        }
    }
    for (egroup, entry) in directory {
        let Counted { live, past } = counted.get(egroup).copied().unwrap_or_default();
        if (live, past) != (entry.live, entry.past) {
            return Err(format!(
                "egroup {egroup}: the pages name {live} units, {past} of them for snapshots only; the directory \
                 counts {} and {}",
                entry.live, entry.past
            ));
        }
    }
    let sum = |of: fn(&Counted) -> u32| counted.values().map(|counted| u64::from(of(counted))).sum();
    Ok((sum(|counted| counted.live), sum(|counted| counted.past)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_engine::GroupId;
    use weft_engine::formats::recipe::Recipe;

    const EGROUP: EgroupId = EgroupId(1 << 32);

    fn leaf(start: u32, count: u32, unit: u32) -> Leaf {
        let mut leaf = Leaf::default();
        leaf.set(start, count, Some((EGROUP, unit)), &mut |_| {});
        leaf
    }

    fn past(generation: u32, run: Leaf) -> Past {
        let mut past = Past::default();
        past.add(Generation(generation), run.iter().copied().collect());
        past
    }

    fn directory(live: u32, past: u32) -> BTreeMap<EgroupId, Entry> {
        let entry = Entry {
            group: GroupId(0),
            units: 8,
            stored: 8,
            live,
            past,
            recipe: Recipe::PLAIN,
            generation: Generation(1),
        };
        BTreeMap::from([(EGROUP, entry)])
    }

    #[test]
    fn a_unit_that_is_counted_wrong_or_named_twice_is_seen() {
        let pages = Pages { leaves: vec![leaf(0, 3, 0)], past: vec![(0, past(2, leaf(0, 2, 4)))] };
        let snapshots = BTreeSet::from([Generation(2)]);
        assert_eq!(is_exact(&pages, &directory(5, 2), &snapshots), Ok((5, 2)));
        assert!(is_exact(&pages, &directory(5, 1), &snapshots).is_err());
        assert!(is_exact(&pages, &directory(6, 2), &snapshots).is_err());
        assert!(is_exact(&pages, &directory(5, 2), &BTreeSet::new()).is_err(), "a group of nobody");
        assert!(is_exact(&pages, &BTreeMap::new(), &snapshots).is_err(), "an egroup that nobody knows");
        let twice = Pages { leaves: vec![leaf(0, 3, 0)], past: vec![(0, past(2, leaf(0, 2, 2)))] };
        assert!(is_exact(&twice, &directory(5, 2), &snapshots).is_err());
        let newer = Pages { leaves: vec![], past: vec![(0, past(0, leaf(0, 2, 4)))] };
        assert!(is_exact(&newer, &directory(2, 2), &BTreeSet::from([Generation(0)])).is_err());
    }
}
