//! When former members of a group may be forgotten: the moment from which their copies are garbage.
//!
//! The rule: a group's `former` is cleared when **every owner has audited it in its present version**, that is,
//! when for every family that is not dropped, the shard that owns it in its present epoch has said: under a view that
//! has this version of the group, every member listed every egroup that I place in this group.
//!
//! Why that is enough. Content of egroups never changes, so a member that has an egroup has what the former member
//! had, or would give (what it did not give in a minute is not waited for, decision 0067). Egroups written before the owner saw this version are in its directory and were compared; those written
//! after it go to the present members, and one that was on its way while the view changed is owed a copy when it is
//! named (`check_copies`). So nothing that a former member holds and a present one lacks is named by any family.
//!
//! Why less is not. An owner that has not seen this version may be writing to the former members alone, and
//! after two forgotten moves nobody would look there any more. A family without an owner has said nothing: its
//! egroups may lie on former members only, so groups stay as they are until it was opened. A member that is down
//! cannot be listed, so no group with one is ever settled. An audit of the version before says nothing about the new
//! member. The epoch matters because only the present owner knows what is named.
//!
//! What the caller must keep: an owner begins with a view that is no older than its family's record, so that a
//! family opened or made after `former` was cleared never places an egroup by a version from before.

use super::placement::{Group, Standing};
use super::pool::Pool;
use crate::identity::{DriveId, GroupId};
use std::collections::BTreeSet;

pub(super) fn may_forget_former(group: &Group, pool: &Pool, audited: &BTreeSet<(GroupId, u64)>) -> bool {
    if group.former.is_empty() || !audited.contains(&(group.id, group.version)) {
        return false;
    }
    // Whoever was audited has answered. If it went away since, it has to come back or to be replaced first: its former
    // partners may be the only ones who have the copies.
    let is_there = |member: &DriveId| matches!(pool.standing(*member), Standing::In | Standing::Draining);
    group.members.iter().all(is_there)
}
