//! Which group an egroup goes to, and how much the groups can take.
//! Promises: the same view and the same draws make the same choice; each drive is looked up once in a choice.
//! Leaves to others: writing it there (`egroup/place.rs`).

use crate::buffer::BLOCK;
use crate::context::Context;
use crate::identity::{DriveId, GroupId};
use crate::interface::{DriveState, DriveView};
use std::collections::BTreeSet;

/// What a choice among all groups asks of every drive, looked up once for each and not for each place in a group.
struct Standings(Vec<(DriveId, Standing)>);

struct Standing {
    up: bool,
    open: bool,
    own: bool,
    free: Option<u64>,
}

impl Standings {
    fn of(ctx: &Context) -> Self {
        let standing = |(&drive, view): (&DriveId, &DriveView)| {
            let (up, open) = (view.state.is_up(), view.state == DriveState::Up);
            let own = view.shard == ctx.shard;
            (drive, Standing { up, open, own, free: ctx.free.get(&drive).copied() })
        };
        Self(ctx.view.drives.iter().map(standing).collect())
    }

    /// None: nobody knows the drive.
    fn get(&self, drive: DriveId) -> Option<&Standing> {
        let at = self.0.binary_search_by_key(&drive, |(drive, _)| *drive).ok()?;
        Some(&self.0[at].1)
    }
}

/// Bytes of client data that the emptiest group of this factor could take.
pub(super) fn roomiest(factor: usize, ctx: &Context) -> u64 {
    let standings = Standings::of(ctx);
    let groups = ctx.view.groups.values().filter(|group| group.members.len() == factor);
    let room = |members: &[DriveId]| {
        let up = members.iter().filter_map(|&drive| standings.get(drive)).filter(|drive| drive.up);
        // A drive that has told nothing yet is taken for empty: it will tell soon.
        up.map(|drive| drive.free.unwrap_or(u64::MAX)).min()
    };
    groups.filter_map(|group| room(&group.members)).max().unwrap_or(u64::MAX)
}

/// A group of this factor that was not tried yet: members all up before some, without a drive that is to be emptied before
/// with, the first member own before others', then by a draw weighted with free space.
pub(super) fn choose(factor: usize, tried: &BTreeSet<GroupId>, ctx: &mut Context) -> Option<GroupId> {
    let mut best: Option<(u32, u64, GroupId)> = None;
    let view = ctx.view;
    let standings = Standings::of(ctx);
    for (&group, members) in view.groups.iter() {
        if members.members.len() != factor || tried.contains(&group) {
            continue;
        }
        let (mut up, mut own, mut stays, mut free) = (0, false, true, None);
        for drive in members.members.iter().filter_map(|&drive| standings.get(drive)) {
            up += u32::from(drive.up);
            own |= drive.own;
            stays &= drive.open || !drive.up;
            free = free.into_iter().chain(drive.free).min();
        }
        if up == 0 {
            continue;
        }
        // Two draws weighted by free space and the better one taken would herd; one draw spreads.
        let weight = free.unwrap_or(1 << 30) / BLOCK as u64 + 1;
        let drawn = ctx.draw.below(weight);
        let rank = up * 4 + u32::from(stays) * 2 + u32::from(own);
        if best.is_none_or(|(best_rank, best_drawn, _)| (rank, drawn) > (best_rank, best_drawn)) {
            best = Some((rank, drawn, group));
        }
    }
    best.map(|(_, _, group)| group)
}
