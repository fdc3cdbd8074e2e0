//! A client of QEMU's monitor protocol (QMP): one command, one answer.
//! Promises: it waits at most a minute for any answer; what QEMU refuses comes back in its own words.
//! Leaves to others: which commands (`platform/qcow2.rs`).

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Client {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Client {
    /// Connects, and leaves the mode in which only capabilities are spoken of.
    pub fn connect(socket: &Path) -> Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let answers = BufReader::new(stream.try_clone()?);
        let mut client = Client { stream, answers };
        if client.read()?.get("QMP").is_none() {
            return Err(Error::new(ErrorKind::InvalidData, "what answers there does not speak QMP"));
        }
        client.run("qmp_capabilities", json!({}))?;
        Ok(client)
    }

    /// One command; what it returns.
    pub fn run(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.stream.write_all(line.as_bytes())?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                let said = error["desc"].as_str().unwrap_or("no reason given");
                return Err(Error::other(format!("{command}: {said}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            // An event: nobody here waits for any.
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "the other side has ended"));
        }
        serde_json::from_str(&line)
            .map_err(|_| Error::new(ErrorKind::InvalidData, "what answers there does not speak QMP"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A server that says these lines, one behind each line that it reads.
    fn server(name: &str, lines: &'static [&'static str]) -> std::path::PathBuf {
        let socket = std::env::temp_dir().join(format!("weft-qmp-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("a socket in the temporary directory");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the test connects");
            let mut asked = BufReader::new(stream.try_clone().expect("a second handle"));
            for line in lines {
                writeln!(stream, "{line}").expect("the test listens");
                if !line.contains("event") {
                    let _ = asked.read_line(&mut String::new());
                }
            }
        });
        socket
    }

    #[test]
    fn events_between_answers_are_passed_over_and_refusals_are_told() {
        let socket = server(
            "answers",
            &[
                r#"{"QMP": {"version": {}, "capabilities": []}}"#,
                r#"{"return": {}}"#,
                r#"{"event": "JOB_STATUS_CHANGE", "data": {}}"#,
                r#"{"return": {"status": "running"}}"#,
                r#"{"error": {"class": "GenericError", "desc": "Device 'x' not found"}}"#,
            ],
        );
        let mut client = Client::connect(&socket).expect("it speaks QMP");
        assert_eq!(client.run("query-status", json!({})).expect("answered")["status"], "running");
        let error = client.run("blockdev-del", json!({ "node-name": "x" })).expect_err("refused");
        assert_eq!(error.to_string(), "blockdev-del: Device 'x' not found");
        let error = client.run("query-status", json!({})).expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        std::fs::remove_file(socket).expect("the server made it");
    }

    #[test]
    fn what_speaks_something_else_is_no_monitor() {
        let socket = server("other", &["220 mail.example.org ESMTP"]);
        assert!(Client::connect(&socket).is_err());
        std::fs::remove_file(socket).expect("the server made it");
    }
}
