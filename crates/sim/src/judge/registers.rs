//! A vDisk is an array of registers, one per sector of 512 bytes, and every value was written once; but for zeros and parts of
//! images, of which nobody can tell who wrote them if several did.
//! Promises: a read is accepted if and only if some order of the writes explains it: it returns the last
//! acknowledged write before it began, or one that was under way meanwhile, or one whose outcome nobody
//! knows, and what one read has seen a later read does not take back.
//!
//! How: each register keeps the writes that may still be its value. A write is *settled* from the moment on
//! when it surely has taken effect or never will: its acknowledgement, or the end of a read that saw it. When
//! a write that began after another was settled is acknowledged, or seen, the other is *dead* from that
//! moment on: only reads that had begun before may still return it.

use crate::layout::Layout;
use crate::stamp::{Mark, Shown};

/// A point in the history of the world; no two things happen at the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(pub u64);

pub(super) const NEVER: Moment = Moment(u64::MAX);
pub(super) const SECTORS: u64 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    pub number: u32,
    pub zero: bool,
    pub image: Option<u8>,
    pub began: Moment,
    pub settled: Moment,
    pub dead: Moment,
}

/// What was there before anything was written.
pub(super) const BLANK: Candidate =
    Candidate { number: 0, zero: true, image: None, began: Moment(0), settled: Moment(0), dead: NEVER };

/// The possible values of a block; by sectors once a part of it was written.
#[derive(Clone, Debug)]
pub(super) enum Register {
    Whole(Vec<Candidate>),
    Sectors(Box<[Vec<Candidate>; 8]>),
}

impl Register {
    /// The possible values of a sector of the vDisk that lies in this block.
    fn of_sector(&self, sector: u64) -> &[Candidate] {
        match self {
            Self::Whole(candidates) => candidates,
            Self::Sectors(all) => &all[(sector % SECTORS) as usize],
        }
    }
}

/// A write, as the judge knows it. Sectors are of the vDisk.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub number: u32,
    pub first: u64,
    pub sectors: u64,
    pub zero: bool,
    /// It writes a part of this image.
    pub image: Option<u8>,
    pub began: Moment,
}

/// All sectors of one vDisk.
#[derive(Clone)]
pub struct Registers {
    pub(super) family: usize,
    /// What was there before anything was written is that of another vDisk's snapshot.
    pub(super) is_clone: bool,
    pub(super) registers: Vec<Register>,
}

impl Registers {
    pub fn new(family: usize, blocks: usize, is_clone: bool) -> Self {
        Self { family, is_clone, registers: vec![Register::Whole(Vec::new()); blocks] }
    }

    pub fn grow(&mut self, blocks: usize) {
        self.registers.resize(blocks, Register::Whole(Vec::new()));
    }

