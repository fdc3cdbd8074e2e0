//! Stopping: clients first, then the engine, then what lies about in the file system.

use super::{Serving, SharedControl, Stage, attachments, member};
use crate::api::{API_FILE, RUN_FILE};
use crate::shard_loop::{Mail, Shards};
use crate::words::{self, say};
use std::time::Duration;
use weft_engine::interface::Order;

/// Clients get their replies within this time, or their connections end without.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// What is not drained after this time is replayed at the next start.
const SETTLE_WAIT: Duration = Duration::from_secs(10);

/// What is under way at a drive ends within this time, or the drive hangs.
const SHARDS_WAIT: Duration = Duration::from_secs(60);

/// Leaves nothing running. Nothing acknowledged depends on any of this: it makes the next start quick.
pub async fn stop(control: &SharedControl, shards: Shards) {
    {
        let mut control = control.lock();
        control.stage = Stage::Stopping;
        control.begin_to_leave();
    }
    attachments::detach_all(control).await;
    control.lock().listeners.clear();
    let drained: Vec<_> = shards
        .mailboxes
        .iter()
        .map(|shard| {
            let (done, is_done) = tokio::sync::oneshot::channel();
            shard.send(Mail::Drain(done));
            is_done
        })
        .collect();
    let all_drained = async {
        for shard in drained {
            // An error says that the shard is gone, and its connections with it.
            let _ = shard.await;
        }
    };
    let _ = tokio::time::timeout(DRAIN_WAIT, all_drained).await;
    settle(control).await;
    for shard in &shards.mailboxes {
        shard.send(Mail::Order(Order::Rest));
    }
    member::leave(control).await;
    let dir = control.lock().dir.clone();
    for file in [API_FILE, RUN_FILE] {
        // If somebody removed it already, so be it.
        let _ = std::fs::remove_file(dir.join(file));
    }
    let stopped = tokio::task::spawn_blocking(move || shards.stop());
    match tokio::time::timeout(SHARDS_WAIT, stopped).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => tracing::error!("a shard did not stop cleanly"),
        Err(_) => {
            say!("weft: a drive does not answer; the node ends without waiting for it");
            words::last_words();
            std::process::exit(1);
        }
    }
}

async fn settle(control: &SharedControl) {
    {
        let mut control = control.lock();
        let served: Vec<_> = control
            .families
            .iter()
            .filter(|(_, entry)| entry.serving == Serving::Ready)
            .map(|(&family, _)| family)
            .collect();
        for &family in &served {
            control.order_owner(family, Order::Settle { family });
        }
        control.unsettled = served.into_iter().collect();
    }
    let settled = control.wait_for(SETTLE_WAIT, |control| control.unsettled.is_empty().then_some(())).await;
    if settled.is_none() {
        tracing::warn!("not all vDisks settled in time; the next start replays the rest");
    }
}
