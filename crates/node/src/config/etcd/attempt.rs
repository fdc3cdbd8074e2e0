//! Who is asked until there is an answer: one endpoint after the other, or, for what must not wait, the next one beside who is silent.
//! Promises: an answer, or an error that says whether anything may have been done; whoever answered is asked first from then on.
//! Leaves to others: asking one endpoint (`client`).

use super::client::{Failure, PATIENCE, body_of};
use super::traffic::Request;
use super::wire::{Answer, RangeAnswer, RangeRequest};
use super::{Etcd, EtcdError, Page};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Before 3.4.31 and 3.5.13 reads may be old while ownership moves in etcd.
const OLD_PAUSE: Duration = Duration::from_millis(200);

/// An answer, and whether an earlier attempt of the same call may have been done as well.
pub(super) struct Answered<A> {
    pub answer: A,
    pub repeated: bool,
}

/// What came of those that were asked so far.
#[derive(Default)]
pub(super) struct Tried {
    lines: Vec<String>,
    /// Of those that are no etcd.
    odd: Vec<EtcdError>,
    repeated: bool,
}

impl Tried {
    /// An error that is the same everywhere is given back.
    pub fn note(&mut self, endpoint: &str, failure: Failure) -> Result<(), EtcdError> {
        self.lines.push(format!("{endpoint}: {}", failure.reason()));
        self.repeated |= !matches!(failure, Failure::NotSent(_));
        match failure {
            Failure::Said(error) => return Err(error),
            Failure::Nonsense(error) => self.odd.push(error),
            Failure::NotSent(_) | Failure::NoAnswer(_) => {}
        }
        Ok(())
    }

    /// Whether each of them has told something that is not what etcd would tell.
    fn are_all_odd(&self) -> bool {
        self.odd.len() == self.lines.len() && !self.odd.is_empty()
    }

    pub fn into_error(mut self) -> EtcdError {
        // Whoever does not answer will not be newer.
        if let Some(older) = self.odd.iter().position(|error| matches!(error, EtcdError::Older { .. })) {
            return self.odd.swap_remove(older);
        }
        // One wrong address must not end what the others can do; if all are, that is what is wrong.
        if self.are_all_odd() {
            return self.odd.swap_remove(0);
        }
        self.lines.dedup();
        let tried = self.lines.join("; ");
        if self.repeated { EtcdError::NoQuorum { tried } } else { EtcdError::Unreachable { tried } }
    }
}

impl Etcd {
    /// How many are asked: a single endpoint gets a second chance, as it may have closed the connection that was kept.
    fn attempts(&self) -> usize {
        self.endpoints().len().max(2)
    }

    /// Asks one endpoint after the other until one answers.
    pub(super) fn attempt<A: Answer>(
        &self,
        ask: impl Fn(&str) -> Result<A, Failure>,
    ) -> Result<Answered<A>, EtcdError> {
        let began = Instant::now();
        let mut tried = Tried::default();
        for _ in 0..self.attempts() {
            let at = self.current();
            let endpoint = &self.endpoints()[at];
            match ask(endpoint) {
                Ok(answer) => {
                    self.heard_revision(answer.header().revision.unsigned());
                    return Ok(Answered { answer, repeated: tried.repeated });
                }
                Err(failure) => tried.note(endpoint, failure)?,
            }
            self.let_it_pass(&tried);
            self.leave(at);
            if began.elapsed() >= PATIENCE {
                break;
            }
        }
        Err(self.give_up(tried))
    }

