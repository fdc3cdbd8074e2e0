//! A shard alone, with drives that are none.

use super::{Answer, Identity, Mail, Mailbox, News, Shards};
use crate::drives::{AreaFile, OpenDrive};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use weft_engine::interface::{Geometry, Order, Reply, Request, RequestError};
use weft_engine::{DriveId, FamilyId, ShardId};

/// Nothing in these tests takes half as long, on any machine.
const LONG: Duration = Duration::from_secs(120);

fn wait_for(told: &mut UnboundedReceiver<(ShardId, News)>, expected: &News) {
    let deadline = Instant::now() + LONG;
    loop {
        match told.try_recv() {
            Ok((_, News::Engine(_))) => {}
            Ok((_, news)) => {
                assert_eq!(&news, expected);
                return;
            }
            Err(_) => {
                assert!(Instant::now() < deadline, "{expected:?}: not in time");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn a_drive_that_hangs_is_told_and_so_is_that_it_answers() {
    let directory = std::env::temp_dir().join(format!("weft-hang-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a temporary directory can be made");
    let geometry = Geometry { log: 32 << 20, data: 256 << 20 };
    let log = File::create_new(directory.join("log")).expect("a file can be made");
    log.set_len(geometry.log).expect("a file can be as long as a drive");
    // A pipe in which nothing is: reading it takes until there is.
    let pipe = directory.join("data");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "a pipe can be made");
    let mut options = OpenOptions::new();
    let data = options.read(true).write(true).open(&pipe).expect("the pipe opens");
    let mut feeder = options.custom_flags(libc::O_NONBLOCK).open(&pipe).expect("the pipe opens");
    let log = OpenOptions::new().read(true).write(true).open(directory.join("log")).expect("the log opens");
    let area = |file: File| AreaFile { file: Arc::new(file), offset: 0 };
    let drive = DriveId(3);
    let open = OpenDrive { drive, geometry, log: area(log), data: area(data), takes_discards: false };

    let (notices, mut told) = tokio::sync::mpsc::unbounded_channel();
    let shards = Shards::start(1, Identity::default(), None, &notices).expect("a shard starts");
    shards.mailboxes[0].send(Mail::Drive(open));
    let began = Instant::now();
    shards.mailboxes[0].send(Mail::Order(Order::OpenDrive {
        drive,
        geometry,
        format: false,
        incarnation: None,
    }));
    wait_for(&mut told, &News::DriveHangs { drive });
    assert!(began.elapsed() >= Duration::from_secs(2), "not before its time");
    // It gives something in the end, whatever that is.
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // Full, mostly.
                let _ = feeder.write(&[0; 4096]);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        wait_for(&mut told, &News::DriveAnswers { drive });
        shards.stop();
        ended.store(true, Ordering::Relaxed);
    });
    std::fs::remove_dir_all(directory).expect("nobody uses it any more");
}

/// Has a shard take no requests of these vDisks for so long; it does so when this returns. Whether it did until now.
fn hold(shard: &Mailbox, holder: u64, families: &[u32], longest: Duration) -> bool {
    let families = families.iter().copied().map(FamilyId).collect();
    let (done, is_done) = tokio::sync::oneshot::channel();
    shard.send(Mail::Hold { holder, families, longest, done });
    is_done.blocking_recv().expect("the shard lives")
}

/// Asks for something; the answer comes later.
fn ask(shard: &Mailbox, family: u32) -> std::sync::mpsc::Receiver<Reply> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let answer = Answer::new(move |reply| {
        let _ = sender.send(reply);
    });
    shard.send(Mail::Request { family: FamilyId(family), request: Request::Flush, answer });
    receiver
}

#[test]
fn what_is_held_is_asked_when_the_hold_ends_and_not_before() {
    let (notices, _told) = tokio::sync::mpsc::unbounded_channel();
    let shards = Shards::start(2, Identity::default(), None, &notices).expect("shards start");
    let owner = &shards.mailboxes[0];
    // Nobody serves them: whatever reaches the engine is answered so.
    let answered = Ok(Reply::Error(RequestError::NotServed));
    assert!(!hold(owner, 1, &[2, 4], LONG * 10));
    assert!(!hold(owner, 2, &[2], LONG * 10), "another holds it");
    assert_eq!(ask(owner, 6).recv_timeout(LONG), answered, "others are not held");
    let (here, neighbour) = (ask(owner, 2), ask(&shards.mailboxes[1], 4));
    for held in [&here, &neighbour] {
        assert!(held.recv_timeout(Duration::from_millis(500)).is_err(), "it waits");
    }
    assert!(hold(owner, 2, &[2], Duration::ZERO));
    assert!(here.recv_timeout(Duration::from_millis(500)).is_err(), "somebody else holds it still");
    assert!(hold(owner, 1, &[2], Duration::ZERO));
    assert_eq!(here.recv_timeout(LONG), answered, "its holds were ended");
    assert!(neighbour.try_recv().is_err(), "the other's was not");
    assert!(!hold(owner, 1, &[2, 4], Duration::from_millis(10)), "one of them was let go");
    assert_eq!(neighbour.recv_timeout(LONG), answered, "a hold ends by itself");
    assert!(!hold(owner, 1, &[2, 4], Duration::ZERO), "and whoever ends it hears so");
    shards.stop();
}

#[test]
fn while_a_drive_that_hangs_is_awaited_nobody_is_refused() {
    let (notices, _told) = tokio::sync::mpsc::unbounded_channel();
    let shards = Shards::start(2, Identity::default(), None, &notices).expect("shards start");
    let owner = &shards.mailboxes[0];
    let refused = || Ok(Reply::Error(RequestError::NotServed));
    assert_eq!(ask(owner, 2).recv_timeout(LONG), refused(), "nobody serves it");
    for shard in &shards.mailboxes {
        shard.send(Mail::Awaits(true));
    }
    let (here, neighbour) = (ask(owner, 2), ask(&shards.mailboxes[1], 2));
    assert!(here.recv_timeout(Duration::from_millis(500)).is_err(), "it waits");
    for shard in &shards.mailboxes {
        shard.send(Mail::Awaits(false));
    }
    assert!(here.recv_timeout(Duration::from_millis(500)).is_err(), "somebody may serve it in a moment");
    assert!(neighbour.try_recv().is_err(), "and so does who asks another shard");
    // Nobody is made to wait by a node that ends.
    shards.stop();
    assert_eq!((here.recv_timeout(LONG), neighbour.recv_timeout(LONG)), (refused(), refused()));
}
