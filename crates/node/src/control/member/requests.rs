//! What people ask of a member about vDisks: written into the store, and waited for until it has become true.

use super::Member;
use super::hand_over::may_serve;
use crate::api::{CreateVdisk, ExportVdisk, ExportView, VdiskView};
use crate::calendar;
use crate::config::cluster::{ClusterError, ClusterStore, NewVdisk, Versioned};
use crate::config::{DEFAULT_CONTAINER, ExportRecord, FamilyConfig, FamilyState, SnapshotKey, SnapshotState};
use crate::control::change::change_vdisk;
use crate::control::exports::{Exported, Meant};
use crate::control::policy;
use crate::control::refusal::Refusal;
use crate::control::vdisks::{
    CREATE_WAIT, Deletion, check_factor, check_growth, check_name, check_size, wait_until_gone,
};
use crate::control::{Control, SharedControl};
use std::time::Duration;
use weft_engine::interface::{Reply, Request};
use weft_engine::{FamilyId, SnapshotId};

/// vDisks of one cluster.
const VDISKS_MAX: usize = 100_000;

/// What was written into the store is known here within this time, or etcd is in trouble.
const NEWS_WAIT: Duration = Duration::from_secs(10);

/// An etcd that works answers within this time.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// What the store has by now is heard here within this time. It may never be: others may write into the same etcd.
const CATCH_UP_WAIT: Duration = Duration::from_secs(2);

/// A node that is being started, or has just been, is up within this time.
const PLACES_WAIT: Duration = Duration::from_secs(5);

/// A hand-over that is not over by then goes on by itself.
const MOVE_WAIT: Duration = Duration::from_secs(30);

impl From<ClusterError> for Refusal {
    fn from(error: ClusterError) -> Self {
        match &error {
            ClusterError::NameTaken { .. }
            | ClusterError::Changed { .. }
            | ClusterError::ContainerExists { .. }
            | ClusterError::SnapshotExists { .. }
            | ClusterError::SnapshotUnderWay { .. }
            | ClusterError::GoingBack { .. }
            | ClusterError::NothingToGoBackTo { .. }
            | ClusterError::GroupExists { .. }
            | ClusterError::ContainerChanged { .. } => Self::conflict(error.to_string()),
            ClusterError::NotThere { .. } | ClusterError::NoContainer { .. } => {
                Self::not_found(error.to_string())
            }
            _ => Self::unavailable(error.to_string()),
        }
    }
}

/// Does something with the store, on a thread that may wait.
pub(in crate::control) async fn with_store<T: Send + 'static>(
    control: &SharedControl,
    work: impl FnOnce(&ClusterStore) -> Result<T, ClusterError> + Send + 'static,
) -> Result<T, Refusal> {
    let store = control.lock().member()?.store.clone();
    let done = tokio::task::spawn_blocking(move || work(&store)).await;
    done.map_err(|_| Refusal::failed("the control plane failed an assertion; see the node's log"))?
        .map_err(Refusal::from)
}

/// Waits until what the store has by now is known here. Refused if etcd does not answer.
pub(in crate::control) async fn catch_up(control: &SharedControl) -> Result<(), Refusal> {
    let asked = tokio::time::timeout(ANSWER_WAIT, with_store(control, |store| store.revision_now())).await;
    let silent =
        |_| Refusal::unavailable(format!("etcd has not answered within {} s", ANSWER_WAIT.as_secs()));
    let now = asked.map_err(silent)??;
    let _ = heard(control, now, CATCH_UP_WAIT).await;
    Ok(())
}

/// None: the news of this revision are not here by then.
async fn heard(control: &SharedControl, revision: u64, longest: Duration) -> Option<()> {
    let is_here = |control: &mut Control| {
        let member = control.part.member()?;
        (member.mirror.revision >= revision).then_some(())
    };
    control.wait_for(longest, is_here).await
}

/// Waits until the news of this revision are here.
pub(in crate::control) async fn seen(control: &SharedControl, revision: u64) -> Result<(), Refusal> {
    heard(control, revision, NEWS_WAIT).await.ok_or_else(|| {
        Refusal::unavailable(format!(
            "etcd has taken the change, but it was not heard here within {} s; look again",
            NEWS_WAIT.as_secs()
        ))
    })
}

/// Changes a record in the store, and gives it as it is then, when that is known here.
pub(in crate::control) async fn changed<T: Send + 'static>(
    control: &SharedControl,
    work: impl FnOnce(&ClusterStore) -> Result<Versioned<T>, ClusterError> + Send + 'static,
) -> Result<T, Refusal> {
    let changed = with_store(control, work).await?;
    seen(control, changed.revision).await?;
    Ok(changed.record)
}

