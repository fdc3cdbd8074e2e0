//! Pages for people, and what they are made of for programs.

use crate::api::{DoneView, ElsewhereView, LatencyView, MisdirectedView, VdiskFiguresListView};
use crate::control::refusal::Refusal;
use crate::control::{SharedControl, cache, figures, pages, statistics};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};

pub(super) fn router() -> Router<SharedControl> {
    Router::new()
        .route("/v1/latency", get(latency))
        .route("/v1/latency/reset", post(reset))
        .route("/v1/vdisk_stats", get(vdisks))
        .route("/v1/vdisk_stats/{name}", get(vdisk))
        .route("/", get(index_page))
        .route("/latency", get(latency_page))
        .route("/latency/reset", post(reset_page))
        .route("/cache_stats", get(cache_page))
        .route("/vdisk_stats", get(vdisks_page))
        .route("/vdisk_stats/{name}", get(vdisk_page))
}

async fn latency(State(control): State<SharedControl>) -> Json<LatencyView> {
    Json(figures::latency(&control).await)
}

async fn reset(State(control): State<SharedControl>) -> Json<DoneView> {
    figures::reset_latency(&control);
    Json(DoneView { done: true, note: "since_reset begins again".to_string() })
}

async fn vdisks(State(control): State<SharedControl>) -> Json<VdiskFiguresListView> {
    Json(figures::vdisks(&control).await)
}

async fn vdisk(State(control): State<SharedControl>, Path(name): Path<String>) -> Result<Response, Refusal> {
    Ok(match figures::vdisk(&control, &name).await? {
        Ok(view) => Json(view).into_response(),
        Err(elsewhere) => (StatusCode::MISDIRECTED_REQUEST, Json(misdirected(elsewhere))).into_response(),
    })
}

fn misdirected(elsewhere: ElsewhereView) -> MisdirectedView {
    let who = match (elsewhere.node, &elsewhere.api) {
        (Some(node), Some(api)) => format!("node {node} serves it: ask {api}"),
        _ => "nobody serves it at this moment; ask again later".to_string(),
    };
    let error = format!("vDisk {} is not served by this node, and {who}", elsewhere.name);
    MisdirectedView { error, elsewhere }
}

async fn index_page(State(control): State<SharedControl>) -> Html<String> {
    let stats = statistics::gather_totals(&control).await;
    let control = control.lock();
    let node = control.part.member().map(|member| member.number());
    Html(pages::index(&control.status_view(&stats), node))
}

async fn latency_page(State(control): State<SharedControl>) -> Html<String> {
    Html(pages::latency(&figures::latency(&control).await))
}

/// A browser goes back to the page; a program finds an answer like any other.
async fn reset_page(State(control): State<SharedControl>) -> impl IntoResponse {
    (StatusCode::SEE_OTHER, [(header::LOCATION, "/latency")], reset(State(control)).await)
}

async fn cache_page(State(control): State<SharedControl>) -> Html<String> {
    Html(pages::cache(&cache::show(&control).await))
}

async fn vdisks_page(State(control): State<SharedControl>) -> Html<String> {
    Html(pages::vdisks(&figures::vdisks(&control).await))
}

async fn vdisk_page(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Html<String>, Refusal> {
    Ok(Html(match figures::vdisk(&control, &name).await? {
        Ok(view) => pages::vdisk(&view),
        Err(elsewhere) => pages::vdisk_elsewhere(&elsewhere),
    }))
}
