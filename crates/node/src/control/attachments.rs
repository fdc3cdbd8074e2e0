//! vDisks as block devices of this host: which are, and bringing them there and back.
//! The slow part (mounting, the loop device) runs on a thread of its own: the kernel reads the new device at once,
//! and those reads pass through the shards.

use super::refusal::Refusal;
use super::{Control, Serving, SharedControl};
use crate::api::AttachmentView;
use crate::attach::{AttachError, Attachment, Target};
use std::sync::Arc;
use weft_engine::FamilyId;

/// How far an attachment is.
pub enum AttachmentState {
    /// Being attached or detached.
    Changing,
    Attached(Attachment),
}

impl AttachmentState {
    pub fn view(&self) -> Option<AttachmentView> {
        match self {
            AttachmentState::Changing => None,
            AttachmentState::Attached(attachment) => Some(AttachmentView {
                device: attachment.device().display().to_string(),
                read_only: attachment.is_read_only(),
            }),
        }
    }
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
    fn begin_attach(&mut self, name: &str, read_only: bool) -> Result<(FamilyId, Target), Refusal> {
        self.check_ready()?;
        let family = self.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        let entry = &self.families[&family];
        if !matches!(entry.serving, Serving::Ready | Serving::Elsewhere) {
            return Err(Refusal::conflict(format!(
                "vDisk {name} is not served now; see `weft vdisk show {name}`"
            )));
        }
        match self.attachments.get(&family) {
            Some(AttachmentState::Attached(attachment)) => {
                let device = attachment.device().display().to_string();
                return Err(Refusal::conflict(format!("vDisk {name} is attached already, as {device}")));
            }
            Some(AttachmentState::Changing) => {
                return Err(Refusal::conflict(format!("vDisk {name} is just being attached or detached")));
            }
            None => {}
        }
        let target = Target {
            dir: self.dir.clone(),
            name: name.to_string(),
            family,
            size: entry.config.size,
            read_only,
            shard: Arc::clone(self.owner(family)),
        };
        self.attachments.insert(family, AttachmentState::Changing);
        Ok((family, target))
    }

    fn begin_detach(&mut self, name: &str) -> Result<(FamilyId, Attachment), Refusal> {
        let family = self.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        match self.attachments.insert(family, AttachmentState::Changing) {
            Some(AttachmentState::Attached(attachment)) => Ok((family, attachment)),
            Some(AttachmentState::Changing) => {
                Err(Refusal::conflict(format!("vDisk {name} is just being attached or detached")))
            }
            None => {
                self.attachments.remove(&family);
                Err(Refusal::not_found(format!("vDisk {name} is not attached")))
            }
        }
    }

    fn end_change(&mut self, family: FamilyId, attachment: Option<Attachment>) {
        match attachment {
            Some(attachment) => self.attachments.insert(family, AttachmentState::Attached(attachment)),
            None => self.attachments.remove(&family),
        };
        self.changed.notify_waiters();
    }
}

pub async fn attach(control: &SharedControl, name: &str, read_only: bool) -> Result<AttachmentView, Refusal> {
    let (family, target) = control.lock().begin_attach(name, read_only)?;
    let made = tokio::task::spawn_blocking(move || Attachment::make(target)).await;
    let (attachment, result) = match made {
        Ok(Ok(attachment)) => {
            let state = AttachmentState::Attached(attachment);
            let view = state.view().expect("it is attached");
            let AttachmentState::Attached(attachment) = state else { unreachable!("it was just made so") };
            (Some(attachment), Ok(view))
        }
        Ok(Err(error)) => (None, Err(error.into())),
        Err(_) => (None, Err(Refusal::failed("attaching failed an assertion; see the node's log"))),
    };
    control.lock().end_change(family, attachment);
    result
}

pub async fn detach(control: &SharedControl, name: &str) -> Result<(), Refusal> {
    let (family, attachment) = control.lock().begin_detach(name)?;
    let ended = tokio::task::spawn_blocking(move || attachment.end()).await;
    let (left, result) = match ended {
        Ok(Ok(())) => (None, Ok(())),
        Ok(Err(left)) => {
            let (attachment, error) = *left;
            (Some(attachment), Err(error.into()))
        }
        Err(_) => (None, Err(Refusal::failed("detaching failed an assertion; see the node's log"))),
    };
    control.lock().end_change(family, left);
    result
}

pub async fn detach_if_attached(control: &SharedControl, name: &str) -> Result<(), Refusal> {
    let is_attached = {
        let control = control.lock();
        control.family_named(name).is_some_and(|family| control.attachments.contains_key(&family))
    };
    if is_attached { detach(control, name).await } else { Ok(()) }
}

/// Takes all devices away because the node stops: users of those that are mounted get I/O errors.
pub async fn detach_all(control: &SharedControl) {
    let all: Vec<_> = std::mem::take(&mut control.lock().attachments).into_values().collect();
    for state in all {
        if let AttachmentState::Attached(attachment) = state {
            // Nothing can be done about what does not work here: the process ends anyway.
            let _ = tokio::task::spawn_blocking(move || attachment.end_by_force()).await;
        }
    }
}
