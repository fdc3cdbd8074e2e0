//! By what vDisks are kept: their own word if they have one, else their container's. Asked for when one is made, changed at any time.
//! Promises: what is answered is in the store; the owner uses it for what comes from then on. More copies than there are places for
//! are refused.
//! Leaves to others: packing and limiting (the engine), telling the owner in a cluster (`member/families.rs`, like every change).

use super::change::{change_vdisk, move_vdisk_into};
use super::refusal::Refusal;
use super::vdisks::check_factor;
use super::{Control, Part, SharedControl};
use crate::api::{ColdWord, CreateVdisk, DedupWord, LimitWord, SetVdisk, VdiskView};
use crate::config::{
    CeilingRecord, ColdRecord, CompressionRecord, ContainerRecord, FamilyConfig, FamilyState, OwnPolicy,
    Policy,
};

/// The word that gives back what a vDisk has of its own.
const INHERIT: &str = "inherit";

/// What a vDisk shall say of its own, where `present` is what holds now. The outer None: as before.
fn own_compression(
    method: Option<&str>,
    unit: Option<u64>,
    cold: Option<ColdWord>,
    present: CompressionRecord,
) -> Result<Option<Option<CompressionRecord>>, Refusal> {
    match (method, unit, cold) {
        (None, None, None) => Ok(None),
        (Some(INHERIT), None, None) => Ok(Some(None)),
        (Some(INHERIT), _, _) => Err(Refusal::bad_input(
            "what is inherited has the unit and the rule for cold data of the container; leave --unit and --cold-after out, or \
             write a compression",
        )),
        _ => packing(present, method, unit, cold).map(|own| Some(Some(own))),
    }
}

/// How data is packed; what is not said stays.
pub(super) fn packing(
    present: CompressionRecord,
    method: Option<&str>,
    unit: Option<u64>,
    cold: Option<ColdWord>,
) -> Result<CompressionRecord, Refusal> {
    let packed = present.with(method, unit).and_then(|packed| match cold {
        Some(ColdWord { after_s, level }) => packed.with_cold(after_s, level),
        None => Ok(packed),
    });
    packed.map_err(Refusal::bad_input)
}

/// What a new vDisk says of itself.
pub(super) fn wanted(wanted: &CreateVdisk, container: &ContainerRecord) -> Result<OwnPolicy, Refusal> {
    let method = wanted.compression.as_deref();
    let compression =
        own_compression(method, wanted.compression_unit, wanted.cold, container.compression)?.flatten();
    let ceiling = own_ceiling(CeilingRecord::default(), wanted.iops_limit, wanted.bw_limit)?;
    let dedup = wanted.dedup.and_then(DedupWord::own);
    Ok(OwnPolicy { compression, dedup, ceiling, factor: wanted.factor })
}

fn own_ceiling(
    own: CeilingRecord,
    iops: Option<LimitWord>,
    bytes: Option<LimitWord>,
) -> Result<CeilingRecord, Refusal> {
    own.with(iops.map(LimitWord::number), bytes.map(LimitWord::number)).map_err(Refusal::bad_input)
}

/// How many copies a vDisk shall say of its own. The outer None: as before.
fn own_factor(wanted: Option<LimitWord>) -> Result<Option<Option<u32>>, Refusal> {
    let Some(wanted) = wanted else { return Ok(None) };
    let number = wanted.number().map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    if let Some(number) = number {
        // Whether there are so many places is asked when it is known where.
        check_factor(number, usize::MAX, "", "")?;
    }
    Ok(Some(number))
}

