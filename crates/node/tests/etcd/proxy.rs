//! A faulty wire to an etcd: passes bytes on, loses connections, goes silent with its connections open, or
//! breaks in the middle of a request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Passes,
    /// Connections end, and new ones are closed at once.
    Cut,
    /// Connections stay, new ones are taken, and nothing comes through.
    Silent,
    /// Everything comes through, answers late.
    Slow,
}

/// How late: an answer takes longer than a lease's holder waits before it asks beside it, and less than a request may take.
const SLOW: Duration = Duration::from_millis(800);

/// What is lost when the wire breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    Request,
    Answer,
}

#[derive(Clone)]
pub struct Proxy(Arc<Shared>);

struct Shared {
    port: u16,
    wire: AtomicU8,
    connections: Mutex<Vec<TcpStream>>,
    /// Answers that come through before the wire breaks.
    answers_left: AtomicI64,
    lost: Mutex<Lost>,
    /// Connections that carry a watch, and whether their answers are thrown away.
    watches: Mutex<Vec<Arc<AtomicBool>>>,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let proxy = Self(Arc::new(Shared {
            port: listener.local_addr().expect("it is bound").port(),
            wire: AtomicU8::new(Wire::Passes as u8),
            connections: Mutex::new(Vec::new()),
            answers_left: AtomicI64::new(i64::MAX),
            lost: Mutex::new(Lost::Request),
            watches: Mutex::new(Vec::new()),
        }));
        let wire = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if wire.is(Wire::Cut) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor is free");
                let both = [clone(&client), clone(&server)];
                wire.0.connections.lock().expect("no thread panics").extend(both);
                let deaf = Arc::new(AtomicBool::new(false));
                wire.carry(clone(&client), clone(&server), Lost::Request, Arc::clone(&deaf));
                wire.carry(server, client, Lost::Answer, deaf);
            }
        });
        proxy
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port)
    }

    pub fn set(&self, wire: Wire) {
        self.0.wire.store(wire as u8, Ordering::SeqCst);
        if wire == Wire::Cut {
            for connection in self.0.connections.lock().expect("no thread panics").drain(..) {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }

    /// Cuts the wire after so many answers: when the next request is on its way there, or its answer on the way back.
    pub fn cut_after(&self, answers: u32, lost: Lost) {
        *self.0.lost.lock().expect("no thread panics") = lost;
        self.0.answers_left.store(i64::from(answers), Ordering::SeqCst);
    }

    /// Watches that there are hear nothing any more, on connections that seem well. All else goes on, new
    /// watches too.
    pub fn deafen_watches(&self) -> usize {
        let watches: Vec<_> = self.0.watches.lock().expect("no thread panics").drain(..).collect();
        watches.iter().for_each(|deaf| deaf.store(true, Ordering::SeqCst));
        watches.len()
    }

    fn is(&self, wire: Wire) -> bool {
        self.0.wire.load(Ordering::SeqCst) == wire as u8
    }

    /// Whether these bytes come through, or break the wire.
    fn breaks(&self, bytes: &[u8], what: Lost) -> bool {
        let begins = match what {
            Lost::Request => bytes.starts_with(b"POST "),
            Lost::Answer => bytes.starts_with(b"HTTP/1.1 "),
        };
        if !begins {
            return false;
        }
        if self.0.answers_left.load(Ordering::SeqCst) <= 0 {
            return *self.0.lost.lock().expect("no thread panics") == what;
        }
        if what == Lost::Answer {
            self.0.answers_left.fetch_sub(1, Ordering::SeqCst);
        }
        false
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, what: Lost, deaf: Arc<AtomicBool>) {
        let wire = self.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 64 << 10];
            loop {
                let read = match from.read(&mut bytes) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => read,
                };
                while wire.is(Wire::Silent) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if what == Lost::Request && bytes.starts_with(b"POST /v3/watch") {
                    wire.0.watches.lock().expect("no thread panics").push(Arc::clone(&deaf));
                }
                if what == Lost::Answer && wire.is(Wire::Slow) && bytes.starts_with(b"HTTP/1.1 ") {
                    std::thread::sleep(SLOW);
                }
                if what == Lost::Answer && deaf.load(Ordering::SeqCst) {
                    continue;
                }
                if wire.breaks(&bytes[..read], what) {
                    wire.set(Wire::Cut);
                    break;
                }
                if to.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
