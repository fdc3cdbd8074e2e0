//! The curator: looks after what was written long ago. It compares what drives hold with what they should hold
//! (`audit`), remembers what was read and found bad (`bad`), makes missing and bad copies anew (`copy`) from what it gathers (`gather`), as many at once as clients bear (`budget`), and moves live units out of egroups that are mostly
//! dead (`compact`, `moves`), packed otherwise than is wanted now (`repack`), kept by another number of drives (`factor`) or read often
//! from other nodes (`follow`).

pub mod audit;
mod bad;
pub mod budget;
pub mod compact;
pub mod copy;
pub(crate) mod factor;
pub mod follow;
mod gather;
pub mod moves;
pub mod repack;
