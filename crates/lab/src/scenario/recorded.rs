//! Every I/O that fio logged, by stream and second of the run.
//! Promises: seconds count from the first I/O of the database, by the clock of the day, so that what the lab did at some time
//! lies beside what the load felt at that time.

use super::load::{Part, Stream};
use super::results::{Second, StreamSeries};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Io {
    /// Milliseconds since 1970 when it was done.
    at_ms: u64,
    us: f32,
    bytes: u32,
}

/// I/Os of one second: their latencies in microseconds, and all their bytes.
#[derive(Clone, Debug, Default)]
struct Bucket {
    us: Vec<f32>,
    bytes: u64,
}

#[derive(Default)]
pub struct Recorded {
    /// Milliseconds since 1970 of the database's first I/O.
    pub began_ms: u64,
    /// Whole seconds that the database ran for.
    pub seconds: u64,
    streams: BTreeMap<Stream, BTreeMap<u64, Bucket>>,
}

impl Recorded {
    /// Reads the logs of a run: of the database, which ran for so long, and of what disturbed it.
    pub fn read(
        database: (&Path, &[Part]),
        runtime_ms: u64,
        others: &[(&Path, &[Part])],
    ) -> std::io::Result<Recorded> {
        let mut ios = Vec::new();
        read_logs(database, &mut ios)?;
        let began_ms = ios.iter().map(|(_, io)| io.at_ms).min().unwrap_or(0);
        let ended_ms = ios.iter().map(|(_, io)| io.at_ms).max().unwrap_or(0);
        // The load went on also where no I/O was done any more. Less a second, which it may have had to begin.
        let ended_ms = ended_ms.max(began_ms + runtime_ms.saturating_sub(1000));
        let mut recorded =
            Recorded { began_ms, seconds: (ended_ms - began_ms) / 1000, streams: BTreeMap::new() };
        for (stream, io) in ios {
            recorded.put(Stream::Database, io);
            recorded.put(stream, io);
        }
        for other in others {
            let mut ios = Vec::new();
            read_logs(*other, &mut ios)?;
            for (stream, io) in ios {
                recorded.put(stream, io);
            }
        }
        for seconds in recorded.streams.values_mut() {
            for bucket in seconds.values_mut() {
                bucket.us.sort_by(f32::total_cmp);
            }
        }
        Ok(recorded)
    }

    fn put(&mut self, stream: Stream, io: Io) {
        // Before the database began nothing of interest happened.
        let Some(since) = io.at_ms.checked_sub(self.began_ms) else { return };
        let bucket = self.streams.entry(stream).or_default().entry(since / 1000).or_default();
        bucket.us.push(io.us);
        bucket.bytes += u64::from(io.bytes);
    }

    /// Every whole second of the run; those without I/O are zeros.
    pub fn series(&self) -> Vec<StreamSeries> {
        let series = |(stream, seconds): (&Stream, &BTreeMap<u64, Bucket>)| StreamSeries {
            stream: *stream,
            seconds: (0..self.seconds)
                .map(|second| seconds.get(&second).map(Bucket::second).unwrap_or_default())
                .collect(),
        };
        self.streams.iter().map(series).collect()
    }

    /// All I/Os of a stream from one second up to another one, as if they had been one second.
    pub fn between(&self, stream: Stream, from: u64, to: u64) -> Second {
        let mut all = Bucket::default();
        let seconds =
            self.streams.get(&stream).into_iter().flat_map(|seconds| seconds.range(from..to.max(from)));
        for (_, bucket) in seconds {
            all.us.extend(&bucket.us);
            all.bytes += bucket.bytes;
        }
        all.us.sort_by(f32::total_cmp);
        all.second()
    }
}

