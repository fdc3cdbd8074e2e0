//! How the sockets between shards are set up.

use super::ways::Counted;
use crate::shard_loop::tcp_info::tcp_info;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use weft_engine::formats::wire::Lane;

/// What was sent and not confirmed for so long will not be: the connection ends. Both kernels see to it, so neither side
/// waits longer for a machine that is gone than for one that says so.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// An owner with too many open requests takes no more for a while, which looks like silence; that it is gone, the
/// asker hears from the control plane.
const SILENCE_MAX_OF_CLIENTS: Duration = Duration::from_secs(15);

/// Connections on which nothing is said are asked after so often.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;

/// Options of every connection, whichever side made it.
pub fn prepare(socket: &Socket, lane: Lane) -> io::Result<()> {
    // Frames are sent whole: there is nothing to wait for.
    socket.set_tcp_nodelay(true)?;
    let silence = if lane == Lane::Client { SILENCE_MAX_OF_CLIENTS } else { SILENCE_MAX };
    socket.set_tcp_user_timeout(Some(silence))?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)
}

/// The ring waits for sockets itself, which it does for blocking ones only.
pub fn make_blocking(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(false)
}

/// What the kernel has counted of a connection. None: it does not say.
pub fn counted(socket: &Socket) -> Option<Counted> {
    tcp_info(socket.as_fd()).map(|told| Counted {
        segments: told.tcpi_data_segs_out,
        again: told.tcpi_total_retrans,
        there_and_back_us: told.tcpi_rtt,
    })
}

/// Begins a connection, and says whether it stands already.
pub fn dial(address: SocketAddr, lane: Lane) -> io::Result<(Socket, bool)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    prepare(&socket, lane)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {
            make_blocking(&socket)?;
            Ok((socket, true))
        }
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok((socket, false)),
        Err(error) => Err(error),
    }
}
