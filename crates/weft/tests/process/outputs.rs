//! Commands whose output nobody reads to the end, or for which there is no room: the exit code is the one that was due, or says so.

use crate::support::{Node, Scratch, WEFT};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Writing there fails as on a full drive.
fn full() -> File {
    File::options().write(true).open("/dev/full").expect("it is everywhere")
}

fn weft(arguments: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    let mut command = Command::new(WEFT);
    command.args(arguments).env_remove("WEFT_DIR").stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    command.spawn().and_then(std::process::Child::wait_with_output).expect("weft can be run")
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    drop(reader);
    writer.into()
}

fn damage(file: &Path) {
    let length = std::fs::metadata(file).expect("it is there").len();
    File::options().write(true).open(file).and_then(|file| file.set_len(length / 2)).expect("it can be cut");
}

#[test]
fn output_that_cannot_be_written_is_told() {
    let output = weft(&["completions", "bash"], full().into(), Stdio::piped());
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("cannot be written") && told.trim().lines().count() == 1, "{told}");
    let output = weft(&["completions", "bash"], closed(), Stdio::piped());
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "a reader that went away is none");
}

#[test]
fn an_error_that_nobody_hears_still_has_its_exit_code() {
    for stderr in [full().into(), closed()] {
        assert_eq!(weft(&["frobnicate"], Stdio::null(), stderr).status.code(), Some(2));
    }
    let stderr = full().into();
    assert_eq!(weft(&["status", "--api", "127.0.0.1:1"], Stdio::null(), stderr).status.code(), Some(1));
}

#[test]
fn all_is_removed_that_was_named_whoever_reads_of_it() {
    let scratch = Scratch::new("unread-removal");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    node.weft(&["vdisk", "create", "v", "--size", "8M"]);
    let names = ["v@a", "v@b", "v@c"];
    for name in names {
        node.weft(&["snapshot", "create", name]);
    }
    let text = dir.to_str().expect("a plain name");
    let line = [&["snapshot", "rm"], &names[..], &["--dir", text]].concat();
    assert_eq!(weft(&line, closed(), Stdio::null()).status.code(), Some(0));
    let left = node.json(&["snapshot", "ls"]);
    assert_eq!(left.as_array().map(Vec::len), Some(0), "{left}");
    node.stop();
}

#[test]
fn a_check_that_nobody_reads_says_all_the_same_whether_drives_are_sound() {
    let scratch = Scratch::new("unread");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    node.weft(&["vdisk", "create", "v", "--size", "8M"]);
    node.stop();
    let text = dir.to_str().expect("a plain name");
    for line in [&["check", text][..], &["--json", "check", text]] {
        assert_eq!(weft(line, closed(), Stdio::null()).status.code(), Some(0));
        assert_eq!(
            weft(line, full().into(), Stdio::null()).status.code(),
            Some(1),
            "nobody knows what it found"
        );
    }
    damage(&dir.join("drive-0.data"));
    for line in [&["check", text][..], &["--json", "check", text]] {
        assert_eq!(weft(line, closed(), Stdio::null()).status.code(), Some(1), "{line:?}");
    }
}

#[test]
fn a_measurement_that_failed_says_so_whoever_reads_its_table() {
    let scratch = Scratch::new("unread-lab");
    // A fio that can be asked for its version, and fails at everything else.
    let fio = scratch.file("fio");
    std::fs::write(&fio, "#!/bin/sh\n[ \"$1\" = --version ] && echo fio-3.33 && exit 0\nexit 1\n")
        .expect("writable");
    std::fs::set_permissions(&fio, std::fs::Permissions::from_mode(0o755)).expect("its own");
    let path = format!("{}:{}", scratch.file("").display(), std::env::var("PATH").expect("there is one"));
    let (target, out) = (format!("file:{}", scratch.file("a.img").display()), scratch.file("out"));
    for json in [false, true] {
        let mut command = Command::new(WEFT);
        command.args(["lab", "run", "four-corners", "--size", "16M", "--prefill", "never", "--runtime", "1"]);
        command.args(["--warm-up", "0", "--idle", "0", "--target", &target, "--out"]).arg(&out);
        command.args(json.then_some("--json")).env("PATH", &path).stdin(Stdio::null());
        command.stdout(closed()).stderr(Stdio::piped());
        let output =
            command.spawn().and_then(std::process::Child::wait_with_output).expect("weft can be run");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(out.join("results.json").exists(), "it came as far as the table: {output:?}");
    }
}
