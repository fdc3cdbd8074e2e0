//! When the ring runs full, the owners of what lies at its tail are asked to drain and checkpoint.

use crate::identity::Time;
use crate::keeper::desk::Desk;
use crate::keeper::holding::Home;
use crate::keeper::ring::Ring;
use crate::keeper::ring_write::TRIM_TOLD_US;
use crate::message::Message;

/// Nobody is asked more often than this.
const INTERVAL_US: u64 = 100_000;

impl Ring {
    fn is_pressed(&self) -> bool {
        self.used() > self.blocks / 2
    }

    /// Asks owners for space if it is short and they were not asked just now.
    pub fn press(&mut self, now: Time, desk: &mut Desk) {
        let recently = self.pressed_at.is_some_and(|at| now.since(at) < INTERVAL_US);
        if !self.is_pressed() || recently {
            return;
        }
        self.pressed_at = Some(now);
        let Some(tail) = self.frames.get(self.dead).map(|frame| frame.position) else { return };
        // Whoever has something in the first part of the ring is asked, when it is urgent all but those that have nothing
        // before the end: what they would write to free space takes more than it frees while others hold the tail.
        let urgent = self.used() > self.blocks / 4 * 3;
        let old = if urgent { self.used() / 4 * 3 } else { self.blocks / 8 };
        for (family, holding) in &self.holdings {
            let (Some(owner), Some((seq, place))) = (holding.owner, holding.places.first_key_value()) else {
                continue;
            };
            let distance = (place.payload + self.blocks - tail) % self.blocks;
            if distance <= old && matches!(place.home, Home::Frame(_)) {
                let message = Message::Press { drive: desk.drive, family: *family, seq: *seq };
                desk.effects.messages.push((owner, message));
            }
        }
    }

    /// When this ring has something to do although nothing happens.
    pub fn wake_at(&self) -> Option<Time> {
        let press = self.pressed_at.filter(|_| self.is_pressed()).map(|at| at.after(INTERVAL_US));
        // With a frame in flight, its end is what makes the next one.
        let tell = self.untold_since.filter(|_| self.flying.is_empty()).map(|at| at.after(TRIM_TOLD_US));
        [press, tell].into_iter().flatten().min()
    }
}
