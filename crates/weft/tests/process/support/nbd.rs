//! A small NBD client with requests in flight, so that a test knows exactly which writes were acknowledged.
//! Speaks fixed newstyle with simple replies.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;

pub struct NbdClient {
    stream: UnixStream,
    pub size: u64,
    next: u64,
    /// Bytes that the reply of an open request carries if it went well.
    open: HashMap<u64, usize>,
}

pub struct Done {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

impl NbdClient {
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = greet(socket)?;
        let mut body = (export.len() as u32).to_be_bytes().to_vec();
        body.extend(export.as_bytes());
        body.extend(0u16.to_be_bytes());
        send_option(&mut stream, 7, &body)?;
        let mut size = 0;
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header)?;
            if header[..8] != OPTION_REPLY_MAGIC.to_be_bytes() {
                return Err(io::Error::other("not an option reply"));
            }
            let kind = u32::from_be_bytes(header[12..16].try_into().expect("four bytes"));
            let len = u32::from_be_bytes(header[16..20].try_into().expect("four bytes"));
            let mut body = vec![0; len as usize];
            stream.read_exact(&mut body)?;
            match kind {
                1 => break,
                3 if body.len() >= 12 && body[..2] == [0, 0] => {
                    size = u64::from_be_bytes(body[2..10].try_into().expect("eight bytes"));
                }
                3 => {}
                _ => return Err(io::Error::other(format!("the export was refused: {kind:#x}"))),
            }
        }
        Ok(Self { stream, size, next: 1, open: HashMap::new() })
    }

    /// Connects as soon as the export is served.
    pub fn connect_patiently(socket: &Path, export: &str) -> Self {
        let mut client = None;
        super::wait_until("the export takes connections", || {
            client = Self::connect(socket, export).ok();
            client.is_some()
        });
        client.expect("waited until it was there")
    }

    pub fn in_flight(&self) -> usize {
        self.open.len()
    }

    pub fn submit_read(&mut self, offset: u64, len: u32) -> io::Result<u64> {
        self.submit(READ, 0, offset, len, &[])
    }

    pub fn submit_write(&mut self, offset: u64, data: &[u8]) -> io::Result<u64> {
        self.submit(WRITE, 0, offset, data.len() as u32, data)
    }

    pub fn submit(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.next;
        self.next += 1;
        // Entered first: a request that went out only half may still have been done.
        self.open.insert(cookie, if command == READ { len as usize } else { 0 });
        let mut header = Vec::with_capacity(28 + data.len());
        header.extend(REQUEST_MAGIC.to_be_bytes());
        header.extend(flags.to_be_bytes());
        header.extend(command.to_be_bytes());
        header.extend(cookie.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend(len.to_be_bytes());
        header.extend(data);
        self.stream.write_all(&header)?;
        Ok(cookie)
    }

    pub fn next_reply(&mut self) -> io::Result<Done> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        assert_eq!(header[..4], SIMPLE_REPLY_MAGIC.to_be_bytes(), "a reply begins with its magic");
        let error = u32::from_be_bytes(header[4..8].try_into().expect("four bytes"));
        let cookie = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
        let expected = self.open.get(&cookie).copied();
        let expected = expected.expect("every reply answers one open request, once");
        let mut data = vec![0; if error == 0 { expected } else { 0 }];
        self.stream.read_exact(&mut data)?;
        self.open.remove(&cookie);
        Ok(Done { cookie, error, data })
    }

    /// One request and its reply; only when nothing else is in flight.
    pub fn call(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<Done> {
        assert!(self.open.is_empty(), "a call is made alone");
        let cookie = self.submit(command, flags, offset, len, data)?;
        let done = self.next_reply()?;
        assert_eq!(done.cookie, cookie, "the reply is that of the request");
        Ok(done)
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        let done = self.call(READ, 0, offset, len, &[]).expect("the connection holds");
        if done.error == 0 { Ok(done.data) } else { Err(done.error) }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        let done = self.call(WRITE, 0, offset, data.len() as u32, data).expect("the connection holds");
        if done.error == 0 { Ok(()) } else { Err(done.error) }
    }

    pub fn trim(&mut self, offset: u64, len: u32) -> Result<(), u32> {
        let done = self.call(TRIM, 0, offset, len, &[]).expect("the connection holds");
        if done.error == 0 { Ok(()) } else { Err(done.error) }
    }

    pub fn disconnect(mut self) {
        let _ = self.submit(DISCONNECT, 0, 0, 0, &[]);
    }
}

/// Connects and gets through the greeting.
pub fn greet(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    assert_eq!(&greeting[..8], b"NBDMAGIC", "a server begins with NBDMAGIC");
    assert_eq!(&greeting[8..16], b"IHAVEOPT", "and offers options");
    // Fixed newstyle, no zeroes.
    stream.write_all(&3u32.to_be_bytes())?;
    Ok(stream)
}

pub fn send_option(stream: &mut UnixStream, option: u32, body: &[u8]) -> io::Result<()> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    stream.write_all(&bytes)
}

/// A write header without its payload, for tests that do not send what they promise.
pub fn request_header(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut header = REQUEST_MAGIC.to_be_bytes().to_vec();
    header.extend(flags.to_be_bytes());
    header.extend(command.to_be_bytes());
    header.extend(cookie.to_be_bytes());
    header.extend(offset.to_be_bytes());
    header.extend(len.to_be_bytes());
    header
}
