//! A shard's loop that a test turns itself, step by step, so that nothing happens in between.

use super::{STOOD_STILL_US, Setup, TAG_RECEIVE, Worker};
use crate::config::cluster::{Deadline, Moment};
use crate::shard_loop::socket::{Socket, Waits};
use crate::shard_loop::tickets::Origin;
use crate::shard_loop::{Answer, Identity, Mail, Mailbox};
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use weft_engine::interface::{Input, Order, Reply, Request, RequestError};
use weft_engine::{FamilyId, Limits, ShardId, Time};
use weft_frontends::nbd::limits::REQUESTS_MAX;
use weft_frontends::nbd::{ExportInfo, Exports, Handle, Want};

/// Nothing in these tests takes half as long, on any machine.
const LONG: Duration = Duration::from_secs(120);

const FAMILY: FamilyId = FamilyId(7);

/// What clients may make the shard keep.
const CLIENTS_BYTES: usize = 2 << 20;

const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A shard that has nobody beside it, and no drives. It is never dropped: the kernel may still be writing into its buffers.
fn worker() -> &'static mut Worker {
    let mailbox = Arc::new(Mailbox::new(ShardId(0)).expect("a mailbox can be made"));
    let (notices, _) = tokio::sync::mpsc::unbounded_channel();
    let setup = Setup {
        shard: ShardId(0),
        seed: 1,
        limits: Limits::default(),
        clients_bytes: CLIENTS_BYTES,
        identity: Identity::default(),
        deadline: None,
        mailbox: Arc::clone(&mailbox),
        neighbours: vec![mailbox],
        notices,
        may_spin: false,
    };
    Box::leak(Box::new(Worker::new(setup).expect("a shard can be made")))
}

struct OneExport;

impl Exports for OneExport {
    fn list(&self) -> Vec<String> {
        vec!["v".to_string()]
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        Some(ExportInfo {
            name: name.to_string(),
            description: String::new(),
            family: FAMILY,
            snapshot: None,
            size: 1 << 30,
            read_only: false,
        })
    }
}

/// A client of this shard that has chosen its export, at place 0 or the next one that is free.
fn connect(worker: &mut Worker) -> UnixStream {
    let (mut client, served) = UnixStream::pair().expect("a pair of sockets");
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x01v");
    client.write_all(&hello).expect("it has room for that");
    worker.adopt(Socket::new(served.into(), Arc::new(OneExport), "test".into(), 0));
    client
}

