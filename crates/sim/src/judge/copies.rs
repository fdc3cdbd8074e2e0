//! Whether an acknowledged write lies durably on as many drives as it must (I1), at the very moment of the
//! acknowledgement: looks at what each drive would still hold after a power cut that loses everything it may.

use crate::drive::Drive;
use weft_engine::interface::Area;

/// How many of `drives` hold, safe from a power cut, a block that begins with `mark`.
pub fn durable_copies<'a>(drives: impl Iterator<Item = &'a Drive>, mark: u64) -> usize {
    drives
        .filter(|drive| drive.area(Area::Log).holds_safely(mark) || drive.area(Area::Data).holds_safely(mark))
        .count()
}
