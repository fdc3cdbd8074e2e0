//! When the ring runs full, the owners of what lies at its tail are asked to drain and checkpoint.

use crate::formats::frame::RecordKind;
use crate::identity::Time;
use crate::keeper::desk::Desk;
use crate::keeper::holding::Home;
use crate::keeper::ring::Ring;
use crate::keeper::ring_write::TRIM_TOLD_US;
use crate::message::Message;

/// Nobody is asked more often than this: in haste, or not.
const INTERVAL_URGENT_US: u64 = 20_000;
const INTERVAL_US: u64 = 100_000;

impl Ring {
    fn is_pressed(&self) -> bool {
        self.used() > self.blocks / 2
    }

    /// Client data gets hardly anything any more.
    pub(super) fn is_urgent(&self) -> bool {
        self.free() <= self.reserve()
    }

    fn press_again_at(&self) -> Option<Time> {
        let interval = if self.is_urgent() { INTERVAL_URGENT_US } else { INTERVAL_US };
        self.pressed_at.map(|at| at.after(interval))
    }

    /// Asks owners for space if it is short and they were not asked just now.
    pub fn press(&mut self, now: Time, desk: &mut Desk) {
        let recently = self.press_again_at().is_some_and(|at| now < at);
        if !self.is_pressed() || recently {
            return;
        }
        self.pressed_at = Some(now);
        let Some(tail) = self.frames.get(self.dead).map(|frame| frame.position) else { return };
        // Whoever has something in the first part of the ring is asked, everybody who can make it emptier when it is
        // urgent.
        let urgent = self.is_urgent();
        for (family, holding) in &self.holdings {
            let (Some(owner), Some((seq, place))) = (holding.owner, holding.places.first_key_value()) else {
                continue;
            };
            let distance = (place.payload + self.blocks - tail) % self.blocks;
            let near = distance <= self.blocks / 8 && matches!(place.home, Home::Frame(_));
            // A family that has nothing but its checkpoint here can only write that again. As long as another one is at
            // the tail this would use up the ring and free nothing.
            let rests = holding.places.len() == 1 && place.kind == RecordKind::Checkpoint;
            if near || urgent && !rests {
                let message = Message::Press { drive: desk.drive, family: *family, seq: *seq };
                desk.effects.messages.push((owner, message));
            }
        }
    }

    /// When this ring has something to do although nothing happens.
    pub fn wake_at(&self) -> Option<Time> {
        let press = self.press_again_at().filter(|_| self.is_pressed());
        // With a frame in flight, its end is what makes the next one.
        let tell = self.untold_since.filter(|_| self.flying.is_empty()).map(|at| at.after(TRIM_TOLD_US));
        [press, tell].into_iter().flatten().min()
    }
}
