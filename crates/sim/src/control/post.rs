//! Orders and notices on their way between the control plane and shards.
//! Promises: orders to one shard arrive in the order they were given, notices of one shard too; a node that is cut off
//! from the store gets its orders later.
//! Leaves to others: what follows from them.

use super::{FamilyPhase, Serving, common_of};
use crate::event::Event;
use crate::judge::registers::Moment;
use crate::world::World;
use rand::Rng;
use weft_engine::interface::{Damage, FamilyTrouble};
use weft_engine::{Input, Notice, Order};

impl World {
    /// Gives an order; it arrives behind all orders given to that shard before.
    pub fn order(&mut self, shard: usize, order: Order) {
        let last = self.control.last_order.entry(shard).or_default();
        let time = (self.now + self.rng.random_range(1..=self.parameters.order_us)).max(*last + 1);
        *last = time;
        let incarnation = self.shards[shard].incarnation;
        self.queue.push(time, Event::Order { shard, incarnation, order });
    }

    pub fn order_arrives(&mut self, shard: usize, incarnation: u32, order: Order) {
        let state = &self.shards[shard];
        if state.incarnation != incarnation || state.engine.is_none() {
            return;
        }
        let node = state.node;
        if let Some(waiting) = &mut self.nodes[node].store_cut {
            waiting.push((shard, incarnation, order));
            return;
        }
        self.order_received(shard, incarnation, order);
    }

    /// An order has come over the link to the store, and is done as soon as the process is awake.
    pub fn order_received(&mut self, shard: usize, incarnation: u32, order: Order) {
        let state = &self.shards[shard];
        if state.incarnation != incarnation || state.engine.is_none() {
            return;
        }
        let node = state.node;
        if let Some(waiting) = &mut self.nodes[node].waiting {
            waiting.push(Event::Order { shard, incarnation, order });
            return;
        }
        match &order {
            Order::OpenFamily(record) => {
                let lease = self.lease_of(shard);
                let entry = &mut self.control.families[record.family.0 as usize];
                if record.epoch < entry.record.epoch || lease != entry.lease {
                    // It waited while somebody else was chosen, or for longer than the lease it was chosen under:
                    // the store would tell the node so.
                    return;
                }
                let serving = Serving { epoch: record.epoch.0, lease };
                entry.serving.insert(shard, serving);
                if record.rollback.is_some() {
                    let state = &mut self.families[record.family.0 as usize];
                    state.rolling_back.insert(record.epoch.0, Moment(0));
                }
            }
            Order::CloseFamily { family } => {
                self.control.families[family.0 as usize].serving.remove(&shard);
            }
            Order::TakeSnapshot { family, snapshot } => {
                self.snapshot_order_received(shard, *family, *snapshot);
            }
            Order::RollBack { family, .. } => self.rollback_order_received(shard, *family),
            Order::Resume { family } => self.resume_received(shard, *family),
            Order::View(_) => {
                let Order::View(view) = order else { unreachable!("it was a view a moment ago") };
                return self.view_received(shard, view);
            }
            _ => {}
        }
        self.deliver(shard, incarnation, Input::Order(order));
    }

    /// A shard has news, which reach the control plane a little later.
    pub fn noticed(&mut self, shard: usize, notice: Notice) {
        let at = self.moment();
        match &notice {
            Notice::FamilyReady { family, epoch, replayed, snapshots } => {
                self.coverage.count("families opened");
                self.coverage.add("records replayed", *replayed);
                if epoch.0 > 1 {
                    self.coverage.count("takeovers");
                    self.taken_over();
                }
                self.families[family.0 as usize].owner_ready(epoch.0, at);
                self.judge_snapshot_list(*family, *epoch, snapshots);
            }
            Notice::FamilyFailed { family, epoch, reason } => {
                self.coverage.count(match reason {
                    FamilyTrouble::NoMember => "openings failed: no member",
                    FamilyTrouble::RecordLost(_) => "openings failed: record lost",
                    FamilyTrouble::PageLost(_) => "openings failed: page lost",
                    FamilyTrouble::Fenced => "owners fenced",
                    FamilyTrouble::NamesUsed => "owners without names for egroups",
                });
                let is_lost = matches!(reason, FamilyTrouble::RecordLost(_) | FamilyTrouble::PageLost(_));
                // One that was replaced meanwhile finds what its successor has deleted.
                let newest = self.control.families[family.0 as usize].record.epoch;
                let is_withheld = self.families[family.0 as usize].is_withheld;
                if is_withheld {
                    self.coverage.count("openings failed: not given");
                }
                if is_lost && *epoch == newest && !self.parameters.destroys && !is_withheld {
                    self.fail(format!(
                        "family {family} cannot be opened, and nothing was ever lost: {reason:?}"
                    ));
                }
                let serving = &mut self.control.families[family.0 as usize].serving;
                if serving.get(&shard).is_some_and(|serving| serving.epoch == epoch.0) {
                    serving.remove(&shard);
                }
            }
            Notice::SnapshotTaken { family, epoch, snapshot, generation } => {
                self.judge_snapshot_taken(*family, *epoch, *snapshot, *generation);
            }
            Notice::SnapshotRefused { family, snapshot, reason, .. } => {
                // No seed makes so many.
                self.fail(format!("family {family}: snapshot {snapshot} was refused: {reason}"));
            }
            Notice::SnapshotDropped { family, epoch, generation } => {
                self.judge_snapshot_dropped(*family, *epoch, *generation);
            }
            Notice::RolledBack { family, epoch, to } => self.judge_rolled_back(*family, *epoch, *to),
            Notice::RollbackRefused { family, epoch, .. } => {
                self.families[family.0 as usize].rolling_back.remove(&epoch.0);
            }
            Notice::FactorReached { family, epoch, factor } => {
                self.judge_factor(shard, *family, *epoch, *factor);
            }
            Notice::GroupsWhole { family, epoch, groups, .. } => {
                self.judge_whole(shard, *family, *epoch, groups);
            }
            Notice::Damage { damage, .. } => self.coverage.count(match damage {
                Damage::Log { .. } => "damage found in logs",
                Damage::Table { .. } => "damage found in tables",
                Damage::CopyBad { .. } => "bad copies found",
                Damage::CopyAwaited { .. } => "copies asked for before they were made",
                Damage::CopyRepaired { .. } => "copies repaired",
                Damage::CopyPartial { .. } => "copies made without what nobody has",
                Damage::WriteLost { .. } => "writes lost in logs",
                Damage::BlockLost { .. } => "blocks without any good copy at the time",
            }),
            _ => {}
        }
        let last = self.control.last_notice.entry(shard).or_default();
        let time = (self.now + self.rng.random_range(1..=self.parameters.order_us)).max(*last + 1);
        *last = time;
        let incarnation = self.shards[shard].incarnation;
        self.queue.push(time, Event::Notice { shard, incarnation, notice });
    }

