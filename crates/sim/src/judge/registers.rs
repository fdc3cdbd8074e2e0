//! A vDisk is an array of registers, one per sector of 512 bytes, and every value was written once.
//! Promises: a read is accepted if and only if some order of the writes explains it: it returns the last
//! acknowledged write before it began, or one that was under way meanwhile, or one whose outcome nobody
//! knows, and what one read has seen a later read does not take back.
//!
//! How: each register keeps the writes that may still be its value. A write is *settled* from the moment on
//! when it surely has taken effect or never will: its acknowledgement, or the end of a read that saw it. When
//! a write that began after another was settled is acknowledged, or seen, the other is *dead* from that
//! moment on: only reads that had begun before may still return it.

use crate::layout::Layout;
use crate::stamp::{SECTOR, number_in};
use weft_engine::buffer::Buffer;

/// A point in the history of the world; no two things happen at the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(pub u64);

pub(super) const NEVER: Moment = Moment(u64::MAX);
pub(super) const SECTORS: u64 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    pub number: u32,
    pub zero: bool,
    pub began: Moment,
    pub settled: Moment,
    pub dead: Moment,
}

/// What was there before anything was written.
pub(super) const BLANK: Candidate =
    Candidate { number: 0, zero: true, began: Moment(0), settled: Moment(0), dead: NEVER };

/// The possible values of a block; by sectors once a part of it was written.
#[derive(Clone, Debug)]
pub(super) enum Register {
    Whole(Vec<Candidate>),
    Sectors(Box<[Vec<Candidate>; 8]>),
}

/// A write, as the judge knows it. Sectors are of the vDisk.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub number: u32,
    pub first: u64,
    pub sectors: u64,
    pub zero: bool,
    pub began: Moment,
}

/// All sectors of one vDisk.
#[derive(Clone)]
pub struct Registers {
    pub(super) family: usize,
    pub(super) registers: Vec<Register>,
}

impl Registers {
    pub fn new(family: usize, blocks: usize) -> Self {
        Self { family, registers: vec![Register::Whole(Vec::new()); blocks] }
    }

    pub fn grow(&mut self, blocks: usize) {
        self.registers.resize(blocks, Register::Whole(Vec::new()));
    }

    /// A write was given to the engine: from now on it may be read.
    pub fn began(&mut self, layout: &Layout, write: Write) {
        let Write { number, zero, began, .. } = write;
        let candidate = Candidate { number, zero, began, settled: NEVER, dead: NEVER };
        self.each(layout, &write, |candidates| {
            if candidates.is_empty() {
                candidates.push(BLANK);
            }
            candidates.push(candidate);
        });
    }

    /// A write was acknowledged at `at`. No read that is still open began before `oldest_read`.
    pub fn acknowledged(&mut self, layout: &Layout, write: Write, at: Moment, oldest_read: Moment) {
        self.each(layout, &write, |candidates| {
            for candidate in candidates.iter_mut() {
                if candidate.number == write.number {
                    candidate.settled = candidate.settled.min(at);
                } else if candidate.settled < write.began {
                    candidate.dead = candidate.dead.min(at);
                }
            }
            candidates.retain(|candidate| candidate.dead > oldest_read);
        });
        self.unite(layout, &write);
    }

    /// A write whose outcome is unknown has taken effect before `at`, or never will.
    pub fn settled(&mut self, layout: &Layout, write: Write, at: Moment) {
        self.each(layout, &write, |candidates| {
            for candidate in candidates.iter_mut().filter(|candidate| candidate.number == write.number) {
                candidate.settled = candidate.settled.min(at);
            }
        });
    }

    /// A write was refused: nobody may ever see it.
    pub fn refused(&mut self, layout: &Layout, write: Write) {
        self.each(layout, &write, |candidates| {
            candidates.retain(|candidate| candidate.number != write.number);
        });
    }

    /// A read that began at `began` returns `pieces` at `at`.
    pub fn read(
        &mut self,
        layout: &Layout,
        first: u64,
        pieces: &[Buffer],
        began: Moment,
        at: Moment,
        oldest_read: Moment,
    ) -> Result<(), String> {
        let mut stream = Stream::of(pieces);
        let sectors = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() / SECTOR as u64;
        let end = first + sectors;
        let span = end.div_ceil(SECTORS) - first / SECTORS;
        let mut covered = 0;
        for (compact, real, blocks) in layout.used(first / SECTORS, span) {
            for index in 0..blocks {
                let block = real + index as u64;
                let from = (block * SECTORS).max(first);
                let to = ((block + 1) * SECTORS).min(end);
                covered += to - from;
                let register = &mut self.registers[compact + index];
                read_block(register, self.family, from, to, &mut stream, [began, at, oldest_read])?;
            }
        }
        assert_eq!(covered, sectors, "clients read only what the layout uses");
        Ok(())
    }

    /// Whether `sectors` from `first` on may read as zeros for a request that began at `began`.
    /// What the layout does not use is zero for ever.
    pub fn may_be_zero(&self, layout: &Layout, first: u64, sectors: u64, began: Moment) -> Result<(), u64> {
        self.any_in_each(layout, first, sectors, |candidate| candidate.zero && candidate.dead > began)
    }

