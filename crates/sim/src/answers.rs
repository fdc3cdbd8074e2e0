//! What clients are told: every answer goes to the judges.
//! Promises: each request is answered once (I9), or its shard or node is gone.
//! Leaves to others: what is right (`judge`), and what is asked (`client`).

use crate::family::{BLOCK_SECTORS, Family};
use crate::judge::copies::durable_copies;
use crate::judge::refusals::Life;
use crate::judge::registers::{Moment, Write};
use crate::phase::Phase;
use crate::requests::{Asked, Open};
use crate::stamp::{Mark, SECTOR, Shown, image_stamp, marks, stamp};
use crate::world::{ShardState, World};
use rand::Rng;
use std::collections::BTreeMap;
use weft_engine::buffer::Buffer;
use weft_engine::interface::{Extent, RequestError};
use weft_engine::{DriveId, FamilyId, Reply, Ticket};

impl World {
    /// A shard answered.
    pub fn replied(&mut self, shard: usize, ticket: Ticket, reply: Reply) {
        let Some(open) = self.requests.close(ticket) else {
            self.fail(format!(
                "a second reply, or one to a request that nobody made: ticket {ticket} {reply:?}"
            ));
            return;
        };
        if open.shard != shard {
            self.fail(format!("shard {shard} answered what shard {} was asked", open.shard));
            return;
        }
        if let Asked::ForClone { ask } = open.asked {
            return self.origin_answered(&open, ask, reply);
        }
        self.coverage.count("replies judged");
        let at = self.moment();
        let family = open.family;
        let is_asked_again = matches!(reply, Reply::Error(error) if self.may_fail_when_read_back(error));
        if let Err(what) = self.judge_reply(ticket, &open, reply, at) {
            self.fail(format!(
                "family {family}: {what} ({:?} at shard {shard}, epoch {}, asked at moment {})",
                open.asked, open.epoch, open.began.0
            ));
        }
        self.families[family].open_reads.remove(&open.began);
        self.clients[open.client].open -= 1;
        if self.phase != Phase::ReadBack {
            return;
        }
        if is_asked_again {
            self.read_back_again(&open);
        } else {
            self.read_back(open.client);
        }
    }

    /// What is no fault of an owner when everything is read back, and asked again. Clones ask as well: all together may be more than
    /// it takes at once.
    fn may_fail_when_read_back(&self, error: RequestError) -> bool {
        match error {
            RequestError::Busy => self.parameters.clones.is_some(),
            RequestError::Fenced | RequestError::NotServed => self.parameters.may_lose_owners_at_rest(),
            _ => false,
        }
    }

