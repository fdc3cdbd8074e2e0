//! Speaks to a node's HTTP API, found by its directory or its address.
//! Promises: an answer, or one line that says why there is none and what to do.

pub use weft_node::path_part;

use crate::arguments::Place;
use crate::trouble::Trouble;
use serde_json::Value;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_node::api::{API_FILE, OTHER_RUN, RUN_FILE, RUN_HEADER};

/// Questions are answered at once, or in parts.
const ANSWER_SECONDS: u64 = 60;

/// Work takes longer: the node itself waits for up to two minutes, and says then how far it is.
const WORK_SECONDS: u64 = 180;

/// No answer is larger; those of some thousand vDisks have several MiB.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// The node did not wait longer for the request.
const TOO_LATE: u16 = 408;

/// What was asked for is with another node.
const ELSEWHERE: u16 = 421;

pub struct Client {
    base: String,
    agent: ureq::Agent,
    /// The directory that it was found by.
    dir: Option<PathBuf>,
    /// Which run of the node that directory tells of.
    run: Option<String>,
    /// How the node was looked for, for complaints.
    place: String,
}

impl Client {
    pub fn find(place: &Place) -> Result<Self, Trouble> {
        let (address, told) = match &place.api {
            Some(address) => (address.clone(), format!("--api {address}")),
            None => {
                let file = place.dir.join(API_FILE);
                match std::fs::read_to_string(&file) {
                    Ok(text) => (text.trim().to_string(), format!("{}", place.dir.display())),
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        return Err(Trouble::failed(format!(
                            "no node runs on {}: start it with `weft up --dir {}`, or name another with --dir or --api",
                            place.dir.display(),
                            place.dir.display()
                        )));
                    }
                    Err(error) => {
                        return Err(Trouble::bad_input(format!(
                            "{} cannot be read: {error}; name the node with --dir or --api",
                            file.display()
                        )));
                    }
                }
            }
        };
        let base = base_of(&address).ok_or_else(|| {
            Trouble::bad_input(format!(
                "`{address}` is no address of an API: give one like 127.0.0.1:7070 (TLS is not built yet)"
            ))
        })?;
        let agent = ureq::AgentBuilder::new().timeout_connect(Duration::from_secs(5)).build();
        let dir = place.api.is_none().then(|| place.dir.clone());
        let run = dir.as_ref().and_then(|dir| std::fs::read_to_string(dir.join(RUN_FILE)).ok());
        let run =
            run.map(|run| run.trim().to_string()).filter(|run| run.bytes().all(|b| b.is_ascii_hexdigit()));
        Ok(Self { base, agent, dir, run, place: told })
    }

    /// The node's directory, if it was found by that: it may be another machine's otherwise.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    pub fn get(&self, path: &str) -> Result<Value, Trouble> {
        self.call("GET", path, None)
    }

    /// Likewise, without waiting longer than this.
    pub fn get_within(&self, path: &str, longest: Duration) -> Result<Value, Trouble> {
        refuse_steps(path)?;
        self.read("GET", path, self.request("GET", path).timeout(longest).call())
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        self.call("POST", path, Some(body))
    }

    pub fn delete(&self, path: &str) -> Result<Value, Trouble> {
        self.call("DELETE", path, None)
    }

    /// True if somebody listens at the address, even if the answer takes long.
    pub fn is_there(&self) -> bool {
        match self.request("GET", "/healthz").timeout(Duration::from_secs(2)).call() {
            Err(ureq::Error::Status(OTHER_RUN, _)) => false,
            Ok(_) | Err(ureq::Error::Status(..)) => true,
            Err(ureq::Error::Transport(transport)) => is_late(&transport),
        }
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Trouble> {
        refuse_steps(path)?;
        let seconds = if method == "GET" { ANSWER_SECONDS } else { WORK_SECONDS };
        let request = self.request(method, path).timeout(Duration::from_secs(seconds));
        let answer = match body {
            Some(body) => request.send_json(body),
            None => request.call(),
        };
        self.read(method, path, answer)
    }

    fn request(&self, method: &str, path: &str) -> ureq::Request {
        let request = self.agent.request(method, &format!("{}{path}", self.base));
        // Another node may have the address by now.
        self.run.iter().fold(request, |request, run| request.set(RUN_HEADER, run))
    }

    fn read(
        &self,
        method: &str,
        path: &str,
        answer: Result<ureq::Response, ureq::Error>,
    ) -> Result<Value, Trouble> {
        match answer {
            Ok(response) => read_body(response),
            Err(ureq::Error::Status(OTHER_RUN, _)) => Err(Trouble::failed(format!(
                "no node runs on {0}: another one answers at {1} now, where that was; start it with `weft up --dir {0}`",
                self.place, self.base
            ))),
            Err(ureq::Error::Status(code, response)) => {
                let body = read_body(response)?;
                let text = body["error"].as_str().map_or_else(
                    || format!("the node answered {method} {path} with status {code}"),
                    str::to_string,
                );
                // 4xx: the same request will be refused again. 5xx: the node could not do it now; or it took too long to come, or
                // another node has to be asked.
                let is_refused = code < 500 && !matches!(code, TOO_LATE | ELSEWHERE);
                Err(if is_refused { Trouble::bad_input(text) } else { Trouble::failed(text) })
            }
            Err(ureq::Error::Transport(transport)) if is_late(&transport) => Err(Trouble::failed(format!(
                "the node of {} has not answered {method} {path} yet; what was asked may still be done: look before you try again",
                self.place
            ))),
            Err(ureq::Error::Transport(transport)) => Err(Trouble::failed(format!(
                "the node of {} does not answer at {}: {}; if it was killed, start it again with `weft up`",
                self.place,
                self.base,
                transport.message().unwrap_or("the connection failed")
            ))),
        }
    }
}

