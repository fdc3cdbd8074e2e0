//! The load profiles: fio job files, shipped inside the binary, completed for a target and written beside the results, so
//! that any row can be run again by hand with fio alone.
//! Leaves to others: which profile runs when (`plan`), running it (`fio`).

use std::path::Path;

/// A job file with `${DEPTH}` in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! profile {
    ($name:literal) => {
        Profile { name: $name, text: include_str!(concat!("../profiles/", $name, ".fio")) }
    };
}

/// All profiles, in the order in which they are shown.
pub const PROFILES: &[Profile] = &[
    profile!("random-read-8k"),
    profile!("sequential-read-1m"),
    profile!("random-write-8k"),
    profile!("sequential-write-1m"),
    profile!("random-read-4k"),
    profile!("durable-write-4k"),
    profile!("durable-write-1m"),
    profile!("mix-8k"),
    profile!("durable-mix-8k"),
    profile!("prefill"),
    profile!("read-once"),
    profile!("warm-up"),
];

impl Profile {
    pub fn named(name: &str) -> Option<Profile> {
        PROFILES.iter().copied().find(|profile| profile.name == name)
    }

    /// Whether it changes what its target holds.
    pub fn writes(&self) -> bool {
        let kind = self.text.lines().find_map(|line| line.strip_prefix("rw="));
        // fio's names for what only reads are `read` and `randread`.
        kind.is_some_and(|kind| kind.contains('w'))
    }

    /// The comment at the head of the job file, as one line.
    pub fn explanation(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("; "));
        lines.collect::<Vec<_>>().join(" ")
    }
}

/// What a profile is completed with.
pub struct Parameters<'a> {
    /// Engine and address, from the target.
    pub target_lines: &'a str,
    pub offset: u64,
    /// Bytes of the range that is touched, from the offset on.
    pub span: u64,
    pub depth: u32,
    /// None: until everything is written once.
    pub runtime_s: Option<u64>,
    pub seed: u64,
    /// How much of what is written compresses away; none: as the profile says.
    pub compressible_percent: Option<u32>,
    /// Prefix of fio's log files; none for runs whose samples are not kept.
    pub logs: Option<&'a Path>,
}

/// The seed of one load of a run that was given `seed`: loads differ in what they touch, and in what order, so that nothing is
/// read again only because another load has just read it. The same for the same names, whatever the target.
pub fn seed_of(seed: u64, names: &[&str]) -> u64 {
    // FNV-1a, and the last step of SplitMix: short names differ in every bit of what comes out.
    let mut hash = names
        .iter()
        .flat_map(|name| name.bytes().chain([0]))
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    // What fio takes as a whole number anywhere, and never 0.
    (hash >> 33) + 1
}

/// The whole job file for one run.
pub fn complete(profile: Profile, parameters: &Parameters) -> String {
    let Parameters { target_lines, offset, span, depth, runtime_s, seed, compressible_percent, logs } =
        parameters;
    let mut text = String::from("; Written by the lab of Weft. To run it again: fio THIS-FILE\n[global]\n");
    text += target_lines;
    // Threads instead of processes: one process to end, and one whose CPU is all of the client's.
    text += "thread=1\ngroup_reporting=1\nnorandommap=1\nrandrepeat=0\ndisk_util=0\n";
    // The whole latency, from the attempt to submit on: engines differ in what they call submission.
    text += "lat_percentiles=1\nclat_percentiles=0\npercentile_list=50:95:99:99.9\n";
    text += &format!("randseed={seed}\noffset={offset}\nsize={span}\n");
    if let Some(seconds) = runtime_s {
        text += &format!("time_based=1\nruntime={seconds}\n");
    }
    if let Some(percent) = compressible_percent {
        text += "refill_buffers=1\n";
        if *percent > 0 {
            // A pattern for what compresses away: fio would take zeros, and finding zeros is no compression. Block by block,
            // so that every block of 4 KiB has its share.
            text += &format!(
                "buffer_compress_percentage={percent}\nbuffer_compress_chunk=4k\nbuffer_pattern=0x57454654\n"
            );
        }
    }
    if let Some(prefix) = logs {
        let prefix = prefix.display();
        text +=
            &format!("log_avg_msec=1000\nper_job_logs=0\nwrite_iops_log={prefix}\nwrite_bw_log={prefix}\n");
        text += &format!("write_lat_log={prefix}\n");
    }
    text.push('\n');
    text += &profile.text.replace("${DEPTH}", &depth.to_string());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_have_seeds_of_their_own_that_are_the_same_each_time() {
        let seeds = [
            seed_of(1, &["random-read-4k", "0"]),
            seed_of(1, &["random-read-4k", "1"]),
            seed_of(1, &["random-read-4k-d32", "0"]),
            seed_of(1, &["warm-up", "0"]),
            seed_of(2, &["random-read-4k", "0"]),
        ];
        let different: std::collections::BTreeSet<u64> = seeds.into();
        assert_eq!(different.len(), seeds.len(), "{seeds:?}");
        assert!(seeds.iter().all(|seed| (1..=1 << 31).contains(seed)), "{seeds:?}");
        assert_eq!(seeds[0], seed_of(1, &["random-read-4k", "0"]));
        assert_ne!(seed_of(1, &["ab", "c"]), seed_of(1, &["a", "bc"]));
    }

    #[test]
    fn every_profile_says_what_it_is_for_and_leaves_nothing_unfilled() {
        for profile in PROFILES {
            assert!(profile.explanation().len() > 40, "{} explains itself", profile.name);
            assert_eq!(Profile::named(profile.name), Some(*profile));
            let parameters = Parameters {
                target_lines: "ioengine=null\n",
                offset: 0,
                span: 1 << 20,
                depth: 4,
                runtime_s: Some(1),
                seed: 9,
                compressible_percent: Some(75),
                logs: None,
            };
            let job = complete(*profile, &parameters);
            assert!(!job.contains("${"), "{job}");
            assert!(job.contains("buffer_compress_percentage=75\n"), "{job}");
            assert!(job.contains(&format!("[{}]", profile.name)), "{job}");
        }
    }
}
