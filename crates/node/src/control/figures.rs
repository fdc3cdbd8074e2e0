//! What the shards observe, put together for the pages, the API and the metrics.
//! Promises: a node answers for the vDisks that it serves, and says of the others who does, and which shards were silent.
//! Leaves to others: observing (the shards), looks (`pages`).

use super::refusal::Refusal;
use super::statistics::{ANSWER_WAIT, Teller, ask_shards};
use super::{Control, Serving, SharedControl};
use crate::api::{
    DestinationView, ElsewhereView, HistogramView, LatencyView, MinuteView, PatternView, SourceView,
    StageView, TouchedView, VdiskFiguresListView, VdiskFiguresView, WorkingSetView,
};
use crate::shard_loop::{FamilyFigures, Latencies, Mail, Question, RATED, Rated, ShardFigures, TouchedSet};
use std::collections::BTreeMap;
use weft_engine::FamilyId;
use weft_engine::counters::Source;
use weft_engine::stages::{Stage, Stages};

/// What each shard has observed of its vDisks.
type OfVdisks = Vec<Option<BTreeMap<FamilyId, FamilyFigures>>>;

/// What each shard has observed of itself.
pub async fn gather(control: &SharedControl) -> Vec<Option<ShardFigures>> {
    ask_shards(control, ANSWER_WAIT, Question::Figures).await
}

async fn gather_of_vdisks(control: &SharedControl) -> OfVdisks {
    ask_shards(control, ANSWER_WAIT, Question::VdiskFigures).await
}

/// The stages of all shards together.
struct AllStages {
    since_start: Stages,
    since_reset: Stages,
    since_reset_us: u64,
}

fn all_stages(shards: &[Option<ShardFigures>]) -> AllStages {
    let (mut since_start, mut since_reset) = (Stages::default(), Stages::default());
    for shard in shards.iter().flatten() {
        since_start.add(&shard.stages);
        since_reset.add(&shard.stages_since_reset);
    }
    let since_reset_us = shards.iter().flatten().map(|shard| shard.since_reset_us).max().unwrap_or(0);
    AllStages { since_start, since_reset, since_reset_us }
}

pub async fn latency(control: &SharedControl) -> LatencyView {
    let all = all_stages(&gather(control).await);
    let stage = |stage: Stage| StageView {
        stage: stage.name().to_string(),
        group: stage.group().name().to_string(),
        meaning: stage.meaning().to_string(),
        since_start: all.since_start.of(stage).into(),
        since_reset: all.since_reset.of(stage).into(),
    };
    LatencyView {
        uptime_us: control.lock().began.elapsed().as_micros() as u64,
        since_reset_us: all.since_reset_us,
        stages: Stage::ALL.into_iter().map(stage).collect(),
    }
}

/// From now on `since_reset` is empty. What is asked later finds it so: mail to a shard arrives in order.
pub fn reset_latency(control: &SharedControl) {
    for shard in &control.lock().shards {
        shard.send(Mail::ResetStages);
    }
}

/// What caches were asked, of all shards together: since the start, and in the last minute.
pub fn rated(shards: &[Option<ShardFigures>]) -> (MinuteView, MinuteView) {
    let sum = |of: &dyn Fn(&ShardFigures) -> Rated| {
        let counter = |name: &str| {
            let index = RATED.iter().position(|other| *other == name).expect("it is one of them");
            shards.iter().flatten().map(|shard| of(shard)[index]).sum()
        };
        MinuteView {
            us: 0,
            hits: counter("cache_hits"),
            misses: counter("cache_misses"),
            page_hits: counter("page_hits"),
            page_misses: counter("page_misses"),
            egroup_map_hits: counter("egroup_map_hits"),
            egroup_map_misses: counter("egroup_map_misses"),
            ahead_issued: counter("ahead_issued"),
            ahead_used: counter("ahead_used"),
        }
    };
    let us = shards.iter().flatten().map(|shard| shard.minute_us).max().unwrap_or(0);
    let minute = MinuteView { us, ..sum(&|shard| shard.rated_minute) };
    (sum(&|shard| shard.rated), minute)
}

/// The stages of all shards since the start; None if one has not told its own: a sum that goes down looks like a node that was
/// started again.
pub fn whole_stages(shards: &[Option<ShardFigures>]) -> Option<Stages> {
    shards.iter().all(Option::is_some).then(|| all_stages(shards).since_start)
}

/// How long reads and writes took of the vDisks that this node serves, by their names.
pub async fn latencies(control: &SharedControl) -> BTreeMap<String, Latencies> {
    let told = ask_shards(control, ANSWER_WAIT, Question::Latencies).await;
    let control = control.lock();
    let latencies = control.families.iter().filter_map(|(&family, entry)| {
        let Teller::Shard(shard) = control.teller(family, &told) else { return None };
        Some((entry.config.name.clone(), shard.get(&family)?.clone()))
    });
    latencies.collect()
}

