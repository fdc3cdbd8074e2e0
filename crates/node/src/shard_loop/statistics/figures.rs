//! What a shard observes of its vDisks beyond plain counters, and of its own time.
//! Promises: some tens of nanoseconds for each request; memory for a vDisk only once it is used here, and only as long as it is
//! served here.
//! Leaves to others: counting what the engine knows (the engine), how it is shown (`control/figures.rs`).

use super::recent::Recent;
use super::working_set::{Touched, WorkingSet};
use crate::api::VdiskStatsView;
use crate::shard_loop::engine_counters;
use crate::shard_loop::statistics::{FamilyStatistics, Kind};
use crate::shard_loop::tickets::Open;
use std::collections::BTreeMap;
use weft_engine::counters::Source;
use weft_engine::histogram::Histogram;
use weft_engine::interface::{Reply, Request};
use weft_engine::shard::Shard;
use weft_engine::stages::{Stage, Stages};
use weft_engine::{FamilyId, Time};

/// How requests of one vDisk went, since its first one here.
#[derive(Debug, Clone, Default)]
pub struct Histograms {
    /// From the socket to the reply, in microseconds.
    pub read_us: Histogram,
    pub write_us: Histogram,
    pub flush_us: Histogram,
    /// Bytes of each.
    pub read_size: Histogram,
    pub write_size: Histogram,
    /// Requests that were outstanding when another one came, that one included.
    pub outstanding: Histogram,
}

#[derive(Debug, Default)]
struct Figures {
    histograms: Histograms,
    touched: WorkingSet,
    outstanding: u32,
}

/// The counters whose rates over the last minute are of interest.
pub const RATED: [&str; 8] = [
    "cache_hits",
    "cache_misses",
    "page_hits",
    "page_misses",
    "egroup_map_hits",
    "egroup_map_misses",
    "ahead_issued",
    "ahead_used",
];

pub type Rated = [u64; RATED.len()];

fn rated(shard: &Shard) -> Rated {
    let (counters, cache) = (shard.counters(), shard.cache());
    let (units, ahead) = (&cache.units.counters, &cache.ahead.counters);
    [
        units.hits,
        units.misses,
        counters.page_hits,
        counters.page_misses,
        counters.egroup_map_hits,
        counters.egroup_map_misses,
        ahead.issued,
        ahead.used,
    ]
}

/// What is observed by one shard.
#[derive(Debug)]
pub struct Observer {
    families: BTreeMap<FamilyId, Figures>,
    /// Stages that the engine cannot measure.
    pub stages: Stages,
    /// What had been counted when somebody wished to begin again, and when that was.
    before: Stages,
    reset_at: Time,
    recent: Recent<{ RATED.len() }>,
    look_at: Time,
}

/// How often vDisks are looked for that are not served here any more.
const LOOK_US: u64 = 10_000_000;

/// A copy of all that for the control plane.
#[derive(Debug, Default)]
pub struct ShardFigures {
    pub stages: Stages,
    pub stages_since_reset: Stages,
    pub since_reset_us: u64,
    /// In the order of [`RATED`].
    pub rated: Rated,
    pub rated_minute: Rated,
    /// How long the last minute is: less at first.
    pub minute_us: u64,
    /// vDisks that this shard serves.
    pub families: BTreeMap<FamilyId, FamilyFigures>,
}

/// Of one vDisk.
#[derive(Debug, Clone, Default)]
pub struct FamilyFigures {
    pub view: VdiskStatsView,
    pub histograms: Histograms,
    pub outstanding: u32,
    pub touched: Touched,
}

impl Observer {
    pub fn new() -> Self {
        Self {
            families: BTreeMap::new(),
            stages: Stages::default(),
            before: Stages::default(),
            reset_at: Time(0),
            recent: Recent::new(),
            look_at: Time(0),
        }
    }

    /// A turn begins.
    pub fn note(&mut self, now: Time, shard: &Shard) {
        self.recent.note(now, || rated(shard));
        if self.look_at <= now {
            self.look_at = now.after(LOOK_US);
            self.families
                .retain(|&family, figures| figures.outstanding > 0 || shard.volume(family).is_some());
        }
    }

    /// A request goes to the engine. How many are outstanding now, this one included.
    pub fn opened(&mut self, now: Time, family: FamilyId, request: &Request) -> u32 {
        let figures = self.families.entry(family).or_default();
        figures.outstanding += 1;
        match request {
            Request::Read { offset, len }
            | Request::ReadSnapshot { offset, len, .. }
            | Request::ReadOrigin { offset, len, .. } => {
                figures.touched.read(now, *offset, u64::from(*len));
            }
            Request::Write { offset, data } => figures.touched.written(now, *offset, data.len() as u64),
            _ => {}
        }
        figures.outstanding
    }

    /// The engine has answered. `took_us` is None when the request is asked again, and not over.
    pub fn answered(&mut self, open: &Open, reply: &Reply, source: Option<Source>, took_us: Option<u64>) {
        let figures = self.families.entry(open.family).or_default();
        figures.outstanding = figures.outstanding.saturating_sub(1);
        let Some(took_us) = took_us.filter(|_| !matches!(reply, Reply::Error(_))) else { return };
        let histograms = &mut figures.histograms;
        let stage = match open.kind {
            Kind::Read { bytes } => {
                histograms.read_us.record(took_us);
                histograms.read_size.record(bytes);
                source.map(Source::stage)
            }
            Kind::Write { bytes } => {
                histograms.write_us.record(took_us);
                histograms.write_size.record(bytes);
                Some(Stage::Write)
            }
            Kind::Zero => Some(Stage::Trim),
            Kind::Flush => {
                histograms.flush_us.record(took_us);
                Some(Stage::Flush)
            }
            Kind::Warm { .. } | Kind::Other => return,
        };
        histograms.outstanding.record(u64::from(open.depth));
        if let Some(stage) = stage {
            self.stages.record_us(stage, took_us);
        }
    }

    fn all_stages(&self, shard: &Shard) -> Stages {
        let mut all = self.stages.clone();
        all.add(&shard.counters().stages);
        all
    }

    /// Stages are told from now on as if nothing had been counted before; what was counted since the start is kept beside.
    pub fn reset(&mut self, now: Time, shard: &Shard) {
        self.before = self.all_stages(shard);
        self.reset_at = now;
    }

    pub fn report(
        &self,
        now: Time,
        shard: &Shard,
        counted: &BTreeMap<FamilyId, FamilyStatistics>,
    ) -> ShardFigures {
        let (stages, rated) = (self.all_stages(shard), rated(shard));
        let (rated_minute, minute_us) = self.recent.minute(now, rated);
        let families = shard.volumes().map(|(family, volume)| {
            let mut view = counted.get(&family).map(|counted| counted.view.clone()).unwrap_or_default();
            view.family = family.0;
            view.engine = engine_counters::named_of(volume);
            let figures = match self.families.get(&family) {
                Some(Figures { histograms, touched, outstanding }) => FamilyFigures {
                    view,
                    histograms: histograms.clone(),
                    outstanding: *outstanding,
                    touched: touched.lately(now),
                },
                None => FamilyFigures { view, ..FamilyFigures::default() },
            };
            (family, figures)
        });
        ShardFigures {
            families: families.collect(),
            stages_since_reset: stages.since(&self.before),
            stages,
            since_reset_us: now.since(self.reset_at),
            rated,
            rated_minute,
            minute_us,
        }
    }
}
