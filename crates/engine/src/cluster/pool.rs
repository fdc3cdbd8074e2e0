//! The drives that placement works with, numbered densely, with the fault domains they stand in.

use super::placement::{Drive, Group, Standing};
use crate::identity::DriveId;
use std::collections::BTreeMap;

/// Levels of fault domains, widest first. Below the node is the drive itself.
pub(super) const ZONE: usize = 0;
pub(super) const RACK: usize = 1;
pub(super) const NODE: usize = 2;
pub(super) const LEVELS: usize = 3;

/// The domain of a drive at each level.
pub(super) type Site = [usize; LEVELS];

#[derive(Debug)]
pub(super) struct Pool {
    /// By id.
    pub drives: Vec<Drive>,
    pub sites: Vec<Site>,
    /// Drives that can be given places now.
    pub open: Vec<usize>,
    /// Domains at each level, of all drives.
    pub domains: [usize; LEVELS],
    numbers: BTreeMap<DriveId, usize>,
}

impl Pool {
    pub fn new(drives: &[Drive], groups: &[Group]) -> Self {
        let mut known: BTreeMap<DriveId, Drive> = BTreeMap::new();
        for drive in drives {
            let former = known.insert(drive.id, drive.clone());
            assert!(former.is_none(), "drives have distinct numbers");
        }
        // A drive that nobody knows any more was removed by force: it is lost, wherever it stood.
        for &id in groups.iter().flat_map(|group| group.members.iter().chain(&group.former)) {
            let nowhere = u32::MAX;
            let lost = Drive {
                id,
                node: nowhere,
                rack: nowhere,
                zone: nowhere,
                weight: 0,
                standing: Standing::Lost,
            };
            known.entry(id).or_insert(lost);
        }
        let drives: Vec<Drive> = known.into_values().collect();
        let mut seen: [BTreeMap<(u32, u32, u32), usize>; LEVELS] = Default::default();
        let mut number = |level: usize, key: (u32, u32, u32)| {
            let next = seen[level].len();
            *seen[level].entry(key).or_insert(next)
        };
        let sites: Vec<Site> = drives
            .iter()
            .map(|drive| {
                // A rack is a rack of its zone. A node is itself only in its rack, so that the domains are nested
                // even if somebody told two racks for one node.
                let Drive { zone, rack, node, .. } = *drive;
                [number(ZONE, (zone, 0, 0)), number(RACK, (zone, rack, 0)), number(NODE, (zone, rack, node))]
            })
            .collect();
        let domains = [seen[ZONE].len(), seen[RACK].len(), seen[NODE].len()];
        let is_open = |drive: &Drive| drive.standing == Standing::In && drive.weight > 0;
        let open = (0..drives.len()).filter(|&number| is_open(&drives[number])).collect();
        let numbers = drives.iter().enumerate().map(|(number, drive)| (drive.id, number)).collect();
        Self { drives, sites, open, domains, numbers }
    }

    pub fn len(&self) -> usize {
        self.drives.len()
    }

    pub fn number(&self, drive: DriveId) -> usize {
        *self.numbers.get(&drive).expect("every drive of every group is in the pool")
    }

    pub fn standing(&self, drive: DriveId) -> Standing {
        self.drives[self.number(drive)].standing
    }

    /// Whether it can be given a place now.
    pub fn is_open(&self, drive: usize) -> bool {
        self.open.binary_search(&drive).is_ok()
    }

    /// Whether it has a share of the places, though it may be down at the moment.
    pub fn counts(&self, drive: usize) -> bool {
        matches!(self.drives[drive].standing, Standing::In | Standing::Down) && self.drives[drive].weight > 0
    }

    pub fn is_lost(&self, drive: usize) -> bool {
        self.drives[drive].standing == Standing::Lost
    }
}
