//! What a scenario was asked to do. Shapes: sizes in bytes, times in whole seconds, rates in I/Os per second.

use super::load;
use crate::error::LabError;
use crate::platform::PlatformTarget;
use serde::Serialize;
use std::path::PathBuf;

/// Every I/O is kept with its time, so a run has to end somewhere (about 40 bytes each in `raw`).
const IOS_MAX: u64 = 20_000_000;

/// What happens to the platform while it serves the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disturbance {
    /// Snapshots of all volumes, the first when the lead-in is over, then one every so often.
    Snapshots { count: u32, every_s: u64 },
    /// For the middle third of the time somebody reads another volume in sequence, as fast as it can be had.
    Neighbour { runtime_s: u64, depth: u32 },
}

#[derive(Clone, Serialize)]
pub struct ScenarioSettings {
    pub disturbance: Disturbance,
    pub targets: Vec<PlatformTarget>,
    /// Directory for everything the run leaves behind; created if absent.
    pub out: PathBuf,
    /// Bytes of all volumes of the database together. The neighbour's volume is as large again.
    pub size: u64,
    /// Rate of the database load, all its volumes together.
    pub rate_iops: u64,
    /// Seconds of load before the first snapshot, which all later ones are compared with.
    pub lead_s: u64,
    /// Seconds of rest between the fill and the load.
    pub idle_s: u64,
    /// How often all targets are run, one after the other.
    pub repeats: u32,
    /// Seed of fio's random offsets and pauses.
    pub seed: u64,
    /// Kept as provenance.
    pub command_line: String,
    /// The fio to run.
    pub fio: PathBuf,
}

impl Default for ScenarioSettings {
    fn default() -> ScenarioSettings {
        ScenarioSettings {
            disturbance: Disturbance::Snapshots { count: 30, every_s: 10 },
            targets: Vec::new(),
            out: PathBuf::from("lab-out"),
            size: 2 << 30,
            // A quarter of OLTP-6400: what a small machine serves without being busy.
            rate_iops: 1600,
            lead_s: 10,
            idle_s: 5,
            repeats: 1,
            seed: 1,
            command_line: std::env::args().collect::<Vec<_>>().join(" "),
            fio: PathBuf::from("fio"),
        }
    }
}

impl Disturbance {
    /// Of `weft lab run`, and of results.
    pub fn name(&self) -> &'static str {
        match self {
            Disturbance::Snapshots { .. } => "snapshot-impact",
            Disturbance::Neighbour { .. } => "noisy-neighbour",
        }
    }
}

impl ScenarioSettings {
    /// Seconds of the database load.
    pub fn runtime_s(&self) -> u64 {
        match self.disturbance {
            // As long afterwards as before, so that both can be compared; times count from the load's first report, after a second.
            Disturbance::Snapshots { every_s, .. } => self.last_at_s() + every_s.max(self.lead_s) + 1,
            Disturbance::Neighbour { runtime_s, .. } => runtime_s,
        }
    }

    /// When the last snapshot is due, in seconds of the load.
    pub(super) fn last_at_s(&self) -> u64 {
        match self.disturbance {
            Disturbance::Snapshots { count, every_s } => {
                self.lead_s + u64::from(count.saturating_sub(1)) * every_s
            }
            Disturbance::Neighbour { .. } => 0,
        }
    }

    /// Refuses what cannot be run, before anything is touched.
    pub(super) fn check(&self) -> Result<(), LabError> {
        let refuse = |what: &'static str, want: &'static str| Err(LabError::BadSetting { what, want });
        if self.targets.is_empty() {
            return refuse("no target", "name at least one with --target");
        }
        if self.size < load::SIZE_MIN {
            return refuse("the size is too small", "use at least 256M per target");
        }
        if self.rate_iops < load::RATE_MIN || self.rate_iops > 1_000_000 {
            return refuse("the rate is out of range", "use 16 to 1000000 I/Os per second");
        }
        match self.disturbance {
            Disturbance::Snapshots { count, every_s } => {
                if count == 0 || count > 10_000 {
                    return refuse("the number of snapshots is out of range", "use 1 to 10000");
                }
                if every_s == 0 || every_s > 86_400 {
                    return refuse("the time between snapshots is out of range", "use 1 second to 24 hours");
                }
                if self.lead_s < 3 {
                    return refuse("the lead-in is too short to compare with", "use at least 3 seconds");
                }
                if !self.targets.iter().any(PlatformTarget::takes_snapshots) {
                    return refuse(
                        "no target takes snapshots",
                        "name weft:NAME or one with qcow2 images too",
                    );
                }
            }
            Disturbance::Neighbour { runtime_s, depth } => {
                if runtime_s < 9 {
                    return refuse("the runtime is too short for three thirds", "use at least 9 seconds");
                }
                if depth == 0 || depth > 1024 {
                    return refuse("the depth is out of range", "use 1 to 1024 outstanding I/Os");
                }
            }
        }
        if self.runtime_s() > 7 * 86_400 || self.idle_s > 86_400 {
            return refuse("the run is too long", "use at most a week");
        }
        if self.runtime_s() * self.rate_iops > IOS_MAX {
            return refuse(
                "the run has too many I/Os to keep each of them",
                "use a lower rate or a shorter time: at most 20 million in all",
            );
        }
        if self.repeats == 0 || self.repeats > 100 {
            return refuse("the number of repeats is out of range", "use 1 to 100");
        }
        for (index, target) in self.targets.iter().enumerate() {
            if self.targets[..index].iter().any(|other| other.label == target.label) {
                return Err(LabError::SameLabel { label: target.label.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_refused_with_what_to_do() {
        let platform = |text: &str| PlatformTarget::parse(text, &|| None).expect("well formed");
        let good = ScenarioSettings { targets: vec![platform("qcow2-chain:/x")], ..Default::default() };
        assert!(good.check().is_ok());
        assert_eq!(good.runtime_s(), 311);
        let refused = |change: &dyn Fn(&mut ScenarioSettings)| {
            let mut settings = good.clone();
            change(&mut settings);
            let error = settings.check().expect_err("it cannot be run");
            assert!(error.is_bad_input(), "{error}");
            error.to_string()
        };
        assert!(refused(&|settings| settings.targets.clear()).contains("--target"));
        assert!(refused(&|settings| settings.size = 1 << 20).contains("256M"));
        assert!(refused(&|settings| settings.rate_iops = 3).contains("16 to"));
        assert!(refused(&|settings| settings.lead_s = 1).contains("3 seconds"));
        assert!(refused(&|settings| settings.rate_iops = 100_000).contains("20 million"));
        assert!(refused(&|settings| settings.targets = vec![platform("file:/x")]).contains("weft:NAME"));
        assert!(refused(&|settings| settings.targets.push(platform("qcow2-chain:/y"))).contains("LABEL="));
        let neighbour = Disturbance::Neighbour { runtime_s: 5, depth: 16 };
        assert!(refused(&|settings| settings.disturbance = neighbour).contains("9 seconds"));
    }
}