/// Changes what a vDisk says of itself, and the container that it is in.
pub(super) async fn set(
    control: &SharedControl,
    name: &str,
    wanted: &SetVdisk,
) -> Result<VdiskView, Refusal> {
    let factor = own_factor(wanted.factor)?;
    let (family, compression, container) = {
        let mut control = control.lock();
        control.check_ready()?;
        let family = control.family_named(name).ok_or_else(|| Refusal::no_vdisk(name))?;
        let config = control.families[&family].config.clone();
        if config.state == FamilyState::Dropping {
            return Err(Refusal::no_vdisk(name));
        }
        // Also the one that it is in, as far as is known here: somebody may have put it into another a moment ago.
        let container = wanted.container.clone();
        if let Some(container) = &container {
            control.container_named(container)?;
        }
        let Policy { compression: present, factor: copies, .. } = control.policy(&config);
        let compression =
            own_compression(wanted.compression.as_deref(), wanted.compression_unit, wanted.cold, present)?;
        // What is wrong with them is told before anything is done.
        own_ceiling(config.ceiling, wanted.iops_limit, wanted.bw_limit)?;
        let mut changed = FamilyConfig {
            container: container.clone().unwrap_or(config.container.clone()),
            ..config.clone()
        };
        if let Some(factor) = factor {
            changed.set_own_factor(factor);
        }
        let wanted = control.policy(&changed).factor;
        if wanted != copies {
            control.make_places_for(wanted)?;
        }
        (family, compression, container)
    };
    let (iops, bytes, dedup) = (wanted.iops_limit, wanted.bw_limit, wanted.dedup);
    // Only what was said: somebody else may set the rest at this moment.
    let alter = move |record: &mut FamilyConfig| {
        record.compression = compression.unwrap_or(record.compression);
        record.dedup = dedup.map_or(record.dedup, DedupWord::own);
        if let Some(factor) = factor {
            record.set_own_factor(factor);
        }
        record.ceiling = own_ceiling(record.ceiling, iops, bytes).expect("they were just found to be right");
    };
    match container {
        Some(container) => move_vdisk_into(control, family, container, alter).await?,
        None => change_vdisk(control, family, alter).await?,
    };
    control.lock().view_of(family)
}

impl From<ColdRecord> for ColdWord {
    fn from(ColdRecord { after_s, level }: ColdRecord) -> Self {
        Self { after_s: after_s.into(), level: Some(level) }
    }
}

impl Control {
    /// What holds for a vDisk.
    pub(super) fn policy(&self, config: &FamilyConfig) -> Policy {
        match &self.part {
            Part::Alone(alone) => config.policy(alone.containers.get(&config.container)),
            Part::Member(member) => member.policy(config),
        }
    }

    /// Refuses more copies than there are places for. On a node that is alone there are groups of so many drives afterwards; in a
    /// cluster its controller makes them when the record is there.
    pub(super) fn make_places_for(&mut self, factor: u32) -> Result<(), Refusal> {
        if let Some(member) = self.part.member() {
            return check_factor(factor, member.places(), "nodes with drives", "add nodes (weft node join)");
        }
        check_factor(factor, self.drives_up().len(), "drives", "add drives (weft up --drives N)")?;
        if self.arrange_groups(factor)? {
            self.send_view();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::InheritWord;

    #[test]
    fn a_vdisk_says_something_or_inherits() {
        let off = CompressionRecord::default();
        let lz4 = off.with(Some("lz4"), Some(32_768)).expect("it is one");
        assert_eq!(own_compression(None, None, None, lz4), Ok(None), "as before");
        assert_eq!(own_compression(Some("inherit"), None, None, lz4), Ok(Some(None)));
        assert_eq!(own_compression(Some("lz4"), Some(32_768), None, off), Ok(Some(Some(lz4))));
        let unit = own_compression(None, Some(4096), None, lz4).expect("it is fine").flatten();
        assert_eq!(unit.map(|own| own.method_text()), Some("lz4".to_string()), "the unit of what holds now");
        assert!(own_compression(Some("inherit"), Some(4096), None, lz4).is_err());
        assert_eq!(own_factor(None).expect("nothing is said"), None);
        assert_eq!(own_factor(Some(LimitWord::Number(3))).expect("it is one"), Some(Some(3)));
        assert_eq!(own_factor(Some(LimitWord::Word(InheritWord::Inherit))).expect("it is one"), Some(None));
        assert!(
            own_factor(Some(LimitWord::Number(4))).is_err()
                && own_factor(Some(LimitWord::Number(0))).is_err()
        );
        assert!(own_compression(Some("gzip"), None, None, lz4).is_err());
    }
}