pub(in crate::control) async fn create(
    control: &SharedControl,
    wanted: CreateVdisk,
) -> Result<VdiskView, Refusal> {
    check_name(&wanted.name)?;
    let (size, note) = check_size(wanted.size)?;
    let container = wanted.container.as_deref().unwrap_or(DEFAULT_CONTAINER);
    let container = control.lock().container_named(container)?;
    let own = policy::wanted(&wanted, &container)?;
    let factor = wanted.factor.or(container.factor);
    wait_for_places(control, factor).await;
    let factor = {
        let control = control.lock();
        control.check_ready()?;
        let member = control.member()?;
        if member.mirror.families.len() >= VDISKS_MAX {
            return Err(Refusal::no_space(format!(
                "a cluster has at most {VDISKS_MAX} vDisks; delete one first"
            )));
        }
        let factor = factor.unwrap_or_else(|| member.default_factor(control.factor));
        check_factor(factor, member.places(), "nodes with drives", "add nodes (weft node join)")?;
        factor
    };
    let created = calendar::now();
    let (name, container) = (wanted.name.clone(), container.name);
    let vdisk = NewVdisk { name, size, factor, created, owner: None, container, own };
    let family = changed(control, move |store| store.create_vdisk(&vdisk)).await?.id();
    if let Err(reason) = answers(control, family, CREATE_WAIT).await {
        // It goes again, unless somebody reaches it by way of another node, and has begun to use it.
        let unused = |record: &FamilyConfig| {
            record.exports.is_empty() && record.attached.is_empty() && record.clones_made == 0
        };
        let name = &wanted.name;
        let left = match with_store(control, move |store| store.begin_removal(family, None, unused)).await {
            Ok(Some(_)) => {
                return Err(Refusal::failed(format!(
                    "vDisk {name} could not be made: {reason}; see `weft cluster status`, then try again"
                )));
            }
            Ok(None) => "it is there, because somebody uses it already".to_string(),
            Err(refusal) => format!("it could not be taken back either: {}", refusal.line),
        };
        return Err(Refusal::failed(format!(
            "vDisk {name} has been made and is not served yet: {reason}; {left}; see `weft cluster status` and `weft vdisk show {name}`"
        ))
        .half_done());
    }
    let mut view = control.lock().view_of(family)?;
    view.note = note;
    Ok(view)
}

/// Nodes that have just been started are known here a moment later: waits for them, if the copies need them.
async fn wait_for_places(control: &SharedControl, factor: Option<u32>) {
    let enough = |control: &mut Control| {
        let member = control.part.member()?;
        let factor = factor.unwrap_or_else(|| member.default_factor(control.factor)) as usize;
        // With more copies than places it is refused at once.
        (member.places() >= factor || member.places_known() < factor).then_some(())
    };
    // Should they not come, the request says so.
    let _ = control.wait_for(PLACES_WAIT, enough).await;
}

/// Whether somebody serves a vDisk: it is asked, wherever it is.
pub(in crate::control) async fn answers(
    control: &SharedControl,
    family: FamilyId,
    longest: Duration,
) -> Result<(), String> {
    let reply = control.lock().ask_owner(family, Request::Flush);
    let gone = control.wait_for(longest, |control| {
        let entry = control.part.member()?.mirror.families.get(&family);
        entry.is_none_or(|entry| entry.record.state == FamilyState::Dropping).then_some(())
    });
    tokio::select! {
        answered = tokio::time::timeout(longest, reply) => match answered {
            Ok(Ok(Reply::Done)) => Ok(()),
            Ok(Ok(Reply::Error(error))) => Err(error.to_string()),
            Ok(_) => Err("its shard is gone".to_string()),
            Err(_) => Err(format!("no answer within {} s", longest.as_secs())),
        },
        // Requests to a vDisk without an owner wait for one, and this one will have none.
        Some(()) = gone => Err("it was deleted meanwhile".to_string()),
    }
}

pub(in crate::control) async fn delete(
    control: &SharedControl,
    name: &str,
    how: Deletion,
) -> Result<String, Refusal> {
    let (family, clones_made, attached, looked_at) = {
        let control = control.lock();
        let family = control.check_deletable(name, how)?;
        let config = &control.families[&family].config;
        let looked_at = how.with_snapshots.then_some(control.member()?.mirror.revision);
        (family, config.clones_made, config.attached.clone(), looked_at)
    };
    // Clones of before are gone, and nodes that it was attached to; whether a new one was made at this moment, or it or a
    // snapshot of it was attached or exported, or one was taken, is known where the records are.
    let may_go = move |record: &FamilyConfig| {
        record.clones_made == clones_made
            && record.attached == attached
            && (how.force || record.exports.is_empty())
    };
    let removed = with_store(control, move |store| store.begin_removal(family, looked_at, may_go)).await?;
    if removed.is_none() {
        return Err(Refusal::conflict(format!(
            "vDisk {name} or a snapshot of it was attached or exported, or one taken or cloned, at this moment; look again \
             (weft vdisk show {name})"
        )));
    }
    Ok(wait_until_gone(control, family, name).await)
}

