//! The loads: a database at a fixed rate, and a scan as fast as it goes. Written as fio jobs, one for each volume.
//! The database is the OLTP-6400 of X-Ray's snapshot scenarios, scaled: four data disks with 750 reads and 750 writes a second
//! each (8 KiB, every tenth 32 KiB, random, depth 8), two log disks with 200 writes each (32 KiB, nine of ten in sequence).
//! Leaves to others: running them (`session`).

use crate::platform::Volume;
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::path::Path;

const MIB: u64 = 1 << 20;
pub const SIZE_MIN: u64 = 256 * MIB;
pub const RATE_MIN: u64 = 16;

const DATA_DISKS: u64 = 4;
const LOG_DISKS: u64 = 2;
/// Rate and footprint of the profile as it was published; the disks' shares of both are kept.
const PROFILE_IOPS: u64 = 6400;
const DATA_IOPS: u64 = 750;
const LOG_IOPS: u64 = 200;
const PROFILE_GIB: u64 = 116;
const DATA_GIB: u64 = 28;
const LOG_GIB: u64 = 2;
/// Mean size of a data volume's I/Os: nine of ten are 8 KiB, one 32 KiB.
const DATA_BYTES_MEAN: f64 = (9.0 * 8.0 + 32.0) / 10.0 * 1024.0;

/// What I/Os are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// All of the database together.
    Database,
    DataReads,
    DataWrites,
    LogWrites,
    Scan,
}

/// What a job's volume is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Data,
    Log,
    Scan,
}

impl Part {
    /// The stream of one I/O: fio's directions are 0 for reads and 1 for writes.
    pub fn stream(self, direction: u8) -> Stream {
        match (self, direction) {
            (Part::Data, 0) => Stream::DataReads,
            (Part::Data, _) => Stream::DataWrites,
            (Part::Log, _) => Stream::LogWrites,
            (Part::Scan, _) => Stream::Scan,
        }
    }
}

/// The volumes of a database of this size, the log's share at least 16 MiB each.
pub fn database_volumes(size: u64) -> Vec<Volume> {
    let share = |gib: u64| (size * gib / PROFILE_GIB / MIB * MIB).max(16 * MIB);
    let volume = |name: String, bytes, durable| Volume { name, bytes, durable };
    let data = (1..=DATA_DISKS).map(|disk| volume(format!("data-{disk}"), share(DATA_GIB), false));
    let log = (1..=LOG_DISKS).map(|disk| volume(format!("log-{disk}"), share(LOG_GIB), true));
    data.chain(log).collect()
}

pub fn scan_volume(size: u64) -> Volume {
    Volume { name: "scan".to_string(), bytes: size / MIB * MIB, durable: false }
}

/// Rates of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Reads per second of each data disk, and as many writes.
    data: u64,
    log: u64,
}

impl Rates {
    /// Of a database with this rate in all. fio takes whole numbers per disk, so the sum may differ a little.
    pub fn of(rate_iops: u64) -> Rates {
        let share = |part: u64| ((rate_iops * part + PROFILE_IOPS / 2) / PROFILE_IOPS).max(1);
        Rates { data: share(DATA_IOPS), log: share(LOG_IOPS) }
    }

    pub fn sum(self) -> u64 {
        DATA_DISKS * 2 * self.data + LOG_DISKS * self.log
    }

    /// What a platform that keeps old data by clusters of 64 KiB keeps for a second of writes: one for each write of data, and the log, which is
    /// written in sequence.
    pub fn changed_bytes_per_s(self) -> u64 {
        (DATA_DISKS * self.data * 64 + LOG_DISKS * self.log * 32) << 10
    }
}

/// A job file, and which part each of its jobs is.
pub struct Load {
    pub text: String,
    pub parts: Vec<Part>,
}

/// What all jobs of a run have in common.
pub struct Common<'a> {
    pub runtime_s: u64,
    pub seed: u64,
    /// Prefix of fio's logs.
    pub logs: &'a Path,
    pub io_uring: bool,
}

impl Common<'_> {
    fn global(&self) -> String {
        let mut text = head();
        text += "norandommap=1\nrandrepeat=0\ncontinue_on_error=all\n";
        text += "lat_percentiles=1\nclat_percentiles=0\npercentile_list=50:95:99:99.9\n";
        text += &format!("time_based=1\nruntime={}\n", self.runtime_s);
        // One line for each I/O (no log_avg_msec), with the time of the day, so that all logs and our own clock agree.
        text += "log_unix_epoch=1\nper_job_logs=1\ndisable_slat=1\ndisable_clat=1\n";
        text += &format!("write_lat_log={}\n", self.logs.display());
        text
    }

    fn target_lines(&self, target: Option<&Target>, durable: bool) -> String {
        match target {
            Some(target) => target.fio_lines(durable, self.io_uring),
            None => "ioengine=null\n".to_string(),
        }
    }
}

