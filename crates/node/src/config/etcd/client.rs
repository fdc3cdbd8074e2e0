//! One client for all endpoints of an etcd: what it is made of, and how one endpoint is asked.
//! Promises: an answer, or an error that says whether anything may have been done, within `PATIENCE` and one
//! request; no answer is ever taken for another's.
//! Leaves to others: whom to ask, and whom then (`attempt`).

use super::attempt::Answered;
use super::identity::Identity;
use super::traffic::{Counters, Request, Traffic};
use super::wire::{Answer, ErrorForm, EtcdId, Header, Kv, Number, RangeAnswer, RangeRequest, Text};
use super::{EtcdError, LeaseId};
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// A call asks nobody else when this has passed.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);

/// How long a watch listens before it looks up: whether it shall end, or go elsewhere.
const LISTEN: Duration = Duration::from_secs(1);

/// Longer answers are not etcd's: it sends at most what was stored, in pages.
pub(super) const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Keys in one page of a range.
const PAGE_KEYS: u64 = 1000;

/// Codes of gRPC after which another endpoint may know better.
const CANCELED: u32 = 1;
const DEADLINE_EXCEEDED: u32 = 4;
const NOT_FOUND: u32 = 5;
const OUT_OF_RANGE: u32 = 11;
const UNAVAILABLE: u32 = 14;

/// Cheap to clone; all clones count together.
#[derive(Clone)]
pub struct Etcd(Arc<Shared>);

struct Shared {
    endpoints: Vec<String>,
    /// The endpoint to ask first.
    current: AtomicUsize,
    /// Requests that found an endpoint out of order.
    disturbances: AtomicU64,
    identity: Identity,
    /// The highest revision that any answer told.
    revision: AtomicU64,
    /// It has gone back, and is not believed before all of it has been read and found to be as new as it was.
    distrust: Mutex<Distrust>,
    calls: ureq::Agent,
    streams: ureq::Agent,
    counters: Counters,
}

#[derive(Default)]
struct Distrust {
    /// None: it is believed.
    why: Option<EtcdError>,
    /// How often it was begun.
    times: u64,
}

/// A key as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: String,
    /// The store's revision when the key was made, and when it was last put.
    pub create_revision: u64,
    pub mod_revision: u64,
    pub lease: Option<LeaseId>,
}

/// Part of a range.
#[derive(Debug)]
pub struct Page {
    pub entries: Vec<KeyValue>,
    /// Whose they are.
    pub etcd: EtcdId,
    /// The store's revision.
    pub revision: u64,
    /// Whether there are more keys behind the last one.
    pub more: bool,
}

/// Why one endpoint gave no answer.
pub(super) enum Failure {
    /// It never had the request.
    NotSent(String),
    /// It may have done it.
    NoAnswer(String),
    /// It is no etcd, or not as it was, or there is something between that speaks for it. It may have done it.
    Nonsense(EtcdError),
    /// It gave an answer that is the same everywhere.
    Said(EtcdError),
}

impl Failure {
    pub fn reason(&self) -> String {
        match self {
            Self::NotSent(reason) | Self::NoAnswer(reason) => reason.clone(),
            Self::Nonsense(error) | Self::Said(error) => error.to_string(),
        }
    }

    fn nonsense(endpoint: &str, reason: impl ToString) -> Self {
        Self::Nonsense(nonsense(endpoint, reason))
    }
}

pub(super) fn body_of(request: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(request).expect("requests are plain data")
}

impl Etcd {
    /// `endpoints` like `http://10.0.0.1:2379`. Nothing is sent yet. Any of them is asked first, so that the nodes of a cluster are not
    /// all clients of one member, and do not all meet the same silent one.
    pub fn new(endpoints: &[String]) -> Result<Self, EtcdError> {
        Self::beginning_with(endpoints, rand::rng().random_range(0..endpoints.len().max(1)))
    }

    /// ... and this one of them is asked first.
    pub fn beginning_with(endpoints: &[String], first: usize) -> Result<Self, EtcdError> {
        let endpoints: Vec<String> =
            endpoints.iter().map(|endpoint| check_endpoint(endpoint)).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(EtcdError::BadEndpoint { endpoint: String::new() });
        }
        assert!(first < endpoints.len(), "one of them");
        let calls = ureq::AgentBuilder::new()
            .timeout_connect(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .redirects(0)
            .max_idle_connections_per_host(4)
            .build();
        let streams = ureq::AgentBuilder::new()
            .timeout_connect(CONNECT_TIMEOUT)
            .timeout_read(LISTEN)
            .redirects(0)
            .max_idle_connections(0)
            .build();
        Ok(Self(Arc::new(Shared {
            endpoints,
            current: AtomicUsize::new(first),
            disturbances: AtomicU64::new(0),
            identity: Identity::default(),
            revision: AtomicU64::new(0),
            distrust: Mutex::default(),
            calls,
            streams,
            counters: Counters::default(),
        })))
    }

