//! The part of the API that is about snapshots.

use super::{Asked, asked, joined, parse};
use crate::api::{CreateSnapshot, DoneView, ScheduleView, SetSchedule, SnapshotView};
use crate::control::refusal::Refusal;
use crate::control::snapshots::DiskName;
use crate::control::{SharedControl, snapshots};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde::Deserialize;

pub fn router() -> Router<SharedControl> {
    Router::new()
        .route("/v1/snapshots", get(list).post(create))
        .route("/v1/snapshots/{name}", get(show).delete(remove))
        .route("/v1/schedules", get(schedules).post(set_schedule))
        .route("/v1/schedules/{vdisk}", delete(remove_schedule))
}

#[derive(Deserialize)]
struct ListQuery {
    vdisk: Option<String>,
}

async fn list(
    State(control): State<SharedControl>,
    query: Asked<ListQuery>,
) -> Result<Json<Vec<SnapshotView>>, Refusal> {
    let vdisk = asked(query)?.vdisk;
    control.lock().snapshot_views(vdisk.as_deref()).map(Json)
}

async fn create(
    State(control): State<SharedControl>,
    body: Bytes,
) -> Result<(StatusCode, Json<SnapshotView>), Refusal> {
    let wanted: CreateSnapshot = parse(&body)?;
    // On a task of its own: a client that hangs up does not leave a snapshot that nobody looks after.
    let made = tokio::spawn(async move { snapshots::create(&control, wanted).await });
    Ok((StatusCode::CREATED, Json(joined(made).await?)))
}

async fn show(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<SnapshotView>, Refusal> {
    let (vdisk, snapshot) = DiskName::of_snapshot(&name)?;
    let control = control.lock();
    let record = control.snapshot_named(&vdisk, &snapshot)?;
    control.snapshot_view(record).map(Json).ok_or_else(|| Refusal::no_vdisk(&vdisk))
}

async fn remove(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<DoneView>, Refusal> {
    let removed = tokio::spawn(async move { snapshots::remove(&control, &name).await });
    Ok(Json(DoneView { done: true, note: joined(removed).await? }))
}

async fn schedules(State(control): State<SharedControl>) -> Json<Vec<ScheduleView>> {
    Json(control.lock().schedule_views())
}

async fn set_schedule(
    State(control): State<SharedControl>,
    body: Bytes,
) -> Result<Json<ScheduleView>, Refusal> {
    let wanted: SetSchedule = parse(&body)?;
    let set = tokio::spawn(async move { snapshots::set_schedule(&control, wanted).await });
    joined(set).await.map(Json)
}

async fn remove_schedule(
    State(control): State<SharedControl>,
    Path(vdisk): Path<String>,
) -> Result<Json<DoneView>, Refusal> {
    let removed = tokio::spawn(async move { snapshots::remove_schedule(&control, &vdisk).await });
    joined(removed).await?;
    Ok(Json(DoneView { done: true, note: String::new() }))
}
