//! What is not served without a lease.

use super::cluster::{Cluster, LONG};
use crate::config::cluster::{Deadline, Moment};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use weft_engine::buffer::{Buffer, zeros};
use weft_engine::interface::{Reply, Request};

const BLOCK: usize = 4096;
const READ: Request = Request::Read { offset: 0, len: BLOCK as u32 };

fn write() -> Request {
    Request::Write { offset: 1 << 20, data: zeros(BLOCK) }
}

#[test]
fn nothing_is_answered_behind_the_deadline_until_it_moves_on() {
    let mut cluster = Cluster::start(2);
    cluster.write(0, 0, &[7; BLOCK]);
    cluster.stop_node(0);
    // The lease ends while the node serves.
    let deadline = Deadline::new(Moment::now().after(Duration::from_secs(2)));
    cluster.nodes[0].deadline = deadline.clone();
    cluster.start_node(0, false);
    cluster.open_family(0);
    loop {
        for node in 0..2 {
            let had_passed = deadline.has_passed();
            match cluster.ask(node, READ).recv_timeout(Duration::from_millis(300)) {
                Ok(Reply::Data(_)) => assert!(!had_passed, "node {node} got data behind the deadline"),
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
        }
        if deadline.has_passed() {
            break;
        }
    }
    let held: Vec<_> = [0, 1].into_iter().flat_map(|node| [READ, write()].map(|it| (node, it))).collect();
    let held: Vec<_> = held.into_iter().map(|(node, request)| cluster.ask(node, request)).collect();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(100));
        assert!(held.iter().all(|reply| reply.try_recv().is_err()), "nothing is answered");
    }
    deadline.extend(Moment::now().after(LONG));
    for (at, reply) in held.iter().enumerate() {
        match reply.recv_timeout(LONG).expect("what was held is asked again") {
            Reply::Data(pieces) => {
                assert!(pieces.iter().flat_map(Buffer::bytes).all(|&byte| byte == 7), "request {at}");
            }
            other => assert_eq!((at % 2, other), (1, Reply::Done)),
        }
    }
}

#[test]
fn what_was_taken_before_the_deadline_is_not_answered_behind_it() {
    let mut cluster = Cluster::start(2);
    cluster.wait_until_all_are_reached();
    cluster.stop_node(0);
    let deadline = Deadline::new(Moment::now().after(LONG));
    cluster.nodes[0].deadline = deadline.clone();
    cluster.start_node(0, false);
    cluster.open_family(0);
    cluster.wait_until_all_are_reached();
    // The engine has taken it, and waits for the other copy.
    cluster.stop_node(1);
    let taken = cluster.ask(0, write());
    assert_eq!(taken.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
    deadline.end();
    cluster.start_node(1, false);
    // Long enough for the second copy, most of the times; never too short.
    assert_eq!(taken.recv_timeout(Duration::from_secs(2)), Err(RecvTimeoutError::Timeout));
    // The next lease has a deadline of its own; this shard is of the former one.
    let (done, _drained) = tokio::sync::oneshot::channel();
    cluster.send(0, crate::shard_loop::Mail::Drain(done));
    assert!(matches!(taken.recv_timeout(LONG), Ok(Reply::Error(_))), "it is given up, not acknowledged");
}
