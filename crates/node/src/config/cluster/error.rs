//! Why the config store of a cluster did not do what it was asked.

use crate::config::etcd::EtcdError;

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(
        "{name:?} is no name for a cluster; use 1 to 63 letters, digits, dots, dashes and underscores, the first a \
         letter or digit"
    )]
    BadName { name: String },
    #[error("there is no cluster {name} in this etcd; make it with `weft cluster init`, or check the name")]
    NoCluster { name: String },
    #[error("there is something below the name {name} in this etcd already; choose another name")]
    NotEmpty { name: String },
    #[error(
        "the cluster {name} in this etcd is another one (id {found}, not {id}); check the addresses of etcd"
    )]
    OtherCluster { name: String, id: u64, found: u64 },
    #[error(
        "the cluster {name} is of format {found}, and this version knows {known} at most; use a newer version"
    )]
    NewerFormat { name: String, found: u32, known: u32 },
    #[error(
        "a node's records are still being moved into the cluster {name}; finish that first (`weft cluster init`)"
    )]
    Importing { name: String },
    #[error(
        "the config store holds a record that this version does not understand ({key}: {source}); use the version \
         that wrote it"
    )]
    Record { key: String, source: serde_json::Error },
    #[error("there is no {key} in the config store")]
    NotThere { key: String },
    #[error("{key} was changed by somebody else; look at it again")]
    Changed { key: String },
    #[error("{key} is changed by others all the time; try again later")]
    Contended { key: String },
    #[error("a vDisk {name} exists already; choose another name")]
    NameTaken { name: String },
    #[error("a container {name} exists already; choose another name")]
    ContainerExists { name: String },
    #[error("there is no container {name:?}; `weft container ls` shows what there is")]
    NoContainer { name: String },
    #[error(
        "the container {name} was changed, or given a vDisk, at this moment; look again (weft container show {name})"
    )]
    ContainerChanged { name: String },
    #[error("the vDisk has a snapshot {name} already; choose another name")]
    SnapshotExists { name: String },
    #[error("a snapshot of it ({name}) is being taken; try again")]
    SnapshotUnderWay { name: String },
    #[error("vDisk {name} is on its way back to a snapshot; try again when it is there")]
    GoingBack { name: String },
    #[error(
        "the snapshot that vDisk {name} was to go back to is gone, or is being removed; the vDisk stays as it is"
    )]
    NothingToGoBackTo { name: String },
    #[error("a group {name} exists already; choose another name")]
    GroupExists { name: String },
    #[error(
        "node {node} was removed from the cluster; its directory can join as a new node when it is empty"
    )]
    NodeRemoved { node: u32 },
    #[error(
        "node {node} lives elsewhere (start {incarnation} of it); stop that one, or wait until its lease is over"
    )]
    AliveElsewhere { node: u32, incarnation: u64 },
    #[error(
        "this directory of node {node} knows of {known} starts, and the cluster of {life}: it is an old copy; use the \
         directory that was started last, or, if that is gone for good, take the node out (weft node remove {node} \
         --force) and join with an empty one"
    )]
    OldDirectory { node: u32, known: u64, life: u64 },
    #[error("this node is not the controller any more")]
    NotController,
    #[error(
        "the records of the cluster {name} in etcd (revision {found}) are older than those that this node has seen (revision {known}): somebody \
         has put them back, and what drives have taken since would be lost or mixed up; put the newest back, or, if there are none any \
         more, see `weft cluster accept-records --help`"
    )]
    OlderRecords { name: String, found: u64, known: u64 },
    #[error(
        "the records of the cluster {name} in etcd are of a time before others were accepted, by which this node has served since: put \
         those back, or, if there are none any more, see `weft cluster accept-records --help`"
    )]
    RecordsBefore { name: String },
    #[error(
        "node {node} lives by these records: stop it (`weft down`), or wait some seconds, until its lease is over"
    )]
    NodeLives { node: u32 },
    #[error(
        "other records of the cluster {name} were accepted (`weft cluster accept-records`) since this node was started; start it again"
    )]
    RecordsAccepted { name: String },
}

impl ClusterError {
    /// What etcd has is not what the node has acted by.
    pub fn is_of_older_records(&self) -> bool {
        matches!(
            self,
            Self::OlderRecords { .. } | Self::RecordsBefore { .. } | Self::Etcd(EtcdError::Older { .. })
        )
    }
}
