//! Requests for another run of a node: whoever finds the address in the directory of a node that was killed may reach another
//! one, which has it now, and would order that about.

use crate::api::{OTHER_RUN, RUN_HEADER};
use crate::control::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const _: () =
    assert!(StatusCode::PRECONDITION_FAILED.as_u16() == OTHER_RUN, "what is answered is what is promised");

/// Passes a request on, unless it is for another run than this one.
pub async fn refuse_misdirected(State(run): State<String>, request: Request, next: Next) -> Response {
    match request.headers().get(RUN_HEADER) {
        Some(meant) if meant.as_bytes() != run.as_bytes() => {
            let line = "another run of a node is meant than the one that answers here";
            Refusal { status: StatusCode::PRECONDITION_FAILED, ..Refusal::bad_input(line) }.into_response()
        }
        _ => next.run(request).await,
    }
}
