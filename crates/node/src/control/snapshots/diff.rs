//! What has changed between two snapshots, or a snapshot and the present: asked of whoever serves the vDisk, part by part.
//! Promises: what is not told has not changed; what is told may not have.

use super::DiskName;
use crate::api::{DiffView, RangeView};
use crate::control::SharedControl;
use crate::control::refusal::Refusal;
use std::time::{Duration, Instant};
use weft_engine::interface::{Extent, Reply, Request, RequestError};
use weft_engine::{FamilyId, Generation};

/// Ranges in one answer; the rest is asked for again.
const RANGES_MAX: usize = 10_000;

/// An answer that takes longer is given in parts, so that nobody takes the node for dead.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Extents in one question to the engine.
const EXTENTS_MAX: u32 = 4096;

/// While a vDisk goes to another owner, a question waits; for longer than this nobody should.
const ANSWER_WAIT: Duration = Duration::from_secs(40);

struct Comparison {
    family: FamilyId,
    from: Generation,
    to: Option<Generation>,
    size: u64,
}

pub async fn diff(control: &SharedControl, from: &str, to: &str, offset: u64) -> Result<DiffView, Refusal> {
    let compared = compare(control, from, to)?;
    let mut view = DiffView {
        from: from.to_string(),
        to: to.to_string(),
        size: compared.size,
        ranges: Vec::new(),
        next: None,
    };
    let (mut at, began) = (offset, Instant::now());
    while at < compared.size {
        if view.ranges.len() >= RANGES_MAX || at > offset && began.elapsed() >= TIME_MAX {
            view.next = Some(at);
            break;
        }
        for extent in ask(control, &compared, at).await? {
            match view.ranges.last_mut() {
                _ if !extent.data => {}
                Some(last) if last.offset + last.len == at => last.len += extent.len,
                _ => view.ranges.push(RangeView { offset: at, len: extent.len }),
            }
            at += extent.len;
        }
    }
    Ok(view)
}

fn compare(control: &SharedControl, from: &str, to: &str) -> Result<Comparison, Refusal> {
    let control = control.lock();
    let (from, to_name) = (from, DiskName::parse(to));
    let (vdisk, _) = DiskName::of_snapshot(from)?;
    if to_name.vdisk != vdisk {
        return Err(Refusal::bad_input(format!(
            "{from} and {to} are of different vDisks; compare two snapshots of one, or one with its vDisk"
        )));
    }
    let (from, to) = (control.exportable(from)?, control.exportable(to)?);
    let generation = from.disk.snapshot.expect("the name of a snapshot leads to one");
    Ok(Comparison {
        family: from.disk.family,
        from: generation,
        to: to.disk.snapshot,
        size: from.size.max(to.size),
    })
}

/// At least one extent from `at` on.
async fn ask(control: &SharedControl, compared: &Comparison, at: u64) -> Result<Vec<Extent>, Refusal> {
    let &Comparison { family, from, to, size } = compared;
    let request = Request::Differences { from, to, offset: at, len: size - at, limit: EXTENTS_MAX };
    let reply = control.lock().ask_owner(family, request);
    match tokio::time::timeout(ANSWER_WAIT, reply).await {
        Ok(Ok(Reply::Extents(extents))) if extents.iter().any(|extent| extent.len > 0) => Ok(extents),
        Ok(Ok(Reply::Error(RequestError::NoSnapshot))) => {
            Err(Refusal::not_found("one of the snapshots was removed meanwhile"))
        }
        Ok(Ok(Reply::Error(error))) => Err(Refusal::failed(format!("the vDisk cannot be compared: {error}"))),
        Ok(_) => Err(Refusal::failed("the vDisk cannot be compared: its shard is gone")),
        Err(_) => Err(Refusal::unavailable("the vDisk is not served at this moment; try again")),
    }
}
