//! What a shard tells the control plane.

use weft_engine::interface::Notice;
use weft_engine::{DriveId, ShardId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// What its engine noticed.
    Engine(Notice),
    /// A shard of another node does not answer. Told once; [`News::PeerBack`] or a new address ends it.
    PeerLost { shard: ShardId, why: PeerTrouble },
    /// It answers again.
    PeerBack { shard: ShardId },
    /// Much of what is sent there gets lost, or takes long; or that is over (None). Told by turns.
    WayPoor { shard: ShardId, how: Option<PoorWay> },
    /// An operation of this drive has been in flight for too long. Told once, until [`News::DriveAnswers`].
    DriveHangs { drive: DriveId },
    /// None is any more.
    DriveAnswers { drive: DriveId },
    /// While it has something to do it gets next to nothing done; or that is over. Told by turns.
    DriveSlow { drive: DriveId, slow: bool },
}

/// How it is on the way to another shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoorWay {
    /// Sent again, of a thousand segments.
    pub again_per_mille: u32,
    pub there_and_back_us: u32,
}

/// Why a shard is taken for lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerTrouble {
    /// It ended its connections, or refuses them: its process has died, most likely.
    #[error("it refuses connections: its process has died, most likely")]
    Gone,
    /// Nothing comes from it: its machine, the network or its process stands still.
    #[error("nothing comes from it any more")]
    Silent,
    /// It has not answered once since its address is known.
    #[error("it has never answered at its address")]
    NeverReached,
}
