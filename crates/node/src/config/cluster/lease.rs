//! A node's lease: renewed by a thread of its own, and believed in no longer than is certain.
//! Promises: the deadline passes here before the lease can end in the store, whatever answers are lost, late or
//! never come. So what is served only before the deadline is never served by two (I2, for reads).
//! Leaves to others: not serving behind the deadline (the shards), a new lease after a loss (the control plane).

use super::boot_clock::Moment;
use crate::config::etcd::{Etcd, EtcdError, LeaseId};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// A lease is renewed when a third of its time has gone: two tries may fail.
const RENEWALS: u32 = 3;

/// After a failed try the next one comes sooner.
const RETRIES: u32 = 10;

/// Who has not answered when so much of the time has gone is silent: the next endpoint is asked as well. With three of them, two silent, a
/// renewal takes a quarter of the time then, and the one before it holds for two thirds.
const SILENCE: u32 = 8;

/// This machine's clock and etcd's may each be wrong by one part in so many.
const DRIFT: u32 = 100;

/// Renews itself until it is given up, dropped or lost.
pub struct NodeLease {
    ttl: Duration,
    etcd: Etcd,
    lease: LeaseId,
    deadline: Deadline,
    /// Closed when the thread shall end.
    _running: Sender<Infallible>,
}

/// Until when the lease can be relied on. Cheap to clone and to ask; all clones are one.
#[derive(Debug, Clone)]
pub struct Deadline(Arc<AtomicU64>);

/// Lost or given up: no later renewal counts.
const OVER: u64 = 0;

impl Deadline {
    /// A deadline that nobody moves on but who calls [`Deadline::extend`].
    pub fn new(moment: Moment) -> Self {
        Self(Arc::new(AtomicU64::new(moment.0)))
    }

    pub fn moment(&self) -> Moment {
        Moment(self.0.load(Ordering::Acquire))
    }

    /// Whether the node has to stop serving.
    pub fn has_passed(&self) -> bool {
        Moment::now() >= self.moment()
    }

    /// Moves it on, unless it is over for good.
    pub fn extend(&self, until: Moment) {
        let later = |now| (now != OVER).then_some(until.0.max(now));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    pub fn end(&self) {
        self.0.store(OVER, Ordering::Release);
    }
}

impl NodeLease {
    /// A new lease of `ttl` or, where etcd's least is longer, of that. `on_loss` is called, from the lease's thread,
    /// when etcd says that the lease is over although it was renewed; not when it is given up or dropped.
    pub fn take(
        etcd: &Etcd,
        ttl: Duration,
        on_loss: impl FnOnce() + Send + 'static,
    ) -> Result<Self, EtcdError> {
        let sent = Moment::now();
        let grant = etcd.grant_lease(ttl)?;
        let deadline = Deadline::new(surely(sent, grant.ttl));
        let (running, stop) = mpsc::channel();
        let renewal =
            Renewal { etcd: etcd.clone(), lease: grant.lease, ttl: grant.ttl, deadline: deadline.clone() };
        let thread = std::thread::Builder::new().name("weft-lease".to_string());
        if let Err(error) = thread.spawn(move || renewal.run(&stop, on_loss)) {
            // As if it had not been granted: nobody would renew it.
            let _ = etcd.revoke_lease(grant.lease);
            return Err(EtcdError::NoThread { reason: error.to_string() });
        }
        let (etcd, lease, ttl) = (etcd.clone(), grant.lease, grant.ttl);
        Ok(Self { ttl, etcd, lease, deadline, _running: running })
    }

    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// What was granted: at least what was asked for.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    pub fn deadline(&self) -> Deadline {
        self.deadline.clone()
    }

    /// Ends the lease at once, here first: the node must have stopped serving. If etcd does not hear of it,
    /// it ends by itself.
    pub fn give_up(self) -> Result<(), EtcdError> {
        let Self { ttl: _, etcd, lease, deadline, _running: running } = self;
        deadline.end();
        // Before etcd ends it: a renewal that found it ended would count as a loss.
        drop(running);
        etcd.revoke_lease(lease)
    }
}

/// Until when a lease that was granted or renewed by a request sent at `sent` certainly exists: etcd had the request
/// later than that, so its time ends later.
fn surely(sent: Moment, ttl: Duration) -> Moment {
    // This clock may be slow by one part and that of etcd fast by another; the third is for what of the second is of the first.
    sent.after(ttl - 3 * ttl / DRIFT)
}

struct Renewal {
    etcd: Etcd,
    lease: LeaseId,
    ttl: Duration,
    deadline: Deadline,
}

impl Renewal {
    fn run(self, stop: &Receiver<Infallible>, on_loss: impl FnOnce()) {
        let mut wait = self.ttl / RENEWALS;
        while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(wait) {
            let sent = Moment::now();
            wait = match self.etcd.keep_alive(self.lease, self.ttl / SILENCE) {
                Ok(ttl) => {
                    self.deadline.extend(surely(sent, ttl));
                    self.ttl / RENEWALS
                }
                Err(EtcdError::LeaseOver) => {
                    self.deadline.end();
                    if let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(Duration::ZERO) {
                        tracing::warn!(lease = %self.lease, "the node's lease is over");
                        on_loss();
                    }
                    return;
                }
                Err(error) => {
                    tracing::warn!(lease = %self.lease, %error, "the node's lease was not renewed");
                    self.ttl / RETRIES
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_moves_on_but_never_back_from_the_end() {
        let deadline = Deadline::new(Moment(1000));
        deadline.extend(Moment(3000));
        deadline.extend(Moment(2000));
        assert_eq!(deadline.moment(), Moment(3000), "a late answer to an early request takes nothing away");
        let elsewhere = deadline.clone();
        deadline.end();
        elsewhere.extend(Moment(u64::MAX));
        assert!(
            elsewhere.has_passed(),
            "a renewal under way when the lease was given up does not bring it back"
        );
    }

    #[test]
    fn a_lease_is_believed_in_from_before_it_was_asked_for() {
        let sent = Moment(1_000_000);
        assert!(surely(sent, Duration::from_secs(5)) < sent.after(Duration::from_secs(5)));
        assert!(surely(sent, Duration::from_secs(5)) > sent.after(Duration::from_millis(4800)));
    }
}