    fn judge_reply(&mut self, ticket: Ticket, open: &Open, reply: Reply, at: Moment) -> Result<(), String> {
        let error = match reply {
            Reply::Error(error) => error,
            reply => return self.judge_success(open, reply, at),
        };
        self.coverage.count(match error {
            RequestError::OutOfRange => "errors out of range",
            RequestError::NotServed => "errors not served",
            RequestError::NoSpace => "errors no space",
            RequestError::Damaged { .. } => "errors damaged",
            RequestError::Fenced => "errors fenced",
            RequestError::Busy => "errors busy",
            RequestError::NoSnapshot => "errors no snapshot",
        });
        if error == RequestError::NoSpace {
            self.judge_refusal(ticket, open)?;
        }
        let may_fail = self.may_fail_when_read_back(error);
        let family = &mut self.families[open.family];
        let end = match open.asked {
            Asked::Read { first, sectors }
            | Asked::Extents { first, sectors, .. }
            | Asked::Warm { first, sectors }
            | Asked::ReadSnapshot { first, sectors, .. }
            | Asked::SnapshotExtents { first, sectors, .. } => first + sectors,
            Asked::Write { number } => family.write(number).first + family.write(number).sectors,
            Asked::Flush => 0,
            Asked::ForClone { .. } => unreachable!("it is no client's"),
        };
        // What was added later may be unknown to an owner whose order is still on its way.
        if error == RequestError::OutOfRange && end <= family.first_size {
            return Err("a request inside the vDisk was refused as outside".into());
        }
        // One that was replaced does not know what its successor deletes. Whoever serves a clone may have it from such a one.
        let is_replaced =
            open.epoch < self.control.families[open.family].record.epoch.0 || family.origin.is_some();
        let is_rotten = matches!(error, RequestError::Damaged { block } if family.rotten.contains(&block));
        if is_rotten {
            self.coverage.count("requests for what had become bad everywhere");
        }
        let has_faltered =
            matches!(error, RequestError::Damaged { block } if family.faltered.contains(&block));
        let may_be_damaged = self.parameters.destroys || is_replaced || is_rotten || has_faltered;
        if matches!(error, RequestError::Damaged { .. }) && !may_be_damaged {
            return Err(format!("something is damaged, says an owner, and nothing ever was: {error:?}"));
        }
        if self.phase == Phase::ReadBack && !may_fail && !is_rotten {
            return Err(format!("after everything was repaired a request failed: {error:?}"));
        }
        if error == RequestError::NoSnapshot {
            let missing = match open.asked {
                Asked::ReadSnapshot { snapshot, .. } | Asked::SnapshotExtents { snapshot, .. } => {
                    family.snapshots.may_be_missing(snapshot, open.epoch)
                }
                _ => false,
            };
            return if missing { Ok(()) } else { Err("there is no such snapshot, says an owner".into()) };
        }
        let Asked::Write { number } = open.asked else { return Ok(()) };
        let write = family.write(number);
        match error {
            RequestError::NoSnapshot => unreachable!("it was judged above"),
            RequestError::NotServed | RequestError::Busy | RequestError::OutOfRange => {
                family.registers.refused(&family.layout, write);
                family.snapshots.refused(&family.layout, write);
            }
            // Nobody knows what became of it until another owner has taken over.
            RequestError::Fenced | RequestError::NoSpace | RequestError::Damaged { .. } => {
                family.unknown.push((number, open.epoch));
            }
        }
        Ok(())
    }

    fn life_of(&self, open: &Open) -> Life {
        (open.shard, self.shards[open.shard].incarnation, FamilyId(open.family as u32), open.epoch)
    }

    fn judge_refusal(&mut self, ticket: Ticket, open: &Open) -> Result<(), String> {
        let state = &self.shards[open.shard];
        let Asked::Write { number } = open.asked else { return Ok(()) };
        let write = self.families[open.family].write(number);
        // What has parts may have been refused long before the answer.
        let is_whole =
            write.first.is_multiple_of(BLOCK_SECTORS) && write.sectors.is_multiple_of(BLOCK_SECTORS);
        if write.zero || !is_whole {
            return Ok(());
        }
        let (life, clock) = (self.life_of(open), self.now + state.clock_ahead);
        let Some(engine) = state.engine.as_deref() else { return Ok(()) };
        self.coverage.count("refusals for want of space that were judged");
        self.refusals.refused(ticket, life, engine, clock)?;
        let has_room = self.have_drives_room(open.shard, life.2);
        self.coverage.add("refusals beside drives with room", u64::from(has_room));
        self.refusals.refused_beside(has_room, self.is_settling(), life, clock)
    }

    /// Nothing fails any more, and everything is being drained.
    fn is_settling(&self) -> bool {
        self.phase == Phase::Settling
    }

    /// Whether the drives have room for a small write, and nothing keeps them from telling it to those who ask.
    fn have_drives_room(&mut self, shard: usize, family: FamilyId) -> bool {
        if !self.is_settling() && self.parameters.faults.iter().any(|fault| fault.keeps_from_telling()) {
            return false;
        }
        let keepers = |state: &ShardState| -> Vec<(DriveId, u64)> {
            let engine = state.engine.as_deref().into_iter();
            engine
                .flat_map(|engine| engine.keepers())
                .map(|(drive, keeper)| (drive, keeper.free_bytes()))
                .collect()
        };
        let free: BTreeMap<DriveId, u64> = self.shards.iter().flat_map(keepers).collect();
        let engine = self.shards[shard].engine.as_deref_mut().expect("it has just refused");
        // Whoever is not there tells nothing.
        engine.view().drives.keys().all(|drive| free.contains_key(drive))
            && engine.would_have_room(family, &free)
    }

