//! Pages of other sites: a browser on the machine of an operator runs what they say, and reaches the API that only listens there.
//! Promises: what changes something is not done for them.

use crate::control::refusal::Refusal;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::Ipv4Addr;

/// Passes a request on, unless it would change something and comes from a page of another site. Browsers say so; programs that are none
/// have no reason to.
pub async fn refuse_others(request: Request, next: Next) -> Response {
    let only_looks = matches!(*request.method(), Method::GET | Method::HEAD);
    if only_looks || is_own(request.headers()) {
        return next.run(request).await;
    }
    let line = "a page of another site asked for this, and is refused; use the commands".to_string();
    Refusal { status: StatusCode::FORBIDDEN, line }.into_response()
}

/// Whether there is no page behind a request, or one of this very node.
fn is_own(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(origin) = text(header::ORIGIN) else { return true };
    let host = text(header::HOST).unwrap_or_default();
    is_known(host) && origin.split_once("://").is_some_and(|(_, site)| site == host)
}

/// An address, or a name without a domain: others might be anybody's, who says that they are this machine.
fn is_known(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    !name.is_empty() && (!name.contains('.') || name.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_sites_are_told_apart() {
        let asked = |origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "127.0.0.1:7070".parse().expect("plain"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().expect("plain"));
            }
            is_own(&headers)
        };
        assert!(is_known("[::1]:7070") && is_known("localhost:7070") && is_known("db-1"));
        assert!(!is_known("evil.example:7070") && !is_known("") && !is_known("127.0.0.1.evil.example"));
        assert!(asked(None), "no browser");
        assert!(asked(Some("http://127.0.0.1:7070")), "the node's own pages");
        for other in [
            "http://127.0.0.1:7071",
            "https://evil.example",
            "null",
            "",
            "http://127.0.0.1:7070.evil.example",
        ] {
            assert!(!asked(Some(other)), "{other}");
        }
    }
}
