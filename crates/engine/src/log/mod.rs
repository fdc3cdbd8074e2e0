//! The oplog from the owner's side: appending, the index of what is not drained, recovery.

pub mod aged;
pub mod append;
pub(crate) mod late;
pub mod layers;
pub mod overlay;
pub mod recover;
#[cfg(test)]
mod tests;
