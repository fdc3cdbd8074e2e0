//! How a vDisk's data is packed, as it stands in records and as people write it.

use serde::{Deserialize, Serialize};
use weft_engine::buffer::BLOCK;
use weft_engine::interface::{Cold, Compression, Method};

/// Off, and frames of 8 KiB, if nothing was ever said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressionRecord {
    pub method: MethodRecord,
    /// Bytes packed together: 4, 8, 16 or 32 KiB.
    pub unit: u32,
    /// When what nobody reads is packed once more; None: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<ColdRecord>,
}

/// After so many seconds in which no drive was asked for it, data is packed with this level of zstd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdRecord {
    pub after_s: u32,
    pub level: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MethodRecord {
    Off,
    Lz4,
    Zstd(u8),
}

const UNITS: [u32; 4] = [4096, 8192, 16_384, 32_768];
/// What a database reads and writes at once. More saves little, and reads take twice as long (docs/benchmarks.md).
const UNIT_DEFAULT: u32 = 8192;
const ZSTD_LEVELS: std::ops::RangeInclusive<u8> = 1..=19;
const ZSTD_LEVEL_DEFAULT: u8 = 3;
/// Cold data is packed once, when nobody waits for it.
const ZSTD_LEVEL_COLD: u8 = 9;

impl Default for CompressionRecord {
    fn default() -> Self {
        Self { method: MethodRecord::Off, unit: UNIT_DEFAULT, cold: None }
    }
}

impl CompressionRecord {
    /// As the engine wants it.
    pub fn engine(&self) -> Compression {
        let method = match self.method {
            MethodRecord::Off => Method::Off,
            MethodRecord::Lz4 => Method::Lz4,
            MethodRecord::Zstd(level) => Method::Zstd { level },
        };
        // What a newer version may write is rounded to what this one can do.
        let frame_units = (self.unit / BLOCK as u32).clamp(1, 8).next_power_of_two() as u8;
        let cold = self.cold.map(|ColdRecord { after_s, level }| Cold { after_s, level });
        Compression { method, frame_units, cold, share: false }
    }

    /// This record with what was asked for: `method` is off, lz4, zstd or zstd:LEVEL. The error says what to write instead.
    pub fn with(self, method: Option<&str>, unit: Option<u64>) -> Result<Self, String> {
        let method = match method {
            None => self.method,
            Some("off") => MethodRecord::Off,
            Some("lz4") => MethodRecord::Lz4,
            Some("zstd") => MethodRecord::Zstd(ZSTD_LEVEL_DEFAULT),
            Some(other) => {
                let level = other.strip_prefix("zstd:").and_then(|level| level.parse().ok());
                let level = level.filter(|level| ZSTD_LEVELS.contains(level));
                MethodRecord::Zstd(level.ok_or_else(|| {
                    format!("`{other}` is no compression; write off, lz4, zstd or zstd:LEVEL with a level of 1 to 19")
                })?)
            }
        };
        let unit = match unit {
            None => self.unit,
            Some(bytes) => UNITS.into_iter().find(|unit| u64::from(*unit) == bytes).ok_or_else(|| {
                format!("{bytes} bytes cannot be packed together; write 4K, 8K, 16K or 32K")
            })?,
        };
        Ok(Self { method, unit, ..self })
    }

    /// This record, with data packed once more after so many seconds; 0: never. The error says what to write instead.
    pub fn with_cold(self, after_s: u64, level: Option<u8>) -> Result<Self, String> {
        if after_s == 0 {
            return Ok(Self { cold: None, ..self });
        }
        let after_s = u32::try_from(after_s).map_err(|_| {
            format!("{after_s} seconds without a read are more than anybody waits for; write 30d or less")
        })?;
        let level = level.unwrap_or(ZSTD_LEVEL_COLD);
        if !ZSTD_LEVELS.contains(&level) {
            return Err(format!("{level} is no level of zstd; write one of 1 to 19"));
        }
        Ok(Self { cold: Some(ColdRecord { after_s, level }), ..self })
    }

    /// As it is written in commands.
    pub fn method_text(&self) -> String {
        match self.method {
            MethodRecord::Off => "off".to_string(),
            MethodRecord::Lz4 => "lz4".to_string(),
            MethodRecord::Zstd(level) => format!("zstd:{level}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_understood_or_refused() {
        let off = CompressionRecord::default();
        for text in ["off", "lz4", "zstd:1", "zstd:19"] {
            assert_eq!(off.with(Some(text), None).expect("it is one").method_text(), text);
        }
        assert_eq!(off.with(Some("zstd"), Some(4096)).expect("it is one").method_text(), "zstd:3");
        for text in ["", "gzip", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "LZ4"] {
            assert!(off.with(Some(text), None).is_err(), "{text:?} was taken");
        }
        for unit in [0, 1, 5000, 65_536] {
            assert!(off.with(None, Some(unit)).is_err(), "{unit} was taken");
        }
        let lz4 = off.with(Some("lz4"), Some(32_768)).expect("it is one");
        assert_eq!(
            lz4.engine(),
            Compression { method: Method::Lz4, frame_units: 8, cold: None, share: false }
        );
        assert_eq!(lz4.with(None, None), Ok(lz4), "what is not said stays");
        let cold = lz4.with_cold(3600, None).expect("it is one");
        assert_eq!(cold.cold, Some(ColdRecord { after_s: 3600, level: 9 }));
        assert_eq!(cold.with(Some("lz4"), None), Ok(cold), "a rule stays when the method is set");
        assert_eq!(cold.with_cold(0, None), Ok(lz4));
        assert!(lz4.with_cold(1, Some(20)).is_err());
        assert!(lz4.with_cold(1 << 40, None).is_err());
        assert_eq!(off.engine(), Compression::default());
    }
}
