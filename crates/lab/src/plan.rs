//! The rows of a run and their order: reads on freshly filled data first, then writes, then what comes after writes.
//! Leaves to others: doing them (`run`).

use crate::profile::Profile;
use crate::settings::{Prefill, RowSet, RunSettings};
use serde::{Deserialize, Serialize};

/// What a row is compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    Iops,
    BytesPerSecond,
}

/// One row of the table: a load that every target gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Stable across runs, so that runs can be laid over each other.
    pub key: String,
    pub title: String,
    pub explanation: String,
    pub profile: String,
    pub depth: u32,
    pub durable: bool,
    pub figure: Figure,
    /// How much of the data it reads and writes compresses away; none where nobody cares.
    #[serde(default)]
    pub compressible_percent: Option<u32>,
}

fn row(key: &str, title: String, profile: &str, depth: u32) -> Row {
    let profile = Profile::named(profile).expect("rows name shipped profiles");
    let figure = if profile.name.ends_with("1m") { Figure::BytesPerSecond } else { Figure::Iops };
    Row {
        key: key.to_string(),
        title,
        explanation: profile.explanation(),
        profile: profile.name.to_string(),
        depth,
        durable: profile.name.starts_with("durable"),
        figure,
        compressible_percent: None,
    }
}

/// Rows that are measured on the same data: before each group all targets are filled.
pub fn stages(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|one, next| one.compressible_percent == next.compressible_percent)
}

/// The profiles of the warm-up in order, and how many seconds each lasts (none: until all is read). Who fills has the time to read it
/// all as well; without a fill the range may be anything.
pub fn warm_ups(settings: &RunSettings) -> Vec<(&'static str, Option<u64>)> {
    let for_a_while = ("warm-up", Some(settings.warm_up_s));
    match (settings.warm_up_s, settings.prefill) {
        (0, _) => vec![],
        (_, Prefill::Never) => vec![for_a_while],
        (_, Prefill::Always | Prefill::IfNeeded) => vec![("read-once", None), for_a_while],
    }
}

/// In which order a repeat of a row goes over so many targets.
pub fn turn(targets: usize, repeat: u32) -> impl Iterator<Item = usize> {
    (0..targets).map(move |place| (place + repeat as usize) % targets)
}

/// All rows of a run, in order.
pub fn rows(settings: &RunSettings) -> Vec<Row> {
    match settings.rows {
        RowSet::Corners => {
            let corner =
                |profile: &str, title: &str| row(profile, title.to_string(), profile, settings.depth);
            vec![
                corner("random-read-8k", "random read 8k"),
                corner("sequential-read-1m", "sequential read 1m"),
                corner("random-write-8k", "random write 8k"),
                corner("sequential-write-1m", "sequential write 1m"),
            ]
        }
        RowSet::Compression { percent } => {
            let profiles = [
                ("random-read-8k", "8k random read", settings.depth),
                ("sequential-read-1m", "1 MiB sequential read", 8),
                ("durable-write-4k", "4k random write, durable", 1),
                ("random-write-8k", "8k random write", settings.depth),
                ("sequential-write-1m", "1 MiB sequential write", 8),
            ];
            let of = |percent: u32| {
                profiles.map(|(profile, title, depth)| Row {
                    compressible_percent: Some(percent),
                    ..row(
                        &format!("{profile}-{depth}-compressible-{percent}"),
                        format!("{title}, depth {depth}, {percent} % compressible"),
                        profile,
                        depth,
                    )
                })
            };
            [of(percent), of(0)].concat()
        }
        RowSet::Table => {
            let mut rows = Vec::new();
            for depth in [1, 32, 128] {
                let title = format!("4k random read, depth {depth}");
                rows.push(row(&format!("random-read-4k-{depth}"), title, "random-read-4k", depth));
            }
            let sequential = |key: &str, title: &str, profile| row(key, title.to_string(), profile, 8);
            rows.push(sequential(
                "sequential-read-1m-8",
                "1 MiB sequential read, depth 8",
                "sequential-read-1m",
            ));
            for depth in [1, 32] {
                let title = format!("4k random write, durable, depth {depth}");
                rows.push(row(&format!("durable-write-4k-{depth}"), title, "durable-write-4k", depth));
            }
            rows.push(sequential(
                "sequential-write-1m-8",
                "1 MiB sequential write, depth 8",
                "sequential-write-1m",
            ));
            rows.push(sequential(
                "durable-write-1m-8",
                "1 MiB sequential write, durable, depth 8",
                "durable-write-1m",
            ));
            rows.push(row("mix-8k-32", "8k mix 70/30, depth 32".to_string(), "mix-8k", 32));
            let title = "8k mix 70/30, durable, depth 32".to_string();
            rows.push(row("durable-mix-8k-32", title, "durable-mix-8k", 32));
            rows.push(sequential(
                "sequential-read-after-writes",
                "1 MiB sequential read after random writes, depth 8",
                "sequential-read-1m",
            ));
            rows
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressible_data_is_measured_first_and_then_data_that_is_not() {
        let settings = RunSettings { rows: RowSet::Compression { percent: 75 }, ..Default::default() };
        let rows = rows(&settings);
        let stages: Vec<&[Row]> = stages(&rows).collect();
        assert_eq!(stages.len(), 2);
        assert_eq!(stages[0].len(), stages[1].len());
        for (compressible, not) in stages[0].iter().zip(stages[1]) {
            assert_eq!((compressible.compressible_percent, not.compressible_percent), (Some(75), Some(0)));
            assert_eq!((&compressible.profile, compressible.depth), (&not.profile, not.depth));
            assert_ne!(compressible.key, not.key);
        }
        let corners = super::rows(&RunSettings::default());
        assert_eq!(super::stages(&corners).count(), 1);
    }

    #[test]
    fn every_target_is_first_and_last_equally_often() {
        let orders: Vec<Vec<usize>> = (0..4).map(|repeat| turn(3, repeat).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(turn(1, 7).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn reads_of_fresh_data_come_before_all_writes_and_keys_are_unique() {
        for set in [RowSet::Corners, RowSet::Table] {
            let rows = rows(&RunSettings { rows: set, ..Default::default() });
            let first_write =
                rows.iter().position(|row| row.profile.contains("write")).expect("there are writes");
            assert!(rows[..first_write].len() >= 2);
            assert!(rows[first_write..].iter().all(|row| !row.profile.starts_with("random-read")));
            for (index, row) in rows.iter().enumerate() {
                assert!(rows[..index].iter().all(|other| other.key != row.key), "{}", row.key);
            }
        }
    }
}
