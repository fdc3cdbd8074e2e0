//! Where the time of a shard goes: how often each stage was passed, and how long it took.
//! Promises: bounded memory; a stage costs nothing before it is passed for the first time.
//! Leaves to others: measuring. What the engine waits for is measured in here, with the time that it is given; what has no
//! length in that time (finding zeros, unpacking) and what drives and sockets take, by whoever runs the shard.

use crate::histogram::Histogram;

macro_rules! stages {
    ($($(#[doc = $doc:literal])* $stage:ident $name:literal $group:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Stage {
            $($(#[doc = $doc])* $stage,)*
        }

        impl Stage {
            pub const ALL: [Stage; STAGES] = [$(Stage::$stage,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Stage::$stage => $name,)*
                }
            }

            /// What it is, for people.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Stage::$stage => concat!($($doc),*).trim_ascii(),)*
                }
            }

            pub fn group(self) -> Group {
                match self {
                    $(Stage::$stage => Group::$group,)*
                }
            }
        }

        const STAGES: usize = [$(stringify!($stage),)*].len();
    };
}

/// What the time of a stage is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// A whole request, from its arrival to its reply, by what the slowest part of it needed. The other groups are parts
    /// of these, and of work in the background.
    Request,
    /// What the owner of a vDisk waits for.
    Wait,
    /// What a drive does.
    Drive,
    /// Work of the shard's own core.
    Core,
}

impl Group {
    pub const ALL: [Group; 4] = [Group::Request, Group::Wait, Group::Drive, Group::Core];

    pub fn name(self) -> &'static str {
        match self {
            Group::Request => "request",
            Group::Wait => "wait",
            Group::Drive => "drive",
            Group::Core => "core",
        }
    }
}

stages! {
    /// A read of nothing but blocks that were never written, or written as zeros
    FoundZeroes "FoundZeroes" Request,
    /// A read of what was acknowledged and is not in egroups yet
    FromOverlay "read_overlay" Request,
    /// A read from the read cache
    FromCache "read_cache" Request,
    /// A read of what had been read ahead
    FromAhead "read_ahead" Request,
    /// A read that needed a drive of this node
    FromLocal "read_local" Request,
    /// A read that needed a drive of another node
    FromRemote "read_remote" Request,
    /// A read that needed the vDisk which this one was cloned from
    FromOrigin "read_origin" Request,
    /// A write, until it is durable on all members
    Write "write" Request,
    /// A trim or write of zeros
    Trim "trim" Request,
    /// A flush: what is acknowledged is durable already, so nothing is left to do
    Flush "flush" Request,
    /// A request that the limits of its vDisk held back
    Throttled "throttled" Wait,
    /// A write that waited for room in the log, its turn among others, or another write of the same blocks
    Room "room" Wait,
    /// Appending records to the log on a drive of this node
    LogLocal "log_local" Wait,
    /// Appending records to the log on a drive of another node
    LogRemote "log_remote" Wait,
    /// Storing an egroup on one of its members: drain, bypass, pages of the map
    EgroupWrite "egroup_write" Wait,
    /// Fetching a page of the map that was not in memory
    MapPage "map_page" Wait,
    /// Units of a read from a drive of this node
    UnitsLocal "units_local" Wait,
    /// Units of a read from a drive of another node
    UnitsRemote "units_remote" Wait,
    /// Units that were read ahead or to warm a vDisk
    UnitsAhead "units_ahead" Wait,
    /// A read that waited for what was being read ahead
    AheadWait "ahead_wait" Wait,
    /// Asking the vDisk that this one was cloned from
    OriginAsk "origin" Wait,
    /// Asking the node that serves a vDisk, for a client of this one
    Forward "forward" Wait,
    /// Writing a frame of the log to a drive and flushing it, in one operation
    DriveLog "drive_log" Drive,
    /// Reading from a drive
    DriveRead "drive_read" Drive,
    /// Writing data or pages to a drive
    DriveWrite "drive_write" Drive,
    /// Flushing a drive
    DriveFlush "drive_flush" Drive,
    /// Telling a drive what is free
    DriveDiscard "drive_discard" Drive,
    /// Deciding: what came together is one
    Decide "decide" Core,
    /// Verifying and unpacking what a read found compressed
    Decompress "decompress" Core,
    /// Handing replies to the kernel: what goes to one client together is one
    Reply "reply" Core,
}

/// The time of each stage, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages([Histogram; STAGES]);

impl Default for Stages {
    fn default() -> Self {
        Self([const { Histogram::EMPTY }; STAGES])
    }
}

impl Stages {
    pub fn record_ns(&mut self, stage: Stage, ns: u64) {
        self.0[stage as usize].record(ns);
    }

    pub fn record_us(&mut self, stage: Stage, us: u64) {
        self.record_ns(stage, us.saturating_mul(1_000));
    }

    pub fn of(&self, stage: Stage) -> &Histogram {
        &self.0[stage as usize]
    }

    pub fn add(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            own.add(other);
        }
    }

    /// What was counted since this was `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].since(&earlier.0[index])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_stage_has_a_name_of_its_own_and_says_what_it_is() {
        let names: BTreeSet<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert_eq!(names.len(), Stage::ALL.len());
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
            assert!(stage.meaning().len() > 10 && !stage.meaning().starts_with(' '), "{stage:?}");
        }
    }

    #[test]
    fn what_was_counted_since_is_told_apart() {
        let mut stages = Stages::default();
        stages.record_us(Stage::MapPage, 100);
        let before = stages.clone();
        stages.record_us(Stage::MapPage, 300);
        stages.record_ns(Stage::Decompress, 50);
        let since = stages.since(&before);
        assert_eq!((since.of(Stage::MapPage).count(), since.of(Stage::MapPage).total()), (1, 300_000));
        assert_eq!((since.of(Stage::Decompress).total(), since.of(Stage::Room).count()), (50, 0));
        let mut sum = before;
        sum.add(&since);
        assert_eq!(sum.of(Stage::MapPage).total(), stages.of(Stage::MapPage).total());
    }
}