pub async fn vdisks(control: &SharedControl) -> VdiskFiguresListView {
    let told = gather_of_vdisks(control).await;
    control.lock().figures_view(&told)
}

/// Of one vDisk; the other one if somebody else serves it.
pub async fn vdisk(
    control: &SharedControl,
    name: &str,
) -> Result<Result<VdiskFiguresView, ElsewhereView>, Refusal> {
    let family = control.lock().family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
    let told = gather_of_vdisks(control).await;
    let control = control.lock();
    let figures = match control.teller(family, &told) {
        Teller::Shard(shard) => shard.get(&family),
        Teller::Silent(shard) => {
            return Err(Refusal::unavailable(format!(
                "shard {shard}, which has vDisk {name}, did not answer within {} s; ask again",
                ANSWER_WAIT.as_secs()
            )));
        }
        Teller::Elsewhere => None,
    };
    Ok(figures.map(|figures| control.figures_of(family, figures)).ok_or_else(|| control.elsewhere(family)))
}

impl Control {
    fn figures_view(&self, told: &OfVdisks) -> VdiskFiguresListView {
        let (mut vdisks, mut elsewhere) = (Vec::new(), Vec::new());
        for (&family, entry) in &self.families {
            let figures = match self.teller(family, told) {
                Teller::Shard(shard) => shard.get(&family),
                Teller::Silent(_) => continue,
                Teller::Elsewhere => None,
            };
            match figures {
                Some(figures) => vdisks.push(self.figures_of(family, figures)),
                None if entry.serving == Serving::Dropping => {}
                None => elsewhere.push(self.elsewhere(family)),
            }
        }
        vdisks.sort_by(|a, b| a.name.cmp(&b.name));
        elsewhere.sort_by(|a, b| a.name.cmp(&b.name));
        VdiskFiguresListView {
            node: self.part.member().map(|member| member.number()),
            uptime_us: self.began.elapsed().as_micros() as u64,
            vdisks,
            elsewhere,
            silent_shards: self.silent(told),
        }
    }

    pub(super) fn elsewhere(&self, family: FamilyId) -> ElsewhereView {
        let name = self.families.get(&family).map_or_else(String::new, |entry| entry.config.name.clone());
        let owner = self.part.member().and_then(|member| {
            let owner = member.served_by(family);
            // This node has it, and has not opened it yet: who asked here is not sent here again.
            owner.filter(|(node, _)| *node != member.number())
        });
        let (node, api) = owner.map_or((None, None), |(node, api)| (Some(node), Some(api)));
        ElsewhereView { name, node, api }
    }

    fn figures_of(&self, family: FamilyId, figures: &FamilyFigures) -> VdiskFiguresView {
        let FamilyFigures { view, histograms, outstanding, touched } = figures;
        let config = self.families.get(&family).map(|entry| &entry.config);
        let name = config.map_or_else(String::new, |config| config.name.clone());
        let counted = |name: &str| view.engine.get(name).copied().unwrap_or(0);
        let source = |source: Source| {
            let of = |what: &str| counted(&format!("{what}_from_{}", source.name()));
            (source.name().to_string(), SourceView { reads: of("reads"), blocks: of("blocks_read") })
        };
        let destination = |name: &str| {
            let writes = counted(&format!("writes_to_{name}"));
            (name.to_string(), DestinationView { writes, bytes: counted(&format!("write_bytes_to_{name}")) })
        };
        let set = |set: &TouchedSet| TouchedView {
            read_bytes: set.read.bytes(),
            written_bytes: set.written.bytes(),
            bytes: set.any().bytes(),
        };
        let mut counts = view.clone();
        counts.name.clone_from(&name);
        VdiskFiguresView {
            size: config.map_or(0, |config| config.size),
            read_us: (&histograms.read_us).into(),
            write_us: (&histograms.write_us).into(),
            flush_us: (&histograms.flush_us).into(),
            read_size: HistogramView::of_sizes(&histograms.read_size),
            write_size: HistogramView::of_sizes(&histograms.write_size),
            outstanding: (&histograms.outstanding).into(),
            outstanding_now: *outstanding,
            pattern: PatternView {
                reads_sequential: counted("reads_sequential"),
                reads_random: counted("reads_random"),
                writes_sequential: counted("writes_sequential"),
                writes_random: counted("writes_random"),
            },
            working_set: WorkingSetView { minutes: set(&touched.minutes), hour: set(&touched.hour) },
            read_sources: Source::ALL.into_iter().map(source).collect(),
            write_destinations: ["log", "bypass", "zeroes"].into_iter().map(destination).collect(),
            name,
            counts,
        }
    }
}
