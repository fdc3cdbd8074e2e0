//! The HTTP API: paths, bodies and statuses. What they mean is in `api`.

mod behind;
mod cluster;
mod containers;
mod listen;
mod origin;
mod pages;
mod run;
mod snapshots;

pub use listen::serve;

use super::exports::wait_until_exportable;
use super::refusal::Refusal;
use super::vdisks::Deletion;
use super::{
    SharedControl, Stage, attachments, cache, census, figures, member, metrics, policy, statistics, vdisks,
};
use crate::api::{
    AttachVdisk, AttachmentView, CacheView, CreateVdisk, DoneView, ExportVdisk, ExportView, MoveVdisk,
    ResizeCache, ResizeVdisk, SetVdisk, StatsView, StatusView, VdiskView, WarmVdisk, WarmView,
};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// No request has a larger body.
const BODY_BYTES_MAX: usize = 64 << 10;

pub fn router(control: SharedControl) -> Router {
    let run = control.lock().run.clone();
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/vdisks", get(list).post(create))
        .route("/v1/vdisks/{name}", get(show).delete(remove))
        .route("/v1/vdisks/{name}/resize", post(resize))
        .route("/v1/vdisks/{name}/set", post(set))
        .route("/v1/vdisks/{name}/exports", post(export).delete(unexport))
        .route("/v1/vdisks/{name}/attach", post(attach).delete(detach))
        .route("/v1/vdisks/{name}/move", post(move_vdisk))
        .merge(cluster::router())
        .merge(containers::router())
        .route("/v1/vdisks/{name}/warm", post(warm))
        .route("/v1/lost-vdisks/{number}", axum::routing::delete(forget))
        .route("/v1/cache", get(show_cache).post(resize_cache))
        .merge(snapshots::router())
        .merge(pages::router())
        .route("/v1/stats", get(stats))
        .route("/v1/shutdown", post(shutdown))
        .route("/metrics", get(prometheus))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(control.clone(), behind::look_again))
        .layer(middleware::from_fn_with_state(origin::OwnNames::of_this_machine(), origin::refuse_others))
        .layer(middleware::from_fn_with_state(run, run::refuse_misdirected))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::map_response(as_document))
        .with_state(control)
}

/// What the library refuses by itself (a name that is no UTF-8, a body that is too large) is told like all else.
async fn as_document(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !response.status().is_client_error() || !kind.is_some_and(|kind| kind.starts_with("text/plain")) {
        return response;
    }
    let status = response.status();
    let text = axum::body::to_bytes(response.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    Refusal::new(status, String::from_utf8_lossy(&text).trim()).into_response()
}

/// A body of JSON, or a line about what is wrong with it.
fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    let text = if body.is_empty() { b"{}".as_slice() } else { body };
    serde_json::from_slice(text).map_err(|error| {
        Refusal::bad_input(format!("the body is not what is wanted: {error}; see docs/operating.md"))
    })
}

/// A query string, or a line about what is wrong with it.
type Asked<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

fn asked<T>(query: Asked<T>) -> Result<T, Refusal> {
    query.map(|Query(query)| query).map_err(|error| Refusal::bad_input(error.body_text()))
}

async fn unknown() -> Refusal {
    Refusal::not_found("there is nothing at this path; the API is described in docs/operating.md")
}

async fn wrong_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take this method; the API is described in docs/operating.md",
    )
}

async fn status(State(control): State<SharedControl>) -> Json<StatusView> {
    let stats = statistics::gather_totals(&control).await;
    Json(control.lock().status_view(&stats))
}

async fn list(State(control): State<SharedControl>) -> Json<Vec<VdiskView>> {
    let control = control.lock();
    let mut views: Vec<_> = control.families.keys().map(|&family| control.vdisk_view(family)).collect();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    Json(views)
}

async fn create(
    State(control): State<SharedControl>,
    body: Bytes,
) -> Result<(StatusCode, Json<VdiskView>), Refusal> {
    let wanted: CreateVdisk = parse(&body)?;
    // On a task of its own: a client that hangs up does not leave a half-made vDisk behind.
    let made = tokio::spawn(async move {
        if is_member(&control) {
            member::create(&control, wanted).await
        } else {
            vdisks::create(&control, wanted).await
        }
    });
    Ok((StatusCode::CREATED, Json(joined(made).await?)))
}

fn is_member(control: &SharedControl) -> bool {
    control.lock().member().is_ok()
}

async fn joined<T>(task: tokio::task::JoinHandle<Result<T, Refusal>>) -> Result<T, Refusal> {
    task.await
        .unwrap_or_else(|_| Err(Refusal::failed("the control plane failed an assertion; restart the node")))
}

