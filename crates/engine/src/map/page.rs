//! The envelope of map pages: what every page carries, whatever it tells.
//! Promises: a page that is damaged, cut, or another page than was asked for is told from the right one.
//! Leaves to others: what is inside (`leaf`, `directory`, `index`), and where pages are.
//!
//! A page is 1 to 4 units of 4 KiB: 32 bytes of header, the payload, zeros up to the next unit. Numbers are
//! little-endian; docs/formats.md, "Map pages", tells them byte by byte.

use crate::buffer::{BLOCK, Buffer, Pages};
use crate::checksum::crc32c;
use crate::formats::record::PageKind;
use crate::identity::FamilyId;

const MAGIC: u32 = u32::from_le_bytes(*b"WFMP");
const VERSION: u16 = 2;
const HEADER: usize = 32;

/// Units of the largest page.
pub const PAGE_UNITS_MAX: u32 = 4;

/// Bytes of payload of the largest page.
pub(super) const PAYLOAD_MAX: usize = PAGE_UNITS_MAX as usize * BLOCK - HEADER;

/// What a page tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageRole {
    Page(PageKind),
    /// The places of 256 pages of this kind; of 128 if they are of the past.
    Index(PageKind),
}

impl PageRole {
    fn code(self) -> u8 {
        match self {
            PageRole::Page(PageKind::Leaf) => 1,
            PageRole::Page(PageKind::Directory) => 2,
            PageRole::Index(PageKind::Leaf) => 3,
            PageRole::Index(PageKind::Directory) => 4,
            PageRole::Page(PageKind::Past) => 5,
            PageRole::Index(PageKind::Past) => 6,
        }
    }
}

/// Why bytes are not the page that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    #[error("the page is not 1 to 4 whole units")]
    Length,
    #[error("the page's checksum does not match")]
    Checksum,
    #[error("this is no map page")]
    Magic,
    #[error("the page has version {0}, which is not known here")]
    Version(u16),
    #[error("this is another page than was asked for")]
    OtherPage,
    /// The envelope is right, but what is inside cannot have been written by a sound Weft.
    #[error("the page's content is wrong: {0}")]
    Content(ContentFault),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ContentFault {
    #[error("it is longer or shorter than it says")]
    Length,
    #[error("entries overlap or are out of order")]
    Order,
    #[error("a number is out of its range")]
    Range,
    #[error("it could be said shorter")]
    NotShortest,
}

impl From<ContentFault> for PageError {
    fn from(fault: ContentFault) -> Self {
        PageError::Content(fault)
    }
}

/// The page with this payload, as whole units.
pub fn encode(role: PageRole, number: u64, family: FamilyId, payload: &[u8]) -> Buffer {
    let mut pages = Pages::zeroed(HEADER + payload.len());
    let bytes = pages.bytes_mut();
    assert!(bytes.len() <= PAGE_UNITS_MAX as usize * BLOCK, "a page has at most 4 units");
    bytes[4..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = role.code();
    bytes[12..16].copy_from_slice(&family.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&number.to_le_bytes());
    bytes[24..28].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes[HEADER..HEADER + payload.len()].copy_from_slice(payload);
    let sum = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    pages.freeze()
}

/// The payload of `page`, if that is the page expected.
pub fn decode(page: &[u8], role: PageRole, number: u64, family: FamilyId) -> Result<&[u8], PageError> {
    if page.is_empty() || !page.len().is_multiple_of(BLOCK) || page.len() > PAGE_UNITS_MAX as usize * BLOCK {
        return Err(PageError::Length);
    }
    let mut header = Fields::of(&page[..HEADER]);
    if header.u32()? != crc32c(&page[4..]) {
        return Err(PageError::Checksum);
    }
    if header.u32()? != MAGIC {
        return Err(PageError::Magic);
    }
    let version = header.u16()?;
    if version != VERSION {
        return Err(PageError::Version(version));
    }
    let named = (header.u8()?, header.u8()?, header.u32()?, header.u64()?);
    if named != (role.code(), 0, family.0, number) {
        return Err(PageError::OtherPage);
    }
    let payload = header.u32()? as usize;
    if header.u32()? != 0
        || payload > page.len() - HEADER
        || (HEADER + payload).div_ceil(BLOCK) * BLOCK != page.len()
    {
        return Err(PageError::Length);
    }
    Ok(&page[HEADER..HEADER + payload])
}

/// Reads numbers one behind the other and never beyond the end.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ContentFault> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(ContentFault::Length)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ContentFault> {
        Ok(self.take::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, ContentFault> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, ContentFault> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, ContentFault> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// Everything has been read.
    pub(super) fn end(&self) -> Result<(), ContentFault> {
        if self.0.is_empty() { Ok(()) } else { Err(ContentFault::Length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: PageRole = PageRole::Page(PageKind::Leaf);

    #[test]
    fn a_page_comes_back_whatever_its_length() {
        for len in [0, 1, BLOCK - HEADER, BLOCK - HEADER + 1, 4 * BLOCK - HEADER] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let page = encode(ROLE, 5, FamilyId(2), &payload);
            assert_eq!(page.len(), (HEADER + len).div_ceil(BLOCK) * BLOCK);
            assert_eq!(decode(page.bytes(), ROLE, 5, FamilyId(2)), Ok(&payload[..]));
        }
    }

    #[test]
    fn another_page_is_not_taken_for_the_right_one() {
        let page = encode(ROLE, 5, FamilyId(2), b"payload");
        let bytes = page.bytes();
        for role in [PageRole::Page(PageKind::Directory), PageRole::Index(PageKind::Leaf)] {
            assert_eq!(decode(bytes, role, 5, FamilyId(2)), Err(PageError::OtherPage));
        }
        assert_eq!(decode(bytes, ROLE, 6, FamilyId(2)), Err(PageError::OtherPage));
        assert_eq!(decode(bytes, ROLE, 5, FamilyId(3)), Err(PageError::OtherPage));
    }

    #[test]
    fn any_changed_bit_shows() {
        let page = encode(ROLE, 5, FamilyId(2), &[9; 100]);
        let mut bytes = page.bytes().to_vec();
        for place in 0..bytes.len() {
            bytes[place] ^= 1 << (place % 8);
            assert_eq!(decode(&bytes, ROLE, 5, FamilyId(2)), Err(PageError::Checksum), "byte {place}");
            bytes[place] ^= 1 << (place % 8);
        }
        assert_eq!(decode(&bytes[..100], ROLE, 5, FamilyId(2)), Err(PageError::Length));
        assert_eq!(decode(&[], ROLE, 5, FamilyId(2)), Err(PageError::Length));
    }

    #[test]
    fn a_page_of_a_later_version_is_told() {
        let mut bytes = encode(ROLE, 5, FamilyId(2), &[9; 100]).bytes().to_vec();
        bytes[8] = 3;
        let sum = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode(&bytes, ROLE, 5, FamilyId(2)), Err(PageError::Version(3)));
    }
}
