//! Why etcd did not do what it was asked.

use super::wire::EtcdId;

/// Only [`EtcdError::Unreachable`] and [`EtcdError::BadEndpoint`] promise that nothing was changed: after any
/// other, a transaction may have been done, or may still be done. Transactions that compare first can be
/// asked again safely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    #[error("{endpoint:?} is no address of etcd; give one like http://10.0.0.1:2379 (TLS is not built yet)")]
    BadEndpoint { endpoint: String },
    #[error("etcd cannot be reached ({tried}); check that it runs, and its addresses")]
    Unreachable { tried: String },
    #[error("etcd was asked and did not answer in time ({tried}); more than half of its members must be up")]
    NoQuorum { tried: String },
    #[error(
        "{endpoint} leads to another etcd (its cluster id is {found}, and not {ours}), which is not asked: check that address; if etcd was \
         put back from a backup, or made anew, start this again"
    )]
    OtherEtcd { endpoint: String, ours: EtcdId, found: EtcdId },
    #[error(
        "{one} and {other} lead to different etcds (cluster ids {id_of_one} and {id_of_other}): give addresses of members of one"
    )]
    SeveralEtcds { one: String, id_of_one: EtcdId, other: String, id_of_other: EtcdId },
    #[error(
        "the records in etcd at {endpoint} (revision {found}) are older than those that were there (revision {known}): somebody has put them \
         back, and what drives have taken since would be lost or mixed up; put the newest back, or, if there are none any more, see \
         `weft cluster accept-records --help`"
    )]
    Older { endpoint: String, found: u64, known: u64 },
    #[error("etcd does not keep the revision that was asked for any more")]
    Compacted,
    #[error("the lease is over: etcd does not know it any more")]
    LeaseOver,
    #[error("etcd refused: {message} (code {code}); see etcd's own log")]
    Refused { code: u32, message: String },
    #[error(
        "{endpoint} does not answer as etcd does: {reason}; is it etcd 3.4 or newer, with its gRPC gateway on?"
    )]
    Nonsense { endpoint: String, reason: String },
    #[error(
        "no thread can be started to renew the lease: {reason}; check the limits on threads and memory of this process"
    )]
    NoThread { reason: String },
}

impl EtcdError {
    /// Whether it is certain that nothing was changed.
    pub fn nothing_was_done(&self) -> bool {
        matches!(self, Self::BadEndpoint { .. } | Self::Unreachable { .. })
    }
}