fn request(command: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(0u16.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend([0; 16]);
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Receives what clients send until `is_done`. Requests wait in `inputs`, as those of an engine that answers none.
fn receive(worker: &mut Worker, is_done: impl Fn(&Worker) -> bool) {
    let (deadline, mut completions) = (Instant::now() + LONG, Vec::new());
    loop {
        if worker.retry_at.take().is_some() {
            worker.retry(worker.now());
        }
        while let Some(slot) = worker.touched.pop() {
            worker.sockets[slot as usize].touched = false;
            worker.pump(worker.now(), slot);
        }
        assert!(Instant::now() < deadline, "not in time");
        if worker.send_replies() {
            continue;
        }
        if is_done(worker) {
            return;
        }
        worker.ring.enter(Some(Duration::from_millis(10)));
        worker.ring.completions(&mut completions);
        for (tag, result) in completions.drain(..) {
            assert_eq!(tag & super::TAG_MASK, TAG_RECEIVE, "nothing else is under way");
            worker.on_completed(worker.now(), tag, result);
        }
    }
}

fn writes(worker: &Worker) -> usize {
    let is_write = |input: &&Input| matches!(input, Input::Request { request: Request::Write { .. }, .. });
    worker.inputs.iter().filter(is_write).count()
}

#[test]
fn a_write_that_lay_unread_when_its_client_went_is_not_done() {
    for is_gone in [false, true] {
        let worker = worker();
        let mut client = connect(worker);
        // As many as one connection may have open, and behind them a write.
        let mut bytes = request(FLUSH, &[]).repeat(REQUESTS_MAX);
        bytes.extend(request(WRITE, &[7; 4096]));
        client.write_all(&bytes).expect("it has room for that");
        receive(worker, |worker| worker.inputs.len() == REQUESTS_MAX);
        // On another connection it may have written the same block since, and been answered.
        let client = (!is_gone).then_some(client);
        let generation = worker.sockets[0].generation;
        worker.answer_socket(worker.now(), 0, generation, Handle(0), Reply::Done);
        receive(worker, |worker| worker.touched.is_empty());
        assert_eq!(writes(worker), usize::from(client.is_some()), "its client has gone: {is_gone}");
    }
}

/// What is told to somebody whose request was open when this mail came, all of it at once, and was answered by what came first.
fn answered_ahead_of(worker: &mut Worker, mail: Vec<Mail>) -> Reply {
    let (sender, receiver) = std::sync::mpsc::channel();
    let answer = Answer::new(move |reply| {
        let _ = sender.send(reply);
    });
    let origin = Origin::Elsewhere { answer, request: Request::Flush, refused: None };
    let ticket = worker.open(worker.now(), FAMILY, &Request::Flush, origin);
    // The engine has done it, with what it was told first.
    worker.outputs.replies.push((ticket, Reply::Done));
    mail.into_iter().for_each(|mail| worker.mailbox.send(mail));
    worker.turn(&mut Vec::new(), &mut VecDeque::new());
    receiver.try_recv().expect("it is answered in the same turn")
}

#[test]
fn a_new_lease_is_none_for_what_came_ahead_of_it() {
    let mail = |deadline: &Deadline| {
        let close = Mail::Order(Order::CloseFamily { family: FAMILY });
        vec![close, Mail::Lease(deadline.clone())]
    };
    let (long, worker) = (Deadline::new(Moment::now().after(LONG)), worker());
    worker.deadline = Some(Deadline::new(Moment::now()));
    let refused = Reply::Error(RequestError::NotServed);
    assert_eq!(answered_ahead_of(worker, mail(&long)), refused, "another may have served it meanwhile");
    assert_eq!(answered_ahead_of(worker, mail(&long)), Reply::Done, "what comes behind it is served");
    // A lease that is not over is taken over without a gap, whenever that is looked at.
    worker.deadline = Some(Deadline::new(Moment::now().after(LONG)));
    let next = Deadline::new(Moment::now().after(LONG * 2));
    worker.on_mail(worker.now(), Mail::Lease(next.clone()));
    assert_eq!(worker.deadline.as_ref().map(Deadline::moment), Some(next.moment()));
}

#[test]
fn who_goes_and_comes_again_gives_no_more_than_who_stays() {
    const LEN: usize = 64 << 10;
    let worker = worker();
    let come_and_go = |worker: &mut Worker| {
        let mut client = connect(worker);
        let bytes = [request(WRITE, &[7; LEN]), request(WRITE, &[7; LEN])].concat();
        client.write_all(&bytes[..LEN * 3 / 2]).expect("it has room for that");
        receive(worker, |worker| {
            let mut sockets = worker.sockets.iter().filter_map(|place| place.socket.as_ref());
            sockets.any(|socket| socket.waits_for_room() || socket.progress().1 == Some(Waits::ToGive))
        });
        drop(client);
        // One whose next write had not begun may still listen: it stays until what it asked is answered.
        receive(worker, |worker| {
            let mut sockets = worker.sockets.iter().filter_map(|place| place.socket.as_ref());
            sockets.all(|socket| socket.connection.want() == Want::Wait)
        });
    };
    for _ in 0..CLIENTS_BYTES / LEN * 4 {
        come_and_go(worker);
    }
    assert_eq!(writes(worker) * LEN, CLIENTS_BYTES, "the engine has them all, and no more than it may have");
    // Whoever comes to another vDisk finds room for something small; here there is room when something is answered.
    for _ in 0..2 {
        let Some(Input::Request { ticket, family, .. }) = worker.inputs.pop_front() else {
            panic!("only requests have come")
        };
        let open = worker.tickets.close(ticket);
        worker.deliver(worker.now(), family, open.origin, Reply::Done);
    }
    let before = writes(worker);
    for _ in 0..4 {
        come_and_go(worker);
    }
    assert_eq!(writes(worker), before + 2, "as much as was given back");
}

#[test]
fn a_shard_that_stood_still_looks_whether_its_clients_are_still_there() {
    const LEN: usize = 128 << 10;
    let write = request(WRITE, &[7; LEN]);
    // All of the write comes while the shard stands still, or the rest of one that is being received.
    for (before, us) in
        [0, LEN / 2].into_iter().flat_map(|before| [(before, 0), (before, STOOD_STILL_US + 1)])
    {
        let worker = worker();
        let mut client = connect(worker);
        client.write_all(&write[..before]).expect("it has room for that");
        receive(worker, |worker| {
            let socket = worker.sockets[0].socket.as_ref().expect("it is connected");
            !socket.connection.is_negotiating() && (before == 0 || socket.progress().1 == Some(Waits::ToGive))
        });
        worker.note_stand(Time(1), false);
        client.write_all(&write[before..]).expect("it has room for that");
        drop(client);
        worker.note_stand(Time(1 + us), false);
        receive(worker, |worker| worker.inputs.len() == 1 || worker.sockets[0].socket.is_none());
        assert_eq!(writes(worker), usize::from(us == 0), "{us} us late, {before} bytes had come");
    }
}

#[test]
fn what_lay_before_a_shard_that_stood_still_is_asked_again() {
    let worker = worker();
    worker.began -= Duration::from_secs(10);
    // In time, the engine is asked, which does not serve it.
    for (back_by, told) in [(u64::MAX, RequestError::NotServed), (0, RequestError::Busy)] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let answer = Answer::at_once(Arc::new(AtomicBool::new(false)), move |reply| {
            let _ = sender.send(reply);
        });
        worker.mailbox.send(Mail::Request { family: FAMILY, request: Request::Flush, answer });
        worker.back_by = Time(back_by);
        worker.turn(&mut Vec::new(), &mut VecDeque::new());
        assert_eq!(receiver.try_recv(), Ok(Reply::Error(told)));
    }
}
