//! Drives that are block devices: known by what lies on them, whatever they are called today.
//! Where loop devices do not exist this says so and does nothing.

use crate::support::{
    Node, Scratch, can_attach, detach_loop_devices, expect, nbd_uri, step, tool, wait_until, weft_output,
    write,
};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

const BYTES: u64 = 512 << 20;

/// A file as a block device.
struct Device {
    file: PathBuf,
    path: String,
}

impl Device {
    fn new(scratch: &Scratch, name: &str) -> Device {
        let file = scratch.file(name);
        File::create(&file).and_then(|made| made.set_len(BYTES)).expect("the file can be made");
        let path = attached(&file);
        Device { file, path }
    }
}

fn attached(file: &Path) -> String {
    tool(&["losetup", "--find", "--show", file.to_str().expect("text")]).trim().to_string()
}

/// Takes a loop device away, and waits until it is: the kernel keeps it for as long as somebody has it open, which a node has for
/// a moment after its end.
fn detach(device: &str) {
    tool(&["losetup", "--detach", device]);
    let name = Path::new(device).file_name().expect("a device has a name");
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    wait_until("the loop device is let go of", || !backing.exists());
}

/// What a partition table has in its last sector.
fn sign(file: &Path, at: u64) {
    let opened = File::options().write(true).open(file);
    opened.and_then(|file| file.write_all_at(b"EFI PART", at)).expect("it can be written");
}

/// Where a test's devices are. They are taken away with it, also when the test fails.
struct Place(Scratch);

impl Place {
    /// None where there are no loop devices.
    fn new(name: &str) -> Option<Place> {
        can_attach().then(|| Place(Scratch::new(name)))
    }
}

impl std::ops::Deref for Place {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        detach_loop_devices(self.0.file("").to_str().expect("text"));
    }
}

fn up(dir: &Path, arguments: &[&str]) -> Output {
    weft_output(&[&["up", "--dir", dir.to_str().expect("text"), "--api", "127.0.0.1:0"], arguments].concat())
}

/// It did not start, because of what was asked for; and in one line.
fn refused(output: &Output, why: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.contains(why)), "{text}");
}

#[test]
fn a_drive_of_another_node_is_not_taken_for_an_empty_device() {
    let Some(scratch) = Place::new("devices-used") else { return };
    let device = Device::new(&scratch, "a");
    // A drive that has copies and no log: at both of its ends there is nothing.
    let dir = scratch.file("node");
    Node::start(&dir, &["--drive", &device.path]).stop();
    let first = std::fs::read(&device.file).expect("readable")[..1 << 20].to_vec();
    assert!(first.iter().all(|byte| *byte == 0), "nothing is in its log");
    step("another node is told to take it");
    let other = scratch.file("other");
    refused(&up(&other, &["--drive", &device.path]), "is a drive of Weft already (drive 0)");
    step("it still is what it was");
    let node = Node::start(&dir, &[]);
    let socket = scratch.socket("v");
    node.export_new("v", "64M", &socket);
    write(&nbd_uri(&socket, "v"), 5, "0 1M");
    node.stop();
    step("something lies at its very end, behind the last whole MiB");
    let odd = scratch.file("odd");
    let made = File::create(&odd).and_then(|made| made.set_len(BYTES + 4096));
    made.expect("the file can be made");
    sign(&odd, BYTES + 4096 - 512);
    refused(&up(&other, &["--drive", &attached(&odd)]), "its last MiB is not empty");
}

#[test]
fn a_drive_on_a_device_that_has_grown_is_not_taken_for_an_empty_one() {
    let Some(scratch) = Place::new("devices-grown") else { return };
    let device = Device::new(&scratch, "a");
    let dir = scratch.file("node");
    Node::start(&dir, &["--drive", &device.path]).stop();
    detach(&device.path);
    File::options()
        .write(true)
        .open(&device.file)
        .and_then(|file| file.set_len(3 * BYTES))
        .expect("it can grow");
    let path = attached(&device.file);
    let other = scratch.file("other");
    refused(&up(&other, &["--drive", &path]), "is a drive of Weft already (drive 0)");
    step("what it held is given up");
    let end = 3 * BYTES - 512;
    sign(&device.file, end);
    Node::start(&other, &["--drive", &path, "--force"]).stop();
    let last = std::fs::read(&device.file).expect("readable")[end as usize..].to_vec();
    assert!(last.iter().all(|byte| *byte == 0), "what others would know it by is gone");
}

