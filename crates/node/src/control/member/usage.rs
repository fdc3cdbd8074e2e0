//! What vDisks take that other nodes serve.

use super::asking::{ask, ask_living};
use crate::api::{OwnUsageView, UsageView};
use crate::control::SharedControl;
use crate::control::refusal::Refusal;
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_engine::FamilyId;

const PATH: &str = "/v1/internal/usage";

/// Asks the owner of a vDisk, which tells about everything it serves.
pub(in crate::control) async fn usage_of(
    control: &SharedControl,
    family: FamilyId,
) -> Result<BTreeMap<u32, UsageView>, Refusal> {
    let Some(owner) = control.lock().member()?.api_of_owner(family) else { return Ok(BTreeMap::new()) };
    let told = tokio::task::spawn_blocking(move || ask(&format!("http://{owner}{PATH}"))).await;
    Ok(by_vdisk(told.ok().flatten().unwrap_or_default()))
}

/// Asks all nodes.
pub(in crate::control) async fn usage_of_all(
    control: &SharedControl,
) -> Result<BTreeMap<u32, UsageView>, Refusal> {
    let mirror = Arc::clone(&control.lock().member()?.mirror);
    let told = tokio::task::spawn_blocking(move || ask_living::<Vec<OwnUsageView>>(&mirror, PATH)).await;
    Ok(by_vdisk(told.unwrap_or_default().into_iter().flatten().collect()))
}

fn by_vdisk(told: Vec<OwnUsageView>) -> BTreeMap<u32, UsageView> {
    told.into_iter().map(|own| (own.family, own.usage)).collect()
}
