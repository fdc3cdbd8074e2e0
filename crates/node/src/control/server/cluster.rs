//! The part of the API that is about a cluster; a node that is alone refuses it.

use super::{Asked, asked, joined, parse};
use crate::api::{
    AddDrives, ClusterDriveView, ClusterView, DoneView, Drain, GroupPlaceView, NodeView, ReportView,
    SetCluster, WholeView,
};
use crate::control::refusal::Refusal;
use crate::control::{SharedControl, member};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::Deserialize;

pub fn router() -> Router<SharedControl> {
    Router::new()
        .route("/v1/cluster", get(cluster).post(set))
        .route("/v1/nodes", get(nodes))
        .route("/v1/nodes/{node}", delete(remove_node))
        .route("/v1/nodes/{node}/drain", post(drain_node))
        .route("/v1/drives", get(drives).post(add_drives))
        .route("/v1/drives/{drive}", delete(remove_drive))
        .route("/v1/drives/{drive}/drain", post(drain_drive))
        .route("/v1/groups", get(groups))
        .route("/v1/internal/whole", get(whole))
        .route("/v1/internal/report", get(report))
}

/// A number in a path, or a line about what is wrong with it.
fn number(text: &str) -> Result<u32, Refusal> {
    text.parse().map_err(|_| Refusal::bad_input(format!("{text:?} is no number of a node or drive")))
}

async fn cluster(State(control): State<SharedControl>) -> Result<Json<ClusterView>, Refusal> {
    member::cluster_view(&control).await.map(Json)
}

async fn set(State(control): State<SharedControl>, body: Bytes) -> Result<Json<DoneView>, Refusal> {
    let wanted: SetCluster = parse(&body)?;
    control.lock().member()?;
    let note = member::set(&control, wanted).await?;
    Ok(Json(DoneView { done: true, note }))
}

async fn report(State(control): State<SharedControl>) -> Result<Json<ReportView>, Refusal> {
    member::report(&control).await.map(Json)
}

async fn nodes(State(control): State<SharedControl>) -> Result<Json<Vec<NodeView>>, Refusal> {
    Ok(Json(control.lock().member()?.node_views()))
}

async fn drain_node(
    State(control): State<SharedControl>,
    Path(node): Path<String>,
    body: Bytes,
) -> Result<Json<NodeView>, Refusal> {
    let (node, wanted): (u32, Drain) = (number(&node)?, parse(&body)?);
    let drained = tokio::spawn(async move { member::drain(&control, node, wanted.undo).await });
    joined(drained).await.map(Json)
}

#[derive(Deserialize)]
struct RemoveNode {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    lose_data: bool,
}

async fn remove_node(
    State(control): State<SharedControl>,
    Path(node): Path<String>,
    query: Asked<RemoveNode>,
) -> Result<Json<DoneView>, Refusal> {
    let (node, RemoveNode { force, lose_data }) = (number(&node)?, asked(query)?);
    let gives_up = member::GivesUp { copies: force, data: lose_data };
    let removed = tokio::spawn(async move { member::remove(&control, node, gives_up).await });
    Ok(Json(DoneView { done: true, note: joined(removed).await? }))
}

async fn drives(State(control): State<SharedControl>) -> Result<Json<Vec<ClusterDriveView>>, Refusal> {
    control.lock().drive_views().map(Json)
}

async fn add_drives(
    State(control): State<SharedControl>,
    body: Bytes,
) -> Result<(StatusCode, Json<Vec<ClusterDriveView>>), Refusal> {
    let wanted: AddDrives = parse(&body)?;
    let added = tokio::spawn(async move { member::add_drives(&control, wanted).await });
    Ok((StatusCode::CREATED, Json(joined(added).await?)))
}

async fn drain_drive(
    State(control): State<SharedControl>,
    Path(drive): Path<String>,
    body: Bytes,
) -> Result<Json<ClusterDriveView>, Refusal> {
    let (drive, wanted): (u32, Drain) = (number(&drive)?, parse(&body)?);
    let drained = tokio::spawn(async move { member::drain_drive(&control, drive, wanted.undo).await });
    joined(drained).await.map(Json)
}

#[derive(Deserialize)]
struct RemoveDrive {
    #[serde(default)]
    lost: bool,
    #[serde(default)]
    lose_data: bool,
}

async fn remove_drive(
    State(control): State<SharedControl>,
    Path(drive): Path<String>,
    query: Asked<RemoveDrive>,
) -> Result<Json<DoneView>, Refusal> {
    let (drive, RemoveDrive { lost, lose_data }) = (number(&drive)?, asked(query)?);
    let gives_up = member::GivesUp { copies: lost, data: lose_data };
    let removed = tokio::spawn(async move { member::remove_drive(&control, drive, gives_up).await });
    Ok(Json(DoneView { done: true, note: joined(removed).await? }))
}

async fn groups(State(control): State<SharedControl>) -> Result<Json<Vec<GroupPlaceView>>, Refusal> {
    Ok(Json(control.lock().member()?.group_views()))
}

async fn whole(State(control): State<SharedControl>) -> Result<Json<Vec<WholeView>>, Refusal> {
    Ok(Json(control.lock().member()?.whole_view()))
}
