//! Those who say whether what happened was right. They know what clients were told and what lies on the
//! pretend drives; they trust nothing the engine says about itself without comparing it.

pub mod ceilings;
pub mod copies;
pub mod deletions;
pub mod ends;
pub mod factors;
pub mod idling;
pub mod nearness;
pub mod placement;
pub mod refusals;
pub mod registers;
pub mod snapshots;
pub mod space;
pub mod thin;
pub mod undrained;
