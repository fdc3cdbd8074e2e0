//! A shard alone, with drives that are none.

use super::{Mail, News, Shards};
use crate::drives::{AreaFile, OpenDrive};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use weft_engine::interface::{Geometry, Order};
use weft_engine::{DriveId, ShardId};

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
    let shards = Shards::start(1, 0, 0, None, &notices).expect("a shard starts");
    shards.mailboxes[0].send(Mail::Drive(open));
    let began = Instant::now();
    shards.mailboxes[0].send(Mail::Order(Order::OpenDrive { drive, geometry, format: false }));
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