#[test]
fn a_drive_is_found_under_its_new_name() {
    let Some(scratch) = Place::new("devices-renamed") else { return };
    let dir = scratch.file("node");
    let (mut a, mut b) = (Device::new(&scratch, "a"), Device::new(&scratch, "b"));
    let stable = scratch.file("by-id");
    symlink(&a.path, &stable).expect("a link can be made");
    let stable_text = stable.to_str().expect("text").to_string();
    let node = Node::start(&dir, &["--drive", &stable_text, "--drive", &b.path]);
    let socket = scratch.socket("v");
    node.export_new("v", "64M", &socket);
    write(&nbd_uri(&socket, "v"), 5, "0 4M");
    node.stop();

    step("both devices change their places");
    let before = (a.path.clone(), b.path.clone());
    for device in [&a, &b] {
        detach(&device.path);
    }
    // An empty one first, which may get the name that one of them had.
    let _third = Device::new(&scratch, "c");
    for device in [&mut b, &mut a] {
        device.path = attached(&device.file);
    }
    std::fs::remove_file(&stable).expect("it is there");
    symlink(&a.path, &stable).expect("a link can be made");
    println!("{before:?} became {:?}", (&a.path, &b.path));
    let node = Node::start(&dir, &["--drive", &stable_text, "--drive", &b.path]);
    assert!(node.ready.contains("drives up 2 of 2"), "{}", node.ready);
    expect(&nbd_uri(&socket, "v"), 5, "0 4M");
    let status = node.json(&["status"]);
    assert!(status.to_string().contains(&stable_text), "it has the name that it was given: {status}");
    node.stop();

    step("one that is named is gone: the node serves without it");
    detach(&b.path);
    std::fs::remove_file(&stable).expect("it is there");
    let gone = ["--drive", "/dev/disk/by-id/weft-none", "--drive", a.path.as_str()];
    let node = Node::start(&dir, &gone);
    assert!(node.ready.contains("drives up 1 of 2"), "{}", node.ready);
    node.wait_for_log("there is no /dev/disk/by-id/weft-none");
    expect(&nbd_uri(&socket, "v"), 5, "0 4M");
    node.stop();
}

#[test]
fn a_drive_of_another_node_with_the_same_number_is_not_opened() {
    let Some(scratch) = Place::new("devices-swapped") else { return };
    let places = [scratch.file("one"), scratch.file("two")];
    let devices = [Device::new(&scratch, "a"), Device::new(&scratch, "b")];
    let links = [scratch.file("link-one"), scratch.file("link-two")];
    for ((dir, device), link) in places.iter().zip(&devices).zip(&links) {
        symlink(&device.path, link).expect("a link can be made");
        Node::start(dir, &["--drive", link.to_str().expect("text")]).stop();
    }
    step("the devices are exchanged");
    for (device, link) in devices.iter().rev().zip(&links) {
        std::fs::remove_file(link).expect("it is there");
        symlink(&device.path, link).expect("a link can be made");
    }
    for dir in &places {
        let output = up(dir, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("of another node or of another life"), "{text}");
    }
}

/// Bytes that a file takes where it lies.
fn taken(file: &Path) -> u64 {
    std::fs::metadata(file).expect("it is there").blocks() * 512
}

#[test]
fn a_device_gets_back_what_is_deleted() {
    let Some(scratch) = Place::new("devices-deleted") else { return };
    let device = Device::new(&scratch, "a");
    let node = Node::start(&scratch.file("node"), &["--drive", &device.path]);
    let [kept, _] = ["kept", "gone"].map(|name| {
        let socket = scratch.socket(name);
        node.export_new(name, "128M", &socket);
        let uri = nbd_uri(&socket, name);
        write(&uri, 5, "0 128M");
        uri
    });
    wait_until("all lies on the device", || taken(&device.file) > 256 << 20);
    let before = taken(&device.file);
    node.weft(&["vdisk", "unexport", "gone"]);
    node.weft(&["vdisk", "rm", "gone"]);
    wait_until("the device is told", || taken(&device.file) + (96 << 20) < before);
    step("what another vDisk has there is not touched");
    expect(&kept, 5, "0 128M");
    node.stop();
}
