//! A drive that answers far too late: it is told, what is written goes elsewhere, and when it is in order again that is told as well.
//! Where loop devices or nbdfuse do not exist this says so and does nothing.

use crate::support::{
    Ended, Node, Scratch, can_attach, counted_by_shards, detach_loop_devices, expect, is_installed, nbd_uri,
    step, tool, wait_until, write,
};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES: u64 = 512 << 20;

/// A block device that takes a third of a second for each request while it is told to be slow: a file, behind nbdkit, behind FUSE.
struct SlowDevice {
    path: String,
    mount: PathBuf,
    slow: PathBuf,
    scratch: Scratch,
    _server: Ended,
    _fuse: Ended,
}

impl SlowDevice {
    fn new(scratch: Scratch) -> Self {
        let (back, slow, mount) = (scratch.file("back"), scratch.file("slow"), scratch.file("mount"));
        File::create(&back).and_then(|made| made.set_len(BYTES)).expect("the file can be made");
        std::fs::create_dir(&mount).expect("a directory can be made");
        let (socket, file) = (scratch.socket("slow"), mount.join("nbd"));
        let wait = format!("[ ! -e {} ] || sleep 0.3; dd status=none bs=1M", slow.display());
        let read =
            format!("pread={wait} if={} skip=$4 count=$3 iflag=count_bytes,skip_bytes", back.display());
        let write = format!("pwrite={wait} of={} seek=$4 conv=notrunc oflag=seek_bytes", back.display());
        let server = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .args(["eval", &format!("get_size=echo {BYTES}"), "thread_model=echo parallel", &read, &write])
            .args(["can_write=exit 0", "can_flush=exit 0", "flush=exit 0"])
            .spawn();
        let server = Ended(server.expect("nbdkit can be started"));
        wait_until("nbdkit listens", || socket.exists());
        let fuse = Command::new("nbdfuse").arg(&mount).arg("--unix").arg(&socket).spawn();
        let fuse = Ended(fuse.expect("nbdfuse can be started"));
        wait_until("the file is there", || file.exists());
        let path = tool(&["losetup", "--find", "--show", file.to_str().expect("text")]).trim().to_string();
        SlowDevice { path, mount, slow, scratch, _server: server, _fuse: fuse }
    }

    fn set_slow(&self, slow: bool) {
        let done = if slow { File::create(&self.slow).map(drop) } else { std::fs::remove_file(&self.slow) };
        done.expect("the file can be made and removed");
    }
}

impl Drop for SlowDevice {
    fn drop(&mut self) {
        // Quick, so that what is on its way ends.
        let _ = std::fs::remove_file(&self.slow);
        detach_loop_devices(self.mount.to_str().expect("text"));
        let _ = Command::new("umount").arg("--lazy").arg(&self.mount).status();
    }
}

fn state(node: &Node, drive: usize) -> String {
    node.json(&["status"])["drives"][drive]["state"].as_str().expect("drives have a state").to_string()
}

#[test]
fn logs_leave_a_slow_drive_which_is_used_again_when_it_is_in_order() {
    if !can_attach() || !is_installed("nbdfuse") || !Path::new("/dev/fuse").exists() {
        println!("loop devices or nbdfuse are not here: nothing to try");
        return;
    }
    let device = SlowDevice::new(Scratch::new("slow-drive"));
    let scratch = &device.scratch;
    let arguments = ["--drives", "2", "--drive-size", "512M", "--drive", &device.path, "--rf", "2"];
    let node = Node::start(&scratch.file("node"), &arguments);
    let names = ["a", "b", "c", "d", "e", "f"];
    let uris = names.map(|name| {
        let socket = scratch.socket(name);
        node.export_new(name, "32M", &socket);
        nbd_uri(&socket, name)
    });
    let mut pattern = 0;
    let mut write_all = || {
        pattern = pattern % 200 + 1;
        uris.iter().for_each(|uri| write(uri, pattern, "0 64k"));
        pattern
    };
    write_all();
    let changes = |node: &Node| counted_by_shards(&node.json(&["stats"]), "segments_changed");
    let before = changes(&node);
    let drives = node.json(&["status"])["drives"].as_array().expect("there are drives").clone();
    let place = |drive: &serde_json::Value| drive["place"].as_str().is_some_and(|path| path == device.path);
    let at = drives.iter().position(place).expect("the device is a drive");

    step("a drive becomes slow");
    device.set_slow(true);
    wait_until("it is told to be slow", || {
        write_all();
        state(&node, at) == "slow"
    });
    wait_until("logs leave it", || changes(&node) > before);
    let written = write_all();

    step("it is in order again");
    device.set_slow(false);
    wait_until("that is told without anybody asking it for anything", || state(&node, at) == "up");
    uris.iter().for_each(|uri| expect(uri, written, "0 64k"));
    node.stop();
}