    /// A write was given to the engine: from now on it may be read.
    pub fn began(&mut self, layout: &Layout, write: Write) {
        let Write { number, zero, image, began, .. } = write;
        let candidate = Candidate { number, zero, image, began, settled: NEVER, dead: NEVER };
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

    /// A read that began at `began` shows this at `at`. Gives what of it was there before anything was written, as far as
    /// that is not zeros for sure: of a clone it is judged elsewhere.
    pub fn read(
        &mut self,
        layout: &Layout,
        shown: &[(u64, Mark)],
        began: Moment,
        at: Moment,
        oldest_read: Moment,
    ) -> Result<Shown, String> {
        let mut inherited = Vec::new();
        for in_block in shown.chunk_by(|one, other| one.0 / SECTORS == other.0 / SECTORS) {
            let place = layout.place(in_block[0].0 / SECTORS);
            let (family, is_clone) = (self.family, self.is_clone);
            let register = &mut self.registers[place];
            read_block(register, family, is_clone, in_block, [began, at, oldest_read], &mut inherited)?;
        }
        Ok(inherited)
    }

    /// Whether `sectors` from `first` on may read as zeros for a request that began at `began`. Gives those that were zeros
    /// before anything was written, or not at all. What the layout does not use is zero for ever.
    pub fn may_be_zero(
        &self,
        layout: &Layout,
        first: u64,
        sectors: u64,
        began: Moment,
    ) -> Result<Vec<u64>, u64> {
        self.zeros_in_each(layout, first, sectors, |candidate| candidate.dead > began)
    }

    /// Whether each of the sectors has a value of zeros that is `possible`. Err: the first that has none. Gives those that were
    /// zeros before anything was written, or not at all.
    pub(super) fn zeros_in_each(
        &self,
        layout: &Layout,
        first: u64,
        sectors: u64,
        possible: impl Fn(&Candidate) -> bool,
    ) -> Result<Vec<u64>, u64> {
        let end = first + sectors;
        let mut inherited = Vec::new();
        for (compact, real, blocks) in layout.used(first / SECTORS, end.div_ceil(SECTORS) - first / SECTORS) {
            for index in 0..blocks {
                let block = real + index as u64;
                for sector in (block * SECTORS).max(first)..((block + 1) * SECTORS).min(end) {
                    let candidates = self.registers[compact + index].of_sector(sector);
                    let mut zeros = candidates.iter().filter(|c| c.zero && possible(c)).peekable();
                    if !candidates.is_empty() && zeros.peek().is_none() {
                        return Err(sector);
                    }
                    if self.is_clone && zeros.all(|candidate| candidate.number == 0) {
                        inherited.push(sector);
                    }
                }
            }
        }
        Ok(inherited)
    }

    /// Whether another one may have taken the place of this write in `sector` when it was acknowledged: it was under way meanwhile. Then
    /// nothing of it need be anywhere.
    pub fn may_be_replaced(&self, layout: &Layout, write: &Write, sector: u64) -> bool {
        let candidates = self.registers[layout.place(sector / SECTORS)].of_sector(sector);
        candidates.iter().any(|other| other.number != write.number && other.settled >= write.began)
    }

    /// The vDisk is what its snapshot was from `at` on, as far as that is known, and whatever was to be written before never
    /// will.
    pub(super) fn roll_back(&mut self, mut to: Registers, at: Moment, possible: impl Fn(&Candidate) -> bool) {
        let is_blank = |candidates: &[Candidate]| matches!(candidates, [only] if only.number == 0);
        let mut restore = |candidates: &mut Vec<Candidate>| {
            candidates.retain(&possible);
            for candidate in candidates.iter_mut() {
                (candidate.settled, candidate.dead) = (at, NEVER);
            }
            if is_blank(candidates) {
                candidates.clear();
            }
        };
        for register in &mut to.registers {
            match register {
                Register::Whole(candidates) => restore(candidates),
                Register::Sectors(all) => all.iter_mut().for_each(&mut restore),
            }
        }
        self.registers = to.registers;
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

/// Above all numbers of writes: parts of images as values of a register.
const IMAGES: u32 = 1 << 30;

/// What of a block was shown, as a value of its register: the number of the write, 0 for zeros and for what may have been there
/// before.
pub(super) fn value_in(mark: Mark, family: usize, is_clone: bool, sector: u64) -> Result<u32, String> {
    match mark {
        Mark::Zeros => Ok(0),
        Mark::Image(_) if is_clone => Ok(0),
        Mark::Image(image) => Ok(IMAGES | u32::from(image)),
        Mark::Of { family: of, number } if of == family & 0xff => Ok(number),
        Mark::Of { .. } if is_clone => Ok(0),
        Mark::Of { family, number } => {
            Err(format!("sector {sector} holds what write {number} of another vDisk, {family}, put there"))
        }
    }
}

fn read_block(
    register: &mut Register,
    family: usize,
    is_clone: bool,
    shown: &[(u64, Mark)],
    moments: [Moment; 3],
    inherited: &mut Shown,
) -> Result<(), String> {
    let mut last = None;
    let whole = matches!(register, Register::Whole(_));
    for &(sector, mark) in shown {
        let number = value_in(mark, family, is_clone, sector)?;
        let candidates = match register {
            Register::Whole(candidates) => candidates,
            Register::Sectors(all) => &mut all[(sector % SECTORS) as usize],
        };
        if is_clone && number == 0 {
            // Zeros may be its own, and parts of images.
            let own = |c: &Candidate| c.number > 0 && is_shown(c, number, mark) && c.dead > moments[0];
            if !candidates.iter().any(own) {
                inherited.push((sector, mark));
            }
        }
        // The sectors of a whole block are one value: judge it once.
        if whole && last == Some(number) {
            continue;
        }
        // A block that was only ever written whole is of one write, on whatever side of a crash (I5).
        if whole && last.is_some() {
            return Err(format!(
                "sector {sector} and the one before it are of different writes of the whole block"
            ));
        }
        last = Some(number);
        see(candidates, number, mark, moments).map_err(|()| {
            format!(
                "sector {sector} read as {mark:?} at {} by a read begun at {}; possible: {}",
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

/// Whether this is what a read saw.
pub(super) fn is_shown(candidate: &Candidate, number: u32, mark: Mark) -> bool {
    match mark {
        Mark::Zeros => candidate.zero,
        Mark::Image(image) if candidate.image == Some(image) => true,
        _ if number == 0 => candidate.number == 0,
        Mark::Image(_) => false,
        Mark::Of { .. } => candidate.number == number && !candidate.zero && candidate.image.is_none(),
    }
}

/// A read saw `number` here; what is 0 and no zeros was there before anything was written.
fn see(candidates: &mut Vec<Candidate>, number: u32, mark: Mark, moments: [Moment; 3]) -> Result<(), ()> {
    let [began, at, oldest_read] = moments;
    if candidates.is_empty() {
        return if number == 0 { Ok(()) } else { Err(()) };
    }
    let matches = |candidate: &Candidate| is_shown(candidate, number, mark);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::{content, image_content, marks};
    use weft_engine::buffer::Buffer;

    struct Story {
        layout: Layout,
        registers: Registers,
    }

    fn story() -> Story {
        Story { layout: Layout::dense(4), registers: Registers::new(1, 4, false) }
    }

    impl Story {
        fn began(&mut self, number: u32, began: u64) -> Write {
            let write =
                Write { number, first: 8, sectors: 8, zero: false, image: None, began: Moment(began) };
            self.registers.began(&self.layout, write);
            write
        }

        fn acknowledged(&mut self, write: Write, at: u64) {
            self.registers.acknowledged(&self.layout, write, Moment(at), Moment(0));
        }

        fn read(&mut self, number: u32, began: u64, at: u64) -> Result<(), String> {
            self.shows(&[content(1, number, 8, 8)], began, at).map(drop)
        }

        fn shows(&mut self, pieces: &[Buffer], began: u64, at: u64) -> Result<Shown, String> {
            let shown = marks(8, pieces)?;
            self.registers.read(&self.layout, &shown, Moment(began), Moment(at), Moment(0))
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
    fn only_a_write_that_was_under_way_meanwhile_may_replace_one_before_it_is_acknowledged() {
        let mut story = story();
        let first = story.began(1, 1);
        story.acknowledged(first, 2);
        let second = story.began(2, 3);
        assert!(!story.registers.may_be_replaced(&story.layout, &second, 8), "the first had settled");
        let third = story.began(3, 4);
        for at in [5, 6] {
            assert!(story.registers.may_be_replaced(&story.layout, &second, 8));
            assert!(!story.registers.may_be_replaced(&story.layout, &second, 16), "nobody wrote there");
            story.acknowledged(third, at);
        }
        assert!(story.registers.may_be_replaced(&story.layout, &third, 8), "the second is still under way");
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
        let part = Write { number: 2, first: 10, sectors: 2, zero: false, image: None, began: Moment(3) };
        story.registers.began(&story.layout, part);
        story.registers.acknowledged(&story.layout, part, Moment(4), Moment(0));
        assert!(story.read(1, 5, 6).is_err(), "two sectors are newer");
        let pieces = [content(1, 1, 8, 2), content(1, 2, 10, 2), content(1, 1, 12, 4)];
        assert!(story.shows(&pieces, 5, 6).is_ok());
    }

    #[test]
    fn what_a_clone_has_not_written_is_left_to_its_origin_and_what_it_has_is_not() {
        let mut story = story();
        story.registers = Registers::new(1, 4, true);
        let foreign = content(7, 3, 8, 8);
        assert_eq!(story.shows(std::slice::from_ref(&foreign), 1, 2).expect("it is the origin's").len(), 8);
        let part = Write { number: 2, first: 10, sectors: 2, zero: false, image: None, began: Moment(3) };
        story.registers.began(&story.layout, part);
        story.registers.acknowledged(&story.layout, part, Moment(4), Moment(0));
        assert!(story.shows(std::slice::from_ref(&foreign), 5, 6).is_err(), "two sectors are its own");
        let pieces = [content(7, 3, 8, 2), content(1, 2, 10, 2), content(7, 3, 12, 4)];
        assert_eq!(story.shows(&pieces, 5, 6).expect("two sectors are its own").len(), 6);
        let trim = Write { number: 3, first: 8, sectors: 8, zero: true, image: None, began: Moment(7) };
        story.registers.began(&story.layout, trim);
        story.registers.acknowledged(&story.layout, trim, Moment(8), Moment(0));
        assert!(story.shows(&[foreign], 9, 10).is_err(), "it was trimmed");
        assert_eq!(story.shows(&[weft_engine::buffer::zeros(4096)], 9, 10), Ok(Vec::new()));
        assert_eq!(story.registers.may_be_zero(&story.layout, 8, 16, Moment(11)), Ok((16..24).collect()));
    }

    #[test]
    fn parts_of_an_image_are_anybodys_who_wrote_them_and_of_that_image_only() {
        let mut story = story();
        let image = |number, image| Write {
            number,
            first: 8,
            sectors: 8,
            zero: false,
            image: Some(image),
            began: Moment(u64::from(number)),
        };
        let shown = |of| image_content(of, 8, 8);
        assert!(story.shows(&[shown(1)], 1, 1).is_err(), "nobody wrote that");
        for number in [2, 4] {
            story.registers.began(&story.layout, image(number, 1));
            story.acknowledged(image(number, 1), u64::from(number) + 1);
        }
        assert!(story.shows(&[shown(1)], 6, 7).is_ok() && story.shows(&[shown(2)], 6, 7).is_err());
        assert!(story.read(4, 6, 7).is_err(), "its own mark is not what it wrote");
        let other = story.began(8, 8);
        story.acknowledged(other, 9);
        assert!(story.shows(&[shown(1)], 10, 11).is_err() && story.read(8, 10, 11).is_ok());
        // A clone may have it from its origin, until it has written something else.
        story.registers = Registers::new(1, 4, true);
        assert_eq!(story.shows(&[shown(3)], 12, 13).expect("it may be the origin's").len(), 8);
        story.registers.began(&story.layout, image(14, 1));
        story.acknowledged(image(14, 1), 15);
        assert!(story.shows(&[shown(3)], 16, 17).is_err());
        assert_eq!(story.shows(&[shown(1)], 16, 17), Ok(Vec::new()), "its own");
    }

    #[test]
    fn what_is_rolled_back_is_the_snapshot_and_nothing_that_was_written_since() {
        let mut story = story();
        let first = story.began(1, 1);
        story.acknowledged(first, 2);
        let snapshot = story.registers.clone();
        let second = story.began(2, 3);
        story.acknowledged(second, 4);
        story.began(3, 5);
        story.registers.roll_back(snapshot, Moment(6), |_| true);
        assert!(story.read(2, 7, 8).is_err() && story.read(3, 7, 8).is_err());
        assert!(story.read(1, 7, 8).is_ok());
        let fourth = story.began(4, 9);
        story.acknowledged(fourth, 10);
        assert!(story.read(1, 11, 12).is_err() && story.read(4, 11, 12).is_ok());
    }
}
