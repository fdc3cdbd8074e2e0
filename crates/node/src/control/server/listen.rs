//! Who comes to the API, and stays. Whoever says nothing, or has gone without a word, must not keep what the node itself needs:
//! descriptors, for its clients and for etcd.

use crate::control::listener::keepalive;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at once, fewer than a process may have descriptors by default; who comes then waits for a place.
const CONNECTIONS_MAX: usize = 400;

/// The head of the next request is here within this time, or the connection ends.
const HEAD_WAIT: Duration = Duration::from_secs(30);

/// What cannot be accepted is tried again after this time, as when descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Answers whoever comes, for as long as it is polled.
pub async fn serve(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the places are never closed");
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(answer(stream, router.clone(), place))),
            Err(error) => {
                tracing::warn!(%error, "the API could not take a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router, place: OwnedSemaphorePermit) {
    // Without it, it only takes longer until a client that has gone is noticed.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
    let _ = stream.set_nodelay(true);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the API has ended");
    }
    drop(place);
}
