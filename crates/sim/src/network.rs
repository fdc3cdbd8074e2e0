//! The network: shards of one node speak over something that keeps order and loses nothing; between nodes
//! messages are late, lost, repeated and out of order, and one direction may be cut.

use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;

/// How bad it is now between nodes; of 10,000 messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub loss: u32,
    pub repeat: u32,
    /// Late by up to `late_us` more than usual.
    pub late: u32,
    pub late_us: u64,
}

/// When a message arrives, and when a copy of it does.
pub struct Delivery {
    pub first: Option<u64>,
    pub again: Option<u64>,
}

pub struct Network {
    base_us: u64,
    pub weather: Weather,
    pub weather_until: u64,
    /// Nothing passes from one node to the other until this time.
    cuts: BTreeMap<(usize, usize), u64>,
    /// Of every pair of shards of one node: when the last message arrives.
    last: Vec<u64>,
    shards: usize,
}

impl Network {
    pub fn new(base_us: u64) -> Self {
        Self {
            base_us,
            weather: Weather::default(),
            weather_until: 0,
            cuts: BTreeMap::new(),
            last: Vec::new(),
            shards: 0,
        }
    }

    pub fn set_shards(&mut self, shards: usize) {
        let mut last = vec![0; shards * shards];
        for from in 0..self.shards {
            let before = &self.last[from * self.shards..(from + 1) * self.shards];
            last[from * shards..from * shards + self.shards].copy_from_slice(before);
        }
        self.last = last;
        self.shards = shards;
    }

    /// From shard to shard inside a node.
    pub fn inside(&mut self, now: u64, from: usize, to: usize, rng: &mut SmallRng) -> u64 {
        let last = &mut self.last[from * self.shards + to];
        *last = (now + rng.random_range(2..15)).max(*last + 1);
        *last
    }

    /// From node to node.
    pub fn between(&mut self, now: u64, from: usize, to: usize, rng: &mut SmallRng) -> Delivery {
        if self.is_cut(now, from, to) {
            return Delivery { first: None, again: None };
        }
        let time = now + self.base_us + rng.random_range(0..self.base_us.max(2));
        if self.weather_until <= now {
            return Delivery { first: Some(time), again: None };
        }
        let weather = self.weather;
        let mut dice = |chance: u32| chance > 0 && rng.random_range(0..10_000) < chance;
        let (lost, again, late) = (dice(weather.loss), dice(weather.repeat), dice(weather.late));
        let extra = if late { rng.random_range(0..=weather.late_us) } else { 0 };
        Delivery {
            first: (!lost).then_some(time + extra),
            again: again.then(|| time + rng.random_range(0..=weather.late_us.max(1))),
        }
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: usize, to: usize, until: u64) {
        self.cuts.insert((from, to), until);
    }

    pub fn is_cut(&self, now: u64, from: usize, to: usize) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|&until| until > now)
    }

    pub fn heal(&mut self) {
        self.cuts.clear();
        self.weather_until = 0;
    }
}