    pub fn endpoints(&self) -> &[String] {
        &self.0.endpoints
    }

    /// What was sent so far.
    pub fn traffic(&self) -> Traffic {
        self.0.counters.read()
    }

    /// The highest revision of the store that any answer told of.
    pub fn revision_heard(&self) -> u64 {
        self.0.revision.load(Ordering::Relaxed)
    }

    /// How often an endpoint was found out of order: what was connected before may be dead without knowing.
    pub fn disturbances(&self) -> u64 {
        self.0.disturbances.load(Ordering::Relaxed)
    }

    pub fn get(&self, key: &str) -> Result<Option<KeyValue>, EtcdError> {
        self.check_trust()?;
        let answer: RangeAnswer = self.call(Request::Range, &RangeRequest::of_one(key))?.answer;
        Ok(answer.kvs.into_iter().next().map(KeyValue::from))
    }

    /// Which etcd is ours, if that is known.
    pub fn ours(&self) -> Option<EtcdId> {
        self.0.identity.ours()
    }

    /// From now on only answers of the etcd that gave this page count.
    pub fn pin(&self, page: &Page) {
        if self.ours().is_none() && page.etcd != EtcdId(0) {
            // What another one told before is no revision of ours.
            self.0.revision.store(page.revision, Ordering::Relaxed);
            self.0.identity.pin(page.etcd);
        }
        self.heard_revision(page.revision);
    }

    /// This endpoint is asked first from now on.
    pub fn prefer(&self, endpoint: &str) {
        let at = self.current();
        let to = self.endpoints().iter().position(|other| other == endpoint);
        if let Some(to) = to.filter(|_| self.endpoints()[at] != endpoint) {
            self.go_to(at, to);
        }
    }

    /// Addresses that led to another etcd when they were asked last.
    pub fn strangers(&self) -> Vec<EtcdError> {
        self.0.identity.strangers()
    }

    /// One key as it is now, or none; also of an older state, for who finds out by that what it is.
    pub fn look(&self, key: &str) -> Result<Page, EtcdError> {
        let answered = self.call_of_any_age::<RangeAnswer>(Request::Range, &RangeRequest::of_one(key))?;
        Ok(Page::from(answered.answer))
    }

    /// The keys of [`first`, `end`) in order, as of `revision`, or as of now if that is 0; likewise.
    pub fn range(&self, first: &str, end: &str, revision: u64) -> Result<Page, EtcdError> {
        let request = RangeRequest {
            key: Text(first.to_string()),
            range_end: Some(Text(end.to_string())),
            limit: Number::of(PAGE_KEYS),
            revision: Number::of(revision),
        };
        Ok(Page::from(self.call_of_any_age::<RangeAnswer>(Request::Range, &request)?.answer))
    }

    /// Asks one endpoint after the other until one answers, and is as new as etcd was.
    pub(super) fn call<A: Answer + DeserializeOwned>(
        &self,
        request: Request,
        body: &impl Serialize,
    ) -> Result<Answered<A>, EtcdError> {
        let body = body_of(body);
        self.attempt(|endpoint| self.ask_of_now(endpoint, request, &body))
    }

    fn call_of_any_age<A: Answer + DeserializeOwned>(
        &self,
        request: Request,
        body: &impl Serialize,
    ) -> Result<Answered<A>, EtcdError> {
        let body = body_of(body);
        self.attempt(|endpoint| self.ask(endpoint, request, &body))
    }

    /// Refuses the answer of an older state.
    pub(super) fn ask_of_now<A: Answer + DeserializeOwned>(
        &self,
        endpoint: &str,
        request: Request,
        body: &[u8],
    ) -> Result<A, Failure> {
        let known = if request.is_of_now() { self.revision_known() } else { 0 };
        let answer: A = self.ask(endpoint, request, body)?;
        let found = answer.header().revision.unsigned();
        if found < known {
            let endpoint = endpoint.to_string();
            return Err(Failure::Nonsense(EtcdError::Older { endpoint, found, known }));
        }
        Ok(answer)
    }