fn head() -> String {
    let mut text = String::from("; Written by the lab of Weft. To run it again: fio THIS-FILE\n[global]\n");
    text += "thread=1\ngroup_reporting=1\ndisk_util=0\n";
    text
}

/// The database on these targets, in the order of the volumes; on nothing where there is no target.
pub fn database(common: &Common, volumes: &[Volume], targets: Option<&[Target]>, rates: Rates) -> Load {
    let mut load = Load { text: common.global(), parts: Vec::new() };
    for (index, volume) in volumes.iter().enumerate() {
        let lines = common.target_lines(targets.map(|targets| &targets[index]), volume.durable);
        load.text += &format!("\n[{}]\n{lines}size={}\n", volume.name, volume.bytes);
        load.text += &format!("randseed={}\n", common.seed + index as u64);
        if volume.durable {
            load.text +=
                &format!("rw=randwrite\npercentage_random=10\nbs=32k\niodepth=1\nrate_iops={}\n", rates.log);
            load.parts.push(Part::Log);
        } else {
            load.text += "rw=randrw\nbs=8k\nbssplit=8k/90:32k/10,8k/90:32k/10\niodepth=8\n";
            // The rate in bytes: fio paces by bytes, and takes a rate in I/Os for one of the smallest size. Not with pauses drawn at
            // random (rate_process=poisson): fio does not make up for what it misses then, so where server and client share two
            // busy CPUs it gave 60 % of the rate on nothing, and a target would be blamed for that.
            let bytes = (rates.data as f64 * DATA_BYTES_MEAN).round();
            load.text += &format!("rate={bytes},{bytes}\n");
            load.parts.push(Part::Data);
        }
    }
    load
}

/// The scan, as fast as the target gives.
pub fn scan(common: &Common, volume: &Volume, target: &Target, depth: u32) -> Load {
    let mut text = common.global();
    text += &format!("\n[{}]\n{}", volume.name, common.target_lines(Some(target), false));
    text += &format!("size={}\nrw=read\nbs=1m\niodepth={depth}\n", volume.bytes);
    Load { text, parts: vec![Part::Scan] }
}

/// Writes every byte of all volumes once, with random data.
pub fn fill(volumes: &[Volume], targets: &[Target], io_uring: bool) -> String {
    let mut text = head();
    text += "rw=write\nbs=1m\niodepth=2\nrefill_buffers=1\nend_fsync=1\n";
    for (volume, target) in volumes.iter().zip(targets) {
        let lines = target.fio_lines(false, io_uring);
        text += &format!("\n[{}]\n{lines}size={}\n", volume.name, volume.bytes);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_that_of_the_profile_scaled() {
        let full = Rates::of(6400);
        assert_eq!((full, full.sum()), (Rates { data: 750, log: 200 }, 6400));
        let quarter = Rates::of(1600);
        assert_eq!((quarter, quarter.sum()), (Rates { data: 188, log: 50 }, 1604));
        assert_eq!(Rates::of(16).sum(), 4 * 2 * 2 + 2);
        let volumes = database_volumes(116 << 30);
        let bytes: Vec<u64> = volumes.iter().map(|volume| volume.bytes >> 30).collect();
        assert_eq!(bytes, [28, 28, 28, 28, 2, 2]);
        assert_eq!(volumes.iter().filter(|volume| volume.durable).count(), 2);
        let small: u64 = database_volumes(SIZE_MIN).iter().map(|volume| volume.bytes).sum();
        assert!(small <= SIZE_MIN + 32 * MIB, "{small}");
    }

    #[test]
    fn jobs_are_paced_by_the_mean_of_their_sizes() {
        let volumes = database_volumes(1 << 30);
        let logs = Path::new("/tmp/x");
        let common = Common { runtime_s: 7, seed: 3, logs, io_uring: true };
        let load = database(&common, &volumes, None, Rates::of(640));
        assert_eq!(load.parts, [Part::Data, Part::Data, Part::Data, Part::Data, Part::Log, Part::Log]);
        let (jobs, logs) =
            (load.text.matches("bs=8k\nbssplit=8k/90:32k/10").count(), load.text.matches("bs=32k"));
        assert_eq!((jobs, logs.count()), (4, 2));
        assert!(
            load.text.contains("rate=798720,798720\n") && load.text.contains("rate_iops=20\n"),
            "{}",
            load.text
        );
        let seeds: std::collections::BTreeSet<&str> =
            load.text.lines().filter(|line| line.starts_with("randseed=")).collect();
        assert_eq!(seeds.len(), 6, "disks do not move in step");
        assert_eq!(Part::Data.stream(0), Stream::DataReads);
        assert_eq!(Part::Log.stream(1), Stream::LogWrites);
    }
}
