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

/// A copy of what is of the shard as a whole, for the control plane.
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
}

/// How long requests of one vDisk took, in microseconds.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    pub read: Histogram,
    pub write: Histogram,
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
    pub fn note(&mut self, now: Time, shard: &Shard, counted: &mut BTreeMap<FamilyId, FamilyStatistics>) {
        self.recent.note(now, || rated(shard));
        if self.look_at <= now {
            self.look_at = now.after(LOOK_US);
            self.families
                .retain(|&family, figures| figures.outstanding > 0 || shard.volume(family).is_some());
            counted.retain(|&family, _| shard.volume(family).is_some());
        }
    }

    /// A vDisk is opened here, for the first time or again: what was seen of it before was of another life, which the engine's
    /// counters have forgotten too. What is outstanding is answered yet.
    pub fn begin(&mut self, family: FamilyId) {
        if let Some(figures) = self.families.get_mut(&family) {
            *figures = Figures { outstanding: figures.outstanding, ..Figures::default() };
        }
    }

    /// A request goes to the engine. How many are outstanding now, this one included.
    pub fn opened(&mut self, now: Time, family: FamilyId, request: &Request) -> u32 {
        if matches!(request, Request::ReadOrigin { .. }) {
            // Seen where the clone is.
            return 0;
        }
        let figures = self.families.entry(family).or_default();
        figures.outstanding += 1;
        match request {
            Request::Read { offset, len } | Request::ReadSnapshot { offset, len, .. } => {
                figures.touched.read(now, *offset, u64::from(*len));
            }
            Request::Write { offset, data } => figures.touched.written(now, *offset, data.len() as u64),
            _ => {}
        }
        figures.outstanding
    }

    /// The engine has answered. `took_us` is None when the request is asked again, and not over.
    pub fn answered(&mut self, open: &Open, reply: &Reply, source: Option<Source>, took_us: Option<u64>) {
        if matches!(open.kind, Kind::ReadOrigin { .. }) {
            return;
        }
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
            Kind::ReadOrigin { .. } | Kind::Warm { .. } | Kind::Other => return,
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

    /// Of the shard as a whole.
    pub fn report(&self, now: Time, shard: &Shard) -> ShardFigures {
        let (stages, rated) = (self.all_stages(shard), rated(shard));
        let (rated_minute, minute_us) = self.recent.minute(now, rated);
        ShardFigures {
            stages_since_reset: stages.since(&self.before),
            stages,
            since_reset_us: now.since(self.reset_at),
            rated,
            rated_minute,
            minute_us,
        }
    }

    /// Of the vDisks that the shard serves, what the metrics want.
    pub fn latencies(&self, shard: &Shard) -> BTreeMap<FamilyId, Latencies> {
        let copied =
            |seen: &Histograms| Latencies { read: seen.read_us.clone(), write: seen.write_us.clone() };
        let families = shard.volumes().map(|(family, _)| {
            let seen = self.families.get(&family).map(|figures| &figures.histograms);
            (family, seen.map(copied).unwrap_or_default())
        });
        families.collect()
    }

    /// Of the vDisks that the shard serves, everything.
    pub fn of_vdisks(
        &self,
        now: Time,
        shard: &Shard,
        counted: &BTreeMap<FamilyId, FamilyStatistics>,
    ) -> BTreeMap<FamilyId, FamilyFigures> {
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
        families.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard_loop::mailbox::Answer;
    use crate::shard_loop::tickets::Origin;
    use weft_engine::shard::Settings;
    use weft_engine::{Generation, Limits, ShardId};

    const FAMILY: FamilyId = FamilyId(7);

    /// Asks, and is answered at once.
    fn ask(observer: &mut Observer, request: &Request) -> u32 {
        let depth = observer.opened(Time(1), FAMILY, request);
        let origin =
            Origin::Elsewhere { answer: Answer::new(|_| ()), request: request.clone(), refused: None };
        let open = Open { family: FAMILY, kind: Kind::of(request), since: Time(1), depth, origin };
        observer.answered(&open, &Reply::Data(Vec::new()), Some(Source::Local), Some(5));
        depth
    }

    fn counted(observer: &Observer) -> Option<(u64, u32)> {
        let figures = observer.families.get(&FAMILY)?;
        Some((figures.histograms.read_us.count(), figures.outstanding))
    }

    #[test]
    fn a_vdisk_that_is_opened_again_begins_anew_and_one_that_is_not_here_is_forgotten() {
        let limits = Limits::default();
        let shard = Shard::new(Settings { shard: ShardId(0), seed: 1, limits });
        let mut observer = Observer::new();
        let mut counts = BTreeMap::from([(FAMILY, FamilyStatistics::default())]);
        let read = Request::Read { offset: 0, len: 4096 };
        ask(&mut observer, &read);
        assert_eq!(observer.opened(Time(2), FAMILY, &read), 1);
        assert_eq!(counted(&observer), Some((1, 1)));
        observer.begin(FAMILY);
        assert_eq!(counted(&observer), Some((0, 1)), "somebody waits still");
        observer.note(Time(LOOK_US), &shard, &mut counts);
        assert_eq!((counted(&observer), counts.len()), (Some((0, 1)), 0));
        assert_eq!(ask(&mut observer, &read), 2);
    }

    #[test]
    fn reads_of_a_clone_are_none_of_the_clients_of_its_origin() {
        let mut observer = Observer::new();
        let request = Request::ReadOrigin { snapshot: Generation(3), offset: 0, len: 4096 };
        assert_eq!((ask(&mut observer, &request), counted(&observer)), (0, None));
        assert_eq!(observer.stages.of(Source::Local.stage()).count(), 0);
    }
}
