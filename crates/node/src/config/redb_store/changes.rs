//! One table while it is changed, and how the change is taken back.
//! Promises: whatever is put or removed by way of [`Open`] is noted with what was there before.

use super::{Definition, failed};
use crate::config::ConfigError;
use redb::{ReadableTable, WriteTransaction};
use serde::Serialize;

/// Puts one key back as it was.
pub type Undo = Box<dyn Fn(&WriteTransaction) -> Result<(), ConfigError> + Send>;

/// What tables have as keys.
pub trait Key: redb::Key + Send + 'static {
    type Kept: Send + 'static;
    fn keep(key: &Self::SelfType<'_>) -> Self::Kept;
    fn lend(kept: &Self::Kept) -> Self::SelfType<'_>;
}

impl Key for u32 {
    type Kept = u32;

    fn keep(key: &u32) -> u32 {
        *key
    }

    fn lend(kept: &u32) -> u32 {
        *kept
    }
}

impl Key for u64 {
    type Kept = u64;

    fn keep(key: &u64) -> u64 {
        *key
    }

    fn lend(kept: &u64) -> u64 {
        *kept
    }
}

impl Key for &'static str {
    type Kept = String;

    fn keep(key: &&str) -> String {
        (*key).to_string()
    }

    fn lend(kept: &String) -> &str {
        kept
    }
}

pub struct Open<'t, K: Key> {
    table: redb::Table<'t, K, &'static str>,
    definition: Definition<K>,
    undo: &'t mut Vec<Undo>,
}

impl<'t, K: Key> Open<'t, K> {
    pub fn new(
        transaction: &'t WriteTransaction,
        definition: Definition<K>,
        undo: &'t mut Vec<Undo>,
    ) -> Result<Self, ConfigError> {
        Ok(Self { table: transaction.open_table(definition).map_err(failed)?, definition, undo })
    }

    pub fn get(&self, key: K::SelfType<'_>) -> Result<Option<String>, ConfigError> {
        let found = self.table.get(key).map_err(failed)?;
        Ok(found.map(|text| text.value().to_string()))
    }

    /// All records.
    pub fn all(&self) -> Result<Vec<(K::Kept, String)>, ConfigError> {
        let entries = self.table.iter().map_err(failed)?;
        let kept = entries.map(|entry| {
            let (key, text) = entry.map_err(failed)?;
            Ok((K::keep(&key.value()), text.value().to_string()))
        });
        kept.collect()
    }

    pub fn put<T: Serialize>(&mut self, key: K::SelfType<'_>, record: &T) -> Result<(), ConfigError> {
        let text = serde_json::to_string(record).expect("records are plain data with text keys");
        let kept = K::keep(&key);
        let before = self.table.insert(key, text.as_str()).map_err(failed)?;
        let before = before.map(|text| text.value().to_string());
        self.note(kept, before);
        Ok(())
    }

    pub fn remove(&mut self, key: K::SelfType<'_>) -> Result<(), ConfigError> {
        let kept = K::keep(&key);
        let before = self.table.remove(key).map_err(failed)?.map(|text| text.value().to_string());
        self.note(kept, before);
        Ok(())
    }

    fn note(&mut self, key: K::Kept, before: Option<String>) {
        let definition = self.definition;
        self.undo.push(Box::new(move |transaction| {
            let mut table = transaction.open_table(definition).map_err(failed)?;
            match &before {
                Some(text) => drop(table.insert(K::lend(&key), text.as_str()).map_err(failed)?),
                None => drop(table.remove(K::lend(&key)).map_err(failed)?),
            }
            Ok(())
        }));
    }
}
