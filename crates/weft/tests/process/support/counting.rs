//! A client that counts on two vDisks, first on one and then on the other: whatever is of one instant tells the same number on both, or
//! one more on the first.

use super::nbd::NbdClient;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const BLOCK: usize = 4096;

pub struct Counting {
    stop: Arc<AtomicBool>,
    /// Counted so far on both.
    pub count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Counting {
    /// Counts at the two exports, `a` and `b`, until it is stopped.
    pub fn start(first: &Path, second: &Path) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let places: [(PathBuf, &str); 2] = [(first.to_path_buf(), "a"), (second.to_path_buf(), "b")];
        let thread = std::thread::spawn(move || {
            let mut clients = places.map(|(socket, name)| NbdClient::connect_patiently(&socket, name));
            let mut number = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                let mut block = vec![0; BLOCK];
                block[..8].copy_from_slice(&number.to_le_bytes());
                for client in &mut clients {
                    // The answer has come when this returns.
                    client.write(0, &block).expect("a write works");
                }
                counted.store(number, Ordering::Relaxed);
            }
        });
        Self { stop, count, thread: Some(thread) }
    }

    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the client that counts got all its answers");
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.end();
    }
}

/// The number that an export tells.
pub fn told(socket: &Path, name: &str) -> u64 {
    let mut client = NbdClient::connect_patiently(socket, name);
    let block = client.read(0, BLOCK as u32).expect("a read works");
    client.disconnect();
    u64::from_le_bytes(block[..8].try_into().expect("eight bytes"))
}
