//! `joining.json` in a directory that is on its way into a cluster, and the same stamp on the node's record.
//! Promises: it is durable before the record is put, and gone only when nothing is left to do.

use super::JoinError;
use crate::config::cluster::ClusterNodeRecord;
use crate::config::durable_file;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

const MARK_FILE: &str = "joining.json";

/// What put the mark there. Only the same can go on with it: one that makes a cluster has an id that it made up, one that joins has
/// the id of a cluster that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    Init,
    Join,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The cluster's name and id.
    pub cluster: String,
    pub id: u64,
    /// Made up once: nobody else's record has it.
    pub stamp: u64,
    /// None: an older version wrote it, which did not say.
    #[serde(default)]
    pub way: Option<Way>,
}

impl Mark {
    pub fn read(dir: &Path) -> Result<Option<Self>, JoinError> {
        let path = dir.join(MARK_FILE);
        match durable_file::read(dir, MARK_FILE) {
            Ok(Some(text)) => match serde_json::from_slice(&text) {
                Ok(mark) => Ok(Some(mark)),
                Err(_) => Err(JoinError::DamagedMark { path }),
            },
            Ok(None) => Ok(None),
            Err(source) => Err(JoinError::Io { path, source }),
        }
    }

    /// A new one, durable.
    pub fn make(dir: &Path, cluster: &str, id: u64, way: Way) -> Result<Self, JoinError> {
        let mark = Self { cluster: cluster.to_string(), id, stamp: rand::random(), way: Some(way) };
        mark.write(dir)?;
        Ok(mark)
    }

    fn write(&self, dir: &Path) -> Result<(), JoinError> {
        let text = serde_json::to_vec_pretty(self).expect("a mark is plain data");
        durable_file::replace(dir, MARK_FILE, &text)
            .map_err(|source| JoinError::Io { path: dir.join(MARK_FILE), source })
    }

    pub fn remove(dir: &Path) -> Result<(), JoinError> {
        let path = dir.join(MARK_FILE);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(JoinError::Io { path, source }),
            _ => Ok(()),
        }
    }

    /// The command that goes on with it.
    pub fn command(&self, dir: &Path) -> String {
        let (cluster, dir) = (&self.cluster, dir.display());
        match self.way {
            Some(Way::Init) => format!("weft cluster init --name {cluster} --dir {dir}"),
            Some(Way::Join) | None => format!("weft node join --cluster {cluster} --dir {dir}"),
        }
    }

    fn tail(&self) -> String {
        format!(" (joining, {:016x})", self.stamp)
    }

    pub fn is_on(&self, name: &str) -> bool {
        name.ends_with(&self.tail())
    }

    /// Makes `record` as it is wanted, under a name with the stamp.
    pub fn put_on(&self, record: &mut ClusterNodeRecord, wanted: &ClusterNodeRecord) {
        let name = format!("{}{}", wanted.name, self.tail());
        *record = ClusterNodeRecord { node: record.node, state: record.state, name, ..wanted.clone() };
    }

    pub fn take_off(&self, record: &mut ClusterNodeRecord) {
        if let Some(name) = record.name.strip_suffix(&self.tail()) {
            record.name = name.to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_of_an_older_version_is_understood() {
        let old: Mark =
            serde_json::from_str(r#"{ "cluster": "main", "id": 7, "stamp": 9 }"#).expect("it is a mark");
        assert_eq!(old, Mark { cluster: "main".to_string(), id: 7, stamp: 9, way: None });
        let new = Mark { way: Some(Way::Init), ..old };
        let text = serde_json::to_string(&new).expect("a mark is plain data");
        assert!(text.contains(r#""way":"init""#), "{text}");
        assert_eq!(serde_json::from_str::<Mark>(&text).expect("it is a mark"), new);
    }
}