    fn judge_success(&mut self, open: &Open, reply: Reply, at: Moment) -> Result<(), String> {
        if let Some(bytes) = self.bytes_of(open) {
            let (shard, family) = (open.shard, FamilyId(open.family as u32));
            let clock = self.now + self.shards[shard].clock_ahead;
            if self.ceilings.answered(shard, family, bytes, open.since, clock)? {
                self.coverage.count("requests judged by a limit");
            }
        }
        let stale_before = self.control.families[open.family].stale_before;
        let life = self.life_of(open);
        let family = &mut self.families[open.family];
        if family.rolling_back.get(&open.epoch).is_some_and(|since| *since < open.began) {
            return Err("a client is served while the vDisk is rolled back".into());
        }
        let oldest = family.oldest_read(at);
        match (open.asked, reply) {
            (Asked::Flush, Reply::Done) => Ok(()),
            (Asked::Write { number }, Reply::Done) => {
                let write = family.write(number);
                family.registers.acknowledged(&family.layout, write, at, oldest);
                self.coverage.count("writes acknowledged");
                // What goes around the log says nothing of the ring.
                let is_small = write.sectors * (SECTOR as u64) < self.parameters.limits.bypass_write_bytes;
                if !write.zero && is_small {
                    self.refusals.done(life, open.clock);
                }
                self.judge_copies(open.family, write)
            }
            (Asked::Read { first, sectors }, Reply::Data(pieces)) => {
                let shown = shown(first, sectors, &pieces)?;
                if open.epoch < stale_before {
                    // Somebody was put into its place although its lease was good: for once nothing but fences
                    // protects, and those keep nobody from reading.
                    self.coverage.count("reads of replaced owners, not judged");
                    return Ok(());
                }
                self.coverage.count("reads judged");
                let inherited = family.registers.read(&family.layout, &shown, open.began, at, oldest)?;
                self.judge_inherited(open.family, inherited)
            }
            (Asked::Extents { first, sectors, limit }, Reply::Extents(extents)) => {
                if open.epoch < stale_before {
                    return Ok(());
                }
                self.coverage.count("extents judged");
                let family = &self.families[open.family];
                let is_clone = family.origin.is_some();
                judge_extents(first, sectors, limit, is_clone, &extents, |first, sectors| {
                    let inherited =
                        family.registers.may_be_zero(&family.layout, first, sectors, open.began)?;
                    self.may_be_inherited_zeros(open.family, inherited)
                })
            }
            // A snapshot never changes: also what a replaced owner knows of it is right.
            (Asked::ReadSnapshot { snapshot, first, sectors }, Reply::Data(pieces)) => {
                let shown = shown(first, sectors, &pieces)?;
                if !family.snapshots.may_be_found(snapshot, open.epoch, open.began) {
                    return Err("a snapshot that was dropped is still read".into());
                }
                self.coverage.count("snapshot reads judged");
                let Family { snapshots, registers, layout, .. } = family;
                let judged = snapshots.read(snapshot, layout, registers, &shown);
                let inherited = judged.map_err(|what| format!("generation {snapshot}: {what}"))?;
                self.judge_together(open.family, snapshot)?;
                self.judge_inherited(open.family, inherited)
            }
            (Asked::SnapshotExtents { snapshot, first, sectors, limit }, Reply::Extents(extents)) => {
                if !family.snapshots.may_be_found(snapshot, open.epoch, open.began) {
                    return Err("extents of a snapshot that was dropped are still told".into());
                }
                self.coverage.count("snapshot extents judged");
                let family = &self.families[open.family];
                let is_clone = family.origin.is_some();
                judge_extents(first, sectors, limit, is_clone, &extents, |first, sectors| {
                    let inherited = family.snapshots.may_be_zero(snapshot, &family.layout, first, sectors)?;
                    self.may_be_inherited_zeros(open.family, inherited)
                })
            }
            (Asked::Warm { first, sectors }, Reply::Warmed(warmed)) => {
                self.coverage.count("steps of warming");
                let (from, end) = (first * SECTOR as u64, (first + sectors) * SECTOR as u64);
                if warmed.to <= from || warmed.to > end {
                    return Err(format!("warming of {from} to {end} came to {}", warmed.to));
                }
                Ok(())
            }
            (_, reply) => Err(format!("the reply is of another kind: {reply:?}")),
        }
    }

