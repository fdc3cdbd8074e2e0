//! How long it takes until something is believed about a node, and what follows from it.
//! Every span is in microseconds of the clock of whoever waits; clocks may run at different speeds, but not by more
//! than [`CLOCK_DRIFT_PER_MILLE`].
//!
//! A node that is silent has its drives marked down at once (that is always safe: writes go on without them), but its
//! vDisks are given to others only when its lease has ended, because reads are fenced by nothing else.

/// A node renews its lease about this often (a real one at a third of it) ...
pub const RENEW_EVERY_US: u64 = 1_000_000;

/// ... and stops serving when the last renewal that succeeded was **sent** so long ago.
pub const SERVE_US: u64 = 3_500_000;

/// The lease in the config store, which begins when the store **takes** a renewal, so never before it was sent.
pub const LEASE_US: u64 = 4_000_000;

/// Clocks differ in speed by this much at most.
pub const CLOCK_DRIFT_PER_MILLE: u64 = 10;

/// A connection that was closed or refused for so long, and could not be made again: its process has died.
pub const CRASHED_US: u64 = 300_000;

/// A node that holds a lease and has not said anything to its peers for so long: its drives are marked down.
pub const SILENT_US: u64 = 2_000_000;

/// A node whose lease ended so long ago will not soon be back: the places of its drives are given to others.
/// (Until then only new data and the logs have moved on to others. A restart takes less.)
pub const AWAY_US: u64 = 600_000_000;

/// A vDisk whose clients have all been on one other node for so long goes there.
pub const LOCALITY_US: u64 = 60_000_000;

/// A vDisk that has moved stays for so long, whatever its clients do: one that is used by turns does not fly about.
pub const STAY_US: u64 = 300_000_000;

/// vDisks that one node hands over or gets at once, so that each move stays short.
pub const HAND_OVERS_MAX: usize = 4;

const _: () = {
    // The rule that keeps two owners apart: by the slowest clock a node has stopped serving before the store, by the
    // fastest clock, can end its lease.
    assert!(SERVE_US * (1000 + CLOCK_DRIFT_PER_MILLE) < LEASE_US * (1000 - CLOCK_DRIFT_PER_MILLE));
    assert!(SERVE_US > 2 * RENEW_EVERY_US, "two renewals may fail before a node stops");
    assert!(SILENT_US > RENEW_EVERY_US && SILENT_US < SERVE_US, "drives go before vDisks do");
    assert!(CRASHED_US < SILENT_US, "a closed connection says more than silence");
    assert!(AWAY_US > LEASE_US && STAY_US > LOCALITY_US);
};
