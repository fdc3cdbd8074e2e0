//! A wire that can be cut: connections to it lead to a node, until they are all shut down in the middle of a word. Or it
//! holds what is said in one direction, and nobody is told.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    held: [Arc<AtomicBool>; 2],
}

#[derive(Clone, Copy)]
pub enum Direction {
    ToNode,
    FromNode,
}

struct State {
    /// Where connections lead; None: they are closed at once.
    target: Option<SocketAddr>,
    streams: Vec<TcpStream>,
    ended: bool,
}

impl Proxy {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(State { target: None, streams: Vec::new(), ended: false }));
        let shared = Arc::clone(&state);
        let held = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
        let holds = held.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.lock().expect("nobody panics").ended {
                    return;
                }
                // Nobody there: the connection closes, and the dialler sees that.
                let _ = lead_on(stream, &shared, &holds);
            }
        });
        Self { address, state, held }
    }

    pub fn set_target(&self, target: Option<SocketAddr>) {
        self.state.lock().expect("nobody panics").target = target;
    }

    /// Whether what is said in this direction is held. What was held comes through later, unless the wire is cut.
    pub fn hold(&self, direction: Direction, held: bool) {
        self.held[direction as usize].store(held, Ordering::SeqCst);
    }

    /// Ends all connections, whatever they carry now. Gives how many there were.
    pub fn cut(&self) -> usize {
        let streams = std::mem::take(&mut self.state.lock().expect("nobody panics").streams);
        for stream in &streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        streams.len() / 2
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.lock().expect("nobody panics").ended = true;
        self.held.iter().for_each(|held| held.store(false, Ordering::SeqCst));
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

fn lead_on(from: TcpStream, state: &Mutex<State>, held: &[Arc<AtomicBool>; 2]) -> io::Result<()> {
    let target = state.lock().expect("nobody panics").target;
    let to = TcpStream::connect(target.ok_or(io::ErrorKind::NotConnected)?)?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    state.lock().expect("nobody panics").streams.extend([from.try_clone()?, to.try_clone()?]);
    let ways = [(from.try_clone()?, to.try_clone()?), (to, from)];
    for ((mut source, mut sink), held) in ways.into_iter().zip(held.clone()) {
        std::thread::spawn(move || {
            let _ = carry(&mut source, &mut sink, &held);
            let _ = source.shutdown(Shutdown::Both);
            let _ = sink.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

fn carry(source: &mut TcpStream, sink: &mut TcpStream, held: &AtomicBool) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = source.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        while held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
        sink.write_all(&bytes[..count])?;
    }
}
