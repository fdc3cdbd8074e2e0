//! What packing gives and costs, for several kinds of data, codecs and sizes of frames: the table by which defaults were
//! chosen. Run on a machine that has nothing else to do:
//!
//!     cargo run --release -p weft-engine --example compression_sweep
//!
//! Columns: *ratio*, bytes of data for each byte stored (whole egroups, in blocks of the drive); *read*, bytes read from the
//! drive for 4 KiB at a random place, divided by 4 KiB; *pack* and *unpack*, microseconds of one core for each MiB of
//! data, the fastest of several rounds; *unpack 4K*, microseconds to get at one block: its whole frame is unpacked.

use std::path::Path;
use std::time::Instant;
use weft_engine::buffer::{BLOCK, Pages};
use weft_engine::codec::Decompressor;
use weft_engine::counters::Counters;
use weft_engine::egroup::pack::Packer;
use weft_engine::egroup::units::Units;
use weft_engine::formats::packing::{Frame, SINGLE_UNITS_MAX};
use weft_engine::interface::{Compression, Method};
use weft_engine::limits::EGROUP_UNITS;
use weft_engine::message::Content;

/// Data of each kind: enough that no cache holds it.
const BYTES: usize = 32 << 20;
const ROUNDS: usize = 3;

fn main() {
    let kinds = [
        ("text", text()),
        ("database", database()),
        ("half random", half_random()),
        ("random", noise(BYTES, 1)),
    ];
    let methods = [
        ("lz4", Method::Lz4),
        ("zstd:1", Method::Zstd { level: 1 }),
        ("zstd:3", Method::Zstd { level: 3 }),
        ("zstd:9", Method::Zstd { level: 9 }),
    ];
    println!("| data | codec | frame | ratio | read | pack us/MiB | unpack us/MiB | unpack 4K us |");
    println!("|---|---|---|---|---|---|---|---|");
    for (kind, data) in &kinds {
        for (name, method) in methods {
            for frame_units in [1, 2, 4, 8] {
                let row = measure(data, Compression { method, frame_units, cold: None, share: false });
                println!(
                    "| {kind} | {name} | {} KiB | {:.2} | {:.2} | {:.0} | {:.0} | {:.1} |",
                    u32::from(frame_units) * 4,
                    row.ratio,
                    row.read,
                    row.pack,
                    row.unpack,
                    row.unpack_block
                );
            }
        }
    }
}

struct Row {
    ratio: f64,
    read: f64,
    pack: f64,
    unpack: f64,
    unpack_block: f64,
}

fn measure(data: &[u8], compression: Compression) -> Row {
    let egroups = egroups(data, compression);
    let mib = data.len() as f64 / f64::from(1 << 20);
    let (mut pack, mut unpack) = (f64::MAX, f64::MAX);
    let mut contents = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        contents = egroups.iter().map(|units| packed(units, compression)).collect();
        pack = pack.min(began.elapsed().as_secs_f64() * 1e6 / mib);
        let began = Instant::now();
        let mut unpacker = Decompressor::default();
        let mut out = vec![0; 8 * BLOCK];
        for content in &contents {
            unpack_all(content, &mut unpacker, &mut out);
        }
        unpack = unpack.min(began.elapsed().as_secs_f64() * 1e6 / mib);
    }
    let units: usize = contents.iter().map(Content::units).sum();
    let stored: usize = contents.iter().map(Content::blocks).sum();
    let (mut read, mut whole) = (0_usize, 0_usize);
    for content in &contents {
        for unit in 0..content.units() as u32 {
            let frame = match content {
                Content::Packed { packing, .. } => packing.frame_of(unit),
                Content::Units(_) | Content::Lost { .. } => Frame::of_unit(unit),
            };
            read += frame.blocks().len();
            whole += if frame.is_raw() { 0 } else { frame.units as usize * BLOCK };
        }
    }
    let unpacked_share = whole as f64 / (units * BLOCK) as f64;
    Row {
        ratio: units as f64 / stored as f64,
        read: read as f64 / units as f64,
        pack,
        unpack,
        unpack_block: unpack * unpacked_share / 256.0,
    }
}

fn egroups(data: &[u8], compression: Compression) -> Vec<Units> {
    let most = if compression.frame_units == 1 { SINGLE_UNITS_MAX } else { EGROUP_UNITS };
    let mut egroups = Vec::new();
    for bytes in data.chunks(most * BLOCK) {
        let whole = Pages::copied(bytes).freeze();
        let mut units = Units::default();
        for at in 0..whole.blocks() {
            units.push(at as u64, whole.block(at));
        }
        egroups.push(units);
    }
    egroups
}

fn packed(units: &Units, compression: Compression) -> Content {
    let mut packer = Packer::new(compression, 0).expect("every method here packs");
    while !packer.advance(units) {}
    packer.finish(units, &mut Counters::default())
}

fn unpack_all(content: &Content, unpacker: &mut Decompressor, out: &mut [u8]) {
    let Content::Packed { packing, bytes } = content else { return };
    for frame in packing.frames().filter(|frame| !frame.is_raw()) {
        let out = &mut out[..frame.units as usize * BLOCK];
        assert!(
            unpacker.unpack(packing.codec(), &bytes.bytes()[frame.bytes()], out),
            "what was packed unpacks"
        );
    }
}

/// The source and the documents of Weft, over and over: repeats are farther apart than any frame is long.
fn text() -> Vec<u8> {
    let mut all = Vec::new();
    gather(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut all);
    assert!(all.len() > 64 << 10, "the sources are where this example was built");
    all.iter().copied().cycle().take(BYTES).collect()
}

fn gather(directory: &Path, all: &mut Vec<u8>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            gather(&path, all);
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            all.extend(std::fs::read(&path).unwrap_or_default());
        }
    }
}

/// Pages of rows: counters, a few words, and a quarter that nobody can guess.
fn database() -> Vec<u8> {
    const WORDS: [&[u8]; 4] = [b"pending ", b"shipped ", b"returned", b"paid    "];
    let random = noise(BYTES / 4, 2);
    let mut data = Vec::with_capacity(BYTES);
    for (row, random) in random.chunks_exact(16).enumerate() {
        data.extend((row as u64).to_be_bytes());
        data.extend(random);
        data.extend(WORDS[usize::from(random[0] % 4)]);
        data.extend([0; 20]);
        data.extend(1_700_000_000_u32.wrapping_add(row as u32 / 7).to_be_bytes());
        data.extend([b' '; 8]);
    }
    data
}

/// Stretches of 256 KiB, in turn compressible and not.
fn half_random() -> Vec<u8> {
    let (rows, random) = (database(), noise(BYTES, 3));
    let pairs = rows.chunks(256 << 10).zip(random.chunks(256 << 10)).enumerate();
    pairs.flat_map(|(at, (rows, random))| if at % 2 == 0 { rows } else { random }).copied().collect()
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let words = (0..bytes / 8).flat_map(|_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    });
    words.collect()
}
