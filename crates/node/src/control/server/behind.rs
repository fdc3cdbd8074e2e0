//! A node of a cluster hears what was done at another one a moment later. Who makes a vDisk there and asks for it here
//! is not told that there is none, and who detaches it there and deletes it here not that it is attached: before such an answer goes
//! out the node catches up with the store, and looks again.

use super::BODY_BYTES_MAX;
use crate::control::refusal::{MayAskAgain, Refusal};
use crate::control::{Control, SharedControl, member};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Passes a request on; again, if it was refused for what may have changed. Of such a request nothing was done: what was done in
/// part is refused in another way (`Refusal::half_done`).
pub async fn look_again(State(control): State<SharedControl>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // Nodes ask each other what each knows itself.
    let is_asked_by_people = path.starts_with("/v1/") && !path.starts_with("/v1/internal/");
    if !is_asked_by_people {
        return next.run(request).await;
    }
    let known = revision(&control.lock());
    let (head, body) = request.into_parts();
    // It is here already, all of it (`listen`).
    let body = match to_bytes(body, BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return Refusal::bad_input(error.to_string()).into_response(),
    };
    let Some(known) = known else { return next.run(Request::from_parts(head, Body::from(body))).await };
    let once = Request::from_parts(head.clone(), Body::from(body.clone()));
    let response = next.clone().run(once).await;
    let may_ask_again = response.extensions().get::<MayAskAgain>().is_some();
    // Should etcd not answer, what is known here is all that can be said.
    if !may_ask_again || member::catch_up(&control).await.is_err() {
        return response;
    }
    if revision(&control.lock()).is_none_or(|heard| heard <= known) {
        return response;
    }
    next.run(Request::from_parts(head, Body::from(body))).await
}

/// The store's revision as far as it is known here; None on a node that is alone.
fn revision(control: &Control) -> Option<u64> {
    control.part.member().map(|member| member.revision())
}
