//! An SSD: a fixed latency, and a rate that all its commands share.
//! Promises: never more commands or bytes a second than the data sheet says, in any mix of reads and writes.
//! Leaves to others: wear and housekeeping, but for what the data sheet's rate of random writes has in it.

use super::device::{Ends, Work};
use super::hardware::{SECOND, ssd::*};

#[derive(Default)]
pub struct Ssd {
    /// The inside is taken until then.
    free_at: u64,
    busy: u64,
}

impl Ssd {
    pub fn busy(&self) -> u64 {
        self.busy
    }

    pub fn submit(&mut self, now: u64, id: u64, work: Work, ends: &mut Ends) {
        let (latency, per_s, bytes_per_s) = if work.is_write {
            (WRITE, WRITES_PER_S, WRITE_BYTES_PER_S)
        } else {
            (READ, READS_PER_S, READ_BYTES_PER_S)
        };
        let share = (1.0 / per_s).max(work.bytes as f64 / bytes_per_s) * SECOND as f64;
        self.free_at = self.free_at.max(now) + share as u64;
        self.busy += share as u64;
        // A command alone takes its latency; what of that is not its share of the inside overlaps with others.
        let least = (1.0 / per_s * SECOND as f64) as u64;
        ends.push((self.free_at + latency - least, id));
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::run_closed;
    use super::*;

    /// Operations a second of so many bytes, and microseconds each, at this depth.
    fn measure(is_write: bool, bytes: u64, depth: usize) -> (f64, f64) {
        let mut ssd = Ssd::default();
        let work = || Work { is_write, offset: 0, bytes };
        let took = run_closed(2000, depth, work, |now, step, ends| {
            if let Ok((id, work)) = step {
                ssd.submit(now, id, work, ends);
            }
        });
        let per_s = 2000.0 * SECOND as f64 / took as f64;
        (per_s, depth as f64 / per_s * 1e6)
    }

    #[test]
    fn alone_a_command_takes_its_latency() {
        let ((_, read), (_, write)) = (measure(false, 4096, 1), measure(true, 4096, 1));
        assert!((read - 50.0).abs() < 1.0 && (write - 65.0).abs() < 1.0, "{read:.1} and {write:.1} us");
    }

    #[test]
    fn it_saturates_at_the_rates_of_the_data_sheet() {
        for (is_write, bytes, rate) in [
            (false, 4096, 75_000.0),
            (true, 4096, 36_000.0),
            (false, 1 << 20, 500e6 / 1_048_576.0),
            (true, 1 << 20, 460e6 / 1_048_576.0),
        ] {
            let (per_s, _) = measure(is_write, bytes, 32);
            assert!((per_s / rate - 1.0).abs() < 0.03, "{per_s:.0} a second, not {rate:.0}");
            let (deeper, _) = measure(is_write, bytes, 256);
            assert!(deeper < rate * 1.03, "depth does not make it faster: {deeper:.0}");
        }
    }
}