pub(in crate::control) async fn resize(
    control: &SharedControl,
    name: &str,
    size: u64,
) -> Result<VdiskView, Refusal> {
    let (size, mut note) = check_size(size)?;
    let family = {
        let control = control.lock();
        control.check_ready()?;
        let family = control.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        control.check_not_going_back(family)?;
        check_growth(name, control.families[&family].config.size, size)?;
        family
    };
    // It never shrinks, also when two change it at once. On its way back to a snapshot it would get the size of that in the end.
    let record = changed(control, move |store| store.resize_vdisk(family, size)).await?;
    if record.rollback.is_some() {
        return Err(Refusal::going_back(name));
    }
    let control = control.lock();
    let mut view = control.view_of(family)?;
    if (!view.exports.is_empty() || view.attached.is_some()) && note.is_empty() {
        note = "clients see the new size when they connect or attach again".to_string();
    }
    view.note = note;
    Ok(view)
}

pub(in crate::control) async fn add_export(
    control: &SharedControl,
    name: &str,
    wanted: &ExportVdisk,
) -> Result<ExportView, Refusal> {
    let (target, record) = {
        let mut control = control.lock();
        control.check_ready()?;
        let target = control.exportable(name)?;
        let node = control.member()?.node;
        let record = control.new_export(&target, wanted, node)?;
        // Here first: an address that cannot be had is told at once.
        control.open_export(&target, &record)?;
        control.exports_being_made.insert((record.address.clone(), target.disk));
        (target, record)
    };
    let stored = record.clone();
    let changed = change_exports(control, target.disk.family, target.snapshot.clone(), move |exports| {
        if !exports.contains(&stored) {
            exports.push(stored.clone());
        }
    })
    .await;
    control.lock().exports_being_made.remove(&(record.address.clone(), target.disk));
    match changed {
        Ok((_, exports)) if exports.contains(&record) => {}
        Ok(_) => {
            control.lock().close_exports(target.disk, Some(&record.address));
            return Err(Refusal::conflict(format!("{name} is being removed")));
        }
        Err(refusal) => {
            control.lock().close_exports(target.disk, Some(&record.address));
            return Err(refusal);
        }
    }
    Ok(control.lock().export_view(target.disk.family, &target.name, &record))
}

/// Changes the exports in the record of a vDisk, or of a snapshot that can be read. Gives how many there were, and those there are.
async fn change_exports(
    control: &SharedControl,
    family: FamilyId,
    snapshot: Option<(SnapshotKey, SnapshotId)>,
    mut alter: impl FnMut(&mut Vec<ExportRecord>) + Send + 'static,
) -> Result<(usize, Vec<ExportRecord>), Refusal> {
    let (revision, before, exports) = with_store(control, move |store| {
        let mut before = 0;
        let mut alter = |exports: &mut Vec<ExportRecord>, may_be: bool| {
            // Asked again because an answer was lost, it may have been done already.
            before = before.max(exports.len());
            if may_be {
                alter(exports);
            }
        };
        let (revision, exports) = match snapshot {
            None => {
                let changed = store.change_vdisk(family, |vdisk| alter(&mut vdisk.exports, true))?;
                (changed.revision, changed.record.exports)
            }
            Some((key, snapshot)) => {
                let changed = store.change_snapshot(&key, snapshot, |record| {
                    alter(&mut record.exports, record.state == SnapshotState::Ready);
                })?;
                (changed.revision, changed.record.exports)
            }
        };
        Ok((revision, before, exports))
    })
    .await?;
    seen(control, revision).await?;
    Ok((before, exports))
}

/// Of this node's exports, those at one address or all; those of other nodes too, if nothing of it is here.
pub(in crate::control) async fn remove_exports(
    control: &SharedControl,
    name: &str,
    address: Option<&str>,
) -> Result<String, Refusal> {
    let meant = Meant::parse(address)?;
    let (family, snapshot, ended) = {
        let mut control = control.lock();
        control.check_ready()?;
        let Exported { family, snapshot, exports } = control.exports_named(name)?;
        let fitting: Vec<ExportRecord> =
            exports.into_iter().filter(|export| meant.includes(export)).collect();
        let node = control.member()?.node;
        let own: Vec<ExportRecord> = fitting.iter().filter(|export| export.node == node).cloned().collect();
        let ended = if own.is_empty() { fitting } else { own };
        if let Some(entry) = control.families.get_mut(&family) {
            entry.forget_trouble_of(&ended);
        }
        (family, snapshot, ended)
    };
    if ended.is_empty() {
        return Err(meant.not_exported(name));
    }
    let (before, exports) = change_exports(control, family, snapshot, move |exports| {
        exports.retain(|export| !ended.contains(export));
    })
    .await?;
    // Another node may have ended them, and this one not have heard of it.
    match before - exports.len() {
        0 => Err(meant.not_exported(name)),
        count => Ok(format!("{count} export(s) ended")),
    }
}

