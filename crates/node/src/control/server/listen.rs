//! Who comes to the API, and stays. Whoever says nothing, or has gone without a word, must not keep what the node itself needs:
//! descriptors, for its clients and for etcd. Nor may they keep out who has something to ask.

use super::BODY_BYTES_MAX;
use crate::control::listener::keepalive;
use crate::control::refusal::Refusal;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections at once, fewer than a process may have descriptors by default. With all of them taken, whoever has been silent for longest
/// gives its place to who comes.
const CONNECTIONS_MAX: usize = 400;

/// The head of the next request is here within this time, or the connection ends.
const HEAD_WAIT: Duration = Duration::from_secs(30);

/// A body of some hundred bytes is here within this time.
const BODY_WAIT: Duration = Duration::from_secs(30);

/// What cannot be accepted is tried again after this time, as when descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// What is known of a connection.
#[derive(Default)]
struct Seat {
    /// It has asked for something, and is being answered.
    asked: AtomicBool,
    /// Somebody else is to have the place.
    leave: Notify,
}

/// The connections, in the order in which they came or last had an answer.
#[derive(Default)]
struct Seats(Mutex<VecDeque<Arc<Seat>>>);

impl Seats {
    fn take(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat::default());
        self.0.lock().expect("no holder of this lock panics").push_back(Arc::clone(&seat));
        seat
    }

    fn forget(&self, seat: &Arc<Seat>) {
        self.0.lock().expect("no holder of this lock panics").retain(|other| !Arc::ptr_eq(other, seat));
    }

    fn answered(&self, seat: &Arc<Seat>) {
        let mut seats = self.0.lock().expect("no holder of this lock panics");
        if let Some(at) = seats.iter().position(|other| Arc::ptr_eq(other, seat)) {
            let seat = seats.remove(at).expect("it was just found");
            seats.push_back(seat);
        }
    }

    /// Ends the connection that has asked for nothing for longest, if there is one.
    fn free_one(&self) {
        let mut seats = self.0.lock().expect("no holder of this lock panics");
        if let Some(at) = seats.iter().position(|seat| !seat.asked.load(Ordering::Relaxed)) {
            let seat = seats.remove(at).expect("it was just found");
            seat.leave.notify_one();
        }
    }
}

/// Answers whoever comes, for as long as it is polled.
pub async fn serve(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let seats = Arc::new(Seats::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if places.available_permits() == 0 {
                    seats.free_one();
                }
                let place = Arc::clone(&places).acquire_owned().await.expect("the places are never closed");
                drop(tokio::spawn(answer(stream, router.clone(), Arc::clone(&seats), place)));
            }
            Err(error) => {
                tracing::warn!(%error, "the API could not take a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router, seats: Arc<Seats>, place: OwnedSemaphorePermit) {
    // Without it, it only takes longer until a client that has gone is noticed.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
    let _ = stream.set_nodelay(true);
    let seat = seats.take();
    let router = TowerToHyperService::new(router);
    let counted = service_fn(|request: Request<Incoming>| {
        let (seat, seats, router) = (&seat, &seats, &router);
        async move {
            let (head, body) = request.into_parts();
            // Whoever lets it wait has not asked yet.
            let body = match whole(body).await {
                Ok(body) => body,
                Err(refusal) => return Ok(refusal.into_response()),
            };
            seat.asked.store(true, Ordering::Relaxed);
            let answered = router.call(Request::from_parts(head, body)).await;
            seat.asked.store(false, Ordering::Relaxed);
            seats.answered(seat);
            answered
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .serve_connection(TokioIo::new(stream), counted);
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection of the API has ended");
            }
        }
        () = seat.leave.notified() => tracing::debug!("a silent connection of the API has given way to another"),
    }
    seats.forget(&seat);
    drop(place);
}

async fn whole(body: Incoming) -> Result<Body, Refusal> {
    let Ok(body) = tokio::time::timeout(BODY_WAIT, to_bytes(Body::new(body), BODY_BYTES_MAX)).await else {
        let line = format!("the body has not come within {} s", BODY_WAIT.as_secs());
        return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, line));
    };
    body.map(Body::from).map_err(|error| {
        let line = format!("the body does not come, or is larger than {BODY_BYTES_MAX} bytes: {error}");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;

    /// Each of these is silent in its own way: nothing at all, half of a head, a body that does not come.
    const SILENT: [&str; 3] = ["", "GET / HTT", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"];

    #[test]
    fn who_asks_has_an_answer_while_silent_ones_hold_all_places() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("an address is free");
        let address = listener.local_addr().expect("it listens");
        let router = Router::new().route("/", get(|| async { "here" }));
        std::thread::spawn(move || runtime.block_on(serve(listener, router)));
        let mut silent = Vec::new();
        for at in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(SILENT[at % 3].as_bytes()).expect("it is taken");
            silent.push(stream);
        }
        for _ in 0..3 {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("it is taken");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("it is answered");
            assert!(text.ends_with("here"), "{text:?}");
        }
        // The one that came first has given way; the others were not waited for until they ended.
        assert_eq!(silent[0].read(&mut [0; 1]).expect("it was ended"), 0);
        let last = silent.last_mut().expect("there are some");
        last.set_nonblocking(true).expect("a socket can be");
        assert_eq!(last.read(&mut [0; 1]).expect_err("it is still there").kind(), ErrorKind::WouldBlock);
    }
}