    pub(super) fn ask<A: Answer + DeserializeOwned>(
        &self,
        endpoint: &str,
        request: Request,
        body: &[u8],
    ) -> Result<A, Failure> {
        match self.ask_anybody::<A>(endpoint, request, body) {
            Ok(answer) => self.check(endpoint, answer.header()).map(|()| answer),
            // A refusal does not tell whose it is.
            Err(Failure::Said(error)) if self.ours().is_some() => {
                let read = body_of(&RangeRequest::of_one("/"));
                match self.ask_anybody::<RangeAnswer>(endpoint, Request::Range, &read) {
                    Ok(answer) => self.check(endpoint, &answer.header)?,
                    // It refuses everything.
                    Err(Failure::Said(_)) => {}
                    Err(failure) => return Err(failure),
                }
                Err(Failure::Said(error))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether an answer of this endpoint is of our etcd.
    pub(super) fn check(&self, endpoint: &str, header: &Header) -> Result<(), Failure> {
        self.0.identity.check(endpoint, header.cluster_id)
    }

    fn ask_anybody<A: DeserializeOwned>(
        &self,
        endpoint: &str,
        request: Request,
        body: &[u8],
    ) -> Result<A, Failure> {
        self.0.counters.add(request);
        let response = post(&self.0.calls, endpoint, request, body)?;
        let mut text = Vec::new();
        response
            .into_reader()
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(|error| Failure::NoAnswer(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| Failure::nonsense(endpoint, error))
    }

    /// Opens a stream at the endpoint that answered last; gives its bytes as they come.
    pub(super) fn stream(
        &self,
        request: Request,
        body: &impl Serialize,
    ) -> Result<(Box<dyn Read + Send + Sync>, usize), EtcdError> {
        let body = body_of(body);
        let at = self.current();
        let endpoint = &self.0.endpoints[at];
        self.0.counters.add(request);
        match post(&self.0.streams, endpoint, request, &body) {
            Ok(response) => Ok((response.into_reader(), at)),
            Err(failure) => {
                if !matches!(failure, Failure::Said(_)) {
                    self.leave(at);
                }
                Err(match failure {
                    Failure::Said(error) | Failure::Nonsense(error) => error,
                    Failure::NotSent(reason) => {
                        EtcdError::Unreachable { tried: format!("{endpoint}: {reason}") }
                    }
                    Failure::NoAnswer(reason) => {
                        EtcdError::NoQuorum { tried: format!("{endpoint}: {reason}") }
                    }
                })
            }
        }
    }

    /// Asks every endpoint by itself whether it is an etcd: of a wrong address nothing would be noticed until the others are out of
    /// order; and whether all are of one. Those that do not answer may be down. Gives what should be told of them; nothing if none
    /// answers, which whoever asks for more will hear.
    pub fn look_at_all(&self) -> Result<Vec<String>, EtcdError> {
        let (mut notes, mut answers) = (Vec::new(), 0);
        let mut first = None;
        for endpoint in &self.0.endpoints {
            let asked =
                self.ask::<RangeAnswer>(endpoint, Request::Range, &body_of(&RangeRequest::of_one("/")));
            match asked {
                Err(Failure::Nonsense(error)) => return Err(error),
                Err(Failure::NotSent(reason) | Failure::NoAnswer(reason)) => {
                    notes.push(format!("{endpoint} does not answer now: {reason}"));
                }
                asked @ (Ok(_) | Err(Failure::Said(_))) => {
                    if let Ok(answer) = asked {
                        is_one(&mut first, endpoint, answer.header.cluster_id)?;
                    }
                    answers += 1;
                    notes.extend(self.version_note(endpoint));
                }
            }
        }
        if answers == 0 {
            notes.clear();
        }
        Ok(notes)
    }

    /// What an etcd of an old version should be told for.
    fn version_note(&self, endpoint: &str) -> Option<String> {
        let answer = self.0.calls.get(&format!("{endpoint}/version")).call().ok()?;
        let mut text = Vec::new();
        answer.into_reader().take(ANSWER_BYTES_MAX).read_to_end(&mut text).ok()?;
        let version = serde_json::from_slice::<serde_json::Value>(&text).ok()?;
        let version = version["etcdserver"].as_str()?.to_string();
        ends_leases_early(&version).then(|| {
            format!(
                "{endpoint} is etcd {version}: before 3.4.31 and 3.5.13 a member whose drive hung may end leases that are alive, \
                 and reads may be old for a second while ownership moves; see `Which etcd` in docs/operating.md"
            )
        })
    }

    /// An answer that is understood and cannot be true.
    pub(super) fn nonsense(&self, reason: &str) -> EtcdError {
        nonsense(&self.0.endpoints.join(", "), reason)
    }

    pub(super) fn heard_revision(&self, revision: u64) {
        let distrust = self.lock_distrust();
        // What an older state has come to since is no revision of ours.
        if distrust.why.is_none() {
            self.0.revision.fetch_max(revision, Ordering::Relaxed);
        }
    }

    /// It has gone back behind `known`, which only who knows the records can tell.
    pub fn goes_back(&self, error: EtcdError, known: u64) {
        let mut distrust = self.lock_distrust();
        *distrust = Distrust { why: Some(error), times: distrust.times + 1 };
        self.0.revision.store(known, Ordering::Relaxed);
    }

    /// It has gone back, as each endpoint says.
    pub(super) fn is_older(&self, error: EtcdError) {
        let mut distrust = self.lock_distrust();
        *distrust = Distrust { why: Some(error), times: distrust.times + 1 };
    }

    /// Known before it is asked, no answer of the same etcd that speaks of now is older than this.
    pub fn revision_known(&self) -> u64 {
        if self.ours().is_some() { self.revision_heard() } else { 0 }
    }

    /// Refuses all of it, as it was read at the revision `found`, if it had come to `known` before.
    pub fn check_age(&self, found: u64, known: u64) -> Result<(), EtcdError> {
        if found >= known {
            return Ok(());
        }
        let error = EtcdError::Older { endpoint: self.endpoints().join(", "), found, known };
        self.is_older(error.clone());
        Err(error)
    }

    /// To be asked for before all of it is read, for [`Etcd::is_as_new`].
    pub fn doubts(&self) -> u64 {
        self.lock_distrust().times
    }

    /// All of it is as new as it was, and was so after there were so many doubts.
    pub fn is_as_new(&self, doubts: u64) {
        let mut distrust = self.lock_distrust();
        if distrust.times == doubts {
            distrust.why = None;
        }
    }

    /// Refuses what would be done by an older state.
    pub fn check_trust(&self) -> Result<(), EtcdError> {
        self.distrust().map_or(Ok(()), Err)
    }

    /// Why it is not believed at present.
    pub fn distrust(&self) -> Option<EtcdError> {
        self.lock_distrust().why.clone()
    }

    fn lock_distrust(&self) -> MutexGuard<'_, Distrust> {
        self.0.distrust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint to ask first.
    pub(super) fn current(&self) -> usize {
        self.0.current.load(Ordering::Relaxed)
    }

    /// The endpoint did not answer: the next one is asked from now on, unless somebody else moved on already.
    pub(super) fn leave(&self, at: usize) {
        self.go_to(at, (at + 1) % self.0.endpoints.len());
    }

    /// The same, and it is known who answers.
    pub(super) fn go_to(&self, from: usize, to: usize) {
        self.0.disturbances.fetch_add(1, Ordering::Relaxed);
        let _ = self.0.current.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Refuses what is not of the same etcd as the first one that says whose it is.
pub fn is_one<'a>(
    first: &mut Option<(&'a str, EtcdId)>,
    endpoint: &'a str,
    id: EtcdId,
) -> Result<(), EtcdError> {
    match *first {
        _ if id == EtcdId(0) => {}
        None => *first = Some((endpoint, id)),
        Some((_, of_one)) if of_one == id => {}
        Some((one, id_of_one)) => {
            let (one, other) = (one.to_string(), endpoint.to_string());
            return Err(EtcdError::SeveralEtcds { one, id_of_one, other, id_of_other: id });
        }
    }
    Ok(())
}

fn check_endpoint(text: &str) -> Result<String, EtcdError> {
    let bad = || EtcdError::BadEndpoint { endpoint: text.to_string() };
    let trimmed = text.trim_end_matches('/');
    let host = trimmed.strip_prefix("http://").ok_or_else(bad)?;
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/' || c == '@') {
        return Err(bad());
    }
    Ok(trimmed.to_string())
}

/// Whether an etcd of this version lets a former leader end leases (etcd-io/etcd#15247).
fn ends_leases_early(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten(), parts.next().flatten()) {
        (Some(3), Some(4), Some(patch)) => patch < 31,
        (Some(3), Some(5), Some(patch)) => patch < 13,
        (Some(3), Some(minor), _) => minor < 4,
        _ => false,
    }
}

fn nonsense(endpoint: &str, reason: impl ToString) -> EtcdError {
    EtcdError::Nonsense { endpoint: endpoint.to_string(), reason: reason.to_string() }
}

fn post(
    agent: &ureq::Agent,
    endpoint: &str,
    request: Request,
    body: &[u8],
) -> Result<ureq::Response, Failure> {
    let url = format!("{endpoint}{}", request.path());
    match agent.post(&url).set("Content-Type", "application/json").send_bytes(body) {
        Ok(response) if response.status() == 200 => Ok(response),
        Ok(response) | Err(ureq::Error::Status(_, response)) => Err(refusal(endpoint, response)),
        Err(ureq::Error::Transport(error)) => Err(match error.kind() {
            ureq::ErrorKind::ConnectionFailed | ureq::ErrorKind::Dns => Failure::NotSent(reason_of(&error)),
            ureq::ErrorKind::InvalidUrl | ureq::ErrorKind::UnknownScheme => {
                Failure::Nonsense(EtcdError::BadEndpoint { endpoint: endpoint.to_string() })
            }
            ureq::ErrorKind::BadStatus | ureq::ErrorKind::BadHeader => {
                Failure::nonsense(endpoint, reason_of(&error))
            }
            _ => Failure::NoAnswer(reason_of(&error)),
        }),
    }
}

/// Without the address, which is told beside it.
fn reason_of(error: &ureq::Transport) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.message().unwrap_or("no reason given").to_string(),
    }
}

fn refusal(endpoint: &str, response: ureq::Response) -> Failure {
    let status = response.status();
    let mut text = Vec::new();
    // Etcd ends its refusals with trailers, which the library takes for damage: what came before them counts.
    let read = response.into_reader().take(ANSWER_BYTES_MAX).read_to_end(&mut text);
    match (serde_json::from_slice::<ErrorForm>(&text), read) {
        (Ok(form), _) => failure_of(form),
        (Err(_), Err(error)) => Failure::NoAnswer(error.to_string()),
        // Something between here and etcd speaks for it; another way may be better.
        (Err(_), Ok(_)) if status >= 500 => Failure::NoAnswer(format!("HTTP status {status}")),
        (Err(_), Ok(_)) => Failure::nonsense(endpoint, format!("HTTP status {status}")),
    }
}

fn failure_of(form: ErrorForm) -> Failure {
    let (code, message) = form.parts();
    match code {
        // It stops, or has no leader, or none that answers it; others may be better off.
        CANCELED | DEADLINE_EXCEEDED | UNAVAILABLE => Failure::NoAnswer(message),
        NOT_FOUND if message.contains("lease not found") => Failure::Said(EtcdError::LeaseOver),
        OUT_OF_RANGE if message.contains("has been compacted") => Failure::Said(EtcdError::Compacted),
        _ => Failure::Said(EtcdError::Refused { code, message }),
    }
}

impl From<RangeAnswer> for Page {
    fn from(answer: RangeAnswer) -> Self {
        Self {
            etcd: answer.header.cluster_id,
            revision: answer.header.revision.unsigned(),
            more: answer.more,
            entries: answer.kvs.into_iter().map(KeyValue::from).collect(),
        }
    }
}

impl From<Kv> for KeyValue {
    fn from(kv: Kv) -> Self {
        Self {
            key: kv.key.0,
            value: kv.value.0,
            create_revision: kv.create_revision.unsigned(),
            mod_revision: kv.mod_revision.unsigned(),
            lease: (kv.lease != Number(0)).then_some(LeaseId(kv.lease.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_end_leases_early_are_known() {
        for old in ["3.4.23", "3.4.30", "3.5.12", "3.3.27", "3.5.0-rc.1"] {
            assert!(ends_leases_early(old), "{old}");
        }
        for good in ["3.4.31", "3.5.13", "3.5.21+git", "3.6.0", "4.0.0", "", "x.y"] {
            assert!(!ends_leases_early(good), "{good}");
        }
    }

    #[test]
    fn endpoints_are_checked() {
        for good in ["http://127.0.0.1:2379", "http://etcd-1:2379/"] {
            assert_eq!(check_endpoint(good).as_deref(), Ok(good.trim_end_matches('/')));
        }
        for bad in ["", "127.0.0.1:2379", "https://etcd:2379", "http://", "http://a b", "http://user@host"] {
            assert!(matches!(check_endpoint(bad), Err(EtcdError::BadEndpoint { .. })), "{bad:?}");
        }
    }
}
