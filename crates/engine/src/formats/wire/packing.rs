//! How an egroup is packed, as it is told to members: the codec (0: it is not), and of each frame units and bytes.

use super::fields::{Reader, Writer};
use crate::codec::Codec;
use crate::formats::packing::{FrameSize, Packing};
use std::sync::Arc;

pub(super) fn put(packing: Option<&Arc<Packing>>, writer: &mut Writer) {
    let Some(packing) = packing else { return writer.u32(0) };
    writer.u32(packing.codec() as u32);
    writer.count(packing.frame_count());
    packing.sizes().for_each(|size| writer.u32(u32::from(size.units) << 16 | u32::from(size.len)));
}

/// The outer None: this is no packing.
pub(super) fn take(reader: &mut Reader) -> Option<Option<Arc<Packing>>> {
    let codec = match reader.u32()? {
        0 => return Some(None),
        codec => Codec::of(codec)?,
    };
    let sizes = reader.list(4, |reader| {
        let size = reader.u32()?;
        Some(FrameSize { units: u8::try_from(size >> 16).ok()?, len: size as u16 })
    })?;
    Packing::of(codec, sizes).map(|packing| Some(Arc::new(packing)))
}
