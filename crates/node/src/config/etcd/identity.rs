//! Which etcd is ours. An address may lead to another one: a member that came up empty, or that was put back from a copy by itself.
//! Promises: once it is known which is ours, an answer of another one counts for nothing; which address leads elsewhere is told once.
//! Leaves to others: finding out which is ours (`cluster`).

use super::EtcdError;
use super::client::Failure;
use super::wire::EtcdId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct Identity {
    /// 0: not known yet.
    ours: AtomicU64,
    /// Addresses that led to another etcd when they were asked last.
    elsewhere: Mutex<BTreeMap<String, EtcdId>>,
}

impl Identity {
    pub fn ours(&self) -> Option<EtcdId> {
        let id = self.ours.load(Ordering::Acquire);
        (id != 0).then_some(EtcdId(id))
    }

    /// It stays that one for good.
    pub fn pin(&self, id: EtcdId) {
        let _ = self.ours.compare_exchange(0, id.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether an answer that came from there is of ours. One that does not say whose it is counts as that.
    pub fn check(&self, endpoint: &str, found: EtcdId) -> Result<(), Failure> {
        let Some(ours) = self.ours().filter(|_| found != EtcdId(0)) else { return Ok(()) };
        let mut elsewhere = self.elsewhere();
        if found == ours {
            elsewhere.remove(endpoint);
            return Ok(());
        }
        let error = other(endpoint, ours, found);
        if elsewhere.insert(endpoint.to_string(), found) != Some(found) {
            tracing::warn!(%error, "an address of etcd leads elsewhere");
        }
        Err(Failure::Nonsense(error))
    }

    /// The addresses that lead elsewhere, as errors.
    pub fn strangers(&self) -> Vec<EtcdError> {
        let Some(ours) = self.ours() else { return Vec::new() };
        self.elsewhere().iter().map(|(endpoint, &found)| other(endpoint, ours, found)).collect()
    }

    fn elsewhere(&self) -> MutexGuard<'_, BTreeMap<String, EtcdId>> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn other(endpoint: &str, ours: EtcdId, found: EtcdId) -> EtcdError {
    EtcdError::OtherEtcd { endpoint: endpoint.to_string(), ours, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_it_is_known_which_is_ours_anybody_is_and_then_nobody_else() {
        let identity = Identity::default();
        assert!(identity.check("a", EtcdId(5)).is_ok() && identity.check("b", EtcdId(6)).is_ok());
        identity.pin(EtcdId(5));
        identity.pin(EtcdId(6));
        assert_eq!(identity.ours(), Some(EtcdId(5)));
        assert!(identity.check("a", EtcdId(5)).is_ok() && identity.check("b", EtcdId(6)).is_err());
        assert!(identity.check("c", EtcdId(0)).is_ok(), "it does not say");
        assert_eq!(identity.strangers(), [other("b", EtcdId(5), EtcdId(6))]);
        assert!(identity.check("b", EtcdId(5)).is_ok());
        assert_eq!(identity.strangers(), []);
    }
}
