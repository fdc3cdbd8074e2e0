//! What is known of egroups on their way to drives, and of the pool they go to.
//! Leaves to others: what is done with it (`egroup/place.rs`).

use super::groups::{is_any_whole, most_up};
use super::pack::Packer;
use super::place::Intent;
use super::shortage::Shortage;
use super::units::Units;
use crate::context::Context;
use crate::curator::moves::Whereto;
use crate::formats::recipe::Recipe;
use crate::identity::{DriveId, EgroupId, Epoch, GroupId, Time};
use crate::interface::View;
use crate::limits::Limits;
use crate::message::{Class, Content, Sharing};
use std::collections::{BTreeMap, BTreeSet};

/// One egroup on its way.
#[derive(Debug)]
pub(super) struct Job {
    pub egroup: EgroupId,
    pub group: GroupId,
    pub class: Class,
    pub units: Units,
    pub recipe: Recipe,
    /// What of it is not packed yet; then what is sent to the members.
    pub packer: Option<Packer>,
    pub content: Content,
    pub intent: Intent,
    pub waiting: BTreeSet<DriveId>,
    pub written: BTreeSet<DriveId>,
    /// Groups that had no room.
    pub tried: BTreeSet<GroupId>,
    /// Some member refused; when all have answered it is tried elsewhere.
    pub refused: bool,
    /// Without any group to go to it is tried again at this time.
    pub again_at: Option<Time>,
    /// It stays in the log as long as it can.
    pub put_off: bool,
    /// How often no group had room, since some had.
    pub waits: u32,
}

impl Job {
    /// What is moved for a copy here is not written to others in vain: one refusal is enough.
    pub fn may_go_to(&self, group: GroupId, ctx: &Context) -> bool {
        let is_for_here = matches!(self.intent, Intent::Compact { whereto: Whereto::Here, .. });
        let has_own = || ctx.members(group).iter().any(|&drive| ctx.is_own(drive));
        !is_for_here || self.tried.is_empty() && has_own()
    }

    pub fn sharing(&self) -> Option<Sharing> {
        let moved_from = match &self.intent {
            Intent::Compact { from, .. } => from.clone(),
            Intent::Drain { .. } | Intent::Bypass { .. } | Intent::Pages => Vec::new(),
        };
        self.recipe.shares().then_some(Sharing { moved_from })
    }
}

/// All of a vDisk.
#[derive(Debug)]
pub(crate) struct Placing {
    pub(super) epoch: Epoch,
    pub(super) counter: u32,
    pub(super) last: u64,
    pub(super) jobs: BTreeMap<u64, Job>,
    /// Which drives wrote an egroup that is placed and not named yet.
    pub(super) written: BTreeMap<EgroupId, BTreeSet<DriveId>>,
    /// Since when no group has room for client data.
    pub(super) full_since: Option<Time>,
    /// When client data may be tried again although the pool was full.
    pub(super) probe_at: Time,
    /// Bytes of client data that the emptiest group could take, as of that many changes of free space.
    pub(super) pool: u64,
    pub(super) pool_known: Option<u64>,
    /// What is in the log already would fill the pool: no more data is let in, so that all of it can be drained.
    pub(super) short: bool,
    /// Copies that what is placed now, and what is in a log, can get at most, as far as drives are up; and whether some group misses nobody.
    pub(super) reach: usize,
    pub(super) log_reach: usize,
    pub(super) any_whole: bool,
    /// When something was packed last.
    pub(super) packed_at: Option<Time>,
    /// Frames in a row, over egroups, that did not get smaller.
    pub(super) misses: usize,
    /// While the pool is full or short.
    pub(super) shortage: Option<Shortage>,
    /// Since when somebody has wanted to write while the pool has no room and nobody is at work that makes some.
    pub(super) bare_since: Option<Time>,
    /// Until when more space may come back, of what was deleted here or elsewhere.
    pub(super) expecting_until: Time,
}

impl Placing {
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            counter: 0,
            last: 0,
            jobs: BTreeMap::new(),
            written: BTreeMap::new(),
            full_since: None,
            probe_at: Time(0),
            pool: u64::MAX,
            pool_known: None,
            reach: 0,
            log_reach: 0,
            any_whole: true,
            packed_at: None,
            misses: 0,
            shortage: None,
            bare_since: None,
            expecting_until: Time(0),
            short: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn describe(&self) -> String {
        let jobs = self.jobs.values().map(|job| {
            let wait = if job.again_at.is_some() {
                "no room anywhere".into()
            } else {
                format!("on {:?}", job.waiting)
            };
            format!("{} units as {:?} {wait}", job.units.len(), job.class)
        });
        jobs.collect::<Vec<_>>().join(", ")
    }

    /// Client data is refused, and everything that frees space hurries.
    pub fn is_full(&self) -> bool {
        self.full_since.is_some() || self.short
    }

    /// What waits to be drained would about fill the pool, as far as anybody knows.
    pub fn is_short(&self) -> bool {
        self.short && self.full_since.is_none()
    }

    pub fn was_refused(&self) -> bool {
        self.full_since.is_some()
    }

    /// Bytes of client data that the emptiest group could take.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// Egroups were just deleted: their space is told with the answers.
    pub fn expect_space(&mut self, now: Time) {
        self.expecting_until = self.expecting_until.max(now.after(100_000));
    }

    /// When full, one attempt now and then finds out whether that is still so.
    pub fn may_try_data(&self, now: Time) -> bool {
        self.full_since.is_none() || now >= self.probe_at
    }

    /// Whether this egroup is being written, so it is no orphan.
    pub fn is_writing(&self, egroup: EgroupId) -> bool {
        self.jobs.values().any(|job| job.egroup == egroup)
    }

    /// The egroups being written.
    pub fn writing(&self) -> impl Iterator<Item = EgroupId> + '_ {
        self.jobs.values().map(|job| job.egroup)
    }

    /// The newest name given out: anything beyond is still to come.
    pub fn newest(&self) -> EgroupId {
        EgroupId::new(self.epoch, self.counter)
    }

    /// No more names should be given out in this epoch.
    pub fn is_out_of_names(&self, limits: &Limits) -> bool {
        self.counter >= limits.egroup_names_max
    }

    /// The drives that wrote this egroup: told once, when it is named or given up.
    pub fn take_written(&mut self, egroup: EgroupId) -> Option<BTreeSet<DriveId>> {
        self.written.remove(&egroup)
    }

    /// Copies that what is placed now can get at most.
    pub fn reach(&self) -> usize {
        self.reach
    }

    /// ... and that a log can have.
    pub fn log_reach(&self) -> usize {
        self.log_reach
    }

    /// Whether what is placed now has as many copies in some group as anything there will ever have.
    pub fn is_any_whole(&self) -> bool {
        self.any_whole
    }

    /// Other groups are there, or are the ones to choose from.
    pub fn on_groups_changed(&mut self, factor: u32, view: &View) {
        (self.reach, self.log_reach) = most_up(factor as usize, view);
        self.any_whole = is_any_whole(factor as usize, view);
        self.probe_at = Time(0);
        self.pool_known = None;
        for job in self.jobs.values_mut() {
            job.again_at = job.again_at.map(|_| Time(0));
        }
    }

    pub(super) fn is_packing(&self) -> bool {
        self.jobs.values().any(|job| job.packer.is_some())
    }

    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if self.is_packing() {
            return Some(Time(0));
        }
        // From then on whoever has something to try does so when its own time has come.
        let probe = self.full_since.map(|_| self.probe_at).filter(|at| *at > now);
        self.jobs.values().filter_map(|job| job.again_at).chain(probe).min()
    }
}
