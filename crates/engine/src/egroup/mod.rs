//! Egroups from the owner's side: filling them and finding a place for them. (What a drive does with one is
//! in `keeper`.)

pub mod pack;
pub mod place;
