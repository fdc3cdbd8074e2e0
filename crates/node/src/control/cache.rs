//! The memory that shards keep egroups in for reads: how large it may be, and filling it before anybody reads.
//! Promises: a new size holds at once and until the node is started again; filling goes on only while it is asked for.
//! Leaves to others: what is kept (the engine).

use super::refusal::Refusal;
use super::{Control, SharedControl, figures, statistics};
use crate::api::{CacheView, DriveStatsView, SharedView, WarmView};
use crate::memory::machine_bytes;
use crate::shard_loop::{Answer, Mail};
use std::time::{Duration, Instant};
use weft_engine::FamilyId;
use weft_engine::interface::{Order, Reply, Request, Warmed};

/// What all shards of a node keep together if nobody says another size.
pub const READ_CACHE_DEFAULT: u64 = 256 << 20;

/// One request to the API warms for so long, then tells how far it came.
const WARM_TURN: Duration = Duration::from_secs(1);

/// A step that takes longer has met drives that do not answer.
const WARM_STEP_WAIT: Duration = Duration::from_secs(40);

/// Refuses a size that the machine does not have.
pub(super) fn check_size(bytes: u64) -> Result<(), Refusal> {
    match machine_bytes() {
        Some(there) if bytes > there => Err(Refusal::bad_input(format!(
            "a read cache of {bytes} bytes is more than this machine's memory ({there} bytes); choose a smaller one"
        ))),
        _ => Ok(()),
    }
}

impl Control {
    /// Gives each shard its part of the node's read cache.
    pub(super) fn set_read_cache(&mut self, bytes: u64) {
        self.read_cache = bytes;
        let each = bytes / self.shards.len() as u64;
        for shard in &self.shards {
            shard.send(Mail::Order(Order::SetCache { bytes: each }));
        }
    }
}

pub async fn show(control: &SharedControl) -> CacheView {
    let (stats, figures) = tokio::join!(statistics::gather_totals(control), figures::gather(control));
    let (_, minute) = figures::rated(&figures);
    let sum = |name: &str| stats.shards.iter().filter_map(|shard| shard.engine.get(name)).sum();
    let of_drives = |figure: fn(&DriveStatsView) -> u64| stats.drives.iter().map(figure).sum();
    CacheView {
        bytes: control.lock().read_cache,
        used_bytes: sum("cache_bytes"),
        hits: sum("cache_hits"),
        misses: sum("cache_misses"),
        page_hits: sum("page_hits"),
        page_misses: sum("page_misses"),
        ahead_issued: sum("ahead_issued"),
        ahead_used: sum("ahead_used"),
        ahead_wasted: sum("ahead_wasted"),
        egroup_map_hits: sum("egroup_map_hits"),
        egroup_map_misses: sum("egroup_map_misses"),
        shared: SharedView {
            entries: of_drives(|drive| drive.shared_entries),
            entries_max: of_drives(|drive| drive.shared_entries_max),
            memory_bytes: of_drives(|drive| drive.shared_memory_bytes),
            bytes_hashed: sum("share_bytes_hashed"),
            bytes_found: sum("share_bytes_found"),
            saved_bytes: of_drives(|drive| drive.shared_saved_bytes),
        },
        minute,
    }
}

pub async fn resize(control: &SharedControl, bytes: u64) -> Result<CacheView, Refusal> {
    check_size(bytes)?;
    {
        let mut control = control.lock();
        control.check_ready()?;
        control.set_read_cache(bytes);
    }
    // Shards answer after they have carried out what was ordered before. What they have let go of is given back to the machine by
    // the program's allocator, a moment later and without being told.
    Ok(show(control).await)
}

/// Warms a vDisk from this offset on, for a moment. Whichever node serves it does so.
pub async fn warm(control: &SharedControl, name: &str, from: u64, data: bool) -> Result<WarmView, Refusal> {
    let (family, size) = {
        let control = control.lock();
        control.check_ready()?;
        let family = control.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        (family, control.families[&family].config.size)
    };
    if from > size {
        return Err(Refusal::bad_input(format!("vDisk {name} has {size} bytes, {from} is behind its end")));
    }
    let until = Instant::now() + WARM_TURN;
    let mut view = WarmView { to: from, size, pages: 0, bytes: 0, full: false };
    while view.to < size && !view.full && Instant::now() < until {
        let request = Request::Warm { offset: view.to, len: size - view.to, data };
        let warmed = step(control, family, request)
            .await
            .map_err(|reason| Refusal::unavailable(format!("vDisk {name} cannot be warmed: {reason}")))?;
        view.to = warmed.to;
        view.pages += warmed.pages;
        view.bytes += warmed.bytes;
        view.full = warmed.full;
    }
    Ok(view)
}

async fn step(control: &SharedControl, family: FamilyId, request: Request) -> Result<Warmed, String> {
    let (to, reply) = tokio::sync::oneshot::channel();
    let answer = Answer::new(move |reply| {
        // Who asked may have given up.
        let _ = to.send(reply);
    });
    control.lock().owner(family).send(Mail::Request { family, request, answer });
    match tokio::time::timeout(WARM_STEP_WAIT, reply).await {
        Ok(Ok(Reply::Warmed(warmed))) => Ok(warmed),
        Ok(Ok(Reply::Error(error))) => Err(error.to_string()),
        Ok(_) => Err("its shard is gone".to_string()),
        Err(_) => Err(format!("no answer within {} s", WARM_STEP_WAIT.as_secs())),
    }
}
