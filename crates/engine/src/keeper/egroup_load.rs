//! Finding the egroups of a drive again: every page of the table is looked at, and the free space is what
//! no page names or refers to.
//! Promises: a page that is not sound, and may have named something, is not taken for a free one at the first sight
//! (`opening` reads it again, and erases what stays doubtful before anything is put where it may point to).

use crate::buffer::BLOCK;
use crate::formats::references::References;
use crate::formats::table::TablePage;
use crate::interface::{Damage, Notice};
use crate::keeper::desk::Desk;
use crate::keeper::egroups::{Name, Run, Store, Stored};
use std::cmp::Reverse;

/// The pages found so far.
#[derive(Default)]
pub(super) struct TableLoad {
    pages: Vec<TablePage>,
    /// Slots whose pages could not be read, or say nothing that is sound and were of this life of the drive.
    doubtful: Vec<u32>,
}

impl TableLoad {
    /// Pages from the byte `offset` of the data area on.
    pub fn feed(&mut self, store: &Store, offset: u64, bytes: &[u8]) {
        let slot = offset / BLOCK as u64 - store.layout.table;
        for (slot, bytes) in (slot..).zip(bytes.chunks_exact(BLOCK)) {
            // A page of an earlier life of the drive, or of another place, is as good as none.
            let page = TablePage::decode(bytes);
            if page.is_none() && TablePage::may_be_of(bytes, store.incarnation) {
                self.doubtful.push(slot as u32);
            }
            let ours = |page: &TablePage| {
                page.incarnation == store.incarnation
                    && u64::from(page.slot) == slot
                    && store.layout.holds(page.first, page.blocks())
                    && page.references.iter().all(|reference| {
                        let blocks = reference.blocks();
                        store.layout.holds(blocks.start, blocks.end - blocks.start)
                    })
            };
            self.pages.extend(page.filter(ours));
        }
    }

    /// What lies at this byte could not be read, and was fed as zeros.
    pub fn doubt(&mut self, store: &Store, offset: u64) {
        self.doubtful.push((offset / BLOCK as u64 - store.layout.table) as u32);
    }

    /// The same of pages that were asked for before.
    pub fn doubt_slots(&mut self, slots: Vec<u32>) {
        self.doubtful.extend(slots);
    }

    /// A slot whose page has to be read again, or erased, and fed once more.
    pub fn next_doubtful(&mut self) -> Option<u32> {
        self.doubtful.pop()
    }

    /// Whether the page of this slot, which was fed last, is doubtful again; it is not told of another time.
    pub fn takes_back(&mut self, slot: u32) -> bool {
        self.doubtful.pop_if(|last| *last == slot).is_some()
    }

    /// Everything was fed: makes an empty store hold it.
    pub fn finish(mut self, store: &mut Store, desk: &mut Desk) {
        // Of each name the newest revision is the one that is kept. Where pages name the same blocks, because a drive lost an erasure that it had
        // acknowledged, the one of the younger name is most likely the living one, and a former revision never is.
        self.pages.sort_unstable_by_key(|page| (page.family, Reverse(page.egroup), Reverse(page.revision)));
        let mut last = None;
        let is_newest =
            |page: &TablePage| last.replace((page.family, page.egroup)) != Some((page.family, page.egroup));
        let (newest, former): (Vec<_>, Vec<_>) = self.pages.into_iter().partition(is_newest);
        let mut references = Vec::new();
        for page in newest.into_iter().chain(former) {
            let (name, slot): (Name, u32) = ((page.family, page.egroup), page.slot);
            let (first, blocks) = (page.first, page.blocks());
            store.free_slots.remove(&slot);
            references.push(page.references.clone());
            let taken = store.space.take(first, blocks);
            if taken && !store.egroups.contains_key(&name) {
                let stored = Stored {
                    slot,
                    revision: page.revision,
                    first,
                    trailer_crc: page.trailer_crc,
                    hashes_crc: page.hashes_crc,
                    references: page.references,
                    checksums: page.checksums,
                    packing: page.packing,
                    flushed: page.hashes_crc.is_some(),
                    is_found: true,
                    told: false,
                    asked: None,
                };
                store.put(name, stored);
            } else {
                // A copy that was replaced, or (on a drive that lost what it had acknowledged) one that names blocks of another. Its
                // page goes, or it would come back when the other one is deleted.
                let blocks = if taken { blocks } else { 0 };
                if !taken {
                    let damage = Damage::Table { offset: store.layout.page_offset(slot) };
                    desk.notice(Notice::Damage { drive: desk.drive, damage });
                }
                store.erase_stray(name, Run { slot, first, blocks, references: page.references }, desk);
            }
        }
        // What references name is not free, whether a run has it or not.
        for reference in references.iter().flat_map(References::iter) {
            store.holds.raise(reference.blocks());
            for blocks in store.space.take_free(reference.blocks()) {
                let free = store.holds.leave(blocks);
                assert!(free.is_empty(), "it was just referred to");
            }
        }
        store.begin_refill();
    }
}
