//! A wire that can be cut: connections to it lead to a node, until they are all shut down in the middle of a word.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
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
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.lock().expect("nobody panics").ended {
                    return;
                }
                // Nobody there: the connection closes, and the dialler sees that.
                let _ = lead_on(stream, &shared);
            }
        });
        Self { address, state }
    }

    pub fn set_target(&self, target: Option<SocketAddr>) {
        self.state.lock().expect("nobody panics").target = target;
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
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

fn lead_on(from: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let target = state.lock().expect("nobody panics").target;
    let to = TcpStream::connect(target.ok_or(io::ErrorKind::NotConnected)?)?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    state.lock().expect("nobody panics").streams.extend([from.try_clone()?, to.try_clone()?]);
    for (mut source, mut sink) in [(from.try_clone()?, to.try_clone()?), (to, from)] {
        std::thread::spawn(move || {
            let _ = io::copy(&mut source, &mut sink);
            let _ = source.shutdown(Shutdown::Both);
            let _ = sink.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
