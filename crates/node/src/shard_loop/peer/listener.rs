//! Where the shards of other nodes knock: accepts, hears who it is, and hands the connection to the shard that is meant.
//! Promises: what does not say a proper hello of this cluster within a few seconds is sent away, and costs nobody
//! anything; as long as it has not, it has next to no memory here.
//! Leaves to others: everything behind the hello (the shards).

use super::options;
use crate::shard_loop::mailbox::{Mail, Mailbox};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use weft_engine::formats::wire::{HELLO_BYTES, Hello, WireFault};

/// Within this time a hello is said.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// Connections that have not said hello yet. More wait in the kernel.
const STRANGERS_MAX: usize = 256;

/// Listens as long as it lives.
pub struct PeerListener {
    address: SocketAddr,
    task: AbortHandle,
}

/// Why a connection was not taken.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it said no hello in time")]
    Silent,
    #[error("it went away before it had said hello")]
    Gone,
    #[error("{0}")]
    Fault(#[from] WireFault),
    #[error("it belongs to another cluster")]
    OtherCluster,
    #[error("it asks for shard {0}, which is not on this node")]
    NotHere(u32),
    #[error("{0}")]
    Socket(#[from] io::Error),
}

impl PeerListener {
    /// Connections are handed to these shards of cluster number `cluster`. Port 0 chooses a free one. To be called inside
    /// the control plane's runtime.
    pub fn open(address: SocketAddr, cluster: u64, shards: Vec<Arc<Mailbox>>) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restarted node gets its port back although old connections linger.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(256)?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(listen(listener, cluster, shards.into()));
        Ok(Self { address, task: task.abort_handle() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PeerListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(listener: TcpListener, cluster: u64, shards: Arc<[Arc<Mailbox>]>) {
    let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
    loop {
        let place = Arc::clone(&strangers).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, from)) => {
                let shards = Arc::clone(&shards);
                tokio::spawn(async move {
                    if let Err(reason) = welcome(stream, cluster, &shards).await {
                        tracing::warn!(%from, %reason, "a connection to the shards of this node was refused");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Too many open files, most likely: others may go meanwhile.
                tracing::warn!(%error, "a connection to the shards of this node could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn welcome(stream: TcpStream, cluster: u64, shards: &[Arc<Mailbox>]) -> Result<(), Refused> {
    let hello =
        tokio::time::timeout(HELLO_WAIT, read_hello(&stream)).await.map_err(|_| Refused::Silent)??;
    if hello.cluster != cluster {
        return Err(Refused::OtherCluster);
    }
    let mut shards = shards.iter();
    let shard = shards.find(|shard| shard.shard() == hello.to).ok_or(Refused::NotHere(hello.to.0))?;
    let socket = socket2::Socket::from(stream.into_std()?);
    options::prepare(&socket, hello.lane)?;
    options::make_blocking(&socket)?;
    shard.send(Mail::PeerConnection { socket: socket.into(), hello });
    Ok(())
}

/// Exactly the hello: what follows is left for the shard.
async fn read_hello(stream: &TcpStream) -> Result<Hello, Refused> {
    let mut bytes = [0; HELLO_BYTES];
    let mut filled = 0;
    while filled < HELLO_BYTES {
        stream.readable().await?;
        match stream.try_read(&mut bytes[filled..]) {
            Ok(0) => return Err(Refused::Gone),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Hello::decode(&bytes)?)
}
