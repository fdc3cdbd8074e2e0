//! A device of either kind, as the world sees it: commands go in, and it says when they will have ended.

use super::hdd::Hdd;
use super::ssd::Ssd;

#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub is_write: bool,
    pub offset: u64,
    pub bytes: u64,
}

/// When which commands will end.
pub type Ends = Vec<(u64, u64)>;

pub enum Device {
    Hdd(Hdd),
    Ssd(Ssd),
}

impl Device {
    /// Takes a command; `ends` gets what is sure to end when by now.
    pub fn submit(&mut self, now: u64, id: u64, work: Work, ends: &mut Ends) {
        match self {
            Device::Hdd(disk) => disk.submit(now, id, work, ends),
            Device::Ssd(ssd) => ssd.submit(now, id, work, ends),
        }
    }

    /// A command has ended, as it said.
    pub fn on_end(&mut self, now: u64, ends: &mut Ends) {
        match self {
            Device::Hdd(disk) => disk.on_end(now, ends),
            Device::Ssd(_) => {}
        }
    }

    /// Nanoseconds it has worked so far.
    pub fn busy(&self) -> u64 {
        match self {
            Device::Hdd(disk) => disk.busy(),
            Device::Ssd(ssd) => ssd.busy(),
        }
    }
}

/// Keeps `depth` commands at a device until `count` have ended; gives the time that took.
#[cfg(test)]
pub fn run_closed(
    count: u64,
    depth: usize,
    mut work: impl FnMut() -> Work,
    mut device: impl FnMut(u64, Result<(u64, Work), u64>, &mut Ends),
) -> u64 {
    let (mut ends, mut started) = (Ends::new(), 0);
    for _ in 0..depth {
        device(0, Ok((started, work())), &mut ends);
        started += 1;
    }
    let mut ended = 0;
    loop {
        let place = (0..ends.len()).min_by_key(|&place| ends[place]).expect("something is under way");
        let (now, id) = ends.swap_remove(place);
        ended += 1;
        if ended == count {
            return now;
        }
        device(now, Ok((started, work())), &mut ends);
        started += 1;
        device(now, Err(id), &mut ends);
    }
}