    pub fn notice_arrives(&mut self, shard: usize, incarnation: u32, notice: Notice) {
        let node = self.shards[shard].node;
        if self.nodes[node].store_cut.is_some() {
            // It is told again until the store can be reached.
            self.queue.push(self.now + 10_000, Event::Notice { shard, incarnation, notice });
            return;
        }
        let alive = self.shards[shard].incarnation == incarnation;
        match notice {
            // What a process asked of the store may be done although the process has died since.
            Notice::ChangeSegments { family, epoch, version, segments } => {
                self.change_segments(shard, family, epoch, version, segments);
            }
            Notice::DriveReady { drive } if alive => self.drive_ready(drive),
            Notice::DriveFailed { drive, reason } if alive => self.drive_failed(drive, reason),
            Notice::FamilyReady { family, epoch, snapshots, .. } if alive => {
                let entry = &mut self.control.families[family.0 as usize];
                if entry.record.epoch == epoch && entry.phase == FamilyPhase::Opening {
                    entry.phase = FamilyPhase::Ready;
                    for (generation, snapshot) in snapshots {
                        self.snapshot_taken(family, snapshot, generation);
                    }
                }
            }
            // What is in the log stays, whatever has become of the process that put it there.
            Notice::SnapshotTaken { family, epoch, snapshot, generation } => {
                self.taken_together(family, epoch, snapshot, generation);
                self.snapshot_taken(family, snapshot, generation);
            }
            Notice::SnapshotDropped { family, generation, .. } => self.snapshot_dropped(family, generation),
            Notice::SnapshotRefused { family, snapshot, .. } => self.snapshot_refused(family, snapshot),
            Notice::RolledBack { family, epoch, to } => self.rollback_ended(family, epoch, to, true),
            Notice::RollbackRefused { family, epoch, to, .. } => {
                self.rollback_ended(family, epoch, to, false);
            }
            Notice::FamilyFailed { family, epoch, reason } if alive => {
                let pause = self.rng.random_range(20_000..200_000);
                let entry = &mut self.control.families[family.0 as usize];
                entry.record_lost = match reason {
                    FamilyTrouble::RecordLost(seq) if entry.record.epoch == epoch => Some(seq),
                    _ => None,
                };
                let open = matches!(entry.phase, FamilyPhase::Opening | FamilyPhase::Ready);
                if entry.record.epoch == epoch && open {
                    entry.phase = FamilyPhase::Closed;
                    entry.owner = None;
                    entry.retry_at = self.now + pause;
                }
            }
            // What was told of is gone for good: the store need not be asked again.
            Notice::StrayFound { drive, family } if alive => {
                assert_eq!(self.control.families[family.0 as usize].phase, FamilyPhase::Dropped);
                self.coverage.count("strays of dropped vDisks found");
                self.order(shard, Order::DropStray { drive, family });
            }
            // Made since the shard was told which there are.
            Notice::UnknownFound { family, .. } if alive => {
                assert!((family.0 as usize) < self.control.families.len(), "nobody has made {family}");
            }
            Notice::FamilyDropped { family } => {
                let entry = &mut self.control.families[family.0 as usize];
                if entry.phase == FamilyPhase::Dropping {
                    entry.phase = FamilyPhase::Dropped;
                    self.coverage.count("families dropped");
                    self.tell_census_to_all();
                }
            }
            Notice::GroupsWhole { family, epoch, view, groups } if alive => {
                self.control.whole.told(family, epoch, common_of(view), &groups);
            }
            Notice::FamilySettled { family } if alive => {
                self.coverage.count("families settled");
                self.control.families[family.0 as usize].settled = true;
            }
            _ => {}
        }
    }
}