    /// The same, for what may be done several times and must not wait for endpoints that are silent: when one has not answered within
    /// `patience`, the next one is asked beside it. An etcd that is slow has all the time of a request all the same, so nothing is lost
    /// by asking soon.
    pub(super) fn attempt_beside<A: Answer + Send + 'static>(
        &self,
        patience: Duration,
        ask: impl Fn(&Etcd, &str) -> Result<A, Failure> + Clone + Send + 'static,
    ) -> Result<A, EtcdError> {
        let first = self.current();
        let place = |number: usize| (first + number) % self.endpoints().len();
        let (to, answers) = mpsc::channel();
        let mut tried = Tried::default();
        let mut asked = 0;
        let mut ended = 0;
        loop {
            let is_last = asked + 1 >= self.attempts();
            if asked < self.attempts() {
                self.ask_beside(asked, place(asked), &to, ask.clone());
                asked += 1;
            }
            match answers.recv_timeout(if is_last { PATIENCE } else { patience }) {
                Ok((number, Ok(answer))) => {
                    self.heard_revision(answer.header().revision.unsigned());
                    // The first one may have been slow; if another was faster, it is silent or out of order.
                    if number > 0 {
                        self.go_to(first, place(number));
                    }
                    return Ok(answer);
                }
                Ok((number, Err(failure))) => {
                    tried.note(&self.endpoints()[place(number)], failure)?;
                    self.let_it_pass(&tried);
                    ended += 1;
                }
                Err(RecvTimeoutError::Timeout) if !is_last => {}
                Err(_) => break,
            }
            if ended == self.attempts() {
                break;
            }
        }
        self.leave(first);
        if ended < asked {
            let silent = Failure::NoAnswer("no answer yet".to_string());
            tried.note("the others", silent)?;
        }
        Err(self.give_up(tried))
    }

    /// A single endpoint is asked twice. Of one that was old for a moment the second answer is worth more a moment later.
    fn let_it_pass(&self, tried: &Tried) {
        let is_older = tried.odd.iter().any(|error| matches!(error, EtcdError::Older { .. }));
        if self.endpoints().len() == 1 && tried.lines.len() < self.attempts() && is_older {
            std::thread::sleep(OLD_PAUSE);
        }
    }

    /// Nobody has answered. If all are there and none is as new as etcd was, it has gone back.
    fn give_up(&self, tried: Tried) -> EtcdError {
        let are_all_odd = tried.are_all_odd();
        let error = tried.into_error();
        if are_all_odd && matches!(error, EtcdError::Older { .. }) {
            self.is_older(error.clone());
        }
        error
    }

    /// One key as every endpoint by itself tells it, all asked at once; at least one answer. For who does not know yet which etcd is ours.
    pub fn look_everywhere(&self, key: &str) -> Result<Vec<(&str, Page)>, EtcdError> {
        let (to, answers) = mpsc::channel();
        let body = body_of(&RangeRequest::of_one(key));
        for at in 0..self.endpoints().len() {
            let body = body.clone();
            self.ask_beside(at, at, &to, move |etcd, endpoint| {
                etcd.ask::<RangeAnswer>(endpoint, Request::Range, &body)
            });
        }
        drop(to);
        let (mut tried, mut said) = (Tried::default(), None);
        let mut pages = Vec::new();
        for (at, asked) in answers {
            let endpoint = self.endpoints()[at].as_str();
            match asked {
                Ok(answer) => pages.push((endpoint, Page::from(answer))),
                Err(failure) => said = said.or(tried.note(endpoint, failure).err()),
            }
        }
        if pages.is_empty() { Err(said.unwrap_or_else(|| tried.into_error())) } else { Ok(pages) }
    }

    /// On a thread of its own, which ends by itself: requests do.
    fn ask_beside<A: Send + 'static>(
        &self,
        number: usize,
        at: usize,
        to: &Sender<(usize, Result<A, Failure>)>,
        ask: impl Fn(&Etcd, &str) -> Result<A, Failure> + Clone + Send + 'static,
    ) {
        let (etcd, to) = (self.clone(), to.clone());
        let run = move || {
            let asked = ask(&etcd, &etcd.endpoints()[at]);
            // Nobody waits for it if another one was faster.
            let _ = to.send((number, asked));
        };
        let here = run.clone();
        let thread = std::thread::Builder::new().name("weft-ask".to_string());
        if thread.spawn(run).is_err() {
            // Without threads one after the other is better than nobody.
            here();
        }
    }
}
