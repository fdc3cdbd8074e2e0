//! Which connection of a pair of shards a message takes: each lane is one of its own, so that what is small and urgent
//! never waits behind what is large.

use super::Kind;
use crate::message::{Answer, Message, Question};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Lane {
    /// Appends, fences, trims, and their answers: writes of clients wait for these.
    Log = 1,
    /// Egroups, units, pieces of logs, lists: much data, and nobody minds a few milliseconds.
    Bulk = 2,
    /// Requests of clients that are forwarded to the owner, and their replies. All of them on one connection: the
    /// owner gets them in the order in which they were asked.
    Client = 3,
}

impl Lane {
    pub const ALL: [Lane; 3] = [Lane::Log, Lane::Bulk, Lane::Client];

    pub(super) fn decode(value: u32) -> Option<Lane> {
        Self::ALL.into_iter().find(|lane| *lane as u32 == value)
    }

    /// Whether the side that made the connection (`dialler`), or the other one, may say such a thing here. The asker
    /// makes the connection, so questions go one way and answers the other.
    pub fn carries(self, kind: Kind, dialler: bool) -> bool {
        match kind {
            // It was read before anybody looked at lanes.
            Kind::Hello => false,
            Kind::Ask => self != Lane::Client && dialler,
            Kind::Answer | Kind::Press => self != Lane::Client && !dialler,
            Kind::Request => self == Lane::Client && dialler,
            Kind::Reply => self == Lane::Client && !dialler,
            Kind::Ping => self == Lane::Log && dialler,
            Kind::Pong => self == Lane::Log && !dialler,
        }
    }
}

/// The lane of a message of the engine. Refusals are short, whatever they refuse.
pub fn lane_of(message: &Message) -> Lane {
    match message {
        Message::Ask { question, .. } => match question {
            Question::Fence { .. }
            | Question::Append { .. }
            | Question::Trim { .. }
            | Question::DeleteEgroups { .. }
            | Question::DropFamily => Lane::Log,
            Question::ReadLog { .. }
            | Question::AppendLate { .. }
            | Question::WriteEgroup { .. }
            | Question::ReadUnits { .. }
            | Question::ReadFrames { .. }
            | Question::DescribeEgroup { .. }
            | Question::ListEgroups { .. } => Lane::Bulk,
        },
        Message::Answer { answer, .. } => match answer {
            Ok(
                Answer::Records { .. }
                | Answer::Units(_)
                | Answer::UnitsAndFrames(..)
                | Answer::Frames(_)
                | Answer::Egroup { .. }
                | Answer::Listed { .. }
                | Answer::EgroupWritten,
            ) => Lane::Bulk,
            Ok(
                Answer::Fenced(_)
                | Answer::Appended { .. }
                | Answer::Trimmed { .. }
                | Answer::Deleted
                | Answer::Dropped,
            )
            | Err(_) => Lane::Log,
        },
        Message::Press { .. } => Lane::Log,
    }
}
