//! What a cluster decides as a whole: which drives keep copies together, and which shard serves which family.
//! Promises: pure functions of what is in the config store and of what is alive; the same answer for the same
//! question, whoever is asked, so a controller that stops half way is continued by the next one.
//! Leaves to others: reading and writing the store, leases and clocks (the node's control plane, the simulator),
//! making and verifying copies (`curator`).

pub mod detection;
pub mod ownership;
pub mod placement;
pub mod whole;

mod balance;
mod draft;
mod growth;
mod leaders;
mod pool;
mod repair;
mod settled;
mod shares;
mod spread;

#[cfg(test)]
mod tests;
