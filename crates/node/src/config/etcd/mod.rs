//! A client of etcd: what a config store needs of it, over etcd's own JSON gateway.
//! Promises: every call ends within seconds; an error says whether something may have been changed; every request
//! is counted; once it is known which etcd is ours, another one's answers are none, nor are those of an older state of it.
//! Leaves to others: what keys mean and when a lease is renewed (`cluster`); passwords and TLS are not built yet.

mod attempt;
mod client;
mod error;
mod identity;
mod lease;
mod traffic;
mod transaction;
mod watch;
mod wire;

pub(super) use client::is_one;
pub use client::{Etcd, KeyValue, Page};
pub use error::EtcdError;
pub use lease::{Grant, LeaseId};
pub use traffic::{Request, Traffic};
pub use transaction::{Compare, OPERATIONS_MAX, Transaction, TransactionAnswer};
pub use watch::{Event, Watch, WatchNews};
pub use wire::EtcdId;
