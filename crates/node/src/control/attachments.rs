//! vDisks as block devices of this host: which are, and bringing them there and back.
//! The slow part (mounting, the loop device) runs on a thread of its own: the kernel reads the new device at once,
//! and those reads pass through the shards.

use super::exports::Exportable;
use super::refusal::Refusal;
use super::snapshots::DiskName;
use super::{Control, Disk, SharedControl, member};
use crate::api::AttachmentView;
use crate::attach::{self, AttachError, Attachment, End, Target};
use std::sync::Arc;
use std::time::Duration;
use weft_engine::Generation;

/// A node that stops tells the store for so long what is not attached any more.
const WRITE_OUT_WAIT: Duration = Duration::from_secs(2);

/// Attaching and detaching take less than this; so does writing down, after a crash, that something is not attached any more.
const CHANGING_WAIT: Duration = Duration::from_secs(10);

/// How far an attachment is.
pub enum AttachmentState {
    /// Being attached, or what is being detached: until that is through, its device reads and writes.
    Changing(Option<End>),
    Attached(Attachment),
}

impl AttachmentState {
    pub fn view(&self) -> Option<AttachmentView> {
        match self {
            AttachmentState::Changing(_) => None,
            AttachmentState::Attached(attachment) => Some(AttachmentView {
                device: attachment.device().display().to_string(),
                read_only: attachment.is_read_only(),
                node: None,
                boot: None,
            }),
        }
    }

    /// What ends the use of the vDisk by its device, if there is one.
    pub fn silencer(&self) -> Option<End> {
        match self {
            AttachmentState::Changing(end) => end.clone(),
            AttachmentState::Attached(attachment) => Some(attachment.silencer()),
        }
    }

    /// Takes the attachment out, and leaves what silences its device.
    pub fn take(&mut self) -> Option<Attachment> {
        let changing = AttachmentState::Changing(self.silencer());
        match std::mem::replace(self, changing) {
            AttachmentState::Attached(attachment) => Some(attachment),
            AttachmentState::Changing(_) => None,
        }
    }
}

/// Waits while it is being attached or detached: what comes of that says more than that it goes on.
async fn wait_while_changing(control: &SharedControl, name: &str) {
    let is_settled = |control: &mut Control| {
        let disk = control.disk_named(name).ok();
        let state = disk.and_then(|disk| control.attachments.get(&disk));
        (!matches!(state, Some(AttachmentState::Changing(_)))).then_some(())
    };
    control.wait_for(CHANGING_WAIT, is_settled).await;
}

impl From<AttachError> for Refusal {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::InUse { .. } => Refusal::conflict(error.to_string()),
            _ => Refusal::failed(error.to_string()),
        }
    }
}

impl Control {
    /// What has it as a device, here or elsewhere.
    pub(super) fn attachment_view(&self, disk: Disk) -> Option<AttachmentView> {
        let node = self.part.member().map(|member| member.number());
        if let Some(state) = self.attachments.get(&disk) {
            return state.view().map(|view| AttachmentView { node, ..view });
        }
        let node = self.attached_elsewhere(disk)?;
        Some(AttachmentView {
            device: String::new(),
            read_only: disk.snapshot.is_some(),
            node: Some(node),
            boot: None,
        })
    }

    /// Refuses if `who` is attached, here or elsewhere.
    pub(super) fn check_detached(&self, disk: Disk, who: &str) -> Result<(), Refusal> {
        if self.attachments.contains_key(&disk) {
            return Err(Refusal::conflict(format!(
                "{who} is attached; detach it first (weft vdisk detach {who})"
            )));
        }
        self.attached_elsewhere(disk).map_or(Ok(()), |node| Err(self.attached_to(who, node)))
    }

    fn begin_attach(&mut self, name: &str, read_only: bool) -> Result<(Exportable, Target), Refusal> {
        self.check_ready()?;
        let what = self.exportable(name)?;
        let disk = what.disk;
        match self.attachments.get(&disk) {
            Some(AttachmentState::Attached(attachment)) => {
                let device = attachment.device().display().to_string();
                return Err(Refusal::conflict(format!("{name} is attached already, as {device}")));
            }
            Some(AttachmentState::Changing(_)) => {
                return Err(Refusal::conflict(format!("{name} is just being attached or detached")));
            }
            None => {}
        }
        if disk.snapshot.is_none() && self.families[&disk.family].config.rollback.is_some() {
            return Err(Refusal::conflict(format!(
                "{name} goes back to a snapshot; attach it when it is there"
            )));
        }
        let target = Target {
            dir: self.dir.clone(),
            name: name.to_string(),
            disk,
            size: what.size,
            read_only: read_only || disk.snapshot.is_some(),
            shard: Arc::clone(self.owner(disk.family)),
        };
        self.attachments.insert(disk, AttachmentState::Changing(None));
        Ok((what, target))
    }

