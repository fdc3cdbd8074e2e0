//! What the client asked of etcd, counted: a cluster that does nothing asks for nothing but its leases.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kinds of requests there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Range,
    Transaction,
    LeaseGrant,
    LeaseKeepAlive,
    LeaseRevoke,
    LeaseTimeToLive,
    Watch,
}

impl Request {
    pub const ALL: [Request; 7] = [
        Request::Range,
        Request::Transaction,
        Request::LeaseGrant,
        Request::LeaseKeepAlive,
        Request::LeaseRevoke,
        Request::LeaseTimeToLive,
        Request::Watch,
    ];

    /// Whether answers tell the revision that most of all members of etcd have come to, not only the one that was asked.
    pub(super) fn is_of_now(self) -> bool {
        matches!(self, Request::Range | Request::Transaction)
    }

    /// Where etcd's gateway takes it.
    pub(super) fn path(self) -> &'static str {
        match self {
            Request::Range => "/v3/kv/range",
            Request::Transaction => "/v3/kv/txn",
            Request::LeaseGrant => "/v3/lease/grant",
            Request::LeaseKeepAlive => "/v3/lease/keepalive",
            Request::LeaseRevoke => "/v3/lease/revoke",
            Request::LeaseTimeToLive => "/v3/lease/timetolive",
            Request::Watch => "/v3/watch",
        }
    }
}

/// Requests sent so far, by kind. A request that is tried at a second endpoint counts twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic([u64; Request::ALL.len()]);

impl Traffic {
    pub fn of(&self, request: Request) -> u64 {
        self.0[request as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[derive(Default)]
pub(super) struct Counters([AtomicU64; Request::ALL.len()]);

impl Counters {
    pub fn add(&self, request: Request) {
        self.0[request as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> Traffic {
        let mut traffic = Traffic::default();
        for (count, counter) in traffic.0.iter_mut().zip(&self.0) {
            *count = counter.load(Ordering::Relaxed);
        }
        traffic
    }
}
