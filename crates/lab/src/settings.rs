//! What a run was asked to do. Shapes: sizes in bytes, times in whole seconds.
//! Leaves to others: where the values come from (`crates/weft` has the command line), and whether targets are usable (`label`).

use crate::error::LabError;
use crate::target::Target;
use serde::Serialize;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// Which rows a run of the four-corners scenario measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowSet {
    /// Random read, sequential read, random write, sequential write: the peak of each kind of load.
    #[default]
    Corners,
    /// The rows of `docs/benchmarks.md`: block sizes and depths one by one, durable writes, a mix.
    Table,
    /// What compression is worth: all targets are filled with data of which so many percent compress away, then with data that
    /// does not compress at all, and measured each time.
    Compression { percent: u32 },
}

/// Whether the touched range is written before anything is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefill {
    /// Always: what is read is freshly and sequentially written. The only choice for figures to be published.
    #[default]
    Always,
    /// Only if the label on the target does not say that an earlier run has filled it as far.
    IfNeeded,
    /// Never. Reads of blocks that were never written measure nothing, and the report will say so.
    Never,
}

/// Everything a run needs to know.
#[derive(Clone, Debug, Serialize)]
pub struct RunSettings {
    pub rows: RowSet,
    pub targets: Vec<Target>,
    /// Directory for everything the run leaves behind; created if absent.
    pub out: PathBuf,
    /// Bytes used of each target, from its start. The first MiB of them carries the lab's label.
    pub size: u64,
    /// Seconds each row is measured.
    pub runtime_s: u64,
    /// Seconds of random reads on each target before the first row, after everything was read once (`plan::warm_ups`); 0: neither.
    pub warm_up_s: u64,
    /// Seconds of rest after each row; the server's CPU in them counts for the row, as work put off. None: as long as `rest` says.
    pub idle_s: Option<u64>,
    /// Outstanding I/Os of the four corners. The rows of the table have their own.
    pub depth: u32,
    pub repeats: u32,
    /// Label of the target that the others are divided by; the first one if not given.
    pub baseline: Option<String>,
    pub prefill: Prefill,
    /// Overwrite targets that hold something else.
    pub destroy: bool,
    /// Every load draws its offsets and data from a seed made of this one: [`crate::profile::seed_of`].
    pub seed: u64,
    /// Kept as provenance.
    pub command_line: String,
    /// The fio to run.
    pub fio: PathBuf,
}

impl Default for RunSettings {
    fn default() -> RunSettings {
        RunSettings {
            rows: RowSet::Corners,
            targets: Vec::new(),
            out: PathBuf::from("lab-out"),
            size: 1 << 30,
            runtime_s: 10,
            warm_up_s: 3,
            idle_s: None,
            depth: 32,
            repeats: 1,
            baseline: None,
            prefill: Prefill::Always,
            destroy: false,
            seed: 1,
            command_line: std::env::args().collect::<Vec<_>>().join(" "),
            fio: PathBuf::from("fio"),
        }
    }
}

impl RunSettings {
    /// Refuses what cannot be run, before anything is touched.
    pub(crate) fn check(&self) -> Result<(), LabError> {
        let refuse = |what: &'static str, want: &'static str| Err(LabError::BadSetting { what, want });
        if self.targets.is_empty() {
            return refuse("no target", "name at least one with --target");
        }
        if self.size < 16 * MIB {
            return refuse("the size is too small", "use at least 16M per target");
        }
        if self.runtime_s == 0 || self.runtime_s > 86_400 {
            return refuse("the runtime is out of range", "use 1 to 86400 seconds");
        }
        if self.warm_up_s > 86_400 || self.idle_s.is_some_and(|seconds| seconds > 86_400) {
            return refuse("warm-up or idle time is out of range", "use at most 86400 seconds");
        }
        if self.depth == 0 || self.depth > 1024 {
            return refuse("the depth is out of range", "use 1 to 1024 outstanding I/Os");
        }
        if let RowSet::Compression { percent } = self.rows {
            if percent == 0 || percent > 99 {
                return refuse("the compressibility is out of range", "use 1 to 99 percent");
            }
            if self.prefill != Prefill::Always {
                return refuse(
                    "the data of this scenario is its point",
                    "leave out --prefill: it is written each time",
                );
            }
        }
        if self.repeats == 0 || self.repeats > 100 {
            return refuse("the number of repeats is out of range", "use 1 to 100");
        }
        for (index, target) in self.targets.iter().enumerate() {
            if self.targets[..index].iter().any(|other| other.label == target.label) {
                return Err(LabError::SameLabel { label: target.label.clone() });
            }
            let is_taken = |place: &&str| {
                self.targets[..index].iter().any(|other| other.addresses().any(|taken| taken == *place))
            };
            if let Some(place) = target.addresses().find(is_taken) {
                return Err(LabError::SamePlace { place: place.to_string() });
            }
        }
        if let Some(label) = &self.baseline
            && !self.targets.iter().any(|target| &target.label == label)
        {
            return Err(LabError::NoSuchBaseline { label: label.clone() });
        }
        Ok(())
    }

    /// The label of the target that the others are divided by.
    pub(crate) fn baseline_label(&self) -> &str {
        self.baseline.as_deref().unwrap_or(&self.targets[0].label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_targets_also_if_only_durable_writes_go_there() {
        let check = |targets: &[&str]| {
            let parse = |text: &&str| Target::parse(text, &|_| None).expect("well formed");
            RunSettings { targets: targets.iter().map(parse).collect(), ..Default::default() }.check()
        };
        assert!(check(&["nbd://h/a,durable=nbd://h/wt-a", "nbd://h/b,durable=nbd://h/wt-b"]).is_ok());
        assert!(check(&["nbd://h/a,durable=nbd://h/a"]).is_ok(), "its own");
        for targets in [
            ["nbd://h/a,durable=nbd://h/wt", "nbd://h/b,durable=nbd://h/wt"],
            ["nbd://h/a", "nbd://h/b,durable=nbd://h/a"],
            ["nbd://h/a,durable=nbd://h/b", "nbd://h/b"],
        ] {
            let error = check(&targets).expect_err("one would overwrite the other");
            assert!(matches!(error, LabError::SamePlace { .. }), "{targets:?}: {error}");
        }
    }
}
