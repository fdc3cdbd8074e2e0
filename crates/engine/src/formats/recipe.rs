//! How an egroup was meant to be packed when it was placed, in one byte: enough to tell that it should be packed otherwise now.
//! Leaves to others: how its frames lie (`packing`; only the table of a drive knows), packing it again (`curator/repack.rs`).

use crate::interface::{Compression, Method};

/// What was tried, whether it saved anything or not. The level of a codec is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Recipe(u8);

const LZ4: u8 = 1;
const ZSTD: u8 = 2;
/// Frames of 1, 2, 4 and 8 units.
const FRAME_BITS: u8 = 2;
/// It was to share what lies on its drives already.
const SHARED: u8 = 1 << 4;

impl Recipe {
    /// As it is, each unit a block.
    pub const PLAIN: Recipe = Recipe(0);

    pub fn of(compression: Compression) -> Self {
        let shared = if compression.share { SHARED } else { 0 };
        let codec = match compression.method {
            Method::Off => return Self(shared),
            Method::Lz4 => LZ4,
            Method::Zstd { .. } => ZSTD,
        };
        let frame = compression.frame_units.clamp(1, 8).ilog2() as u8;
        Self(shared | codec << FRAME_BITS | frame)
    }

    /// Whether it was to share what lies on its drives already.
    pub fn shares(self) -> bool {
        self.0 & SHARED != 0
    }

    /// Whether what was packed so need not be packed again where this is wanted. What shares already may go on to.
    pub fn serves(self, wanted: Recipe) -> bool {
        self == wanted || self.0 == wanted.0 | SHARED
    }

    /// Bits 0 and 1: the binary logarithm of a frame's units; bits 2 and 3: the codec, 0 for none (and then of frames too); bit 4:
    /// it was to share.
    pub fn byte(self) -> u8 {
        self.0
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        let packed = byte & !SHARED;
        (packed == 0 || matches!(packed >> FRAME_BITS, LZ4 | ZSTD)).then_some(Self(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_byte_of_its_own_and_comes_back() {
        let plain = Compression::default();
        let mut seen = std::collections::BTreeSet::from([Recipe::PLAIN]);
        for share in [false, true] {
            for method in [Method::Lz4, Method::Zstd { level: 1 }] {
                for frame_units in [1, 2, 4, 8] {
                    let recipe = Recipe::of(Compression { method, frame_units, share, ..plain });
                    assert!(seen.insert(recipe));
                    assert_eq!((Recipe::from_byte(recipe.byte()), recipe.shares()), (Some(recipe), share));
                }
            }
        }
        let shared = Recipe::of(Compression { share: true, ..plain });
        assert!(shared.shares() && seen.insert(shared), "what is not packed may be shared as well");
        assert!(shared.serves(Recipe::PLAIN) && !Recipe::PLAIN.serves(shared) && shared.serves(shared));
        assert_eq!(
            (0..=u8::MAX).filter_map(Recipe::from_byte).collect::<std::collections::BTreeSet<_>>(),
            seen
        );
        let strong = Compression { method: Method::Zstd { level: 19 }, frame_units: 8, ..plain };
        assert!(seen.contains(&Recipe::of(strong)), "levels are not told apart");
        let off = Compression { method: Method::Off, frame_units: 8, ..plain };
        assert_eq!(Recipe::of(off), Recipe::PLAIN);
    }
}
