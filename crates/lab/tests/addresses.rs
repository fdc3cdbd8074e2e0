//! Targets with a second address for durable writes (`durable=URI`): it is looked at like the first, before anything is written by it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft_lab::{LabError, RunSettings, Target};

const SIZE: u64 = 24 << 20;

/// A daemon that serves the images `one`, `two` and a shorter one, and `one` again with durable writes.
struct Daemon {
    dir: PathBuf,
    process: Child,
}

impl Daemon {
    fn start(name: &str) -> Daemon {
        let dir =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the target directory is writable");
        let mut command = Command::new("qemu-storage-daemon");
        let socket = dir.join("nbd");
        command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket.display()));
        for (image, size) in [("one", SIZE), ("two", SIZE), ("shorter", SIZE - 512)] {
            let path = dir.join(image);
            let file = std::fs::File::create(&path).expect("writable");
            file.set_len(size).expect("writable");
            let node = format!("driver=file,filename={},node-name={image}", path.display());
            command.arg("--blockdev").arg(node);
            let export = format!("type=nbd,id={image},node-name={image},name={image},writable=on");
            command.arg("--export").arg(export);
        }
        for (export, access) in [("durable", "writable=on,writethrough=on"), ("readonly", "writable=off")] {
            let text = format!("type=nbd,id={export},node-name=one,name={export},{access}");
            command.arg("--export").arg(text);
        }
        let process = command
            .stdin(Stdio::null())
            .spawn()
            .expect("qemu-storage-daemon is installed, as the tests need it");
        let daemon = Daemon { dir, process };
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    fn address(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.dir.join("nbd").display())
    }

    fn settings(&self, targets: &[String]) -> RunSettings {
        RunSettings {
            targets: targets
                .iter()
                .map(|text| Target::parse(text, &|_| None).expect("well formed"))
                .collect(),
            out: self.dir.join("out"),
            size: 16 << 20,
            runtime_s: 1,
            warm_up_s: 0,
            idle_s: Some(0),
            depth: 4,
            ..Default::default()
        }
    }

    fn durable_by(&self, export: &str) -> RunSettings {
        self.settings(&[format!("one={},durable={}", self.address("one"), self.address(export))])
    }

    fn contents(&self, image: &str) -> Vec<u8> {
        std::fs::read(self.dir.join(image)).expect("it is there")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_mistyped_address_for_durable_writes_overwrites_nothing() {
    let daemon = Daemon::start("mistyped");
    let somebodys = vec![7; SIZE as usize];
    for (export, what) in [("two", "somebody's"), ("two", "an empty one"), ("shorter", "another size")] {
        if what == "somebody's" {
            std::fs::write(daemon.dir.join("two"), &somebodys).expect("writable");
        } else if what == "an empty one" {
            std::fs::write(daemon.dir.join("two"), vec![0; SIZE as usize]).expect("writable");
        }
        let before = daemon.contents(export);
        for destroy in [false, true] {
            let settings = RunSettings { destroy, ..daemon.durable_by(export) };
            let error = weft_lab::run(settings).expect_err(what);
            assert!(matches!(error, LabError::OtherStorage { .. }), "{what}: {error}");
            assert!(error.is_bad_input() && !error.to_string().contains('\n'), "{what}: {error}");
        }
        assert!(daemon.contents(export) == before, "{what}: nothing was written there");
    }
    let error = weft_lab::run(daemon.durable_by("readonly")).expect_err("durable writes would fail");
    assert!(error.to_string().contains("read-only"), "{error}");
    let error = weft_lab::run(daemon.durable_by("nobodys")).expect_err("there is no such export");
    assert!(error.to_string().contains("nobodys"), "{error}");
}

#[test]
fn the_same_storage_by_another_address_is_measured_but_not_as_another_target() {
    let daemon = Daemon::start("same");
    let outcome = weft_lab::run(daemon.durable_by("durable")).expect("it is what it should be");
    assert!(!outcome.failed, "{}", outcome.table);
    // Its label is known by both addresses from now on.
    let outcome = weft_lab::run(daemon.durable_by("durable")).expect("the lab's own");
    assert!(!outcome.failed, "{}", outcome.table);
    let both = [format!("one={}", daemon.address("one")), format!("also={}", daemon.address("durable"))];
    let error = weft_lab::run(daemon.settings(&both)).expect_err("they would overwrite each other");
    assert!(matches!(error, LabError::SameStorage { .. }), "{error}");
}
