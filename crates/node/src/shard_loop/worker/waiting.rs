//! How a shard waits: it looks for something to do for a moment while load is steady, and sleeps otherwise.
//! Promises: an idle shard uses no time; whatever happens ends the sleep.

use super::{STOOD_STILL_US, TAG_BELL, Worker};
use crate::shard_loop::socket::Socket;
use io_uring::{opcode, types};
use std::time::Duration;
use weft_engine::Time;

/// While the shard is busy, the loop looks for completions this long before it sleeps. A sleeping core of a virtual
/// machine wakes late enough to halve the I/O of a client with a few dozen requests under way.
const SPIN_US_MAX: u64 = 300;

/// Busy is a shard that gets an input for the engine at least this often, and has been asked for at least so many things at a
/// time. Below, looking costs more time of the core for each I/O than it saves; and who waits for each reply before it asks
/// for more wants the very core that would be looking (decision 0044).
const BUSY_US: u64 = 40;
const BUSY_DEPTH: usize = 24;

/// The pace of a shard is measured over at least this time.
const WINDOW_US: u64 = 1_000;

/// How often the engine has got something to do lately, and how much at a time.
#[derive(Default)]
pub(super) struct Pace {
    since: Time,
    steps: u64,
    /// Most that was under way at a time since then.
    depth: usize,
    is_busy: bool,
}

impl Pace {
    /// `steps`: how many the engine has made so far. `depth`: how much is under way now.
    fn is_busy(&mut self, now: Time, steps: u64, depth: usize) -> bool {
        self.depth = self.depth.max(depth);
        let passed = now.since(self.since);
        if passed >= WINDOW_US {
            self.is_busy = (steps - self.steps) * BUSY_US >= passed && self.depth >= BUSY_DEPTH;
            *self = Self { since: now, steps, depth, is_busy: self.is_busy };
        }
        self.is_busy
    }
}

impl Worker {
    /// When the loop has to turn even if nothing happens.
    fn wake_at(&self) -> Option<Time> {
        let negotiations = (self.statistics.connections > 0).then_some(self.look_at_negotiations);
        let others = [self.peers.wake_at(), self.drives.wake_at()];
        // The engine is about to be dropped: what it still wants to do will not be done.
        let probe_at = self.drives.probe_at(|drive| self.shard.keeper(drive).is_some());
        let ahead = [self.shard.wake_at(), probe_at].into_iter().filter(|_| !self.stopping);
        [self.retry_at, negotiations].into_iter().chain(others).chain(ahead).flatten().min()
    }

    /// A turn begins. If it begins late, the shard stood still, as in a process that was stopped: what clients sent before may not be
    /// done now without looking whether they are still there. `slept`: it did, whatever this clock says.
    pub(super) fn note_stand(&mut self, now: Time, slept: bool) {
        self.is_late = slept || now.since(self.back_by) > STOOD_STILL_US;
        if self.is_late {
            self.sockets.iter_mut().filter_map(|place| place.socket.as_mut()).for_each(Socket::note_stand);
        }
        self.back_by = now;
    }

    /// Hands in what is queued, and waits until there is something to do.
    pub(super) fn rest(&mut self) {
        if !self.bell_armed {
            self.bell_armed = true;
            let value: *mut u64 = &raw mut *self.bell_value;
            let entry = opcode::Read::new(types::Fd(self.mailbox.bell()), value.cast(), 8)
                .build()
                .user_data(TAG_BELL);
            // SAFETY: the value lives as long as the worker, and the worker as long as the ring.
            unsafe { self.ring.push(entry) };
        }
        let mut now = self.now();
        let wake_at = self.wake_at();
        let due = wake_at.is_some_and(|at| at <= now);
        let drained = self.draining.is_some() && self.statistics.connections == 0;
        if due || drained || self.hurries || !self.inputs.is_empty() || self.mailbox.has_mail() {
            self.ring.enter(None);
            return;
        }
        // What other nodes ask the drives here for has no ticket.
        let depth = self.tickets.open_count().max(self.drives.in_flight());
        let is_busy = self.pace.is_busy(now, self.statistics.steps, depth);
        // Durable writes are ended by a thread of the kernel, which gets a sleeping core sooner than one that is busy looking.
        let may_spin = self.may_spin && !self.drives.has_durable_write();
        if may_spin && is_busy {
            if self.spin(now, wake_at) {
                return;
            }
            // Or it would sleep for as long as it has just looked, behind what has become due.
            now = self.now();
        }
        if !self.mailbox.fall_asleep() {
            self.ring.enter(None);
            return;
        }
        self.statistics.sleeps += 1;
        // Unless this turn has taken as long already, which the next one is to see.
        if now.since(self.back_by) <= STOOD_STILL_US {
            self.back_by = wake_at.unwrap_or(Time(u64::MAX));
        }
        let longest = wake_at.map_or(Duration::MAX, |at| Duration::from_micros(at.since(now)));
        self.ring.enter(Some(longest));
        self.mailbox.wake_up();
    }

    /// Looks for something to do for a moment: waking a sleeping core costs more than that. False: nothing came.
    fn spin(&mut self, began: Time, wake_at: Option<Time>) -> bool {
        if self.ring.has_queued() {
            self.ring.enter(None);
        }
        loop {
            for _ in 0..16 {
                if self.ring.has_news() || self.mailbox.has_mail() {
                    self.ring.enter(None);
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = self.now();
            if now.since(began) > SPIN_US_MAX || wake_at.is_some_and(|at| at <= now) {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BUSY_DEPTH, BUSY_US, Pace, WINDOW_US};
    use weft_engine::Time;

    /// Whether a shard is busy that gets an input every `us` microseconds with so much under way, after three windows.
    fn is_busy(us: u64, depth: usize) -> bool {
        let mut pace = Pace::default();
        let steps = 3 * WINDOW_US / us;
        (1..=steps).map(|step| pace.is_busy(Time(step * us), step, depth)).last().expect("there is a step")
    }

    #[test]
    fn only_who_is_asked_for_much_at_a_time_stays_awake() {
        assert!(is_busy(BUSY_US / 2, BUSY_DEPTH), "a client with many requests under way");
        assert!(!is_busy(BUSY_US * 2, BUSY_DEPTH), "many requests of which each takes long");
        assert!(!is_busy(BUSY_US / 2, 1), "a client that waits for each reply, on a quick drive");
        assert!(!is_busy(1, BUSY_DEPTH - 1), "however quick");
    }

    #[test]
    fn a_burst_is_forgotten() {
        let mut pace = Pace::default();
        pace.is_busy(Time(1), 100, BUSY_DEPTH);
        assert!(pace.is_busy(Time(WINDOW_US), 200, 1), "the window in which it was");
        assert!(!pace.is_busy(Time(WINDOW_US * 2), 300, 1), "the one behind it");
    }

    #[test]
    fn what_is_under_way_at_the_end_of_a_window_counts_for_the_next() {
        let mut pace = Pace::default();
        pace.is_busy(Time(WINDOW_US), 100, BUSY_DEPTH);
        assert!(pace.is_busy(Time(WINDOW_US * 2), 200, 0), "replies come at the moment it is looked at");
    }
}
