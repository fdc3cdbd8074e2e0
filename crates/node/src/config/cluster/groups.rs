//! The placement groups of a cluster. Only the controller changes them.
//! Promises: a group gets a drive only while that drive's record, and its node's, are as they were when this was decided: it may be
//! on its way out, and who takes it out has looked which groups there are.

use super::change::json;
use super::create::{Ground, New};
use super::{ClusterError, ClusterStore, Leadership, Versioned};
use crate::config::GroupRecord;
use crate::config::etcd::{Compare, Transaction};
use std::collections::BTreeMap;

/// Comparisons in one transaction: with the cluster's and the controller's key it stays below etcd's limit of 128.
const COMPARED_AT_ONCE: usize = 120;

/// A group as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided<T> {
    pub group: T,
    /// The records of the drives that are new in it, and of their nodes.
    pub grounds: Vec<Ground>,
}

impl<T> Decided<T> {
    /// One that gets no drives.
    pub fn alone(group: T) -> Self {
        Self { group, grounds: Vec::new() }
    }
}

impl ClusterStore {
    /// Makes groups; their numbers are given by the cluster. In transactions of some: if one fails, those
    /// before it are done.
    pub fn add_groups(
        &self,
        wanted: &[Decided<GroupRecord>],
        leadership: &Leadership,
    ) -> Result<Vec<Versioned<GroupRecord>>, ClusterError> {
        let mut made = Vec::with_capacity(wanted.len());
        for (part, grounds) in parts(wanted) {
            let mut records: Vec<GroupRecord> = part.iter().map(|decided| decided.group.clone()).collect();
            let revision = self.create(Some(leadership), |cluster| {
                let number = |record: &mut GroupRecord| {
                    record.group = cluster.next_group;
                    cluster.next_group += 1;
                    New::numbered(self.keys.group(record.id()), record)
                };
                Ok(records.iter_mut().map(number).chain(grounds.iter().map(New::seen)).collect())
            })?;
            made.extend(records.into_iter().map(|record| Versioned { record, revision }));
        }
        Ok(made)
    }

    /// Puts groups that are each still at the revision they are given with; gives them with their new ones. In
    /// transactions of some: if one fails, those before it are done.
    pub fn put_groups(
        &self,
        groups: &[Decided<Versioned<GroupRecord>>],
        leadership: &Leadership,
    ) -> Result<Vec<Versioned<GroupRecord>>, ClusterError> {
        let mut put = Vec::with_capacity(groups.len());
        for (part, grounds) in parts(groups) {
            let revision = self.put_groups_at_once(part, &grounds, leadership)?;
            put.extend(
                part.iter().map(|decided| Versioned { record: decided.group.record.clone(), revision }),
            );
        }
        Ok(put)
    }

    fn put_groups_at_once(
        &self,
        groups: &[Decided<Versioned<GroupRecord>>],
        grounds: &[Ground],
        leadership: &Leadership,
    ) -> Result<u64, ClusterError> {
        let mut transaction = Transaction::new();
        let mut wanted = Vec::with_capacity(groups.len());
        for Decided { group, .. } in groups {
            let (key, text) = (self.keys.group(group.record.id()), json(&group.record));
            transaction = transaction
                .when(Compare::unchanged(&key, group.revision))
                .put(&key, &text, None)
                .otherwise_get(&key);
            wanted.push((key, text, group.revision));
        }
        for Ground { key, revision } in grounds {
            transaction = transaction.when(Compare::unchanged(key, *revision)).otherwise_get(key);
        }
        let answer = self.transact_as(Some(leadership), transaction)?;
        if answer.succeeded {
            return Ok(answer.revision);
        }
        let mut revision = None;
        for ((key, text, seen), found) in wanted.into_iter().zip(&answer.found) {
            let now = found.as_ref().map(|at| at.mod_revision);
            if now == Some(seen) {
                continue;
            }
            // All of this transaction's puts have one revision: an attempt whose answer was lost shows by that.
            let mine = answer.repeated && found.as_ref().is_some_and(|at| at.value == text);
            if !mine || revision.is_some_and(|revision| now != Some(revision)) {
                return Err(ClusterError::Changed { key });
            }
            revision = now;
        }
        let changed = grounds
            .iter()
            .zip(&answer.found[groups.len()..])
            .find(|(ground, found)| found.as_ref().map(|at| at.mod_revision) != Some(ground.revision));
        match (revision, changed) {
            (Some(revision), _) => Ok(revision),
            (None, Some((ground, _))) => Err(ClusterError::Changed { key: ground.key.clone() }),
            (None, None) => Err(ClusterError::NotController),
        }
    }
}

/// As many as a transaction takes, each with all that they rest on.
fn parts<T>(decided: &[Decided<T>]) -> Vec<(&[Decided<T>], Vec<Ground>)> {
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
                    group,
                    grounds: (0..each).map(|at| ground((group * each + at) % drives)).collect(),
                })
                .collect();
            let parts = parts(&decided);
            assert!(parts.iter().all(|(part, grounds)| part.len() + grounds.len() <= COMPARED_AT_ONCE));
            for (part, grounds) in &parts {
                assert!(part.iter().flat_map(|decided| &decided.grounds).all(|one| grounds.contains(one)));
            }
            let all: Vec<_> = parts.iter().flat_map(|(part, _)| part.iter().map(|one| one.group)).collect();
            assert_eq!(all, (0..groups).collect::<Vec<_>>());
        }
    }
}
