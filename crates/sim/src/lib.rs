//! The pretend machine: the real engine of Weft on drives and networks that fail as real ones do, in virtual
//! time, on one thread, from one seed.
//!
//! A run ([`run::run`]) is a [`world::World`] made from a [`plan::Plan`] and a seed. Clients (`client`) ask,
//! the fault atlas (`atlas`) breaks things, the control plane (`control`) brings them back, and the judges
//! (`judge`) say whether all promises were kept. `docs/simulator.md` tells how to use it.

pub mod absence;
pub mod answers;
pub mod atlas;
mod blackout;
pub mod client;
pub mod command;
pub mod control;
pub mod coverage;
pub mod drive;
pub mod engine_view;
pub mod event;
pub mod family;
pub mod growth;
pub mod judge;
pub mod kept;
pub mod layout;
pub mod memory;
pub mod network;
pub mod origins;
pub mod phase;
pub mod plan;
pub mod platter;
pub mod requests;
mod rotten;
pub mod run;
pub mod scale;
pub mod stamp;
pub mod trace;
pub mod world;

#[cfg(test)]
#[global_allocator]
static MEMORY: memory::Recycler = memory::Recycler;
