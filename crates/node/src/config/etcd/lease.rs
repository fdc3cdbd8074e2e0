//! Leases of etcd: keys that are put with one vanish when it ends.
//! Leaves to others: when to renew, and what the holder may believe meanwhile (`cluster`'s node lease).

use super::client::{Failure, body_of};
use super::traffic::Request;
use super::wire::{
    LeaseAnswer, LeaseGrantRequest, LeaseRequest, Number, RangeAnswer, RangeRequest, RevokeAnswer, Streamed,
};
use super::{Etcd, EtcdError};
use std::fmt;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// As etcd writes it.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    pub lease: LeaseId,
    /// What was asked for, or more: etcd has a least time, from its election timeout.
    pub ttl: Duration,
}

impl Etcd {
    /// A new lease. `ttl` in whole seconds, rounded up. If the answer is lost, a lease may exist that nobody
    /// renews: it ends by itself.
    pub fn grant_lease(&self, ttl: Duration) -> Result<Grant, EtcdError> {
        let seconds = ttl.as_millis().div_ceil(1000).max(1) as i64;
        let request = LeaseGrantRequest { ttl: Number(seconds) };
        let answer: LeaseAnswer = self.call(Request::LeaseGrant, &request)?.answer;
        if answer.id == Number(0) || answer.ttl.unsigned() == 0 {
            return Err(self.nonsense("a lease was granted without a number or time"));
        }
        Ok(Grant { lease: LeaseId(answer.id.0), ttl: Duration::from_secs(answer.ttl.unsigned()) })
    }

    /// Renews a lease for another full time, which is the result. [`EtcdError::LeaseOver`] if it has ended.
    ///
    /// A leader of etcd whose drive hangs goes on renewing leases from its own memory when the others have long chosen another
    /// one, who ends them. So a read follows, which is answered only when most of all members have confirmed a leader since. If that
    /// is of the same term, it was the only one when it renewed. (Also if another member answers: an address may stand for several.)
    ///
    /// An endpoint that is silent for `patience` is not waited for: others are asked beside it.
    pub fn keep_alive(&self, lease: LeaseId, patience: Duration) -> Result<Duration, EtcdError> {
        let request = body_of(&LeaseRequest { id: Number(lease.0) });
        let read = body_of(&RangeRequest::of_one("/"));
        let answer = self.attempt_beside(patience, move |etcd, endpoint| {
            let renewed: Streamed<LeaseAnswer> = etcd.ask(endpoint, Request::LeaseKeepAlive, &request)?;
            // That it is over an older state may say, too: whoever has gone back does not know it.
            let is_over = renewed.result.ttl == Number(0);
            let confirmed: RangeAnswer = match is_over {
                true => etcd.ask(endpoint, Request::Range, &read)?,
                false => etcd.ask_of_now(endpoint, Request::Range, &read)?,
            };
            if !renewed.result.header.is_of_term(&confirmed.header) {
                return Err(Failure::NoAnswer("its leader changed while it renewed a lease".to_string()));
            }
            Ok(renewed)
        })?;
        match answer.result.ttl {
            Number(seconds) if seconds > 0 => {
                self.check_trust().map(|()| Duration::from_secs(seconds as u64))
            }
            _ => Err(EtcdError::LeaseOver),
        }
    }

    /// Ends a lease; its keys vanish at once. A lease that is over already is fine.
    pub fn revoke_lease(&self, lease: LeaseId) -> Result<(), EtcdError> {
        let request = LeaseRequest { id: Number(lease.0) };
        match self.call::<RevokeAnswer>(Request::LeaseRevoke, &request) {
            Ok(_) | Err(EtcdError::LeaseOver) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// How long the lease lasts if it is not renewed; None if it is over.
    pub fn time_to_live(&self, lease: LeaseId) -> Result<Option<Duration>, EtcdError> {
        let request = LeaseRequest { id: Number(lease.0) };
        let answer: LeaseAnswer = self.call(Request::LeaseTimeToLive, &request)?.answer;
        Ok(u64::try_from(answer.ttl.0).ok().filter(|&seconds| seconds > 0).map(Duration::from_secs))
    }
}
