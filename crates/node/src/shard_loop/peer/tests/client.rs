//! A little NBD client, with requests in flight.

use super::cluster::{Cluster, FAMILY, LONG, SIZE};
use crate::shard_loop::Mail;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use weft_frontends::nbd::{ExportInfo, Exports};

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

struct OneExport;

impl Exports for OneExport {
    fn list(&self) -> Vec<String> {
        vec!["v".to_string()]
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let name = name.to_string();
        Some(ExportInfo {
            name,
            description: String::new(),
            family: FAMILY,
            snapshot: None,
            size: SIZE,
            read_only: false,
        })
    }
}

pub struct Client {
    stream: UnixStream,
    last: u64,
    /// Open requests: how many bytes their replies bring.
    open: BTreeMap<u64, usize>,
}

impl Client {
    /// A client of this node.
    pub fn connect(cluster: &Cluster, node: usize) -> Self {
        let (mut stream, socket) = UnixStream::pair().expect("a pair of sockets");
        let address = "test".into();
        cluster.send(node, Mail::Connection { socket: socket.into(), exports: Arc::new(OneExport), address });
        stream.set_read_timeout(Some(LONG)).expect("a socket takes a limit");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("the server greets");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
        hello.extend(1u32.to_be_bytes());
        hello.push(b'v');
        stream.write_all(&hello).expect("the server listens");
        let mut export = [0; 10];
        stream.read_exact(&mut export).expect("the export is there");
        assert_eq!(export[..8], SIZE.to_be_bytes());
        Self { stream, last: 0, open: BTreeMap::new() }
    }

    pub fn in_flight(&self) -> usize {
        self.open.len()
    }

    pub fn submit_write(&mut self, offset: u64, data: &[u8]) -> u64 {
        self.submit(WRITE, offset, data.len(), 0);
        self.stream.write_all(data).expect("the server listens");
        self.last
    }

    pub fn submit_read(&mut self, offset: u64, len: usize) -> u64 {
        self.submit(READ, offset, len, len);
        self.last
    }

    fn submit(&mut self, command: u16, offset: u64, len: usize, brings: usize) {
        self.last += 1;
        let mut header = REQUEST_MAGIC.to_be_bytes().to_vec();
        header.extend(0u16.to_be_bytes());
        header.extend(command.to_be_bytes());
        header.extend(self.last.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend((len as u32).to_be_bytes());
        self.stream.write_all(&header).expect("the server listens");
        self.open.insert(self.last, brings);
    }

    /// Says goodbye and ends its side, as libnbd does.
    pub fn say_goodbye(&mut self) {
        self.submit(DISCONNECT, 0, 0, 0);
        self.open.remove(&self.last);
        self.stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
    }

    /// All that still comes until the server ends its side: requests and their errors. None of these brings data.
    pub fn last_words(mut self) -> Vec<(u64, u32)> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).expect("the server ends its side");
        let four = |from: &[u8]| u32::from_be_bytes(from[..4].try_into().expect("four bytes"));
        let eight = |from: &[u8]| u64::from_be_bytes(from[..8].try_into().expect("eight bytes"));
        bytes.chunks(16).map(|reply| (eight(&reply[8..]), four(&reply[4..]))).collect()
    }

    /// The next reply: which request, and its data. No request fails in these tests but those of [`Client::last_words`].
    pub fn reply(&mut self) -> (u64, Vec<u8>) {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).expect("the server answers");
        let error = u32::from_be_bytes(header[4..8].try_into().expect("four bytes"));
        let cookie = u64::from_be_bytes(header[8..].try_into().expect("eight bytes"));
        assert_eq!(error, 0, "request {cookie} failed");
        let mut data = vec![0; self.open.remove(&cookie).expect("a reply is for a request")];
        self.stream.read_exact(&mut data).expect("the server answers");
        (cookie, data)
    }
}