    /// Whether each of the sectors has a value that `fits`; sectors that were never written do. Err: the first that has none.
    pub(super) fn any_in_each(
        &self,
        layout: &Layout,
        first: u64,
        sectors: u64,
        fits: impl Fn(&Candidate) -> bool,
    ) -> Result<(), u64> {
        let end = first + sectors;
        for (compact, real, blocks) in layout.used(first / SECTORS, end.div_ceil(SECTORS) - first / SECTORS) {
            for index in 0..blocks {
                let block = real + index as u64;
                for sector in (block * SECTORS).max(first)..((block + 1) * SECTORS).min(end) {
                    let candidates = match &self.registers[compact + index] {
                        Register::Whole(candidates) => candidates,
                        Register::Sectors(all) => &all[(sector % SECTORS) as usize],
                    };
                    if !candidates.is_empty() && !candidates.iter().any(&fits) {
                        return Err(sector);
                    }
                }
            }
        }
        Ok(())
    }

    fn each(&mut self, layout: &Layout, write: &Write, mut change: impl FnMut(&mut Vec<Candidate>)) {
        let end = write.first + write.sectors;
        let first_block = write.first / SECTORS;
        for (compact, real, blocks) in layout.used(first_block, end.div_ceil(SECTORS) - first_block) {
            for index in 0..blocks {
                let block = real + index as u64;
                let from = (block * SECTORS).max(write.first) - block * SECTORS;
                let to = ((block + 1) * SECTORS).min(end) - block * SECTORS;
                let register = &mut self.registers[compact + index];
                if let Register::Whole(candidates) = register {
                    if to - from == SECTORS {
                        change(candidates);
                        continue;
                    }
                    let whole = std::mem::take(candidates);
                    *register = Register::Sectors(Box::new(std::array::from_fn(|_| whole.clone())));
                }
                let Register::Sectors(all) = register else { unreachable!("it was divided above") };
                for sector in from..to {
                    change(&mut all[sector as usize]);
                }
            }
        }
    }

    /// Blocks whose sectors agree again become whole: it is cheaper.
    fn unite(&mut self, layout: &Layout, write: &Write) {
        for (compact, _, blocks) in layout.used(write.first / SECTORS, write.sectors / SECTORS) {
            for register in &mut self.registers[compact..compact + blocks] {
                if let Register::Sectors(all) = register
                    && all[1..].iter().all(|other| *other == all[0])
                {
                    *register = Register::Whole(std::mem::take(&mut all[0]));
                }
            }
        }
    }
}

fn read_block(
    register: &mut Register,
    family: usize,
    from: u64,
    to: u64,
    stream: &mut Stream,
    moments: [Moment; 3],
) -> Result<(), String> {
    let mut last = None;
    let whole = matches!(register, Register::Whole(_));
    for sector in from..to {
        let found = number_in(family, sector, stream.next());
        let number = found.map_err(|mark| {
            format!("sector {sector} holds what no write of this family put there: {mark:#018x}")
        })?;
        let candidates = match register {
            // The sectors of a whole block are one value: judge it once.
            Register::Whole(_) if last == Some(number) => continue,
            Register::Whole(candidates) => candidates,
            Register::Sectors(all) => &mut all[(sector % SECTORS) as usize],
        };
        // A block that was only ever written whole is of one write, on whatever side of a crash (I5).
        if whole && last.is_some() {
            return Err(format!(
                "sector {sector} and the one before it are of different writes of the whole block"
            ));
        }
        last = Some(number);
        see(candidates, number, moments).map_err(|()| {
            format!(
                "sector {sector} read as write {number} at {} by a read begun at {}; possible: {}",
                moments[1].0,
                moments[0].0,
                describe(candidates)
            )
        })?;
    }
    Ok(())
}

/// The values for whoever looks into a failing seed.
pub(super) fn describe(candidates: &[Candidate]) -> String {
    let describe = |candidate: &Candidate| {
        let settled =
            if candidate.settled == NEVER { "open".into() } else { candidate.settled.0.to_string() };
        let dead =
            if candidate.dead == NEVER { "possible".into() } else { format!("dead {}", candidate.dead.0) };
        let Candidate { number, began, .. } = candidate;
        let zeros = if candidate.zero { " zeros" } else { "" };
        format!("{number}{zeros} (begun {}, settled {settled}, {dead})", began.0)
    };
    let list: Vec<String> = candidates.iter().map(describe).collect();
    if list.is_empty() { "zeros".into() } else { list.join(", ") }
}