    /// What somebody has named, whether it is served or not.
    fn disk_named(&self, name: &str) -> Result<Disk, Refusal> {
        let DiskName { vdisk, snapshot } = DiskName::parse(name);
        let family = self.family_named(&vdisk).ok_or_else(|| Refusal::no_vdisk(&vdisk))?;
        let generation = match snapshot {
            Some(snapshot) => {
                let generation = self.snapshot_named(&vdisk, &snapshot)?.generation;
                let not_attached =
                    || Refusal::not_found(format!("{name} is not attached: it is not taken yet"));
                Some(Generation(generation.ok_or_else(not_attached)?))
            }
            None => None,
        };
        Ok(Disk { family, snapshot: generation })
    }

    fn begin_detach(&mut self, name: &str) -> Result<(Disk, Attachment), Refusal> {
        let disk = self.disk_named(name)?;
        let state = self.attachments.get_mut(&disk);
        let state = state.ok_or_else(|| Refusal::not_found(format!("{name} is not attached")))?;
        let attachment = state.take();
        let attachment = attachment
            .ok_or_else(|| Refusal::conflict(format!("{name} is just being attached or detached")))?;
        Ok((disk, attachment))
    }

    fn end_change(&mut self, disk: Disk, attachment: Option<Attachment>) {
        match attachment {
            Some(attachment) => self.attachments.insert(disk, AttachmentState::Attached(attachment)),
            None => self.attachments.remove(&disk),
        };
        // It may have been given to another node meanwhile.
        self.reconcile_attachments();
        self.changed.notify_waiters();
    }
}

pub async fn attach(control: &SharedControl, name: &str, read_only: bool) -> Result<AttachmentView, Refusal> {
    wait_while_changing(control, name).await;
    let (what, target) = control.lock().begin_attach(name, read_only)?;
    let disk = what.disk;
    if let Err(refusal) = member::claim(control, &what).await {
        control.lock().end_change(disk, None);
        return Err(refusal);
    }
    let made = tokio::task::spawn_blocking(move || Attachment::make(target)).await;
    let (attachment, result) = match made {
        Ok(Ok(attachment)) => {
            let state = AttachmentState::Attached(attachment);
            let node = control.lock().part.member().map(|member| member.number());
            let view =
                AttachmentView { node, boot: attach::boot_id(), ..state.view().expect("it is attached") };
            let AttachmentState::Attached(attachment) = state else { unreachable!("it was just made so") };
            (Some(attachment), Ok(view))
        }
        Ok(Err(error)) => (None, Err(error.into())),
        Err(_) => (None, Err(Refusal::failed("attaching failed an assertion; see the node's log"))),
    };
    if attachment.is_none() {
        member::release(control, disk).await;
    }
    control.lock().end_change(disk, attachment);
    result
}

/// Gives a remark, which is empty otherwise.
pub async fn detach(control: &SharedControl, name: &str) -> Result<String, Refusal> {
    wait_while_changing(control, name).await;
    let elsewhere = {
        let control = control.lock();
        let disk = control.disk_named(name)?;
        let is_here = control.attachments.contains_key(&disk);
        control.attached_elsewhere(disk).filter(|_| !is_here).map(|node| (disk, node))
    };
    if let Some((disk, node)) = elsewhere {
        return member::take_from(control, name, disk, node).await;
    }
    let (disk, attachment) = control.lock().begin_detach(name)?;
    let ended = tokio::task::spawn_blocking(move || attachment.end()).await;
    let (left, result) = match ended {
        Ok(Ok(())) => (None, Ok(String::new())),
        Ok(Err(left)) => {
            let (attachment, error) = *left;
            (Some(attachment), Err(error.into()))
        }
        Err(_) => (None, Err(Refusal::failed("detaching failed an assertion; see the node's log"))),
    };
    if left.is_none() {
        member::release(control, disk).await;
    }
    control.lock().end_change(disk, left);
    result
}

/// Takes all devices away because the node stops: users of those that are mounted get I/O errors.
pub async fn detach_all(control: &SharedControl) {
    // What was begun before the node stops comes to its end, so that it can be taken away like the others.
    let nothing_changes = |control: &mut Control| {
        let is_changing = |state: &AttachmentState| matches!(state, AttachmentState::Changing(_));
        (!control.attachments.values().any(is_changing)).then_some(())
    };
    control.wait_for(CHANGING_WAIT, nothing_changes).await;
    // Their devices write back what is in the page cache, and are silenced if that takes so long that others get the vDisk.
    let (disks, attachments): (Vec<Disk>, Vec<Attachment>) = {
        let mut control = control.lock();
        let disks = control.attachments.keys().copied().collect();
        (disks, control.attachments.values_mut().filter_map(AttachmentState::take).collect())
    };
    let mut ends = Vec::new();
    for attachment in attachments {
        ends.push(tokio::task::spawn_blocking(move || attachment.end_by_force()));
    }
    for end in ends {
        // Nothing can be done about what does not work here: the process ends anyway.
        let _ = end.await;
    }
    let write_out = async {
        for disk in disks {
            member::release_at_the_end(control, disk).await;
        }
    };
    // What is not written by then is written at the next start.
    let _ = tokio::time::timeout(WRITE_OUT_WAIT, write_out).await;
}