async fn show(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<VdiskView>, Refusal> {
    let control = control.lock();
    let family = control.family_named(&name).ok_or_else(|| Refusal::no_vdisk(&name))?;
    Ok(Json(control.vdisk_view(family)))
}

#[derive(Deserialize)]
struct RemoveQuery {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    with_snapshots: bool,
}

async fn forget(
    State(control): State<SharedControl>,
    Path(number): Path<u32>,
) -> Result<Json<DoneView>, Refusal> {
    census::forget(&control, weft_engine::FamilyId(number)).await?;
    Ok(Json(DoneView { done: true, note: String::new() }))
}

async fn remove(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    query: Asked<RemoveQuery>,
) -> Result<Json<DoneView>, Refusal> {
    let RemoveQuery { force, with_snapshots } = asked(query)?;
    let how = Deletion { force, with_snapshots };
    // Whoever asks may go away; what was begun is ended in any case.
    let removed = tokio::spawn(async move {
        if is_member(&control) {
            member::delete(&control, &name, how).await
        } else {
            vdisks::delete(&control, &name, how).await
        }
    });
    Ok(Json(DoneView { done: true, note: joined(removed).await? }))
}

async fn resize(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<VdiskView>, Refusal> {
    let wanted: ResizeVdisk = parse(&body)?;
    if is_member(&control) {
        return member::resize(&control, &name, wanted.size).await.map(Json);
    }
    control.lock().resize(&name, wanted.size).map(Json)
}

async fn set(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<VdiskView>, Refusal> {
    let wanted: SetVdisk = parse(&body)?;
    let set = tokio::spawn(async move { policy::set(&control, &name, &wanted).await });
    joined(set).await.map(Json)
}

async fn move_vdisk(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<VdiskView>, Refusal> {
    let wanted: MoveVdisk = parse(&body)?;
    control.lock().member()?;
    let moved = tokio::spawn(async move { member::move_vdisk(&control, &name, wanted.to).await });
    joined(moved).await.map(Json)
}

async fn export(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<(StatusCode, Json<ExportView>), Refusal> {
    let wanted: ExportVdisk = parse(&body)?;
    wait_until_exportable(&control, &name).await;
    if is_member(&control) {
        let made = tokio::spawn(async move { member::add_export(&control, &name, &wanted).await });
        return Ok((StatusCode::CREATED, Json(joined(made).await?)));
    }
    Ok((StatusCode::CREATED, Json(control.lock().add_export(&name, &wanted)?)))
}

#[derive(Deserialize)]
struct UnexportQuery {
    address: Option<String>,
}

async fn unexport(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    query: Asked<UnexportQuery>,
) -> Result<Json<DoneView>, Refusal> {
    let address = asked(query)?.address;
    let note = if is_member(&control) {
        member::remove_exports(&control, &name, address.as_deref()).await?
    } else {
        control.lock().remove_exports(&name, address.as_deref())?
    };
    Ok(Json(DoneView { done: true, note }))
}

async fn attach(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<(StatusCode, Json<AttachmentView>), Refusal> {
    let wanted: AttachVdisk = parse(&body)?;
    wait_until_exportable(&control, &name).await;
    let attached = tokio::spawn(async move { attachments::attach(&control, &name, wanted.read_only).await });
    Ok((StatusCode::CREATED, Json(joined(attached).await?)))
}

async fn detach(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
) -> Result<Json<DoneView>, Refusal> {
    let detached = tokio::spawn(async move { attachments::detach(&control, &name).await });
    Ok(Json(DoneView { done: true, note: joined(detached).await? }))
}

async fn warm(
    State(control): State<SharedControl>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<WarmView>, Refusal> {
    let wanted: WarmVdisk = parse(&body)?;
    cache::warm(&control, &name, wanted.from, wanted.data).await.map(Json)
}

async fn show_cache(State(control): State<SharedControl>) -> Json<CacheView> {
    Json(cache::show(&control).await)
}

async fn resize_cache(State(control): State<SharedControl>, body: Bytes) -> Result<Json<CacheView>, Refusal> {
    let wanted: ResizeCache = parse(&body)?;
    cache::resize(&control, wanted.bytes).await.map(Json)
}

async fn stats(State(control): State<SharedControl>) -> Json<StatsView> {
    Json(statistics::gather(&control).await)
}

async fn prometheus(State(control): State<SharedControl>) -> Response {
    let (stats, shards, latencies) = tokio::join!(
        statistics::gather_totals(&control),
        figures::gather(&control),
        figures::latencies(&control),
    );
    let stages = figures::whole_stages(&shards);
    let text = metrics::text(&control.lock().status_view(&stats), &stats, stages.as_ref(), &latencies);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// Whoever sends clients here, or starts nodes one after the other, wants to know whether this one serves. Trouble that it goes on
/// serving with is told by its status: a node that is taken out for a drive that others stand in for makes things worse.
async fn ready(State(control): State<SharedControl>) -> Result<&'static str, Refusal> {
    control.lock().check_serving()?;
    Ok("ok\n")
}

async fn shutdown(State(control): State<SharedControl>) -> Json<DoneView> {
    let mut control = control.lock();
    if control.stage != Stage::Stopping {
        control.stage = Stage::Stopping;
        control.stop.notify_one();
    }
    Json(DoneView { done: true, note: "the node is stopping".to_string() })
}
