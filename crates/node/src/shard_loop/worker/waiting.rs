//! How a shard waits: it looks for something to do for a moment while load is steady, and sleeps otherwise.
//! Promises: an idle shard uses no time; whatever happens ends the sleep.

use super::{TAG_BELL, Worker};
use io_uring::{opcode, types};
use std::time::Duration;
use weft_engine::Time;

/// The loop looks for completions this long before it sleeps, while load is steady.
const SPIN_US_MAX: u64 = 30;

/// Waits count as this long at most, however long they were: load that begins again is soon noticed.
pub(super) const LONG_US: u64 = 4 * SPIN_US_MAX;

impl Worker {
    /// When the loop has to turn even if nothing happens.
    fn wake_at(&self) -> Option<Time> {
        let negotiations = (self.statistics.connections > 0).then_some(self.look_at_negotiations);
        [self.shard.wake_at(), self.retry_at, negotiations].into_iter().flatten().min()
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
        let now = self.now();
        let wake_at = self.wake_at();
        let due = wake_at.is_some_and(|at| at <= now);
        let drained = self.draining.is_some() && self.statistics.connections == 0;
        if due || drained || !self.inputs.is_empty() || self.mailbox.has_mail() {
            self.ring.enter(None);
            return;
        }
        if self.may_spin && self.wait_us_mean <= SPIN_US_MAX && self.spin(now, wake_at) {
            return;
        }
        if !self.mailbox.fall_asleep() {
            self.ring.enter(None);
            return;
        }
        self.statistics.sleeps += 1;
        let longest = wake_at.map_or(Duration::MAX, |at| Duration::from_micros(at.since(now)));
        self.ring.enter(Some(longest));
        self.mailbox.wake_up();
        self.note_wait(now);
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
                    self.note_wait(began);
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

    fn note_wait(&mut self, began: Time) {
        let waited = self.now().since(began).min(LONG_US);
        self.wait_us_mean = (self.wait_us_mean * 15 + waited) / 16;
    }
}
