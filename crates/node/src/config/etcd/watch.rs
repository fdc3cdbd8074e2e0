//! A watch: every change of a range of keys behind a revision, in order, as it happens.
//! Promises: nothing is left out or told twice between the revision it began at and the last event it gave; a stream
//! that broke says so, and another can begin where it ended.

use super::client::ANSWER_BYTES_MAX;
use super::traffic::Request;
use super::wire::{Answer, ErrorForm, Number, Streamed, Text, WatchAnswer, WatchCreate, WatchRequest};
use super::{Etcd, EtcdError, KeyValue};
use serde::Deserialize;
use std::io::{self, BufRead, BufReader, Read};

pub struct Watch {
    etcd: Etcd,
    /// Which endpoint it is at.
    at: usize,
    reader: BufReader<Box<dyn Read + Send + Sync>>,
    /// A line of which the end has not come yet.
    line: Vec<u8>,
}

#[derive(Debug)]
pub enum WatchNews {
    /// Etcd has begun to watch; its revision then.
    Begun { revision: u64 },
    /// All changes of one or more revisions.
    Events(Vec<Event>),
    /// Nothing came for a second.
    Silence,
}

#[derive(Debug)]
pub struct Event {
    pub key: String,
    /// None: it was deleted, or its lease ended.
    pub value: Option<KeyValue>,
    pub revision: u64,
}

impl Etcd {
    /// Watches [`first`, `end`) from `revision` on.
    pub fn watch(&self, first: &str, end: &str, revision: u64) -> Result<Watch, EtcdError> {
        let request = WatchRequest {
            create_request: WatchCreate {
                key: Text(first.to_string()),
                range_end: Text(end.to_string()),
                start_revision: Number::of(revision),
            },
        };
        let (reader, at) = self.stream(Request::Watch, &request)?;
        Ok(Watch { etcd: self.clone(), at, reader: BufReader::new(reader), line: Vec::new() })
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    News(Streamed<WatchAnswer>),
    Error(ErrorForm),
}

impl Watch {
    /// What came next; waits a second at most. [`EtcdError::Compacted`]: the revision to begin at is not kept
    /// any more. After any error the watch is of no more use.
    pub fn listen(&mut self) -> Result<WatchNews, EtcdError> {
        let limit = ANSWER_BYTES_MAX.saturating_sub(self.line.len() as u64);
        match (&mut self.reader).take(limit).read_until(b'\n', &mut self.line) {
            Ok(_) if self.line.last() == Some(&b'\n') => {}
            Ok(_) => return Err(self.broken("the stream ended")),
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                return Ok(WatchNews::Silence);
            }
            Err(error) => return Err(self.broken(error)),
        }
        let line = serde_json::from_slice::<Line>(&self.line);
        self.line.clear();
        let answer = match line {
            Ok(Line::News(news)) => news.result,
            Ok(Line::Error(form)) => return Err(self.broken(form.parts().1)),
            Err(error) => return Err(self.broken(error)),
        };
        self.understand(answer)
    }

    fn understand(&self, answer: WatchAnswer) -> Result<WatchNews, EtcdError> {
        if let Err(failure) = self.etcd.check(self.endpoint(), answer.header()) {
            // The next one begins elsewhere.
            self.etcd.leave(self.at);
            return Err(self.broken(failure.reason()));
        }
        if answer.canceled && answer.compact_revision != Number(0) {
            return Err(EtcdError::Compacted);
        }
        if answer.canceled {
            return Err(self.broken(answer.cancel_reason));
        }
        let revision = answer.header.revision.unsigned();
        self.etcd.heard_revision(revision);
        if answer.created {
            return Ok(WatchNews::Begun { revision });
        }
        let events = answer.events.into_iter().map(|event| {
            let is_delete = event.kind == "DELETE";
            let kv = KeyValue::from(event.kv);
            Event { key: kv.key.clone(), revision: kv.mod_revision, value: (!is_delete).then_some(kv) }
        });
        Ok(WatchNews::Events(events.collect()))
    }

    fn endpoint(&self) -> &str {
        &self.etcd.endpoints()[self.at]
    }

    fn broken(&self, reason: impl ToString) -> EtcdError {
        EtcdError::NoQuorum { tried: format!("{}: the watch broke: {}", self.endpoint(), reason.to_string()) }
    }
}
