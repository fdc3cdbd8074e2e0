//! Everything is read back, when all is at rest: the present of each vDisk, then its snapshots.
//! Leaves to others: whether what is read is right (`answers`).

use crate::control::FamilyPhase;
use crate::event::Event;
use crate::requests::{Asked, Open};
use crate::world::World;
use weft_engine::identity::Generation;

/// Blocks per read.
const READ_BACK_BLOCKS: u64 = 64;

/// Where a reader is.
#[derive(Clone)]
pub(super) struct Reader {
    family: usize,
    run: usize,
    block: u64,
    /// None: the present. Then come these snapshots.
    snapshot: Option<Generation>,
    next: Vec<Generation>,
}

impl World {
    pub(crate) fn begin_read_back(&mut self) {
        self.forget_snapshot_orders();
        for family in 0..self.families.len() {
            if self.control.families[family].phase != FamilyPhase::Ready {
                continue;
            }
            let client = self.clients.iter().position(|client| client.family == family);
            let client = client.expect("every vDisk has a client");
            let next = self.families[family].snapshots.staying();
            self.coverage.add("snapshots read back", next.len() as u64);
            self.progress.readers.insert(client, Reader { family, run: 0, block: 0, snapshot: None, next });
            self.read_back(client);
        }
    }

    /// A read that the owner was too busy for, or that whoever is owner now has to answer.
    pub fn read_back_again(&mut self, open: &Open) {
        let (snapshot, first, sectors) = match open.asked {
            Asked::Read { first, sectors } => (None, first, sectors),
            Asked::ReadSnapshot { snapshot, first, sectors } => (Some(snapshot), first, sectors),
            _ => unreachable!("a reader only reads"),
        };
        let Open { client, family, shard, .. } = *open;
        let shard = self.control.families[family].owner.unwrap_or(shard);
        let event = Event::ReadBack { client, family, shard, snapshot, first, sectors };
        self.queue.push(self.now + 1_000, event);
    }

    /// The next read of a reader, when its last one was answered.
    pub fn read_back(&mut self, client: usize) {
        let Some(reader) = self.progress.readers.get_mut(&client) else { return };
        if reader.run == self.families[reader.family].layout.runs.len() {
            let Some(next) = reader.next.pop() else {
                self.progress.readers.remove(&client);
                return;
            };
            (reader.snapshot, reader.run, reader.block) = (Some(next), 0, 0);
        }
        let Reader { family, run, block, snapshot, .. } = *reader;
        let runs = &self.families[family].layout.runs;
        // By turns in order and not, so that data that follows is touched in both ways.
        let is_backwards = self.progress.passes % 2 == 1;
        let place = runs[if is_backwards { runs.len() - 1 - run } else { run }];
        // One by one where a read of many may fail for one of them.
        let most = if self.families[family].rotten.is_empty() { READ_BACK_BLOCKS } else { 1 };
        let len = most.min(place.blocks as u64 - block);
        let run_ends = block + len == place.blocks as u64;
        (reader.run, reader.block) = if run_ends { (run + 1, 0) } else { (run, block + len) };
        let block = if is_backwards { place.blocks as u64 - block - len } else { block };
        // Whoever is asked says that it does not serve it.
        let anybody = || self.parameters.may_lose_owners_at_rest().then_some(0);
        let Some(owner) = self.control.families[family].owner.or_else(anybody) else {
            self.fail(format!("family {family} lost its owner while nothing failed"));
            return;
        };
        self.coverage.count("read-back requests");
        // Not at once: the shard is still in the step that answered the last read.
        let (first, sectors) = ((place.real + block) * 8, len * 8);
        let event = Event::ReadBack { client, family, shard: owner, snapshot, first, sectors };
        self.queue.push(self.now + 1, event);
    }
}
