//! The forms of etcd's JSON gateway (etcd.io/docs/v3.4, "gRPC gateway"): keys and values in base64, 64-bit numbers as
//! text, and nothing at all where a number is 0 or a list is empty.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// A 64-bit number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Number(pub i64);

impl Number {
    pub fn of(value: u64) -> Self {
        Self(i64::try_from(value).expect("numbers of etcd are below 2^63"))
    }

    /// As it is where negative numbers mean nothing.
    pub fn unsigned(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Number(i64),
        }
        match Form::deserialize(deserializer)? {
            Form::Text(text) => text.parse().map(Self).map_err(de::Error::custom),
            Form::Number(number) => Ok(Self(number)),
        }
    }
}

/// How etcd calls itself: all members of one have the same, another one has another, also one that was put back from a copy. 0: not told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EtcdId(pub u64);

/// As etcd writes it.
impl fmt::Display for EtcdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl<'de> Deserialize<'de> for EtcdId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // It has all 64 bits.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Number(u64),
        }
        match Form::deserialize(deserializer)? {
            Form::Text(text) => text.parse().map(Self).map_err(de::Error::custom),
            Form::Number(number) => Ok(Self(number)),
        }
    }
}

/// A key or value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text(pub String);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let coded = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(coded).map_err(de::Error::custom)?;
        String::from_utf8(bytes).map(Self).map_err(de::Error::custom)
    }
}

/// An answer that tells the store's revision.
pub trait Answer {
    fn header(&self) -> &Header;
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    pub cluster_id: EtcdId,
    pub revision: Number,
    /// The term of the leader that whoever answered follows, as it was written.
    pub raft_term: serde_json::Value,
}

impl Header {
    /// Whether both were answered under one leader.
    pub fn is_of_term(&self, other: &Header) -> bool {
        !self.raft_term.is_null() && self.raft_term == other.raft_term
    }
}

#[derive(Debug, Serialize)]
pub struct RangeRequest {
    pub key: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Text>,
    pub limit: Number,
    pub revision: Number,
}

