//! What a shard counts for all of its vDisks, when one of them is given up.

use super::*;
use crate::buffer::{BLOCK, Pages};
use crate::formats::record::{Body, Record};
use crate::identity::{Block, Epoch, Seq};
use crate::interface::{Ceiling, Compression, FamilyRecord, FamilyTrouble, Order};

const NOW: Time = Time(1_000_000);

/// A shard that serves two vDisks, without any drive.
fn shard() -> Shard {
    let mut shard = Shard::new(Settings { shard: ShardId(0), seed: 1, limits: Limits::small() });
    for family in [FamilyId(1), FamilyId(2)] {
        let record = FamilyRecord {
            family,
            epoch: Epoch(1),
            size: 1 << 30,
            factor: 1,
            segments: Vec::new(),
            version: 0,
            origin: None,
            rollback: None,
            compression: Compression::default(),
            ceiling: Ceiling::default(),
        };
        shard.step(NOW, Input::Order(Order::OpenFamily(record)), &mut Outputs::default());
    }
    shard
}

fn data(blocks: usize) -> Body {
    Body::Data { block: Block(0), data: Pages::zeroed(blocks * BLOCK).freeze() }
}

/// So many blocks are acknowledged, and twice as many on their way.
fn write(shard: &mut Shard, family: FamilyId, blocks: usize) {
    shard.with_volume(NOW, family, &mut Outputs::default(), |volume, _| {
        volume.apply(&Record { seq: Seq(1), body: data(blocks) }, true);
        volume.log.push(data(2 * blocks));
    });
}

#[test]
fn what_a_vdisk_that_was_given_up_had_in_its_log_keeps_nobody_short() {
    let mut shard = shard();
    let (failed, other) = (FamilyId(1), FamilyId(2));
    write(&mut shard, failed, 100);
    write(&mut shard, other, 1);
    let of_other = shard.volumes[&other].undrained_bytes();
    assert_eq!(shard.world.dirty_bytes, shard.volumes[&failed].undrained_bytes() + of_other);
    assert!(shard.world.dirty_bytes > 300 * BLOCK as u64);
    let mut out = Outputs::default();
    shard.with_volume(NOW, failed, &mut out, |volume, ctx| volume.fail(FamilyTrouble::Fenced, ctx));
    assert_eq!(shard.world.dirty_bytes, of_other);
    assert!(shard.volumes[&failed].is_failed());
    // Nothing is counted twice when it is closed, or opened again.
    shard.step(NOW, Input::Order(Order::CloseFamily { family: failed }), &mut out);
    assert_eq!(shard.world.dirty_bytes, of_other);
    shard.step(NOW, Input::Order(Order::CloseFamily { family: other }), &mut out);
    assert_eq!(shard.world.dirty_bytes, 0);
}
