//! The placement groups of a cluster. Only the controller changes them.
//! Promises: a group gets a drive only while that drive's record, and its node's, are as they were when this was decided: it may be
//! on its way out, and who takes it out has looked which groups there are.

use super::change::json;
use super::create::New;
use super::decided::{Decided, Ground, parts};
use super::{ClusterError, ClusterStore, Leadership, Versioned};
use crate::config::GroupRecord;
use crate::config::etcd::{Compare, Transaction};

impl ClusterStore {
    /// Makes groups; their numbers are given by the cluster. In transactions of some: if one fails because something has changed, those
    /// before it are done, and given.
    pub fn add_groups(
        &self,
        wanted: &[Decided<GroupRecord>],
        leadership: &Leadership,
    ) -> Result<Vec<Versioned<GroupRecord>>, ClusterError> {
        let mut made = Vec::with_capacity(wanted.len());
        for (part, grounds) in parts(wanted) {
            let mut records: Vec<GroupRecord> = part.iter().map(|decided| decided.what.clone()).collect();
            let created = self.create(Some(leadership), |cluster| {
                let number = |record: &mut GroupRecord| {
                    record.group = cluster.next_group;
                    cluster.next_group += 1;
                    New::numbered(self.keys.group(record.id()), record)
                };
                Ok(records.iter_mut().map(number).chain(grounds.iter().map(New::seen)).collect())
            });
            let revision = match created {
                Err(ClusterError::Changed { .. }) if !made.is_empty() => break,
                created => created?,
            };
            made.extend(records.into_iter().map(|record| Versioned { record, revision }));
        }
        Ok(made)
    }

    /// Puts groups that are each still at the revision they are given with; gives them with their new ones. In transactions of some: if
    /// one fails because something has changed, those before it are done, and given.
    pub fn put_groups(
        &self,
        groups: &[Decided<Versioned<GroupRecord>>],
        leadership: &Leadership,
    ) -> Result<Vec<Versioned<GroupRecord>>, ClusterError> {
        let mut put = Vec::with_capacity(groups.len());
        for (part, grounds) in parts(groups) {
            let revision = match self.put_groups_at_once(part, &grounds, leadership) {
                Err(ClusterError::Changed { .. }) if !put.is_empty() => break,
                put => put?,
            };
            put.extend(
                part.iter().map(|decided| Versioned { record: decided.what.record.clone(), revision }),
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
        for Decided { what: group, .. } in groups {
            let (key, text) = (self.keys.group(group.record.id()), json(&group.record));
            transaction = transaction
                .when(Compare::unchanged(&key, group.revision))
                .put(&key, &text, None)
                .otherwise_get(&key);
            wanted.push((key, text, group.revision));
        }
        for ground in grounds {
            transaction = transaction.when(ground.holds()).otherwise_get(&ground.key);
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
