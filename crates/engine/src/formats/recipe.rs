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

impl Recipe {
    /// As it is, each unit a block.
    pub const PLAIN: Recipe = Recipe(0);

    pub fn of(compression: Compression) -> Self {
        let codec = match compression.method {
            Method::Off => return Self::PLAIN,
            Method::Lz4 => LZ4,
            Method::Zstd { .. } => ZSTD,
        };
        let frame = compression.frame_units.clamp(1, 8).ilog2() as u8;
        Self(codec << FRAME_BITS | frame)
    }

    /// 0: as it is; else bits 0 and 1 the binary logarithm of a frame's units, bits 2 and 3 the codec.
    pub fn byte(self) -> u8 {
        self.0
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        (byte == 0 || matches!(byte >> FRAME_BITS, LZ4 | ZSTD)).then_some(Self(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_byte_of_its_own_and_comes_back() {
        let mut seen = std::collections::BTreeSet::from([Recipe::PLAIN]);
        for method in [Method::Lz4, Method::Zstd { level: 1 }] {
            for frame_units in [1, 2, 4, 8] {
                let recipe = Recipe::of(Compression { method, frame_units, cold: None });
                assert!(seen.insert(recipe));
                assert_eq!(Recipe::from_byte(recipe.byte()), Some(recipe));
            }
        }
        assert_eq!(
            (0..=u8::MAX).filter_map(Recipe::from_byte).collect::<std::collections::BTreeSet<_>>(),
            seen
        );
        let strong = Compression { method: Method::Zstd { level: 19 }, frame_units: 8, cold: None };
        assert!(seen.contains(&Recipe::of(strong)), "levels are not told apart");
        let off = Compression { method: Method::Off, frame_units: 8, cold: None };
        assert_eq!(Recipe::of(off), Recipe::PLAIN);
    }
}
