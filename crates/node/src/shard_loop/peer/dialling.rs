//! The connections that a shard makes: when one is tried, when an attempt is given up, and how soon the next one may be made.
//! Promises: one attempt at a time for each shard and lane; attempts in vain become rare, up to ten in a second; who is heard of
//! again is tried at once.
//! Leaves to others: what is said on them (`peer`), whether somebody answers there (`watch`).

use super::link::Link;
use super::{Peers, options};
use crate::shard_loop::ring::Ring;
use weft_engine::formats::wire::{Hello, Lane};
use weft_engine::{ShardId, Time};

/// A connection that does not stand after this time is given up.
const CONNECT_US_MAX: u64 = 3_000_000;

/// ... or after this one, if the shard is lost: nobody can tell whether an attempt reaches a wire that has healed since.
const CONNECT_LOST_US_MAX: u64 = 500_000;

/// After an attempt that failed, the next is made so much later; twice as much each time, up to this.
const BACK_OFF_US_MIN: u64 = 10_000;
const BACK_OFF_US_MAX: u64 = 100_000;

/// How things stand with a connection that this shard makes.
#[derive(Default)]
pub(super) struct Dialled {
    pub(super) link: Option<u32>,
    /// Attempts before this are not made.
    pub(super) not_before: Time,
    pub(super) back_off_us: u64,
    /// It stood before: the next one is a reconnection.
    stood: bool,
}

impl Peers {
    /// The connection for questions to this shard; it is made if there is none and the time has come.
    pub(super) fn towards(&mut self, now: Time, to: ShardId, lane: Lane, ring: &mut Ring) -> Option<u32> {
        let address = *self.addresses.get(&to)?;
        let dialled = self.dialled.entry((to, lane)).or_default();
        if let Some(index) = dialled.link {
            return Some(index);
        }
        if now < dialled.not_before {
            return None;
        }
        self.counted.dials += 1;
        self.counted.reconnects += u64::from(dialled.stood);
        let (socket, stands) = match options::dial(address, lane) {
            Ok(dialling) => dialling,
            Err(error) => {
                tracing::debug!(shard = to.0, %address, %error, "a shard cannot be reached");
                dialled.fail(now, false);
                self.watches.fail(now, to);
                return None;
            }
        };
        self.dials += 1;
        let (cluster, life, number, from) = (self.cluster, self.life, self.dials, self.own);
        let mut link = Link::new(socket, to, lane, true, !stands, now);
        assert!(link.push(Hello { cluster, life, number, from, to, lane }.frame()), "the first frame fits");
        let index = self.put(link);
        self.dialled.get_mut(&(to, lane)).expect("just looked at").link = Some(index);
        if stands {
            self.watches.look_by(now);
        } else {
            self.connecting.push(index);
            let tag = self.tags.connect | u64::from(index);
            self.link(index).wait_for_connection(tag, ring);
        }
        Some(index)
    }

    pub fn on_connected(&mut self, index: u32) {
        self.connecting.retain(|other| *other != index);
        self.link(index).on_connected();
        self.touch(index);
        // Whether somebody answers there is asked at once.
        self.watches.look_by(Time(0));
    }

    /// When a connection that is being made will be given up.
    pub(super) fn given_up_at(&self, index: u32) -> Time {
        let link = self.places[index as usize].link.as_ref().expect("what is being made is there");
        let is_lost = self.watches.is_lost(link.shard);
        link.since.after(if is_lost { CONNECT_LOST_US_MAX } else { CONNECT_US_MAX })
    }

    pub fn on_time(&mut self, now: Time) {
        for index in self.connecting.clone() {
            if now >= self.given_up_at(index) {
                self.connecting.retain(|other| *other != index);
                self.break_off(index);
            }
        }
    }

    /// The next attempts to reach this shard need not wait.
    pub(super) fn try_at_once(&mut self, shard: ShardId) {
        for lane in Lane::ALL {
            if let Some(dialled) = self.dialled.get_mut(&(shard, lane)) {
                dialled.not_before = Time(0);
            }
        }
    }
}

impl Dialled {
    /// The connection ended, or was not made. One that worked is made again at once: what is said meanwhile is not lost.
    pub(super) fn fail(&mut self, now: Time, worked: bool) {
        self.stood |= worked;
        self.back_off_us =
            if worked { 0 } else { (2 * self.back_off_us).clamp(BACK_OFF_US_MIN, BACK_OFF_US_MAX) };
        self.not_before = now.after(self.back_off_us);
    }
}

#[cfg(test)]
#[test]
fn attempts_become_rare_and_begin_anew_when_one_worked() {
    let mut dialled = Dialled::default();
    let mut waits = Vec::new();
    for _ in 0..9 {
        dialled.fail(Time(5), false);
        waits.push(dialled.not_before.since(Time(5)) / 1000);
    }
    assert_eq!(waits, [10, 20, 40, 80, 100, 100, 100, 100, 100]);
    assert!(!dialled.stood);
    dialled.fail(Time(5), true);
    assert_eq!((dialled.not_before, dialled.stood), (Time(5), true), "what worked is tried at once");
    dialled.fail(Time(5), false);
    assert_eq!(dialled.not_before, Time(10_005));
}
