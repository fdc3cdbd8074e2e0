//! The part of the API that is about snapshots.

use super::{Asked, asked, joined, parse};
use crate::api::{
    ChangeConsistency, ConsistencyView, CreateClones, CreateConsistency, CreateSnapshot, DiffView, DoneView,
    GroupSnapshot, HoldVdisks, RollBack, ScheduleView, SetSchedule, SnapshotView, TakeSnapshots, VdiskView,
};
use crate::control::exports::wait_until_exportable;
use crate::control::refusal::Refusal;
use crate::control::snapshots::DiskName;
use crate::control::{SharedControl, clones, snapshots};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::Deserialize;

pub fn router() -> Router<SharedControl> {
    Router::new()
        .route("/v1/snapshots", get(list).post(create))
        .route("/v1/snapshots/{name}", get(show).delete(remove))
        .route("/v1/clones", post(clone))
        .route("/v1/rollbacks", post(roll_back))
        .route("/v1/diff", get(diff))
        .route("/v1/consistency", get(groups).post(create_group))
        .route("/v1/consistency/{group}", post(change_group).delete(remove_group))
        .route("/v1/consistency/{group}/snapshots", post(snapshot_group))
        .route("/v1/internal/hold", post(hold))
        .route("/v1/internal/take", post(take))
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

async fn clone(
    State(control): State<SharedControl>,
    body: Bytes,
) -> Result<(StatusCode, Json<Vec<VdiskView>>), Refusal> {
    let wanted: CreateClones = parse(&body)?;
    let made = tokio::spawn(async move { clones::create(&control, wanted).await });
    Ok((StatusCode::CREATED, Json(joined(made).await?)))
}

async fn roll_back(State(control): State<SharedControl>, body: Bytes) -> Result<Json<VdiskView>, Refusal> {
    let wanted: RollBack = parse(&body)?;
    let done = tokio::spawn(async move { snapshots::roll_back(&control, wanted).await });
    joined(done).await.map(Json)
}

#[derive(Deserialize)]
struct DiffQuery {
    from: String,
    to: String,
    #[serde(default)]
    offset: u64,
}

async fn diff(
    State(control): State<SharedControl>,
    query: Asked<DiffQuery>,
) -> Result<Json<DiffView>, Refusal> {
    let DiffQuery { from, to, offset } = asked(query)?;
    wait_until_exportable(&control, &from).await;
    wait_until_exportable(&control, &to).await;
    snapshots::diff(&control, &from, &to, offset).await.map(Json)
}

async fn groups(State(control): State<SharedControl>) -> Json<Vec<ConsistencyView>> {
    Json(control.lock().consistency_views())
}

async fn create_group(
    State(control): State<SharedControl>,
    body: Bytes,
) -> Result<(StatusCode, Json<ConsistencyView>), Refusal> {
    let wanted: CreateConsistency = parse(&body)?;
    let made = tokio::spawn(async move { snapshots::create_group(&control, wanted).await });
    Ok((StatusCode::CREATED, Json(joined(made).await?)))
}

async fn change_group(
    State(control): State<SharedControl>,
    Path(group): Path<String>,
    body: Bytes,
) -> Result<Json<ConsistencyView>, Refusal> {
    let ChangeConsistency { add, remove } = parse(&body)?;
    let changed = tokio::spawn(async move { snapshots::change_group(&control, &group, &add, &remove).await });
    joined(changed).await.map(Json)
}

async fn remove_group(
    State(control): State<SharedControl>,
    Path(group): Path<String>,
) -> Result<Json<DoneView>, Refusal> {
    let removed = tokio::spawn(async move { snapshots::remove_group(&control, &group).await });
    joined(removed).await?;
    Ok(Json(DoneView { done: true, note: String::new() }))
}

async fn snapshot_group(
    State(control): State<SharedControl>,
    Path(group): Path<String>,
    body: Bytes,
) -> Result<(StatusCode, Json<Vec<SnapshotView>>), Refusal> {
    let wanted: GroupSnapshot = parse(&body)?;
    let taken = tokio::spawn(async move { snapshots::snapshot_group(&control, &group, &wanted).await });
    Ok((StatusCode::CREATED, Json(joined(taken).await?)))
}

async fn hold(State(control): State<SharedControl>, body: Bytes) -> Result<Json<DoneView>, Refusal> {
    let wanted: HoldVdisks = parse(&body)?;
    control.lock().member()?;
    snapshots::hold(&control, wanted).await?;
    Ok(Json(DoneView { done: true, note: String::new() }))
}

async fn take(State(control): State<SharedControl>, body: Bytes) -> Result<Json<DoneView>, Refusal> {
    let wanted: TakeSnapshots = parse(&body)?;
    control.lock().member()?;
    snapshots::take(&control, wanted).await?;
    Ok(Json(DoneView { done: true, note: String::new() }))
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
