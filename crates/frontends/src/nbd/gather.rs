//! Headers that arrive in parts: collected until they are whole, read in place when they arrive whole.

/// The beginning of something of a known length.
#[derive(Debug, Default)]
pub(super) struct Gather {
    part: Vec<u8>,
}

impl Gather {
    /// Calls `read` with the next `len` bytes as soon as all of them are there, and takes them off `input`.
    /// None: all of `input` was taken, and it was not enough.
    pub(super) fn take<R>(
        &mut self,
        len: usize,
        input: &mut &[u8],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        assert!(self.part.len() <= len, "no more is collected than asked for");
        let missing = len - self.part.len();
        if input.len() < missing {
            self.part.extend_from_slice(input);
            *input = &[];
            return None;
        }
        let (now, rest) = input.split_at(missing);
        *input = rest;
        if self.part.is_empty() {
            return Some(read(now));
        }
        self.part.extend_from_slice(now);
        let result = read(&self.part);
        self.part.clear();
        Some(result)
    }
}

/// Takes fields off the front of bytes that are all there; None where they end too early.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(now)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        let (now, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*now))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (now, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*now))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (now, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*now))
    }

    /// A length and so many bytes of UTF-8. None: the bytes end too early, or are too many, or are no text.
    pub(super) fn string(&mut self, bytes_max: u32) -> Option<&'a str> {
        let len = self.u32().filter(|&len| len <= bytes_max)?;
        std::str::from_utf8(self.bytes(len as usize)?).ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