/// A read saw `number` here.
fn see(candidates: &mut Vec<Candidate>, number: u32, moments: [Moment; 3]) -> Result<(), ()> {
    let [began, at, oldest_read] = moments;
    if candidates.is_empty() {
        return if number == 0 { Ok(()) } else { Err(()) };
    }
    let matches = |candidate: &Candidate| {
        if number == 0 { candidate.zero } else { candidate.number == number && !candidate.zero }
    };
    let possible = candidates.iter().filter(|c| matches(c) && c.dead > began).count();
    if possible == 0 {
        return Err(());
    }
    let mut changed = false;
    for candidate in candidates.iter_mut() {
        if matches(candidate) {
            // Of several writes of zeros nobody can tell which one was seen.
            if possible == 1 && candidate.dead > began {
                candidate.settled = candidate.settled.min(at);
            }
        } else if candidate.settled < began && candidate.dead == NEVER {
            candidate.dead = at;
            changed = true;
        }
    }
    if changed {
        candidates.retain(|candidate| candidate.dead > oldest_read);
    }
    Ok(())
}

/// Goes over the pieces of a reply sector by sector.
pub(super) struct Stream<'a> {
    pieces: &'a [Buffer],
    piece: usize,
    offset: usize,
    spanning: [u8; SECTOR],
}

impl<'a> Stream<'a> {
    pub fn of(pieces: &'a [Buffer]) -> Self {
        Self { pieces, piece: 0, offset: 0, spanning: [0; SECTOR] }
    }

    pub fn next(&mut self) -> &[u8] {
        while self.offset == self.pieces[self.piece].len() {
            self.piece += 1;
            self.offset = 0;
        }
        let piece = self.pieces[self.piece].bytes();
        if piece.len() - self.offset >= SECTOR {
            self.offset += SECTOR;
            return &piece[self.offset - SECTOR..self.offset];
        }
        let mut filled = 0;
        while filled < SECTOR {
            let rest = &self.pieces[self.piece].bytes()[self.offset..];
            let part = rest.len().min(SECTOR - filled);
            self.spanning[filled..filled + part].copy_from_slice(&rest[..part]);
            filled += part;
            self.offset += part;
            if filled < SECTOR {
                self.piece += 1;
                self.offset = 0;
            }
        }
        &self.spanning
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::content;

    struct Story {
        layout: Layout,
        registers: Registers,
    }

    fn story() -> Story {
        Story { layout: Layout::dense(4), registers: Registers::new(1, 4) }
    }

    impl Story {
        fn began(&mut self, number: u32, began: u64) -> Write {
            let write = Write { number, first: 8, sectors: 8, zero: false, began: Moment(began) };
            self.registers.began(&self.layout, write);
            write
        }

        fn acknowledged(&mut self, write: Write, at: u64) {
            self.registers.acknowledged(&self.layout, write, Moment(at), Moment(0));
        }

        fn read(&mut self, number: u32, began: u64, at: u64) -> Result<(), String> {
            let data = content(1, number, 8, 8);
            self.registers.read(&self.layout, 8, &[data], Moment(began), Moment(at), Moment(0))
        }
    }

    #[test]
    fn an_acknowledged_write_is_read_and_the_one_before_is_not() {
        let mut story = story();
        let first = story.began(1, 1);
        story.acknowledged(first, 2);
        let second = story.began(2, 3);
        assert!(story.read(1, 4, 5).is_ok() && story.read(2, 4, 6).is_ok(), "both while it is under way");
        assert!(story.read(1, 7, 8).is_err(), "what was seen is not taken back");
        story.acknowledged(second, 9);
        assert!(story.read(1, 10, 11).is_err() && story.read(2, 10, 11).is_ok());
        assert!(story.read(3, 10, 11).is_err(), "nobody wrote that");
    }

    #[test]
    fn a_read_under_way_may_return_what_was_replaced_meanwhile() {
        let mut story = story();
        let first = story.began(1, 1);
        story.acknowledged(first, 2);
        let second = story.began(2, 4);
        story.acknowledged(second, 5);
        assert!(story.read(1, 3, 6).is_ok(), "it began before the second was acknowledged");
        assert!(story.read(1, 6, 7).is_err());
    }

    #[test]
    fn a_write_without_answer_may_appear_late_but_only_until_its_owner_is_replaced() {
        let mut story = story();
        let lost = story.began(1, 1);
        let second = story.began(2, 2);
        story.acknowledged(second, 3);
        assert!(story.read(2, 4, 5).is_ok());
        story.registers.settled(&story.layout, lost, Moment(6));
        assert!(story.read(2, 7, 8).is_ok());
        assert!(
            story.read(1, 9, 10).is_err(),
            "it had its chance before moment 6, and moment 7 showed that it lost"
        );
    }

    #[test]
    fn parts_of_a_block_are_judged_by_sector() {
        let mut story = story();
        let first = story.began(1, 1);
        story.acknowledged(first, 2);
        let part = Write { number: 2, first: 10, sectors: 2, zero: false, began: Moment(3) };
        story.registers.began(&story.layout, part);
        story.registers.acknowledged(&story.layout, part, Moment(4), Moment(0));
        assert!(story.read(1, 5, 6).is_err(), "two sectors are newer");
        let pieces = [content(1, 1, 8, 2), content(1, 2, 10, 2), content(1, 1, 12, 4)];
        let layout = &story.layout;
        assert!(story.registers.read(layout, 8, &pieces, Moment(5), Moment(6), Moment(0)).is_ok());
    }
}
