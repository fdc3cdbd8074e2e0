//! Ctrl-C in the middle of a run. In a file of its own, because a signal is for the whole process.

use std::path::PathBuf;
use std::time::Duration;
use weft_lab::{RunSettings, Target};

#[test]
fn a_stopped_run_ends_its_load_and_reports_what_it_has() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-stop-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    let target =
        Target::parse(&format!("raw=file:{}", dir.join("raw.img").display()), &|_| None).expect("a file");
    // Far longer than any test may take: the run comes back only because it was stopped.
    let settings = RunSettings {
        targets: vec![target],
        out: dir.join("out"),
        size: 16 << 20,
        runtime_s: 3600,
        warm_up_s: 0,
        ..Default::default()
    };
    let job = settings.out.join("raw/random-read-8k-0-0.fio");
    let stopper = std::thread::spawn(move || {
        while !job.exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
        // SAFETY: a signal to this process, which the lab has a handler for while it runs.
        unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
    });
    let outcome = weft_lab::run(settings).expect("being stopped is no error");
    stopper.join().expect("it only waits and sends");
    assert!(outcome.interrupted && outcome.results.interrupted);
    assert!(!outcome.failed, "the target has not failed: {:?}", outcome.results.measurements);
    assert!(outcome.report.exists());
    // A process started by any of our threads is a child of that thread.
    for task in std::fs::read_dir("/proc/self/task").expect("Linux").flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        assert_eq!(children.trim(), "", "fio is gone");
    }
    std::fs::remove_dir_all(&dir).expect("the test made it");
}
