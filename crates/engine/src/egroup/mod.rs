//! Egroups from the owner's side: filling them and finding a place for them. (What a drive does with one is
//! in `keeper`.)

pub(crate) mod asked;
pub(crate) mod groups;
pub mod pack;
pub mod place;
pub(crate) mod placing;
mod shortage;
pub mod units;
