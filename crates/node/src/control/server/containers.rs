//! The part of the API that is about containers, and about what vDisks take.

use super::{joined, parse};
use crate::api::{
    ContainerUsageView, ContainerView, CreateContainer, DoneView, OwnUsageView, SetContainer, UsageView,
};
use crate::control::refusal::Refusal;
use crate::control::{SharedControl, containers, usage};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};

pub fn router() -> Router<SharedControl> {
    Router::new()
        .route("/v1/containers", get(list).post(create))
        .route("/v1/containers/{name}", get(show).delete(remove))
        .route("/v1/containers/{name}/set", post(set))
        .route("/v1/containers/{name}/usage", get(container_usage))
        .route("/v1/vdisks/{name}/usage", get(vdisk_usage))
        .route("/v1/internal/usage", get(own_usage))
}

async fn list(State(control): State<SharedControl>) -> Json<Vec<ContainerView>> {
    Json(control.lock().container_views())
}

async fn create(
    State(control): State<SharedControl>,
    body: Bytes,
) -> Result<(StatusCode, Json<ContainerView>), Refusal> {
    let wanted: CreateContainer = parse(&body)?;
    let made = tokio::spawn(async move { containers::create(&control, wanted).await });
    Ok((StatusCode::CREATED, Json(joined(made).await?)))
}

async fn show(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<ContainerView>, Refusal> {
    control.lock().container_view(&name).map(Json)
}

async fn set(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<ContainerView>, Refusal> {
    let wanted: SetContainer = parse(&body)?;
    let changed = tokio::spawn(async move { containers::set(&control, &name, wanted).await });
    joined(changed).await.map(Json)
}

async fn remove(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<DoneView>, Refusal> {
    let removed = tokio::spawn(async move { containers::remove(&control, &name).await });
    joined(removed).await?;
    Ok(Json(DoneView { done: true, note: String::new() }))
}

async fn container_usage(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<ContainerUsageView>, Refusal> {
    usage::of_container(&control, &name).await.map(Json)
}

async fn vdisk_usage(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<UsageView>, Refusal> {
    usage::of_vdisk(&control, &name).await.map(Json)
}

async fn own_usage(State(control): State<SharedControl>) -> Json<Vec<OwnUsageView>> {
    Json(usage::own(&control).await)
}
