//! Pages of other sites: a browser on the machine of an operator runs what they say, and reaches the API that only listens there.
//! Promises: what changes something is not done for them, and nothing is told to them; programs that are no browser get in by any
//! name.
//!
//! A page reads only what comes from its own site. So one that wants to read here has its own name lead here (DNS
//! rebinding): the browser takes this node for the page's site, and says that name as the host. No other site's name is
//! one that this machine knows as its own, so that is what tells them apart.

use crate::control::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Passes a request on, unless a page of another site may be behind it.
pub async fn refuse_others(State(own): State<OwnNames>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let line = if matches!(*request.method(), Method::GET | Method::HEAD) {
        if !is_from_browser(headers) || own.has(text(headers, header::HOST).unwrap_or_default()) {
            return next.run(request).await;
        }
        "a browser asked for this by a name that is not known to be this machine's, so a page of another site may be behind \
         it: use an address, the machine's name, or a name that its /etc/hosts gives to it"
    } else {
        if is_own(headers, &own) {
            return next.run(request).await;
        }
        "a page of another site asked for this, and is refused; use the commands"
    };
    Refusal { status: StatusCode::FORBIDDEN, ..Refusal::bad_input(line) }.into_response()
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Without TLS browsers tell of the page (`Sec-Fetch-Site`) to their own machine only, and some let a page choose what they are
/// called. The languages of their user they tell everybody, whatever a page says; monitoring has none.
fn is_from_browser(headers: &HeaderMap) -> bool {
    let says_so = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    let agent = text(headers, header::USER_AGENT).unwrap_or_default();
    says_so || agent.starts_with("Mozilla/") || headers.contains_key(header::ACCEPT_LANGUAGE)
}

/// Whether there is no page behind a request, or one of this very node. Browsers tell of the page with all that may change
/// something; programs that are none have no reason to.
fn is_own(headers: &HeaderMap, own: &OwnNames) -> bool {
    let Some(origin) = text(headers, header::ORIGIN) else { return true };
    let host = text(headers, header::HOST).unwrap_or_default();
    own.has(host) && origin.split_once("://").is_some_and(|(_, site)| site == host)
}

/// The names of this machine, as far as it says so itself: what the rest of the world calls it proves nothing.
#[derive(Debug, Clone)]
pub struct OwnNames(Arc<BTreeSet<String>>);

impl OwnNames {
    /// As they are now; a node hears of others when it is started again.
    pub fn of_this_machine() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::of(&read("/proc/sys/kernel/hostname"), &read("/etc/hosts"), &read("/etc/resolv.conf"))
    }

    /// Its own name, what stands beside that in the table of hosts, and its name in the domains that it looks in for
    /// others.
    fn of(host: &str, table: &str, resolver: &str) -> Self {
        let host = host.trim().to_ascii_lowercase();
        let short = host.split('.').next().unwrap_or_default().to_string();
        if short.is_empty() {
            return Self(Arc::default());
        }
        let mut names = BTreeSet::from([host.clone()]);
        for line in table.lines() {
            let line = line.split('#').next().unwrap_or_default().to_ascii_lowercase();
            let of_line: Vec<&str> = line.split_whitespace().skip(1).collect();
            if of_line.contains(&host.as_str()) || of_line.contains(&short.as_str()) {
                names.extend(of_line.into_iter().map(str::to_string));
            }
        }
        for line in resolver.lines() {
            let line = line.to_ascii_lowercase();
            let mut words = line.split_whitespace();
            if matches!(words.next(), Some("search" | "domain")) {
                names.extend(words.map(|domain| format!("{short}.{}", domain.trim_end_matches('.'))));
            }
        }
        Self(Arc::new(names))
    }

    /// Whether a host, perhaps with a port, is this machine. An address is: who is asked by it was not found by a name. So is a
    /// name without a domain: nobody can have it in the world's DNS.
    fn has(&self, host: &str) -> bool {
        if let Some(rest) = host.strip_prefix('[') {
            return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
        }
        let name = host.split_once(':').map_or(host, |(name, _)| name).to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let is_plain = !name.is_empty() && !name.contains('.');
        is_plain || name.parse::<Ipv4Addr>().is_ok() || self.0.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in all {
            headers.insert(name, value.parse().expect("plain"));
        }
        headers
    }

    fn a_machine() -> OwnNames {
        let table = "127.0.0.1 localhost\n127.0.1.1 DB-1.example.com db-1 weft.example.com # this one\n\
                     10.0.0.9 db-2.example.com db-2\n# 10.0.0.8 evil.example db-1\n";
        OwnNames::of("db-1\n", table, "nameserver 10.0.0.1\nsearch lab.example. example.org\n")
    }

    #[test]
    fn a_machine_knows_its_own_names_and_no_others() {
        let own = a_machine();
        for host in [
            "127.0.0.1:7070",
            "10.0.0.9",
            "[::1]:7070",
            "[fe80::1]",
            "localhost:7070",
            "db-1",
            "db-7:7070",
            "db-1.example.com:7070",
            "Db-1.Example.com.",
            "weft.example.com",
            "db-1.lab.example:7070",
            "db-1.example.org",
        ] {
            assert!(own.has(host), "{host}");
        }
        for host in [
            "",
            ":7070",
            "evil.example:7070",
            "db-2.example.com",
            "db-1.evil.example",
            "127.0.0.1.evil.example",
            "[evil.example]:7070",
            "example.com",
        ] {
            assert!(!own.has(host), "{host}");
        }
        let full = OwnNames::of("DB-3.example.com", "10.0.0.3 db-3 store.example.com", "");
        assert!(full.has("db-3.example.com") && full.has("store.example.com"));
        assert!(!full.has("db-1.example.com"));
        let nameless = OwnNames::of("", "127.0.0.1 evil.example", "search evil.example");
        assert!(!nameless.has("evil.example") && nameless.has("127.0.0.1"));
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        let own = a_machine();
        let asked = |host: &'static str, origin: Option<&'static str>| {
            let mut all = vec![("host", host)];
            all.extend(origin.map(|origin| ("origin", origin)));
            is_own(&headers(&all), &own)
        };
        let here = "127.0.0.1:7070";
        assert!(asked(here, None), "no browser");
        assert!(asked(here, Some("http://127.0.0.1:7070")), "the node's own pages");
        assert!(asked("db-1.example.com:7070", Some("http://db-1.example.com:7070")), "by its whole name");
        for other in [
            "http://127.0.0.1:7071",
            "https://evil.example",
            "null",
            "",
            "http://127.0.0.1:7070.evil.example",
        ] {
            assert!(!asked(here, Some(other)), "{other}");
        }
        assert!(!asked("evil.example:7070", Some("http://evil.example:7070")), "its name leads here");
    }

    #[test]
    fn browsers_are_known_whatever_their_pages_leave_out() {
        let monitoring: [&[(&'static str, &'static str)]; 3] = [
            &[("host", "db-1.example.net"), ("user-agent", "Prometheus/3.5.0"), ("accept-encoding", "gzip")],
            &[("host", "db-1.example.net"), ("user-agent", "kube-probe/1.33"), ("accept", "*/*")],
            &[("host", "db-1.example.net")],
        ];
        for asked in monitoring {
            assert!(!is_from_browser(&headers(asked)), "{asked:?}");
        }
        for asked in [
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
            ("sec-fetch-site", "same-origin"),
            ("origin", "http://evil.example"),
            ("accept-language", "en"),
        ] {
            assert!(is_from_browser(&headers(&[("host", "evil.example"), asked])), "{asked:?}");
        }
    }
}
