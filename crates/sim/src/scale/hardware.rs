//! The hardware of the modelled clusters: the same in all sizes, so that only the number of nodes changes.

/// Drives in every node. Bytes are decimal here, as on the labels of drives.
pub const DRIVES_PER_NODE: u32 = 4;
const DRIVE_BYTES: f64 = 4e12;
/// How full every drive is.
const FULL: f64 = 0.5;

/// 10 Gbit/s in each direction; a twentieth goes to frames and headers.
const NETWORK_BYTES_PER_S: f64 = 1.25e9 * 0.95;

/// What repair may take of a drive or a network interface; the rest is kept for clients.
const REPAIR_SHARE: f64 = 0.25;

#[derive(Debug, Clone, Copy)]
pub struct Hardware {
    drive_bytes_per_s: f64,
}

impl Hardware {
    pub const SSD: Hardware = Hardware { drive_bytes_per_s: 500e6 };
    /// Copies are made egroup by egroup, so a disk seeks once for 4 MiB or so: left out.
    pub const HDD: Hardware = Hardware { drive_bytes_per_s: 150e6 };

    /// Bytes per second of repair on one drive, reads and writes together.
    pub fn drive_rate(&self) -> f64 {
        self.drive_bytes_per_s * REPAIR_SHARE
    }

    /// Bytes per second of repair through one network interface, in each direction.
    pub fn network_rate(&self) -> f64 {
        NETWORK_BYTES_PER_S * REPAIR_SHARE
    }

    /// Bytes kept on one node.
    pub fn node_bytes(&self) -> f64 {
        f64::from(DRIVES_PER_NODE) * DRIVE_BYTES * FULL
    }

    /// Seconds to write a node's data to one spare node, whoever reads it: what a cluster without many-to-many repair
    /// needs at best.
    pub fn spare_node_s(&self) -> f64 {
        let rate = (self.drive_rate() * f64::from(DRIVES_PER_NODE)).min(self.network_rate());
        self.node_bytes() / rate
    }
}
