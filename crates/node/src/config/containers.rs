//! Containers: policies with a name. Every vDisk is in one, and is kept by what that says unless it has a word of its own.
//! Promises: what an older version wrote is read: its vDisks are in the container `default`, which says what was so before.

use super::ceiling::CeilingRecord;
use super::compression::CompressionRecord;
use super::records::FamilyConfig;
use serde::{Deserialize, Serialize};
use weft_engine::FamilyId;
use weft_engine::interface::{Compression, Order};

/// The container of vDisks for which nothing else was said. It always exists.
pub const DEFAULT_CONTAINER: &str = "default";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub name: String,
    /// Seconds since 1970.
    #[serde(default)]
    pub created: u64,
    #[serde(default)]
    pub compression: CompressionRecord,
    /// What lies on a drive already is not written there again.
    #[serde(default, skip_serializing_if = "is_not_said")]
    pub dedup: bool,
    /// What the clients of each of its vDisks may ask for.
    #[serde(default, skip_serializing_if = "CeilingRecord::is_default")]
    pub ceiling: CeilingRecord,
    /// Copies of its vDisks; None: of each as many as the node or cluster gave when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<u32>,
    /// How many vDisks have been put into it, in a cluster: one that comes while it is being removed is noticed by this. Nobody
    /// counts those of the default container, which stays.
    #[serde(default, skip_serializing_if = "is_none_joined")]
    pub joined: u64,
}

fn is_not_said(word: &bool) -> bool {
    !*word
}

fn is_none_joined(count: &u64) -> bool {
    *count == 0
}

impl Default for ContainerRecord {
    fn default() -> Self {
        Self {
            name: DEFAULT_CONTAINER.to_string(),
            created: 0,
            compression: CompressionRecord::default(),
            dedup: false,
            ceiling: CeilingRecord::default(),
            factor: None,
            joined: 0,
        }
    }
}

impl ContainerRecord {
    pub fn is_default(&self) -> bool {
        self.name == DEFAULT_CONTAINER
    }
}

/// By what a vDisk is kept: its own word, or else its container's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    pub compression: CompressionRecord,
    pub dedup: bool,
    pub ceiling: CeilingRecord,
    /// How many copies of everything.
    pub factor: u32,
}

/// A vDisk's own word, where it has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnPolicy {
    pub compression: Option<CompressionRecord>,
    pub dedup: Option<bool>,
    pub ceiling: CeilingRecord,
    pub factor: Option<u32>,
}

impl Policy {
    /// How data goes into egroups.
    pub fn packing(self) -> Compression {
        Compression { share: self.dedup, ..self.compression.engine() }
    }

    /// What an owner has to be told that knows of `before`.
    pub fn orders(self, before: Self, family: FamilyId) -> impl Iterator<Item = Order> {
        let (packing, ceiling, factor) = (self.packing(), self.ceiling, self.factor);
        let packing =
            (before.packing() != packing).then_some(Order::SetCompression { family, compression: packing });
        let limits =
            (before.ceiling != ceiling).then(|| Order::SetCeiling { family, ceiling: ceiling.engine() });
        let copies = (before.factor != factor).then_some(Order::SetFactor { family, factor });
        packing.into_iter().chain(limits).chain(copies)
    }
}

impl FamilyConfig {
    /// What holds for it. `container` is the record of its own; None: the default one, of which nothing was ever said.
    pub fn policy(&self, container: Option<&ContainerRecord>) -> Policy {
        let default = ContainerRecord::default();
        let container = container.unwrap_or(&default);
        let OwnPolicy { compression, dedup, ceiling, factor } = self.own_policy();
        Policy {
            compression: compression.unwrap_or(container.compression),
            dedup: dedup.unwrap_or(container.dedup),
            ceiling: ceiling.over(container.ceiling),
            factor: factor.or(container.factor).unwrap_or(self.factor),
        }
    }

    pub fn own_policy(&self) -> OwnPolicy {
        let factor = (!self.inherits_factor).then_some(self.factor);
        OwnPolicy { compression: self.compression, dedup: self.dedup, ceiling: self.ceiling, factor }
    }

    /// None: as many copies as its container says, or as it has now if that says nothing.
    pub fn set_own_factor(&mut self, factor: Option<u32>) {
        self.inherits_factor = factor.is_none();
        self.factor = factor.unwrap_or(self.factor);
    }
}

pub(super) fn default_container() -> String {
    DEFAULT_CONTAINER.to_string()
}

pub(super) fn is_default_container(name: &String) -> bool {
    name == DEFAULT_CONTAINER
}
