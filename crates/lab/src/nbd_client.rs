//! A small NBD client: enough to ask an export's size and to read and write the lab's label.
//! Promises: it waits at most ten seconds for any answer.
//! Leaves to others: all load (fio has its own NBD engine).

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
const DEFAULT_PORT: u16 = 10809;

// The numbers below are those of the NBD protocol description (doc/proto.md of the nbd project).
const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const FLAG_READ_ONLY: u16 = 1 << 1;

/// A parsed NBD URI.
#[derive(Debug, PartialEq, Eq)]
pub enum Address {
    Unix { socket: String, export: String },
    Tcp { host: String, port: u16, export: String },
}

impl Address {
    pub fn parse(uri: &str) -> std::result::Result<Address, &'static str> {
        if let Some(rest) = uri.strip_prefix("nbd+unix://") {
            let (path, query) = rest.split_once('?').ok_or("it lacks ?socket=PATH")?;
            // Exactly as libnbd reads it, with which fio works: else another export would be looked at than is written to.
            let export = match path.strip_prefix('/') {
                Some(export) => export,
                None if path.is_empty() => "",
                None => {
                    return Err(
                        "it names a host: a socket's address is nbd+unix:///EXPORT?socket=PATH, with three slashes",
                    );
                }
            };
            let socket = query.strip_prefix("socket=").filter(|socket| !socket.is_empty());
            let socket = socket.ok_or("it lacks ?socket=PATH")?;
            if socket.contains('&') {
                return Err("the lab knows no parameter but one socket (a & in its path is %26)");
            }
            let socket = percent_decoded(socket);
            // fio runs in a directory of its own.
            if !socket.starts_with('/') {
                return Err("the path of its socket has to begin with a slash");
            }
            Ok(Address::Unix { socket, export: percent_decoded(export) })
        } else if let Some(rest) = uri.strip_prefix("nbd://") {
            if rest.contains('?') {
                return Err("the lab knows no parameters of it (a ? in an export's name is %3F)");
            }
            let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
            let (host, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.ends_with(']') => {
                    (name, port.parse().map_err(|_| "its port is not a number from 1 to 65535")?)
                }
                _ => (host, DEFAULT_PORT),
            };
            if host.is_empty() {
                return Err("it lacks the host");
            }
            let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
            Ok(Address::Tcp { host, port, export: percent_decoded(export) })
        } else {
            Err("it should begin with nbd:// or nbd+unix://")
        }
    }
}

fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection in transmission mode (simple replies, one request at a time).
pub struct Client {
    stream: Box<dyn Stream>,
    pub size: u64,
    pub read_only: bool,
    cookie: u64,
}

