//! The API as whoever writes a client of their own sees it.

use super::PATIENCE;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// An answer of the API: status, headers and body.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

pub fn request(api: &str, method: &str, path: &str, document: &str) -> Answer {
    let mut stream = TcpStream::connect(api).expect("the API takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    let length = document.len();
    let request =
        format!("{method} {path} HTTP/1.0\r\nHost: {api}\r\nContent-Length: {length}\r\n\r\n{document}");
    stream.write_all(request.as_bytes()).expect("the API listens");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the API answers with text");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Answer { status: status.expect("a status"), head: head.to_ascii_lowercase(), body: body.to_string() }
}

/// Where the node with this directory has its API.
pub fn api_of(dir: &Path) -> String {
    let api = std::fs::read_to_string(dir.join("api")).expect("a running node tells its address");
    api.trim().to_string()
}
