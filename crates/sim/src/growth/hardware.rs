//! The hardware of the simulated cluster, from data sheets and from what was measured of our own node. None of these
//! numbers was chosen for what comes out. (`docs/scale.md` tells which were remembered rather than looked up.)

/// A second, in the unit of time of the models.
pub const SECOND: u64 = 1_000_000_000;
#[cfg(test)]
pub const MS: u64 = 1_000_000;
pub const US: u64 = 1_000;

/// Drives for data in every node, as in the rest of `weft sim scale`, beside one SSD for the logs of all of them.
pub const DISKS_PER_NODE: usize = 4;

/// A 7,200 rpm disk: Seagate Constellation ES.3, 4 TB (product manual: 4.16 ms average rotational latency, 83 to
/// 175 MB/s from the inner to the outer edge, seeks of 8.5 ms (read) and 9.5 ms (write) on average).
pub mod disk {
    use super::US;
    pub const REVOLUTION: u64 = 8_333 * US;
    pub const OUTER_BYTES_PER_S: f64 = 175e6;
    pub const INNER_BYTES_PER_S: f64 = 83e6;
    pub const SEEK_MEAN: u64 = 8_500 * US;
    /// More for a write, which must settle more exactly.
    pub const SETTLE_WRITE: u64 = 1_000 * US;
    /// From one track to the next, and what the controller takes of each command (manual of the Constellation SAS family,
    /// which tells both; that of the ES.3 does not).
    pub const SEEK_TRACK: u64 = 500 * US;
    pub const COMMAND: u64 = 200 * US;
    /// Commands a SATA drive may reorder.
    pub const QUEUE: usize = 32;
    /// Who has waited for so long goes first (Linux's mq-deadline for reads).
    pub const PATIENCE: u64 = 500_000 * US;
}

/// A SATA SSD: Intel DC S3700, 800 GB (product specification: 75,000 and 36,000 random reads and writes of 4 KiB, 500 and
/// 460 MB/s, latencies of 50 and 65 us; a cache that survives power cuts, so a flush waits for nothing).
pub mod ssd {
    use super::US;
    pub const READ: u64 = 50 * US;
    pub const WRITE: u64 = 65 * US;
    pub const READS_PER_S: f64 = 75_000.0;
    pub const WRITES_PER_S: f64 = 36_000.0;
    pub const READ_BYTES_PER_S: f64 = 500e6;
    pub const WRITE_BYTES_PER_S: f64 = 460e6;
}

/// 10 Gbit/s in each direction, less a twentieth for frames and headers.
pub mod network {
    use super::US;
    pub const BYTES_PER_S: f64 = 1.25e9 * 0.95;
    /// Connections take turns after so much: what the kernel gives to the card at once (TCP segmentation offload).
    pub const TURN_BYTES: u64 = 64 << 10;
    /// Cable, switch and the waking of the receiver: one wake-up as measured (`docs/benchmarks.md`).
    pub const LATENCY: u64 = 30 * US;
}

/// One core for each shard (`docs/benchmarks.md`): a random read of 4 KiB at depth 32 takes 19.6 us of the server's CPU for two
/// inputs (the request, the drive's answer); a read of 1 MiB 0.27 ns a byte more, a write of 1 MiB 0.49 ns. Sending or
/// receiving a message is taken to cost what a request does, which is sent and received too.
pub mod cpu {
    pub const INPUT: u64 = 9_800;
    pub const READ_NS_PER_BYTE: f64 = 0.27;
    pub const WRITE_NS_PER_BYTE: f64 = 0.49;
}