    /// What a request moved, if limits count it.
    fn bytes_of(&self, open: &Open) -> Option<u64> {
        match open.asked {
            Asked::Read { sectors, .. } | Asked::ReadSnapshot { sectors, .. } => {
                Some(sectors * SECTOR as u64)
            }
            Asked::Write { number } => {
                let write = self.families[open.family].write(number);
                Some(if write.zero { 0 } else { write.sectors * SECTOR as u64 })
            }
            Asked::Flush
            | Asked::Extents { .. }
            | Asked::Warm { .. }
            | Asked::SnapshotExtents { .. }
            | Asked::ForClone { .. } => None,
        }
    }

    /// What a clone shows and has not written was in the snapshot that it began as.
    fn judge_inherited(&mut self, family: usize, shown: Shown) -> Result<(), String> {
        let (mut clone, mut shown) = (family, shown);
        while !shown.is_empty() {
            let origin = self.families[clone].origin.expect("only a clone inherits");
            let end = origin.size / SECTOR as u64;
            if let Some((sector, mark)) =
                shown.iter().find(|(sector, mark)| *sector >= end && *mark != Mark::Zeros)
            {
                return Err(format!(
                    "sector {sector} of clone {clone} is behind the end of its origin, and holds {mark:?}"
                ));
            }
            shown.retain(|(sector, _)| *sector < end);
            self.coverage.add("sectors of clones judged by their origin", shown.len() as u64);
            let of = origin.family.0 as usize;
            let Family { snapshots, registers, layout, .. } = &mut self.families[of];
            let judged = snapshots.read(origin.snapshot, layout, registers, &shown);
            shown = judged.map_err(|what| {
                format!("clone {clone} of generation {} of family {of}: {what}", origin.snapshot)
            })?;
            clone = of;
        }
        Ok(())
    }

    /// Whether these sectors, which a clone has not written, may have been zeros in its origin. Err: one that cannot.
    fn may_be_inherited_zeros(&self, family: usize, sectors: Vec<u64>) -> Result<(), u64> {
        let (mut clone, mut sectors) = (family, sectors);
        while !sectors.is_empty() {
            let origin = self.families[clone].origin.expect("only a clone inherits");
            let of = origin.family.0 as usize;
            let Family { snapshots, layout, .. } = &self.families[of];
            let mut further = Vec::new();
            for sector in sectors.into_iter().filter(|sector| *sector < origin.size / SECTOR as u64) {
                further.append(&mut snapshots.may_be_zero(origin.snapshot, layout, sector, 1)?);
            }
            (clone, sectors) = (of, further);
        }
        Ok(())
    }

