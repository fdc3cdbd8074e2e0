//! A transaction of etcd: comparisons, and what is done if all of them hold, or if not.
//! Promises: all or nothing, also when etcd fails in the middle.

use super::traffic::Request;
use super::wire::{CompareForm, Number, Operation, Text, TransactionAnswerForm, TransactionRequest};
use super::{Etcd, EtcdError, KeyValue, LeaseId};

/// etcd takes no more comparisons, and no more operations, in one transaction.
pub const OPERATIONS_MAX: usize = 128;

#[derive(Debug, Clone)]
pub struct Compare(CompareForm);

impl Compare {
    /// The key was last put at this revision of the store; 0: there is no such key.
    pub fn unchanged(key: &str, mod_revision: u64) -> Self {
        Self(CompareForm {
            key: Text(key.to_string()),
            range_end: None,
            target: "MOD",
            result: "EQUAL",
            mod_revision: Some(Number::of(mod_revision)),
            create_revision: None,
        })
    }

    pub fn absent(key: &str) -> Self {
        Self::unchanged(key, 0)
    }

    /// There is no key in [`first`, `end`).
    pub fn none_in(first: &str, end: &str) -> Self {
        let mut compare = Self::created(first, 0);
        compare.0.range_end = Some(Text(end.to_string()));
        compare
    }

    /// No key in [`first`, `end`) was put since this revision of the store. (That one was deleted is not seen.)
    pub fn none_put_since(first: &str, end: &str, revision: u64) -> Self {
        let mut compare = Self::unchanged(first, revision + 1);
        compare.0.range_end = Some(Text(end.to_string()));
        compare.0.result = "LESS";
        compare
    }

    /// The key was made at this revision and has been there since, whatever was put into it.
    pub fn created(key: &str, create_revision: u64) -> Self {
        Self(CompareForm {
            key: Text(key.to_string()),
            range_end: None,
            target: "CREATE",
            result: "EQUAL",
            mod_revision: None,
            create_revision: Some(Number::of(create_revision)),
        })
    }
}

#[derive(Debug, Default)]
pub struct Transaction(TransactionRequest);

#[derive(Debug)]
pub struct TransactionAnswer {
    /// Whether all comparisons held, and the operations were done.
    pub succeeded: bool,
    /// The store's revision behind it.
    pub revision: u64,
    /// If not: what the keys to look at held, in the order they were given.
    pub found: Vec<Option<KeyValue>>,
    /// An earlier attempt of this transaction may have been done: if comparisons failed, perhaps because of that.
    pub repeated: bool,
}

impl Transaction {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn when(mut self, compare: Compare) -> Self {
        self.0.compare.push(compare.0);
        self
    }

    pub fn put(mut self, key: &str, value: &str, lease: Option<LeaseId>) -> Self {
        self.0.success.push(Operation::Put {
            key: Text(key.to_string()),
            value: Text(value.to_string()),
            lease: Number(lease.map_or(0, |lease| lease.0)),
        });
        self
    }

    pub fn delete(mut self, key: &str) -> Self {
        self.0.success.push(Operation::DeleteRange { key: Text(key.to_string()), range_end: None });
        self
    }

    /// Deletes every key in [`first`, `end`).
    pub fn delete_range(mut self, first: &str, end: &str) -> Self {
        let range_end = Some(Text(end.to_string()));
        self.0.success.push(Operation::DeleteRange { key: Text(first.to_string()), range_end });
        self
    }

    /// What to look at if a comparison does not hold.
    pub fn otherwise_get(mut self, key: &str) -> Self {
        self.0.failure.push(Operation::Range { key: Text(key.to_string()) });
        self
    }
}

impl Etcd {
    pub fn transact(&self, transaction: &Transaction) -> Result<TransactionAnswer, EtcdError> {
        let form = &transaction.0;
        for count in [form.compare.len(), form.success.len(), form.failure.len()] {
            assert!(count <= OPERATIONS_MAX, "a transaction of {count} parts is more than etcd takes");
        }
        assert!(
            !form.compare.is_empty(),
            "a transaction may be repeated, so it must compare something first"
        );
        self.check_trust()?;
        let answered = self.call::<TransactionAnswerForm>(Request::Transaction, form)?;
        let answer = answered.answer;
        let mut found = Vec::new();
        if !answer.succeeded {
            if answer.responses.len() != form.failure.len() {
                return Err(self.nonsense("a transaction was answered in part"));
            }
            for response in answer.responses {
                let range = response.response_range.unwrap_or_default();
                found.push(range.kvs.into_iter().next().map(KeyValue::from));
            }
        }
        Ok(TransactionAnswer {
            succeeded: answer.succeeded,
            revision: answer.header.revision.unsigned(),
            found,
            repeated: answered.repeated,
        })
    }
}