/// Has the serving of a vDisk go to another node.
pub(in crate::control) async fn move_vdisk(
    control: &SharedControl,
    name: &str,
    to: u32,
) -> Result<VdiskView, Refusal> {
    if already_there(control, name, to)?.is_some() {
        // It may have been sent away at another node a moment ago, or this one may hear nothing of etcd any more.
        catch_up(control).await?;
        if let Some(view) = already_there(control, name, to)? {
            return Ok(view);
        }
    }
    let family = {
        let control = control.lock();
        control.check_ready()?;
        let family = control.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        let member = control.member()?;
        let node = member.mirror.nodes.get(&to).ok_or_else(|| {
            Refusal::not_found(format!("there is no node {to}; `weft node ls` shows which there are"))
        })?;
        if !may_serve(node.record.state, member.mirror.stays(to)) {
            return Err(Refusal::conflict(format!(
                "node {to} ({}) does not live, is stopping, or is being emptied; choose another (weft node ls)",
                node.record.name
            )));
        }
        family
    };
    change_vdisk(control, family, move |record| record.moving_to = Some(to)).await?;
    // It may be deleted meanwhile, or sent elsewhere: then there is nothing to wait for.
    let there = control
        .wait_for(MOVE_WAIT, |control| {
            let member = control.part.member()?;
            let record = member.mirror.families.get(&family).map(|entry| &entry.record);
            let Some(record) = record.filter(|record| record.state == FamilyState::Live) else {
                return Some(Err(Refusal::not_found("the vDisk was deleted meanwhile")));
            };
            let is_elsewhere = record.moving_to.is_some_and(|wanted| wanted != to);
            match member.owner_node(family) {
                Some(owner) if owner == to => Some(Ok(())),
                _ if is_elsewhere => {
                    Some(Err(Refusal::conflict("the vDisk was sent to another node meanwhile").half_done()))
                }
                // Neither there nor on its way: its owner has taken that back.
                _ if record.moving_to.is_none() && member.owner_view(family).0 != Some(to) => {
                    let line = format!(
                        "node {to} did not take the vDisk: it stops, or has died; the vDisk stays where it is"
                    );
                    Some(Err(Refusal::conflict(line).half_done()))
                }
                _ => None,
            }
        })
        .await
        .transpose()?;
    let answered = answers(control, family, MOVE_WAIT).await;
    let mut view = control.lock().view_of(family)?;
    if there.is_none() {
        view.note =
            format!("the vDisk is still on its way to node {to}; `weft vdisk show {name}` tells where it is");
    } else if let Err(reason) = answered {
        view.note = format!("node {to} does not serve it yet: {reason}");
    }
    Ok(view)
}

/// The vDisk, if as far as this node has heard that one serves it and it is not on its way elsewhere.
fn already_there(control: &SharedControl, name: &str, to: u32) -> Result<Option<VdiskView>, Refusal> {
    let control = control.lock();
    let Some(family) = control.family_named(name) else { return Ok(None) };
    let member = control.member()?;
    let record = member.mirror.families.get(&family).map(|entry| &entry.record);
    let stays = record.is_none_or(|record| record.moving_to.is_none());
    if member.owner_node(family) == Some(to) && stays { control.view_of(family).map(Some) } else { Ok(None) }
}

impl Control {
    /// Refuses on a node that is alone.
    pub(in crate::control) fn member(&self) -> Result<&Member, Refusal> {
        self.part.member().ok_or_else(|| {
            Refusal::conflict(
                "this node is alone, and in no cluster, which is what this command is for; name a member (--dir, --api), or make a cluster \
                 with `weft cluster init`. A node alone shows its drives in `weft status`, and takes another one when it is started \
                 with more (`weft up --drives N`, `--drive DEVICE`)",
            )
        })
    }

    pub(in crate::control) fn view_of(&self, family: FamilyId) -> Result<VdiskView, Refusal> {
        if self.families.contains_key(&family) {
            Ok(self.vdisk_view(family))
        } else {
            Err(Refusal::not_found("the vDisk was deleted meanwhile"))
        }
    }
}
