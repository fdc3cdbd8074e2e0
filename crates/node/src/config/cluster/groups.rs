//! The placement groups of a cluster. Only the controller changes them.

use super::change::json;
use super::create::New;
use super::{ClusterError, ClusterStore, Leadership, Versioned};
use crate::config::GroupRecord;
use crate::config::etcd::{Compare, Transaction};

/// Groups in one transaction: with the cluster's and the controller's key it stays below etcd's limit.
const GROUPS_AT_ONCE: usize = 100;

impl ClusterStore {
    /// Makes groups; their numbers are given by the cluster. In transactions of 100: if one fails, those
    /// before it are done.
    pub fn add_groups(
        &self,
        wanted: &[GroupRecord],
        leadership: &Leadership,
    ) -> Result<Vec<Versioned<GroupRecord>>, ClusterError> {
        let mut made = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(GROUPS_AT_ONCE) {
            let mut records = part.to_vec();
            let revision = self.create(Some(leadership), |cluster| {
                let number = |record: &mut GroupRecord| {
                    record.group = cluster.next_group;
                    cluster.next_group += 1;
                    New::numbered(self.keys.group(record.id()), record)
                };
                Ok(records.iter_mut().map(number).collect())
            })?;
            made.extend(records.into_iter().map(|record| Versioned { record, revision }));
        }
        Ok(made)
    }

    /// Puts groups that are each still at the revision they are given with; gives them with their new ones. In
    /// transactions of 100: if one fails, those before it are done.
    pub fn put_groups(
        &self,
        groups: &[Versioned<GroupRecord>],
        leadership: &Leadership,
    ) -> Result<Vec<Versioned<GroupRecord>>, ClusterError> {
        let mut put = Vec::with_capacity(groups.len());
        for part in groups.chunks(GROUPS_AT_ONCE) {
            let revision = self.put_groups_at_once(part, leadership)?;
            put.extend(part.iter().map(|group| Versioned { record: group.record.clone(), revision }));
        }
        Ok(put)
    }

    fn put_groups_at_once(
        &self,
        groups: &[Versioned<GroupRecord>],
        leadership: &Leadership,
    ) -> Result<u64, ClusterError> {
        let mut transaction = Transaction::new();
        let mut wanted = Vec::with_capacity(groups.len());
        for group in groups {
            let (key, text) = (self.keys.group(group.record.id()), json(&group.record));
            transaction = transaction
                .when(Compare::unchanged(&key, group.revision))
                .put(&key, &text, None)
                .otherwise_get(&key);
            wanted.push((key, text, group.revision));
        }
        let answer = self.transact_as(Some(leadership), transaction)?;
        if answer.succeeded {
            return Ok(answer.revision);
        }
        let mut revision = None;
        for ((key, text, seen), found) in wanted.into_iter().zip(answer.found) {
            let now = found.as_ref().map(|at| at.mod_revision);
            if now == Some(seen) {
                continue;
            }
            // All of this transaction's puts have one revision: an attempt whose answer was lost shows by that.
            let mine = answer.repeated && found.is_some_and(|at| at.value == text);
            if !mine || revision.is_some_and(|revision| now != Some(revision)) {
                return Err(ClusterError::Changed { key });
            }
            revision = now;
        }
        revision.ok_or(ClusterError::NotController)
    }
}