/// What the URLs of an API begin with, if that is an address.
fn base_of(address: &str) -> Option<String> {
    let place = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let base = format!("http://{place}");
    // Another scheme would be taken for a host, and what follows for its path.
    let has_more = place.contains("://") || place.contains(|c: char| c.is_whitespace() || "?#".contains(c));
    (!has_more && ureq::get(&base).request_url().is_ok()).then_some(base)
}

/// Whether the request was sent, and the time for an answer is over.
fn is_late(transport: &ureq::Transport) -> bool {
    let mut cause = std::error::Error::source(transport);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::TimedOut) {
            return transport.kind() == ureq::ErrorKind::Io;
        }
        cause = error.source();
    }
    false
}

fn read_body(response: ureq::Response) -> Result<Value, Trouble> {
    let mut text = Vec::new();
    response
        .into_reader()
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|error| Trouble::failed(format!("the node's answer broke off: {error}; try again")))?;
    if text.trim_ascii().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&text)
        .map_err(|_| Trouble::failed("what answers there is no Weft node: check --dir and --api"))
}

/// A name that is empty, `.` or `..` would be a step in the path, also when it is escaped: something else would be asked for.
fn refuse_steps(path: &str) -> Result<(), Trouble> {
    let path = path.split('?').next().unwrap_or_default();
    let is_step = |part: &str| part.replace("%2E", ".").chars().all(|c| c == '.');
    if path.split('/').skip(1).any(is_step) {
        return Err(Trouble::bad_input("a name is empty or of dots only; nothing is called so"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{base_of, refuse_steps};

    #[test]
    fn no_name_is_a_step_in_the_path() {
        for good in [
            "/v1/vdisks",
            "/v1/vdisks/a.b",
            "/v1/vdisks/.a",
            "/v1/diff?from=..&to=",
            "/v1/vdisks/..%2F..",
            "/healthz",
        ] {
            assert!(refuse_steps(good).is_ok(), "{good}");
        }
        for bad in ["/v1/vdisks/", "/v1/vdisks//resize", "/v1/vdisks/%2E%2E", "/v1/vdisks/%2E/export?x=1"] {
            assert!(refuse_steps(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_is_understood_or_refused() {
        for good in ["127.0.0.1:7070", "http://127.0.0.1:7070", "http://127.0.0.1:7070/"] {
            assert_eq!(base_of(good).as_deref(), Some("http://127.0.0.1:7070"), "{good}");
        }
        assert!(base_of("db-1:7070").is_some() && base_of("[::1]:7070").is_some());
        for bad in [
            "",
            "http://",
            "127.0.0.1:99999",
            "nonsense:x",
            "https://127.0.0.1:7070",
            "a b",
            ":7070",
            "a:1?b",
        ] {
            assert_eq!(base_of(bad), None, "{bad:?}");
        }
    }
}
