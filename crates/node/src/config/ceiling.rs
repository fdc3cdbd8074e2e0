//! What the clients of a vDisk may ask for in a second, as it stands in records and as people write it.

use serde::{Deserialize, Serialize};
use weft_engine::interface::Ceiling;

/// No limits, if nothing was ever said. Of a vDisk, what is not said is its container's; 0 says that there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CeilingRecord {
    /// Requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u32>,
    /// Bytes read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Less would let a single block wait for longer than clients wait for an answer.
const BYTES_LEAST: u64 = 4096;

impl CeilingRecord {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// As the engine wants it.
    pub fn engine(&self) -> Ceiling {
        Ceiling { iops: self.iops.filter(|&iops| iops > 0), bytes: self.bytes.filter(|&bytes| bytes > 0) }
    }

    /// What holds where this is silent and `inherited` is not.
    pub fn over(self, inherited: Self) -> Self {
        Self { iops: self.iops.or(inherited.iops), bytes: self.bytes.or(inherited.bytes) }
    }

    /// This record with what was asked for: 0 is no limit, None inside is silence. The error says what to write instead.
    pub fn with(self, iops: Option<Option<u64>>, bytes: Option<Option<u64>>) -> Result<Self, String> {
        let iops = match iops {
            None => self.iops,
            Some(None) => None,
            Some(Some(iops)) => Some(u32::try_from(iops).map_err(|_| {
                format!("{iops} requests a second are no limit; write at most {}, or none", u32::MAX)
            })?),
        };
        let bytes = match bytes {
            None => self.bytes,
            Some(None) => None,
            Some(Some(bytes)) if bytes != 0 && bytes < BYTES_LEAST => {
                return Err(format!("{bytes} bytes a second are too few; write at least 4K, or none"));
            }
            Some(Some(bytes)) => Some(bytes),
        };
        Ok(Self { iops, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_taken_or_refused_and_the_rest_stays() {
        let silent = CeilingRecord::default();
        let both = silent.with(Some(Some(500)), Some(Some(1 << 20))).expect("these are limits");
        assert_eq!(both.engine(), Ceiling { iops: Some(500), bytes: Some(1 << 20) });
        assert_eq!(both.with(None, None), Ok(both), "what is not said stays");
        assert_eq!(both.with(Some(None), Some(None)), Ok(silent));
        let free = both.with(Some(Some(0)), None).expect("none is fine");
        assert_eq!(free.engine(), Ceiling { iops: None, bytes: Some(1 << 20) });
        assert_eq!(free.over(both), free, "no limit of its own is a word too");
        let own = silent.with(None, Some(Some(4096))).expect("it is a limit");
        assert_eq!(own.over(both), CeilingRecord { iops: Some(500), bytes: Some(4096) });
        assert!(
            silent.with(Some(Some(1 << 32)), None).is_err() && silent.with(None, Some(Some(4095))).is_err()
        );
    }
}
