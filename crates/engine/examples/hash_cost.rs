//! What sharing costs a drive's keeper: time and bytes hashed per frame, and memory per entry of the index.
//!
//!     cargo run --release -p weft-engine --example hash_cost

use std::hint::black_box;
use std::time::Instant;

/// Bytes of all frames that are hashed at each size: more than caches hold.
const BYTES: usize = 64 << 20;
const ROUNDS: usize = 5;

fn main() {
    let key = [7; 32];
    let mut bytes = vec![0_u8; BYTES];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    println!("{:>12} {:>12} {:>12} {:>12}", "frame bytes", "BLAKE3 ns", "GB/s", "CRC-32C ns");
    for frame in [1024, 2048, 4096, 8192, 16_384] {
        let blake3 = fastest(&bytes, frame, |frame| {
            black_box(blake3::keyed_hash(&key, frame));
        });
        let crc = fastest(&bytes, frame, |frame| {
            black_box(weft_engine::checksum::crc32c(frame));
        });
        println!("{frame:>12} {blake3:>12.0} {:>12.2} {crc:>12.0}", frame as f64 / blake3);
    }
    println!("an entry of the index is taken for {} bytes", weft_engine::keeper::ENTRY_COST);
}

/// Nanoseconds for each frame, in the fastest of some rounds: others use the machine too.
fn fastest(bytes: &[u8], frame: usize, work: impl Fn(&[u8])) -> f64 {
    let round = || {
        let begun = Instant::now();
        bytes.chunks_exact(frame).for_each(&work);
        begun.elapsed().as_nanos() as f64 / (bytes.len() / frame) as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}
