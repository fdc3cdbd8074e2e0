//! What was decided together, and what that rests on: written in as few transactions as may be, each with the comparisons it needs.

use crate::config::etcd::Compare;
use std::collections::BTreeMap;

/// Comparisons in one transaction: with the cluster's and the controller's key it stays below etcd's limit of 128.
const COMPARED_AT_ONCE: usize = 120;

/// Something as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided<T> {
    pub what: T,
    /// The records of others that this was decided by: of the drives that are new in a group, say, and of their nodes.
    pub grounds: Vec<Ground>,
}

impl<T> Decided<T> {
    /// Something that rests on nothing.
    pub fn alone(what: T) -> Self {
        Self { what, grounds: Vec::new() }
    }
}

/// A record that a decision rests on, and the revision at which it was last put: what is decided is only written if it is still that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ground {
    pub(super) key: String,
    pub(super) revision: u64,
}

impl Ground {
    /// That it still is so.
    pub(super) fn holds(&self) -> Compare {
        Compare::unchanged(&self.key, self.revision)
    }
}

/// As many as a transaction takes, each with all that they rest on.
pub(super) fn parts<T>(decided: &[Decided<T>]) -> Vec<(&[Decided<T>], Vec<Ground>)> {
    let mut parts = Vec::new();
    let mut rest = decided;
    while !rest.is_empty() {
        let mut grounds: BTreeMap<&str, &Ground> = BTreeMap::new();
        let mut count = 0;
        while let Some(next) = rest.get(count) {
            let more =
                next.grounds.iter().filter(|ground| !grounds.contains_key(ground.key.as_str())).count();
            if count > 0 && count + 1 + grounds.len() + more > COMPARED_AT_ONCE {
                break;
            }
            grounds.extend(next.grounds.iter().map(|ground| (ground.key.as_str(), ground)));
            count += 1;
        }
        let (part, others) = rest.split_at(count);
        parts.push((part, grounds.into_values().cloned().collect()));
        rest = others;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_transaction_compares_more_than_it_may_and_nothing_is_left_out() {
        let ground = |key: usize| Ground { key: format!("drives/{key}"), revision: 1 };
        for (groups, each, drives) in [(250, 0, 1), (250, 3, 9), (40, 6, 1000), (1, 6, 6)] {
            let decided: Vec<_> = (0..groups)
                .map(|group| Decided {
                    what: group,
                    grounds: (0..each).map(|at| ground((group * each + at) % drives)).collect(),
                })
                .collect();
            let parts = parts(&decided);
            assert!(parts.iter().all(|(part, grounds)| part.len() + grounds.len() <= COMPARED_AT_ONCE));
            for (part, grounds) in &parts {
                assert!(part.iter().flat_map(|decided| &decided.grounds).all(|one| grounds.contains(one)));
            }
            let all: Vec<_> = parts.iter().flat_map(|(part, _)| part.iter().map(|one| one.what)).collect();
            assert_eq!(all, (0..groups).collect::<Vec<_>>());
        }
    }
}