impl Bucket {
    /// From sorted latencies. Tenths of a microsecond are more than fio knows, and keep results small.
    fn second(&self) -> Second {
        let rank = |percent: f64| {
            let wanted = (self.us.len() as f64 * percent / 100.0).ceil().max(1.0) as usize;
            self.us.get(wanted - 1).copied().map_or(0.0, f64::from)
        };
        let sum = self.us.iter().fold(0.0, |sum, us| sum + f64::from(*us));
        let tenths = |us: f64| (us * 10.0).round() / 10.0;
        Second {
            ios: self.us.len() as u64,
            bytes: self.bytes,
            us_mean: tenths(sum / self.us.len().max(1) as f64),
            us_p50: tenths(rank(50.0)),
            us_p99: tenths(rank(99.0)),
            us_p999: tenths(rank(99.9)),
            us_max: tenths(rank(100.0)),
        }
    }
}

/// fio numbers the logs of its jobs from 1, in the order of the job file.
pub fn log_path(prefix: &Path, job: usize) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!("_lat.{}.log", job + 1));
    PathBuf::from(path)
}

fn read_logs((prefix, parts): (&Path, &[Part]), ios: &mut Vec<(Stream, Io)>) -> std::io::Result<()> {
    for (job, part) in parts.iter().enumerate() {
        for line in BufReader::new(std::fs::File::open(log_path(prefix, job))?).lines() {
            if let Some((direction, io)) = parse_line(&line?) {
                ios.push((part.stream(direction), io));
            }
        }
    }
    Ok(())
}

/// `milliseconds, nanoseconds, direction, bytes, ...`
fn parse_line(line: &str) -> Option<(u8, Io)> {
    let mut fields = line.split(',').map(str::trim);
    let at_ms = fields.next()?.parse().ok()?;
    let ns = fields.next()?.parse::<u64>().ok()?;
    let direction = fields.next()?.parse().ok()?;
    let bytes = fields.next()?.parse().ok()?;
    Some((direction, Io { at_ms, us: ns as f32 / 1000.0, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_several_jobs_become_seconds_of_streams() {
        let prefix = std::env::temp_dir().join(format!("weft-recorded-{}", std::process::id()));
        let write = |job: usize, text: &str| std::fs::write(log_path(&prefix, job), text).expect("writable");
        write(0, "5000, 1000, 0, 8192, 0, 0\n5100, 3000, 1, 32768, 0, 0\n7999, 2000, 0, 8192, 0, 0\n");
        write(1, "4900, 9000, 1, 32768, 0, 0\n8000, 500, 1, 32768, 0, 0\n");
        let parts = [Part::Data, Part::Log];
        let recorded = Recorded::read((&prefix, &parts), 3100, &[]).expect("both are there");
        assert_eq!((recorded.began_ms, recorded.seconds), (4900, 3), "what is left of a second is no second");
        let series = recorded.series();
        let of = |stream| &series.iter().find(|one| one.stream == stream).expect("it had I/Os").seconds;
        let counts: Vec<u64> = of(Stream::Database).iter().map(|second| second.ios).collect();
        assert_eq!(counts, [3, 0, 0], "the I/Os at 7999 and 8000 belong to the fourth second");
        assert_eq!(of(Stream::DataReads)[0].ios, 1);
        assert_eq!(of(Stream::LogWrites)[0].us_max, 9.0);
        let all = recorded.between(Stream::Database, 0, 4);
        assert_eq!((all.ios, all.bytes), (5, 3 * 32768 + 2 * 8192));
        assert_eq!((all.us_p50, all.us_max, all.us_mean), (2.0, 9.0, 15.5 / 5.0));
        assert_eq!(recorded.between(Stream::Scan, 0, 4), Second::default());
        let dead = Recorded::read((&prefix, &parts), 9_500, &[]).expect("both are there");
        assert_eq!(dead.seconds, 8, "a target that gives no answer any more does not end the run");
        assert!(Recorded::read((&prefix, &[Part::Data; 3]), 0, &[]).is_err(), "a missing log is noticed");
        for job in 0..2 {
            std::fs::remove_file(log_path(&prefix, job)).expect("the test made it");
        }
    }
}