    /// Sometimes, at an acknowledgement, counts the drives that hold the write (I1).
    fn judge_copies(&mut self, family: usize, write: Write) -> Result<(), String> {
        let whole = write.first.is_multiple_of(BLOCK_SECTORS) && write.sectors.is_multiple_of(BLOCK_SECTORS);
        if write.zero || !whole || self.rng.random_range(0..32) != 0 {
            return Ok(());
        }
        let is_well = self.control.all_well_since(self.now.saturating_sub(2_000_000)) && self.all_in_sight();
        let factor = self.families[family].factor as usize;
        let wanted = match self.victim {
            None if is_well => factor,
            None => 1,
            // Rot may have eaten its copy between the write and now; that is not the engine's doing.
            Some(_) if is_well => factor - 1,
            Some(victim) if self.absentee.is_some() && !self.is_alone(family, victim) => 1,
            Some(_) => 0,
        };
        if wanted == 0 {
            return Ok(());
        }
        let last = write.first + write.sectors - BLOCK_SECTORS;
        let Family { registers, layout, .. } = &self.families[family];
        for sector in [write.first, last] {
            if registers.may_be_replaced(layout, &write, sector) {
                continue;
            }
            let mark = match write.image {
                Some(image) => image_stamp(image, sector),
                None => stamp(family, write.number, sector),
            };
            let block = sector / BLOCK_SECTORS;
            let drives = self.drives.iter().enumerate().filter(|(index, _)| self.victim != Some(*index));
            let drives = drives.map(|(_, drive)| drive);
            let copies = durable_copies(drives, FamilyId(family as u32), block, mark);
            if copies < wanted {
                return Err(format!(
                    "write {} was acknowledged with {copies} durable copies of sector {sector}, {wanted} are due",
                    write.number
                ));
            }
        }
        self.coverage.count("acknowledgements with copies counted");
        Ok(())
    }

    /// The process that was asked is dead: nobody will ever answer.
    pub fn forget_requests_of(&mut self, shard: usize) {
        for open in self.requests.close_all_at(shard) {
            self.forget_request(&open);
            self.coverage.count("requests cut off");
        }
    }

    /// The node must not answer any more: it drops the connection instead.
    pub fn withhold(&mut self, ticket: Ticket) {
        let Some(open) = self.requests.close(ticket) else {
            self.fail(format!("a second reply, or one to a request that nobody made: ticket {ticket}"));
            return;
        };
        self.forget_request(&open);
        self.coverage.count("replies withheld without a lease");
    }

    /// The client hears nothing: a write was done or not.
    fn forget_request(&mut self, open: &Open) {
        if let Asked::ForClone { ask } = open.asked {
            return self.origin_unheard(ask);
        }
        let family = &mut self.families[open.family];
        family.open_reads.remove(&open.began);
        if let Asked::Write { number } = open.asked {
            family.unknown.push((number, open.epoch));
        }
        self.clients[open.client].open -= 1;
    }
}

/// What a read of so many sectors showed.
fn shown(first: u64, sectors: u64, pieces: &[Buffer]) -> Result<Shown, String> {
    let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    if len != sectors * SECTOR as u64 {
        return Err(format!("a read of {sectors} sectors got {len} bytes"));
    }
    marks(first, pieces)
}

/// `may_be_zero` says whether sectors can read as zeros, or which one cannot.
fn judge_extents(
    first: u64,
    sectors: u64,
    limit: u32,
    is_clone: bool,
    extents: &[Extent],
    may_be_zero: impl Fn(u64, u64) -> Result<(), u64>,
) -> Result<(), String> {
    let len: u64 = extents.iter().map(|extent| extent.len).sum();
    if extents.is_empty() || extents.len() > limit as usize || extents.iter().any(|extent| extent.len == 0) {
        return Err(format!("{} extents, {limit} were allowed, none may be empty", extents.len()));
    }
    if len > sectors * SECTOR as u64 {
        return Err(format!("extents of {len} bytes for {sectors} sectors"));
    }
    // What an origin has said may become one with what is around it.
    if len < sectors * SECTOR as u64 && extents.len() < limit as usize && !is_clone {
        return Err(format!("extents end after {len} bytes although more were allowed"));
    }
    let mut at = first * SECTOR as u64;
    for extent in extents {
        if !extent.data {
            // Sectors that lie in it as a whole.
            let from = at.div_ceil(SECTOR as u64);
            let to = (at + extent.len) / SECTOR as u64;
            if from < to {
                may_be_zero(from, to - from)
                    .map_err(|sector| format!("sector {sector} is told to be a hole, but holds data"))?;
            }
        }
        at += extent.len;
    }
    Ok(())
}
