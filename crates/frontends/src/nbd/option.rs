//! Options of the handshake as they come from the client: taken apart, not yet answered.

use super::gather::Fields;
use super::limits::NAME_BYTES_MAX;
use super::protocol::OPTION_MAGIC;

#[derive(Debug, Clone, Copy)]
pub(super) struct OptionHeader {
    pub(super) option: u32,
    pub(super) len: u32,
}

impl OptionHeader {
    /// None: this is no option.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u64()? == OPTION_MAGIC).then_some(())?;
        Some(Self { option: fields.u32()?, len: fields.u32()? })
    }
}

/// The data of GO and INFO.
pub(super) struct InfoRequest<'a> {
    pub(super) name: &'a str,
    /// Numbers of information wanted, two bytes each.
    wanted: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// None: the data is not what the option wants.
    pub(super) fn read(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string(NAME_BYTES_MAX)?;
        let count = fields.u16()?;
        let wanted = fields.bytes(usize::from(count) * 2)?;
        fields.is_empty().then_some(Self { name, wanted })
    }

    pub(super) fn wants(&self, info: u16) -> bool {
        self.wanted.chunks_exact(2).any(|number| number == info.to_be_bytes())
    }
}

/// The data of SET_META_CONTEXT and LIST_META_CONTEXT.
pub(super) struct ContextRequest<'a> {
    pub(super) name: &'a str,
    pub(super) queries: Vec<&'a str>,
}

impl<'a> ContextRequest<'a> {
    /// None: the data is not what the option wants.
    pub(super) fn read(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string(NAME_BYTES_MAX)?;
        let count = fields.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            // Each takes at least four bytes of the data, whose length is limited: so is their number.
            queries.push(fields.string(NAME_BYTES_MAX)?);
        }
        fields.is_empty().then_some(Self { name, queries })
    }
}
