//! The network: each node's interface sends and receives at its speed; connections take turns.
//! Promises: what is small does not wait for all of what is large before it, only for a turn of each other connection
//! (the engine's lanes are connections of their own); a receiver gets no more than its interface takes.
//! Leaves to others: switches, which are wide enough, and loss.

use super::hardware::{SECOND, network::*};
use std::collections::{BTreeMap, VecDeque};

/// One connection from a node: to that node, in that lane.
pub type Connection = (usize, u32);

#[derive(Default)]
struct Sender {
    waiting: BTreeMap<Connection, VecDeque<(u64, u64)>>,
    /// Connections with something to send, the next one in front.
    turns: VecDeque<Connection>,
    is_busy: bool,
}

#[derive(Default)]
pub struct Network {
    senders: Vec<Sender>,
    /// When the interface of each node has received what was sent to it so far.
    received: Vec<u64>,
}

/// What a turn leads to.
pub struct Turn {
    /// The sender is free again then.
    pub over: u64,
    /// This message has arrived whole then.
    pub arrived: Option<(u64, u64)>,
}

fn duration(bytes: u64) -> u64 {
    (bytes as f64 / BYTES_PER_S * SECOND as f64) as u64
}

impl Network {
    pub fn add_node(&mut self) {
        self.senders.push(Sender::default());
        self.received.push(0);
    }

    /// Queues a message; true if the sender was idle, and wants [`Self::turn`] now.
    pub fn send(&mut self, from: usize, connection: Connection, message: u64, bytes: u64) -> bool {
        let sender = &mut self.senders[from];
        let queue = sender.waiting.entry(connection).or_default();
        if queue.is_empty() {
            sender.turns.push_back(connection);
        }
        queue.push_back((message, bytes));
        !std::mem::replace(&mut sender.is_busy, true)
    }

    /// The sender is free: the next connection sends a part. None: nothing waits.
    pub fn turn(&mut self, from: usize, now: u64) -> Option<Turn> {
        let sender = &mut self.senders[from];
        let Some(connection) = sender.turns.pop_front() else {
            sender.is_busy = false;
            return None;
        };
        let queue = sender.waiting.get_mut(&connection).expect("who has a turn has a queue");
        let (message, left) = queue.front_mut().expect("who has a turn has something to send");
        let part = TURN_BYTES.min(*left);
        *left -= part;
        let (message, is_whole) = (*message, *left == 0);
        if is_whole {
            queue.pop_front();
        }
        if !queue.is_empty() {
            sender.turns.push_back(connection);
        }
        let took = duration(part);
        // A part passes through the receiver while it is sent, unless others send to it too.
        let received = &mut self.received[connection.0];
        *received = (*received).max(now) + took;
        Some(Turn { over: now + took, arrived: is_whole.then_some((*received + LATENCY, message)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each message arrives, if these are sent at once: (from, to, lane, bytes).
    fn arrivals(messages: &[(usize, usize, u32, u64)]) -> Vec<u64> {
        let mut network = Network::default();
        (0..4).for_each(|_| network.add_node());
        let mut free: Vec<(u64, usize)> = Vec::new();
        for (number, &(from, to, lane, bytes)) in messages.iter().enumerate() {
            if network.send(from, (to, lane), number as u64, bytes) {
                free.push((0, from));
            }
        }
        let mut arrived = vec![0; messages.len()];
        while let Some(place) = (0..free.len()).min_by_key(|&place| free[place]) {
            let (now, from) = free.swap_remove(place);
            let Some(turn) = network.turn(from, now) else { continue };
            free.push((turn.over, from));
            if let Some((at, message)) = turn.arrived {
                arrived[message as usize] = at;
            }
        }
        arrived
    }

    #[test]
    fn a_message_takes_its_length_and_the_latency() {
        let [small, large] = [4096, 4 << 20].map(|bytes| arrivals(&[(0, 1, 1, bytes)])[0]);
        assert_eq!(small, duration(4096) + LATENCY);
        assert!(large.abs_diff(duration(4 << 20) + LATENCY) < 100, "rounded in parts");
    }

    #[test]
    fn what_is_small_does_not_wait_for_what_is_large() {
        let arrived = arrivals(&[(0, 1, 2, 4 << 20), (0, 1, 1, 4096)]);
        assert!(arrived[1] < duration(2 * TURN_BYTES) + LATENCY, "{arrived:?}");
        let arrived = arrivals(&[(0, 1, 2, 4 << 20), (0, 1, 2, 4096)]);
        assert!(arrived[1] > arrived[0], "one connection keeps the order");
    }

    #[test]
    fn three_that_send_to_one_share_its_interface() {
        let arrived = arrivals(&[(0, 3, 2, 1 << 20), (1, 3, 2, 1 << 20), (2, 3, 2, 1 << 20)]);
        let last = arrived.into_iter().max().expect("three have arrived");
        assert!(last >= duration(3 << 20), "{last}");
    }
}
