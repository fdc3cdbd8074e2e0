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
}

impl Refusal {
    pub fn bad_input(line: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, line: line.into() }
    }

    pub fn no_vdisk(name: &str) -> Self {
        let line = format!("there is no vDisk {name:?}; `weft vdisk ls` shows what there is");
        Self { status: StatusCode::NOT_FOUND, line }
    }

    pub fn not_found(line: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, line: line.into() }
    }

    pub fn conflict(line: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, line: line.into() }
    }

    pub fn unavailable(line: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, line: line.into() }
    }

    pub fn failed(line: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, line: line.into() }
    }

    pub fn no_space(line: impl Into<String>) -> Self {
        Self { status: StatusCode::INSUFFICIENT_STORAGE, line: line.into() }
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
        (self.status, Json(ErrorView { error: self.line })).into_response()
    }
}