impl Client {
    pub fn connect(uri: &str) -> Result<Client> {
        let address = Address::parse(uri).map_err(|why| Error::new(ErrorKind::InvalidInput, why))?;
        let (mut stream, export): (Box<dyn Stream>, String) = match address {
            Address::Unix { socket, export } => {
                let stream = UnixStream::connect(socket)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                (Box::new(stream), export)
            }
            Address::Tcp { host, port, export } => {
                let stream = TcpStream::connect((host.as_str(), port))?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                (Box::new(stream), export)
            }
        };
        let (size, flags) = shake_hands(stream.as_mut(), &export)?;
        Ok(Client { stream, size, read_only: flags & FLAG_READ_ONLY != 0, cookie: 0 })
    }

    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.request(COMMAND_READ, offset, bytes.len(), &[])?;
        self.reply()?;
        self.stream.read_exact(bytes)
    }

    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.request(COMMAND_WRITE, offset, bytes.len(), bytes)?;
        self.reply()
    }

    fn request(&mut self, command: u16, offset: u64, length: usize, payload: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut message = Vec::with_capacity(28 + payload.len());
        message.extend(REQUEST_MAGIC.to_be_bytes());
        message.extend(0u16.to_be_bytes());
        message.extend(command.to_be_bytes());
        message.extend(self.cookie.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend((length as u32).to_be_bytes());
        message.extend(payload);
        self.stream.write_all(&message)
    }

    fn reply(&mut self) -> Result<()> {
        let magic = number(self.stream.as_mut(), 4)?;
        let error = number(self.stream.as_mut(), 4)?;
        let cookie = number(self.stream.as_mut(), 8)?;
        if magic != REPLY_MAGIC as u64 || cookie != self.cookie {
            return Err(Error::new(ErrorKind::InvalidData, "the server sent no proper reply"));
        }
        match error {
            0 => Ok(()),
            code => Err(Error::from_raw_os_error(code as i32)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A courtesy: a server that is gone is not worth a word here.
        let _ = self.request(COMMAND_DISCONNECT, 0, 0, &[]);
    }
}

/// Fixed newstyle without structured replies: size and flags of the export.
fn shake_hands(stream: &mut dyn Stream, export: &str) -> Result<(u64, u16)> {
    let invalid = |why: &'static str| Error::new(ErrorKind::InvalidData, why);
    let mut greeting = [0; 16];
    stream.read_exact(&mut greeting)?;
    if &greeting[..8] != b"NBDMAGIC" || greeting[8..] != OPTION_MAGIC.to_be_bytes() {
        return Err(invalid("what answers there is not a newstyle NBD server"));
    }
    let flags = number(stream, 2)? as u16;
    stream.write_all(&((flags & 3) as u32).to_be_bytes())?;

    let mut option = Vec::new();
    option.extend(OPTION_MAGIC.to_be_bytes());
    option.extend(OPTION_GO.to_be_bytes());
    option.extend((4 + export.len() as u32 + 2).to_be_bytes());
    option.extend((export.len() as u32).to_be_bytes());
    option.extend(export.as_bytes());
    option.extend(0u16.to_be_bytes());
    stream.write_all(&option)?;

    let mut found = None;
    loop {
        if number(stream, 8)? != OPTION_REPLY_MAGIC || number(stream, 4)? != OPTION_GO as u64 {
            return Err(invalid("the server broke the handshake"));
        }
        let kind = number(stream, 4)? as u32;
        let length = number(stream, 4)? as usize;
        if length > 1 << 16 {
            return Err(invalid("the server broke the handshake"));
        }
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload)?;
        match kind {
            REPLY_ACK => return found.ok_or_else(|| invalid("the server named no size")),
            REPLY_INFO if length >= 12 && payload[..2] == INFO_EXPORT.to_be_bytes() => {
                let size = u64::from_be_bytes(payload[2..10].try_into().expect("eight bytes"));
                let flags = u16::from_be_bytes(payload[10..12].try_into().expect("two bytes"));
                found = Some((size, flags));
            }
            REPLY_INFO => {}
            _ => return Err(Error::new(ErrorKind::NotFound, format!("the server has no export '{export}'"))),
        }
    }
}

fn number(stream: &mut dyn Stream, bytes: usize) -> Result<u64> {
    let mut buffer = [0; 8];
    stream.read_exact(&mut buffer[8 - bytes..])?;
    Ok(u64::from_be_bytes(buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_taken_apart() {
        assert_eq!(
            Address::parse("nbd+unix:///my%20disk?socket=/tmp/s"),
            Ok(Address::Unix { socket: "/tmp/s".into(), export: "my disk".into() })
        );
        assert_eq!(
            Address::parse("nbd://[::1]:10/x"),
            Ok(Address::Tcp { host: "::1".into(), port: 10, export: "x".into() })
        );
        assert_eq!(
            Address::parse("nbd://host"),
            Ok(Address::Tcp { host: "host".into(), port: 10809, export: "".into() })
        );
        assert_eq!(
            Address::parse("nbd+unix:////vol?socket=/s"),
            Ok(Address::Unix { socket: "/s".into(), export: "/vol".into() }),
            "libnbd takes one slash away, and so must we"
        );
        let strange = [
            "nbd+unix:///x?socket=/a&socket=/b",
            "nbd+unix:///x?tls=1&socket=/a",
            "nbd+unix://host/x?socket=/a",
            "nbd://host/x?y",
        ];
        let bad = ["nbd+unix:///x", "nbd://", "nbd://h:port/x", "http://x"];
        for bad in bad.into_iter().chain(strange) {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
