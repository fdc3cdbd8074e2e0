//! Filling the index of what may be shared again after an opening: the hashes are in the trailers of the egroups.
//! Promises: one small read at a time, with a pause behind each; it ends when the index is full. What is told by a trailer was durable: the
//! page that names the trailer came behind the data (`egroup_change`).
//! Leaves to others: what is written meanwhile, which enters by itself; whether what is told is still so (`proof`).

use crate::buffer::{BLOCK, Buffer};
use crate::formats::table::{Hash, decode_hashes};
use crate::identity::Time;
use crate::interface::{Area, DriveWork};
use crate::keeper::desk::{Desk, Work};
use crate::keeper::egroup_read::tell_damage;
use crate::keeper::egroups::{Name, Store, Stored};
use crate::keeper::holds::Holds;
use crate::keeper::share_index::ShareIndex;
use crate::keeper::sharing::{entries_of, own_entries};
use crate::sabotage::{Bug, planted};

/// Between two reads. An egroup is 4 MiB, so what a large index has room for is known within seconds.
const PAUSE_US: u64 = 2_000;

#[derive(Debug, Default)]
pub(super) struct Refill {
    /// Egroups whose trailers are still to be read, the last one first.
    names: Vec<Name>,
    /// The next one is read then; None while one is being read.
    at: Option<Time>,
    /// Whose trailer was bad, or could not be read, and is read once more.
    bad: Option<Name>,
}

impl Store {
    /// All egroups are known.
    pub fn begin_refill(&mut self) {
        let hashed = self.egroups.iter().filter(|(_, stored)| stored.hashes_crc.is_some());
        let mut places: Vec<(u64, Name)> = hashed.map(|(name, stored)| (stored.first, *name)).collect();
        // In order of place, for the sake of drives that turn.
        places.sort_unstable_by(|one, other| other.cmp(one));
        let names = places.into_iter().map(|(_, name)| name).collect();
        self.refill = Refill { names, at: Some(Time(0)), bad: None };
    }

    /// When the next trailer is to be read.
    pub fn refill_at(&self) -> Option<Time> {
        self.refill.at.filter(|_| !self.refill.names.is_empty())
    }

    pub fn continue_refill(&mut self, now: Time, desk: &mut Desk) {
        if self.refill_at().is_none_or(|at| at > now) {
            return;
        }
        while let Some(name) = self.refill.names.pop() {
            let Some(stored) = self.egroups.get(&name) else { continue };
            let index = &self.sharing.index;
            if index.len() + stored.hashes() as usize > index.limit() {
                // The rest is found when it is written again.
                self.refill.names.clear();
                return;
            }
            // Of one that was written since, everything is known; it would only be learnt twice.
            if stored.hashes_crc.is_none() || !stored.is_found {
                continue;
            }
            let (first, blocks) = stored.trailer();
            let (offset, len) = (first * BLOCK as u64, blocks as u32 * BLOCK as u32);
            let slot = stored.slot;
            self.readers[slot as usize] += 1;
            self.refill.at = None;
            desk.submit(Area::Data, DriveWork::Read { offset, len }, Work::Refill { name, slot });
            return;
        }
    }

    /// A trailer was read; None if it could not be.
    pub fn on_hashes_read(
        &mut self,
        now: Time,
        name: Name,
        slot: u32,
        bytes: Option<Buffer>,
        desk: &mut Desk,
    ) {
        self.refill.at = Some(now.after(PAUSE_US));
        let Self { egroups, sharing, holds, refill, .. } = self;
        let stored = egroups.get_mut(&name).filter(|stored| stored.slot == slot && !stored.told);
        if let Some(stored) = stored
            && let Some(crc) = stored.hashes_crc
        {
            let decoded = |bytes: Buffer| decode_hashes(bytes.bytes(), stored.units(), stored.hashes(), crc);
            match bytes.and_then(decoded) {
                Some(hashes) => enter(stored, &hashes, holds, &mut sharing.index),
                // The fault may pass.
                None if refill.bad != Some(name) => {
                    refill.bad = Some(name);
                    refill.names.push(name);
                }
                None => tell_damage(name, stored, desk),
            }
        }
        self.end_reading(slot);
    }
}

/// What the hashes of an egroup tell. Whether it is still so nobody has seen: it may be bad, and even be known to be from somebody else's
/// read, or from before the opening.
fn enter(stored: &Stored, hashes: &[Hash], holds: &Holds, index: &mut ShareIndex) {
    let proven = planted(Bug::UnprovenShared);
    let Stored { packing, references, .. } = stored;
    let (packing, units) = (packing.as_deref(), stored.units());
    let own = own_entries(packing, units, references, hashes, proven);
    index.add(stored.first * BLOCK as u64, own);
    // What no run has any more is told of only by those who refer to it.
    for reference in references.iter().filter(|reference| holds.is_left(reference.blocks())) {
        let entries = entries_of(packing, units, reference, hashes, proven);
        if !index.is_at(reference.place, &entries[0].hash) {
            index.add(reference.place, entries);
        }
    }
}
