//! A place where NBD clients knock: a unix socket or a TCP port, and what is exported there.
//! Promises: a socket that somebody listens on, or a file that is none, is never replaced; what was made is removed.
//! Leaves to others: the connections (the shards).

use super::refusal::Refusal;
use crate::shard_loop::{Disk, Mail, Mailbox};
use crate::uri::in_query;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::task::AbortHandle;
use weft_frontends::nbd::{ExportInfo, Exports};

/// Bytes the kernel may hold for one client: a few large replies.
const SEND_BUFFER_BYTES: libc::c_int = 4 << 20;

/// A client that is gone without a word, with its machine or the way to it, keeps its place for two minutes if nothing was on its way to
/// it. If something was, the kernel sends that again for a quarter of an hour: a client may as well have been stopped for a while.
pub(super) fn keepalive() -> socket2::TcpKeepalive {
    let every = Duration::from_secs(10);
    socket2::TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(every).with_retries(6)
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Address {
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.chars().any(char::is_control) {
            return Err(Refusal::bad_input(format!(
                "{text:?} is no address: it has characters that cannot be shown"
            )));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path);
            if path.as_os_str().is_empty() || path.file_name().is_none() {
                return Err(Refusal::bad_input(format!("{text:?} names no socket; give unix:PATH")));
            }
            let path = std::path::absolute(path)
                .map_err(|error| Refusal::bad_input(format!("{text:?} is no usable path: {error}")))?;
            return Ok(Address::Unix(path));
        }
        let tcp = text.strip_prefix("tcp:").ok_or_else(|| {
            Refusal::bad_input(format!("{text:?} is no address: give unix:PATH or tcp:ADDRESS:PORT"))
        })?;
        let tcp = tcp.replace("localhost:", "127.0.0.1:");
        match tcp.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Ok(Address::Tcp(address)),
            _ => Err(Refusal::bad_input(format!(
                "{text:?} is no address: give tcp:ADDRESS:PORT with numbers, such as tcp:127.0.0.1:10809"
            ))),
        }
    }

    /// What NBD clients are given to reach a vDisk here.
    pub fn uri(&self, name: &str) -> String {
        match self {
            Address::Unix(path) => format!("nbd+unix:///{name}?socket={}", in_query(path)),
            Address::Tcp(address) => format!("nbd://{address}/{name}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// What is exported at one address.
#[derive(Default)]
pub struct ExportTable {
    by_name: RwLock<BTreeMap<String, ExportInfo>>,
}

impl ExportTable {
    pub fn insert(&self, info: ExportInfo) {
        self.by_name.write().expect("no holder of this lock panics").insert(info.name.clone(), info);
    }

    pub fn remove(&self, disk: Disk) {
        self.by_name.write().expect("no holder of this lock panics").retain(|_, info| disk_of(info) != disk);
    }

    /// Connections made from now on see this size.
    pub fn resize(&self, disk: Disk, size: u64) {
        let mut by_name = self.by_name.write().expect("no holder of this lock panics");
        for info in by_name.values_mut().filter(|info| disk_of(info) == disk) {
            info.size = size;
        }
    }

    /// The size that clients are told; None: it is not exported here.
    pub fn size(&self, disk: Disk) -> Option<u64> {
        let by_name = self.by_name.read().expect("no holder of this lock panics");
        by_name.values().find(|info| disk_of(info) == disk).map(|info| info.size)
    }

    /// What clients find under this name.
    pub fn disk_of(&self, name: &str) -> Option<Disk> {
        self.by_name.read().expect("no holder of this lock panics").get(name).map(disk_of)
    }

    pub fn disks(&self) -> Vec<Disk> {
        self.by_name.read().expect("no holder of this lock panics").values().map(disk_of).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.read().expect("no holder of this lock panics").is_empty()
    }
}

fn disk_of(info: &ExportInfo) -> Disk {
    Disk { family: info.family, snapshot: info.snapshot }
}

impl Exports for ExportTable {
    fn list(&self) -> Vec<String> {
        self.by_name.read().expect("no holder of this lock panics").keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let by_name = self.by_name.read().expect("no holder of this lock panics");
        if name.is_empty() && by_name.len() == 1 {
            return by_name.values().next().cloned();
        }
        by_name.get(name).cloned()
    }
}

/// Listens as long as it lives.
pub struct Listener {
    pub table: Arc<ExportTable>,
    task: AbortHandle,
    _socket: Option<SocketFile>,
}

impl Listener {
    /// Clients are handed to `shard`. To be called inside the control plane's runtime.
    pub fn open(address: Address, shard: Arc<Mailbox>) -> Result<Self, Refusal> {
        let table = Arc::new(ExportTable::default());
        let exports = Arc::clone(&table);
        let refused = |error: io::Error| {
            Refusal::conflict(format!("cannot listen at {address}: {error}; choose another address"))
        };
        let text: Arc<str> = address.to_string().into();
        let mut socket = None;
        let task = match &address {
            Address::Unix(path) => {
                make_way(path)?;
                let listener = tokio::net::UnixListener::bind(path).map_err(refused)?;
                socket = SocketFile::at(path);
                tokio::spawn(async move {
                    loop {
                        let accepted = listener.accept().await.and_then(|(stream, _)| stream.into_std());
                        hand_over(accepted.map(OwnedFd::from), &exports, &text, &shard).await;
                    }
                })
            }
            Address::Tcp(tcp) => {
                let listener = listen_tcp(*tcp).map_err(refused)?;
                tokio::spawn(async move {
                    loop {
                        let accepted = listener.accept().await.and_then(|(stream, _)| {
                            stream.set_nodelay(true)?;
                            socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
                            stream.into_std()
                        });
                        hand_over(accepted.map(OwnedFd::from), &exports, &text, &shard).await;
                    }
                })
            }
        };
        Ok(Self { table, task: task.abort_handle(), _socket: socket })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A socket in a directory, which goes with its listener. One that somebody else has put there since stays.
struct SocketFile {
    path: PathBuf,
    file: (u64, u64),
}

impl SocketFile {
    /// The one that was just made. None if it is gone already.
    fn at(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_path_buf(), file: file_at(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if file_at(&self.path) == Some(self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Which file lies there.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Removes a socket that a killed process left; refuses anything else that is there.
fn make_way(path: &Path) -> Result<(), Refusal> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let shown = path.display();
    if !metadata.file_type().is_socket() {
        return Err(Refusal::conflict(format!(
            "{shown} exists and is no socket; choose another path, or move it away"
        )));
    }
    match knock(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|error| Refusal::conflict(format!("the old socket {shown} cannot be removed: {error}"))),
        _ => Err(Refusal::conflict(format!("another process listens on {shown}; choose another path"))),
    }
}

/// Whether somebody listens there. Without waiting: a listener that takes no connections, and has as many as it may, would keep
/// whoever asks, and the control plane with it.
fn knock(path: &Path) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&socket2::SockAddr::unix(path)?)
}

fn listen_tcp(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    let socket =
        if address.is_ipv4() { tokio::net::TcpSocket::new_v4()? } else { tokio::net::TcpSocket::new_v6()? };
    // A restarted node gets its port back although old connections linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(128)
}

async fn hand_over(
    accepted: io::Result<OwnedFd>,
    exports: &Arc<ExportTable>,
    address: &Arc<str>,
    shard: &Mailbox,
) {
    let prepared = accepted.and_then(|socket| {
        prepare(&socket)?;
        Ok(socket)
    });
    match prepared {
        Ok(socket) => {
            let exports: Arc<dyn Exports> = Arc::clone(exports) as Arc<dyn Exports>;
            shard.send(Mail::Connection { socket, exports, address: Arc::clone(address) });
        }
        Err(error) => {
            // Too many open files, most likely: others may go meanwhile.
            tracing::warn!(%address, %error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The ring waits for sockets itself, which it does for blocking ones only.
fn prepare(socket: &OwnedFd) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    // SAFETY: plain calls on an open descriptor; the option's value is a live integer of the size given.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
        let size: *const libc::c_int = &SEND_BUFFER_BYTES;
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // Without the right to exceed the system's limit, up to that limit. A small buffer works too, only slower.
        if libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size.cast(), len) != 0 {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size.cast(), len);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_no_connections_keeps_nobody_waiting() {
        let path = std::env::temp_dir().join(format!("weft-deaf-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let deaf =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
        deaf.bind(&socket2::SockAddr::unix(&path).expect("a short path")).expect("it is free");
        deaf.listen(0).expect("it listens");
        // Until no more go in, and two beyond that: each would wait for good.
        let waiting: Vec<_> = (0..4).map(|_| make_way(&path)).collect();
        assert!(waiting.iter().all(Result::is_err), "somebody listens there");
        assert!(path.exists());
        drop(deaf);
        make_way(&path).expect("nobody listens any more");
        assert!(!path.exists());
    }

    #[test]
    fn an_address_can_be_shown() {
        for text in ["unix:/run/a\nb", "unix:/run/\u{1b}[2J", "tcp:127.0.0.1:10809\u{7}"] {
            let refusal = Address::parse(text).expect_err("nobody could read it");
            assert!(!refusal.line.chars().any(char::is_control), "{}", refusal.line);
        }
        assert!(Address::parse("unix:/run/with blank/ü.sock").is_ok());
    }

    #[test]
    fn only_the_own_socket_is_removed() {
        let path = std::env::temp_dir().join(format!("weft-own-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let bind = || std::os::unix::net::UnixListener::bind(&path).expect("it is free");
        let _first = bind();
        let own = SocketFile::at(&path);
        std::fs::remove_file(&path).expect("it is there");
        let _other = bind();
        drop(own);
        assert!(path.exists(), "somebody else listens there by now");
        drop(SocketFile::at(&path));
        assert!(!path.exists());
    }

    #[test]
    fn addresses_are_understood_or_refused() {
        assert_eq!(
            Address::parse("unix:/run/a b&c.sock").map(|a| a.uri("x")).as_deref(),
            Ok("nbd+unix:///x?socket=/run/a%20b%26c.sock")
        );
        assert_eq!(
            Address::parse("unix:/run/a.sock").map(|a| a.uri("x")).as_deref(),
            Ok("nbd+unix:///x?socket=/run/a.sock")
        );
        assert_eq!(
            Address::parse("tcp:127.0.0.1:10809").map(|a| a.uri("x")).as_deref(),
            Ok("nbd://127.0.0.1:10809/x")
        );
        assert_eq!(
            Address::parse("tcp:localhost:1").map(|a| a.to_string()).as_deref(),
            Ok("tcp:127.0.0.1:1")
        );
        for bad in ["", "unix:", "unix:/", "tcp:", "tcp:host", "tcp:127.0.0.1:0", "tcp:127.0.0.1:99999", "/a"]
        {
            assert!(Address::parse(bad).is_err(), "{bad:?}");
        }
    }
}
