//! How a cluster performs, and what growing it brings: the real engine in virtual time on modelled hardware, under the
//! load of databases.
//! Promises: nothing is told to the models but data sheets and measurements (`hardware`); the same figures on every machine.
//! Leaves to others: failures (the rest of the simulator); `docs/scale.md` tells what is left out.

mod contents;
mod control;
mod device;
mod hardware;
mod hdd;
mod load;
mod meter;
mod nic;
mod plot;
mod report;
mod scenario;
mod ssd;
mod world;

use clap::Args;
use report::Row;
use scenario::Settings;
use std::path::PathBuf;

/// Four nodes with databases under load, and what four more nodes that only keep copies bring.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft sim growth --threads 8                        one row of the table
  weft sim growth --csv growth.csv --svg growth.svg  all of it: some minutes")]
pub struct Growth {
    /// Threads of every VM, each of which asks and waits: one run for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 8, 16, 32, 64])]
    threads: Vec<usize>,
    /// The run that is plotted, and made once more with a new cluster of 8 nodes, has so many threads.
    #[arg(long, default_value_t = 16)]
    plot_threads: usize,
    /// MiB of each of the 16 databases.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Percent of the first four nodes' space in use.
    #[arg(long, default_value_t = 40)]
    full: u32,
    /// Simulated seconds measured of each steady state.
    #[arg(long, default_value_t = 45)]
    seconds: u64,
    /// Write the course of the plotted run here as CSV.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Write the plot here as SVG.
    #[arg(long)]
    svg: Option<PathBuf>,
}

impl Growth {
    /// Prints the table as Markdown, and writes the files that were asked for.
    pub fn run(&self) -> std::io::Result<()> {
        print!("{}", report::HEAD);
        let mut notes = String::new();
        for &threads in &self.threads {
            let settings = self.settings(threads);
            let growth = scenario::grow(&settings);
            let row = Row { threads, how: "growing", small: growth.small, grown: growth.grown };
            print!("{}", report::row(&row));
            if threads != self.plot_threads {
                continue;
            }
            notes = report::conditions(&settings, &growth);
            if let Some(path) = &self.csv {
                std::fs::write(path, report::csv(&growth))?;
            }
            if let Some(path) = &self.svg {
                std::fs::write(path, plot::svg(&growth))?;
            }
            let nodes = scenario::OWNERS + scenario::STORAGE_ONLY;
            let (grown, filled_s) = scenario::fresh(&settings, nodes);
            let row = Row { threads, how: "filling anew", small: growth.small, grown };
            print!("{}", report::row(&row));
            notes += &format!(" Filling took {:.1} s with 4 nodes, {filled_s:.1} s with 8.", growth.filled_s);
        }
        println!("\n{notes}");
        Ok(())
    }

    fn settings(&self, threads: usize) -> Settings {
        Settings {
            threads,
            data_bytes: self.mib << 20,
            full: f64::from(self.full) / 100.0,
            warm_up_s: 45,
            measure_s: self.seconds,
            seed: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape that was published for such a cluster, in small: nodes that only keep copies bring more than a little.
    #[test]
    fn storage_only_nodes_make_reads_faster_and_do_not_slow_down_the_log() {
        // Of several histories together: in a window of 5 s it makes a difference whether a drain falls into it.
        let grow = |seed| {
            let (threads, data_bytes) = (16, 32 << 20);
            scenario::grow(&Settings { threads, data_bytes, full: 0.1, warm_up_s: 3, measure_s: 5, seed })
        };
        let grown: Vec<scenario::Growth> = (1..=5).map(grow).collect();
        let what: Vec<String> = grown.iter().map(|it| format!("{:?} {:?}\n", it.small, it.grown)).collect();
        let what = what.concat();
        let ratio = |figure: fn(&scenario::Steady) -> f64| {
            let sum = |of: fn(&scenario::Growth) -> &scenario::Steady| {
                grown.iter().map(|it| figure(of(it))).sum::<f64>()
            };
            sum(|it| &it.grown) / sum(|it| &it.small)
        };
        assert!(ratio(|it| it.seen.iops) > 1.4, "{what}");
        assert!(ratio(|it| it.seen.read_ms) < 0.75, "{what}");
        // The middle one: of two that had a drain in the window only when grown, one had 1.7 times.
        let mut log: Vec<f64> =
            grown.iter().map(|it| it.grown.seen.log_write_ms / it.small.seen.log_write_ms).collect();
        log.sort_by(f64::total_cmp);
        assert!(log[log.len() / 2] < 1.15, "{what}");
        assert!(grown.iter().all(|it| it.small.owners_busy > 0.8), "disks are what is short: {what}");
        assert!(grown.iter().all(|it| it.grown.storage_busy > 0.5), "the new disks work: {what}");
        let growth = &grown[0];
        for (_, seen) in report::course(growth) {
            assert!(seen.iops > 0.0, "the load never stands still: {what}");
        }
        assert!(plot::svg(growth).contains("4 nodes join") && report::csv(growth).lines().count() > 5);
    }

    #[test]
    fn the_same_settings_are_the_same_history() {
        let settings =
            Settings { threads: 2, data_bytes: 16 << 20, full: 0.1, warm_up_s: 1, measure_s: 2, seed: 7 };
        let run = || format!("{:?}", scenario::fresh(&settings, 3 + scenario::STORAGE_ONLY));
        assert_eq!(run(), run());
    }
}
