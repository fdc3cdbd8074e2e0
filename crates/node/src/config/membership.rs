//! `cluster.json` in a node's directory: which cluster the node belongs to, and how often it was started there.
//! Promises: what was written is durable when the call returns; a cut in between leaves the old file whole.

use super::durable_file;
use super::lock::DirectoryLock;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Its name in the node's directory.
pub const MEMBERSHIP_FILE: &str = "cluster.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The cluster's name and id.
    pub cluster: String,
    pub id: u64,
    /// Where etcd is.
    pub endpoints: Vec<String>,
    /// The node's number in the cluster.
    pub node: u32,
    pub stage: MembershipStage,
    /// The last start of the node.
    pub incarnation: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MembershipStage {
    /// Its own records are on their way into the cluster: it can neither serve alone nor as a member.
    Importing,
    Member,
}

/// One life of a node: from a start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub incarnation: u64,
    /// The one before, which is over: the lock of the directory tells. None: this is the first.
    pub former: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    #[error("{path} cannot be used: {source}; check the directory and its permissions")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is damaged: {source}; put a good copy back")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error(
        "{path} is damaged: {source}; it says how new the records are that this node has seen: remove it if nobody has put older ones back"
    )]
    DamagedSeen { path: PathBuf, source: serde_json::Error },
}

impl Membership {
    /// None: the node belongs to no cluster.
    pub fn read(dir: &Path) -> Result<Option<Self>, MembershipError> {
        let path = dir.join(MEMBERSHIP_FILE);
        let text = match durable_file::read(dir, MEMBERSHIP_FILE) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(source) => return Err(MembershipError::Io { path, source }),
        };
        match serde_json::from_slice(&text) {
            Ok(membership) => Ok(Some(membership)),
            Err(source) => Err(MembershipError::Damaged { path, source }),
        }
    }

    pub fn write(&self, dir: &Path) -> Result<(), MembershipError> {
        let mut text = serde_json::to_vec_pretty(self).expect("a membership is plain data");
        text.push(b'\n');
        durable_file::replace(dir, MEMBERSHIP_FILE, &text)
            .map_err(|source| MembershipError::Io { path: dir.join(MEMBERSHIP_FILE), source })
    }

    /// The life before the next one; None: there was none.
    pub fn former_life(&self) -> Option<u64> {
        (self.incarnation > 0).then_some(self.incarnation)
    }

    /// Counts a new start of the node, durably, before anybody is told of it. The lock proves that the one
    /// before is over.
    pub fn begin_life(&mut self, dir: &Path, _lock: &DirectoryLock) -> Result<Life, MembershipError> {
        let former = self.former_life();
        self.incarnation += 1;
        self.write(dir)?;
        Ok(Life { incarnation: self.incarnation, former })
    }
}
