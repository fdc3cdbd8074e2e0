//! Why a request to the API is not done: a status for programs and one line for people.

use crate::api::ErrorView;
use crate::config::ConfigError;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct Refusal {
    pub status: StatusCode,
    pub line: String,
    /// Part of it was done before this came: asked once more, something else would be done.
    pub is_half_done: bool,
}

/// In the answer to what was refused because of what this node knows of others, before anything was done: one that is behind asks
/// once more when it knows more (see `server/behind.rs`).
#[derive(Debug, Clone, Copy)]
pub struct MayAskAgain;

impl Refusal {
    pub fn new(status: StatusCode, line: impl Into<String>) -> Self {
        Self { status, line: line.into(), is_half_done: false }
    }

    pub fn bad_input(line: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, line)
    }

    pub fn no_vdisk(name: &str) -> Self {
        let line = format!("there is no vDisk {name:?}; `weft vdisk ls` shows what there is");
        Self::new(StatusCode::NOT_FOUND, line)
    }

    pub fn not_found(line: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, line)
    }

    pub fn conflict(line: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, line)
    }

    pub fn unavailable(line: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, line)
    }

    pub fn failed(line: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, line)
    }

    pub fn no_space(line: impl Into<String>) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, line)
    }

    /// Something was done before this came. Never told as what was not found: that is something else.
    pub fn half_done(self) -> Self {
        let status = if self.status == StatusCode::NOT_FOUND { StatusCode::CONFLICT } else { self.status };
        Self { status, is_half_done: true, ..self }
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        tracing::error!(%error, "the config store failed");
        Self::failed(error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorView { error: self.line })).into_response();
        if !self.is_half_done && matches!(self.status, StatusCode::NOT_FOUND | StatusCode::CONFLICT) {
            response.extensions_mut().insert(MayAskAgain);
        }
        response
    }
}