impl RangeRequest {
    /// One key, as it is now.
    pub fn of_one(key: &str) -> Self {
        Self { key: Text(key.to_string()), range_end: None, limit: Number(1), revision: Number(0) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeAnswer {
    pub header: Header,
    pub kvs: Vec<Kv>,
    pub more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kv {
    pub key: Text,
    pub value: Text,
    pub create_revision: Number,
    pub mod_revision: Number,
    pub lease: Number,
}

#[derive(Debug, Default, Serialize)]
pub struct TransactionRequest {
    pub compare: Vec<CompareForm>,
    pub success: Vec<Operation>,
    pub failure: Vec<Operation>,
}

#[derive(Debug, Clone, Serialize)]
pub struct CompareForm {
    pub key: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Text>,
    pub target: &'static str,
    pub result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mod_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_revision: Option<Number>,
}

#[derive(Debug, Serialize)]
pub enum Operation {
    #[serde(rename = "request_range")]
    Range { key: Text },
    #[serde(rename = "request_put")]
    Put { key: Text, value: Text, lease: Number },
    #[serde(rename = "request_delete_range")]
    DeleteRange {
        key: Text,
        #[serde(skip_serializing_if = "Option::is_none")]
        range_end: Option<Text>,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TransactionAnswerForm {
    pub header: Header,
    pub succeeded: bool,
    pub responses: Vec<OperationAnswer>,
}

/// Of puts and deletes nothing is wanted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct OperationAnswer {
    pub response_range: Option<RangeAnswer>,
}

#[derive(Debug, Serialize)]
pub struct LeaseGrantRequest {
    #[serde(rename = "TTL")]
    pub ttl: Number,
}

#[derive(Debug, Serialize)]
pub struct LeaseRequest {
    #[serde(rename = "ID")]
    pub id: Number,
}

/// Of a grant and of a question for the time to live.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseAnswer {
    pub header: Header,
    #[serde(rename = "ID")]
    pub id: Number,
    #[serde(rename = "TTL")]
    pub ttl: Number,
}

/// One message of a stream.
#[derive(Debug, Deserialize)]
pub struct Streamed<T> {
    pub result: T,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RevokeAnswer {
    pub header: Header,
}

#[derive(Debug, Serialize)]
pub struct WatchRequest {
    pub create_request: WatchCreate,
}

#[derive(Debug, Serialize)]
pub struct WatchCreate {
    pub key: Text,
    pub range_end: Text,
    pub start_revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchAnswer {
    pub header: Header,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: Number,
    pub cancel_reason: String,
    pub events: Vec<EventForm>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EventForm {
    /// Nothing for a put.
    #[serde(rename = "type")]
    pub kind: String,
    pub kv: Kv,
}

/// What the gateway says when a call failed; of a stream, one level deeper.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ErrorForm {
    pub code: u32,
    pub message: String,
    pub error: Option<StreamError>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum StreamError {
    Line(String),
    Form { grpc_code: u32, message: String },
}

impl ErrorForm {
    /// The code of gRPC and the message.
    pub fn parts(self) -> (u32, String) {
        match self.error {
            Some(StreamError::Form { grpc_code, message }) => (grpc_code, message),
            Some(StreamError::Line(line)) if self.message.is_empty() => (self.code, line),
            _ => (self.code, self.message),
        }
    }
}

impl Answer for WatchAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl Answer for RangeAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl Answer for TransactionAnswerForm {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl Answer for LeaseAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl Answer for RevokeAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl Answer for Streamed<LeaseAnswer> {
    fn header(&self) -> &Header {
        &self.result.header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_leaves_out_is_zero_or_empty() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"7"}}"#;
        let answer: RangeAnswer = serde_json::from_str(text).expect("it parses");
        assert_eq!(answer.header.revision, Number(7));
        assert_eq!(answer.header.cluster_id.to_string(), "cdf818194e3a8c32", "it has all 64 bits");
        assert!(answer.kvs.is_empty() && !answer.more);
        let text = r#"{"kvs":[{"key":"L2E=","create_revision":"2","mod_revision":"9007199254740993","value":"e30="}]}"#;
        let answer: RangeAnswer = serde_json::from_str(text).expect("it parses");
        assert_eq!(answer.kvs[0].key, Text("/a".to_string()));
        assert_eq!(answer.kvs[0].value, Text("{}".to_string()));
        assert_eq!(
            answer.kvs[0].mod_revision,
            Number(9_007_199_254_740_993),
            "no digit of a large number is lost"
        );
        assert_eq!(answer.kvs[0].lease, Number(0));
    }

    #[test]
    fn answers_under_one_leader_are_told_from_others() {
        let header = |text: &str| serde_json::from_str::<Header>(text).expect("it parses");
        let one = header(r#"{"member_id":"18249187646912138824","revision":"3","raft_term":"7"}"#);
        assert!(one.is_of_term(&header(r#"{"member_id":"18249187646912138824","raft_term":"7"}"#)));
        assert!(!one.is_of_term(&header(r#"{"member_id":"18249187646912138824","raft_term":"8"}"#)));
        assert!(one.is_of_term(&header(r#"{"member_id":"5","raft_term":"7"}"#)), "whoever answers for it");
        assert!(!header("{}").is_of_term(&header("{}")), "of an answer without a term nothing is known");
    }

    #[test]
    fn both_forms_of_errors_are_understood() {
        let plain = r#"{"error":"etcdserver: requested lease not found","code":5,"message":"etcdserver: requested lease not found"}"#;
        let streamed = r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#;
        let parts = |text| serde_json::from_str::<ErrorForm>(text).expect("it parses").parts();
        assert_eq!(parts(plain), (5, "etcdserver: requested lease not found".to_string()));
        assert_eq!(parts(streamed), (14, "etcdserver: no leader".to_string()));
    }

    #[test]
    fn a_comparison_with_nothing_says_zero() {
        let form = CompareForm {
            key: Text("/a".to_string()),
            range_end: None,
            target: "MOD",
            result: "EQUAL",
            mod_revision: Some(Number(0)),
            create_revision: None,
        };
        let text = serde_json::to_string(&form).expect("it is plain data");
        assert_eq!(text, r#"{"key":"L2E=","target":"MOD","result":"EQUAL","mod_revision":"0"}"#);
    }
}
