//! Compression of short pieces of data: LZ4 and zstd behind one door.
//! Promises: what is unpacked has exactly the length that was expected, whatever the bytes are; no more memory is touched
//! than that. Contexts are reused: making one costs more than packing a frame.
//! Leaves to others: what is packed together and whether it pays (`egroup/pack.rs`), checksums.

use crate::interface::Method;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::fmt;

/// How a frame was packed. The numbers are those of the formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Codec {
    Lz4 = 1,
    Zstd = 2,
}

impl Codec {
    pub fn of(number: u32) -> Option<Codec> {
        [Codec::Lz4, Codec::Zstd].into_iter().find(|codec| *codec as u32 == number)
    }
}

/// The most that packing `bytes` can give: outputs need that much room.
pub fn packed_bytes_max(bytes: usize) -> usize {
    get_maximum_output_size(bytes).max(zstd::zstd_safe::compress_bound(bytes))
}

pub struct Compressor(Engine);

enum Engine {
    Lz4(CompressTable),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Compressor {
    /// None if nothing is to be packed.
    pub fn new(method: Method) -> Option<Self> {
        let engine = match method {
            Method::Off => return None,
            Method::Lz4 => Engine::Lz4(CompressTable::small()),
            // Without memory for a context data stays as it is.
            Method::Zstd { level } => Engine::Zstd(zstd::bulk::Compressor::new(i32::from(level)).ok()?),
        };
        Some(Self(engine))
    }

    pub fn codec(&self) -> Codec {
        match self.0 {
            Engine::Lz4(_) => Codec::Lz4,
            Engine::Zstd(_) => Codec::Zstd,
        }
    }

    /// Packs `bytes` into `out`, which has room for [`packed_bytes_max`]. Gives the length; None if it cannot be done.
    pub fn pack(&mut self, bytes: &[u8], out: &mut [u8]) -> Option<usize> {
        match &mut self.0 {
            Engine::Lz4(table) => compress_into_with_table(bytes, out, table).ok(),
            Engine::Zstd(engine) => engine.compress_to_buffer(bytes, out).ok(),
        }
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decompressor")
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compressor({:?})", self.codec())
    }
}

/// Unpacks frames of any codec.
#[derive(Default)]
pub struct Decompressor {
    /// Made when the first zstd frame is met.
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    /// For frames of which only a part is wanted.
    whole: Vec<u8>,
}

impl Decompressor {
    /// Unpacks `stored` into `out`; false if these bytes do not give exactly as many.
    pub fn unpack(&mut self, codec: Codec, stored: &[u8], out: &mut [u8]) -> bool {
        let len = match codec {
            Codec::Lz4 => decompress_into(stored, out).ok(),
            Codec::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Decompressor::new().ok();
                }
                self.zstd.as_mut().and_then(|engine| engine.decompress_to_buffer(stored, out).ok())
            }
        };
        len == Some(out.len())
    }

    /// Unpacks `stored`, which gives `len` bytes, and puts those from `skip` on into `out`; false if it does not give them.
    pub fn unpack_part(
        &mut self,
        codec: Codec,
        stored: &[u8],
        len: usize,
        skip: usize,
        out: &mut [u8],
    ) -> bool {
        if out.len() == len {
            return self.unpack(codec, stored, out);
        }
        let mut whole = std::mem::take(&mut self.whole);
        whole.resize(len, 0);
        let sound = self.unpack(codec, stored, &mut whole);
        match whole.get(skip..skip + out.len()) {
            Some(part) if sound => out.copy_from_slice(part),
            _ => return false,
        }
        self.whole = whole;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, RngCore, SeedableRng};

    #[test]
    fn what_is_packed_comes_back_and_any_bytes_may_come() {
        let mut random = SmallRng::seed_from_u64(7);
        let mut unpacker = Decompressor::default();
        for round in 0..400 {
            let mut bytes = vec![0; 4096 * random.random_range(1..=8)];
            let noise = random.random_range(0..=bytes.len());
            random.fill_bytes(&mut bytes[..noise]);
            let level = random.random_range(1..=12);
            let method = if random.random() { Method::Lz4 } else { Method::Zstd { level } };
            let mut packer = Compressor::new(method).expect("it packs");
            let mut out = vec![0; packed_bytes_max(bytes.len())];
            let len = packer.pack(&bytes, &mut out).expect("there is room");
            let mut back = vec![1; bytes.len()];
            assert!(unpacker.unpack(packer.codec(), &out[..len], &mut back), "round {round}");
            assert_eq!(back, bytes);
            // Another length is not what was meant; damage gives anything but a panic.
            let mut other = vec![0; bytes.len() - 1];
            assert!(!unpacker.unpack(packer.codec(), &out[..len], &mut other));
            let mut longer = vec![0; bytes.len() + 1];
            assert!(!unpacker.unpack(packer.codec(), &out[..len], &mut longer));
            for _ in 0..20 {
                let at = random.random_range(0..len);
                out[at] ^= 1 << random.random_range(0..8);
                unpacker.unpack(packer.codec(), &out[..len], &mut back);
            }
            random.fill_bytes(&mut out[..len]);
            unpacker.unpack(Codec::Lz4, &out[..len], &mut back);
            unpacker.unpack(Codec::Zstd, &out[..len], &mut back);
        }
        assert!(Compressor::new(Method::Off).is_none());
    }
}
