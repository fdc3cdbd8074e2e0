//! A vDisk as a block device of this machine, with real file systems on it.
//! Where FUSE or loop devices do not exist this says so and does nothing.

use crate::support::{
    Node, PATIENCE, Scratch, can_attach, expect, nbd_uri, step, tool, try_tool, wait_until, write,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Once, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The tools of btrfs look at every loop device of the machine, and stumble over one whose node was killed.
static DEAD_DEVICES: RwLock<()> = RwLock::new(());

/// A test run that was killed leaves mounts of nodes that are gone. The tools of btrfs stumble over them, whoever they
/// belong to, so those of runs that certainly ended go first.
fn sweep_after_killed_runs() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        // The newest first: a file system lies above the file of its device.
        for at in places.filter(|at| is_of_a_dead_run(at)).collect::<Vec<_>>().into_iter().rev() {
            println!("a killed run left {at}");
            crate::support::detach_loop_devices(at);
            let _ = try_tool(&["umount", "--lazy", at]);
        }
    });
}

/// Whether devices can be attached here; then nothing of killed runs is in the way.
fn may_begin() -> bool {
    let can_attach = can_attach();
    if can_attach {
        sweep_after_killed_runs();
    }
    can_attach
}

/// Whether a path is in the scratch directory (`attach-KIND-PROCESS-NUMBER`) of a process that does not exist.
fn is_of_a_dead_run(path: &str) -> bool {
    let mut parts = path.split('/').filter(|part| part.starts_with("attach-"));
    let process = parts.next().and_then(|scratch| scratch.split('-').nth(2)?.parse::<u32>().ok());
    process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
}

/// A mount that goes away with the test.
struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn new(device: &str, at: &Path) -> Self {
        std::fs::create_dir_all(at).expect("a directory can be made");
        tool(&["mount", device, at.to_str().expect("plain")]);
        Self { at: at.to_path_buf() }
    }

    fn text(&self) -> &str {
        self.at.to_str().expect("plain")
    }

    fn unmount(self) {
        tool(&["umount", self.text()]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Unmounted already, if all went well.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        if mounts.contains(self.text()) {
            let _ = try_tool(&["umount", "-l", self.text()]);
        }
    }
}

fn fsck(kind: &str, device: &str) {
    match kind {
        "ext4" => tool(&["fsck.ext4", "-fn", device]),
        "xfs" => tool(&["xfs_repair", "-n", device]),
        "btrfs" => tool(&["btrfs", "check", "--readonly", device]),
        other => panic!("no such file system here: {other}"),
    };
}

fn mkfs(kind: &str, device: &str) {
    match kind {
        "ext4" => tool(&["mkfs.ext4", "-q", "-F", device]),
        "xfs" => tool(&["mkfs.xfs", "-q", "-f", device]),
        "btrfs" => tool(&["mkfs.btrfs", "-q", "-f", device]),
        other => panic!("no such file system here: {other}"),
    };
}

/// Some hundred files of the real world and one large one.
fn fill(directory: &Path) {
    let text = directory.to_str().expect("plain");
    let copy =
        "mkdir files files/doc && cp -a /usr/bin/[a-d]* files/ && cp -a /usr/share/doc/[a-l]* files/doc/";
    tool(&["sh", "-c", &format!("cd {text} && {copy}")]);
    tool(&["dd", "if=/dev/urandom", &format!("of={text}/large"), "bs=1M", "count=48", "status=none"]);
}

fn fingerprint(directory: &Path) -> String {
    let text = directory.to_str().expect("plain");
    tool(&[
        "sh",
        "-c",
        &format!("cd {text} && find files large -type f | sort | xargs -d '\\n' sha256sum | sha256sum"),
    ])
}

fn a_file_system_lives_on_a_vdisk(kind: &str) {
    if !may_begin() {
        return;
    }
    let _nobody_kills = DEAD_DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new(&format!("attach-{kind}"));
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "1G"]);
    node.weft(&["vdisk", "create", "v", "--size", "600M"]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    assert!(device.starts_with("/dev/"), "attach prints the device: {device}");
    mkfs(kind, &device);
    let mounted = Mounted::new(&device, &scratch.file("mnt"));
    fill(&mounted.at);
    let before = fingerprint(&mounted.at);
    mounted.unmount();
    tool(&["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches || true"]);

    step("mounted again after a detach and a restart of the node");
    node.weft(&["vdisk", "detach", "v"]);
    node.stop();
    let node = Node::start(&dir, &[]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    fsck(kind, &device);
    let mounted = Mounted::new(&device, &scratch.file("mnt"));
    assert_eq!(fingerprint(&mounted.at), before, "every file is as it was written");

    step("deleted and trimmed: the space comes back, in the background");
    let free = node.free_bytes();
    tool(&["rm", "-r", &format!("{}/large", mounted.text())]);
    tool(&["sync"]);
    wait_until("trimmed space is free again", || {
        // Again and again: xfs frees the blocks of a deleted file a while later.
        tool(&["fstrim", mounted.text()]);
        std::thread::sleep(Duration::from_secs(1));
        node.free_bytes() > free + (30 << 20)
    });
    mounted.unmount();
    fsck(kind, &device);
    node.weft(&["vdisk", "detach", "v"]);
    node.stop();
}

#[test]
fn ext4_lives_on_a_vdisk() {
    a_file_system_lives_on_a_vdisk("ext4");
}

#[test]
fn xfs_lives_on_a_vdisk() {
    a_file_system_lives_on_a_vdisk("xfs");
}

#[test]
fn btrfs_lives_on_a_vdisk() {
    a_file_system_lives_on_a_vdisk("btrfs");
}

fn wait_for_end(what: &str, child: &mut Child) {
    let begun = Instant::now();
    while child.try_wait().expect("a child can be asked").is_none() {
        assert!(begun.elapsed() < PATIENCE * 2, "{what} hangs");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_dead_node_gives_errors_and_the_file_system_survives_it() {
    if !may_begin() {
        return;
    }
    let _alone = DEAD_DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new("attach-kill");
    let dir = scratch.file("node");
    let mut node = Node::start(&dir, &["--drive-size", "1G"]);
    node.weft(&["vdisk", "create", "v", "--size", "512M"]);
    let mut device = node.weft(&["vdisk", "attach", "v"]);
    mkfs("ext4", &device);
    for round in 0..2 {
        let mounted = Mounted::new(&device, &scratch.file("mnt"));
        let synced = mounted.at.join(format!("synced-{round}"));
        std::fs::write(&synced, vec![round as u8 + 1; 3 << 20]).expect("a file can be written");
        tool(&["sync", synced.to_str().expect("plain")]);
        let writes = node.vdisk_writes("v");
        // Writes until it fails, which it must when the node is dead.
        let script =
            format!("while dd if=/dev/zero of={}/f bs=1M count=64 conv=fsync; do :; done", mounted.text());
        let mut writer = Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh can be started");
        wait_until("the writer writes", || node.vdisk_writes("v") > writes + 100);
        node.kill();
        wait_for_end("a writer on a dead node", &mut writer);
        step("the writer got an error");
        let mut unmount = Command::new("umount").arg(mounted.text()).spawn().expect("umount can be started");
        wait_for_end("umount on a dead node", &mut unmount);
        drop(mounted);

        node = Node::start(&dir, &[]);
        device = node.weft(&["vdisk", "attach", "v"]);
        // The kernel replays the journal, as after a power cut.
        let mounted = Mounted::new(&device, &scratch.file("mnt"));
        let back = std::fs::read(mounted.at.join(format!("synced-{round}"))).expect("a synced file is there");
        assert!(back == vec![round as u8 + 1; 3 << 20], "and has its content");
        mounted.unmount();
        fsck("ext4", &device);
    }
    node.weft(&["vdisk", "detach", "v"]);
    node.stop();
}

/// Whoever sets a loop device free by hand does not wedge its vDisk, and what is set up there next is not ours to take away.
#[test]
fn a_device_that_others_have_set_free_is_not_touched_any_more() {
    if !may_begin() {
        return;
    }
    let _alone = DEAD_DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new("attach-freed");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "256M"]);
    node.weft(&["vdisk", "create", "v", "--size", "64M"]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    tool(&["losetup", "-d", &device]);
    node.weft(&["vdisk", "detach", "v"]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    tool(&["losetup", "-d", &device]);
    let other = scratch.file("other.img");
    std::fs::write(&other, vec![7; 1 << 20]).expect("a file can be written");
    tool(&["losetup", &device, other.to_str().expect("plain")]);
    node.weft(&["vdisk", "detach", "v"]);
    let there = tool(&["losetup", "--noheadings", "--output", "BACK-FILE", &device]);
    tool(&["losetup", "-d", &device]);
    assert!(there.contains("other.img"), "it was taken from its user: {there:?}");
    node.weft(&["vdisk", "rm", "v"]);
    node.stop();
}

#[test]
fn a_drive_that_hangs_keeps_no_node_from_starting() {
    if !may_begin() {
        return;
    }
    let scratch = Scratch::new("attach-hangs");
    // The other node's drive is a device of this one, and hangs when this one stands still.
    let below = Node::start(&scratch.file("below"), &["--drive-size", "2G"]);
    below.weft(&["vdisk", "create", "d", "--size", "1G"]);
    let device = below.weft(&["vdisk", "attach", "d"]);
    let dir = scratch.file("node");
    let drives = ["--drives", "1", "--drive-size", "1G", "--drive", &device];
    let node = Node::start(&dir, &drives);
    let socket = scratch.socket("v");
    node.export_new("v", "64M", &socket);
    write(&nbd_uri(&socket, "v"), 5, "0 1M");
    node.stop();

    below.signal(libc::SIGSTOP);
    let node = Node::start(&dir, &[]);
    assert!(node.ready.contains("drives up 1 of 2"), "{}", node.ready);
    node.wait_for_log("does not answer");
    expect(&nbd_uri(&socket, "v"), 5, "0 1M");
    write(&nbd_uri(&socket, "v"), 6, "1M 1M");
    step("it answers again");
    below.signal(libc::SIGCONT);
    wait_until("both drives are used", || {
        let status = node.json(&["status"]);
        status["drives"].as_array().is_some_and(|drives| drives.iter().all(|drive| drive["state"] == "up"))
    });
    expect(&nbd_uri(&socket, "v"), 6, "1M 1M");
    node.stop();
    below.weft(&["vdisk", "detach", "d"]);
    below.stop();
}

/// A node with two drives that are files and one, number 0, that is a device of another node, and hangs when that one stands still.
struct Hangable {
    /// Goes first: as long as it stands still, the other cannot end.
    below: Node,
    node: Node,
}

impl Hangable {
    fn new(scratch: &Scratch) -> Self {
        let below = Node::start(&scratch.file("below"), &["--drive-size", "2G"]);
        below.weft(&["vdisk", "create", "d", "--size", "1G"]);
        let device = below.weft(&["vdisk", "attach", "d"]);
        let drives = ["--drives", "2", "--drive-size", "1G", "--drive", &device];
        Self { node: Node::start(&scratch.file("node"), &drives), below }
    }

    /// Four vDisks of 64 MiB with something in this range, and their sockets.
    fn four_vdisks(&self, scratch: &Scratch, range: &str) -> Vec<(&'static str, PathBuf)> {
        let vdisks: Vec<_> = ["a", "b", "c", "d"].map(|name| (name, scratch.socket(name))).into();
        for (name, socket) in &vdisks {
            self.node.export_new(name, "64M", socket);
            write(&nbd_uri(socket, name), 5, range);
        }
        vdisks
    }

    /// How drive 0 stands, and what is told of that.
    fn standing(&self) -> (String, String) {
        let status = self.node.json(&["status"]);
        let drives = status["drives"].as_array().expect("there are drives");
        let told = drives.iter().find(|drive| drive["drive"] == 0).expect("it has that number");
        let text = |name: &str| told[name].as_str().expect("a text").to_string();
        (text("state"), text("reason"))
    }

    fn hang(&self) {
        self.below.signal(libc::SIGSTOP);
    }

    fn answer(&self) {
        step("it answers again");
        self.below.signal(libc::SIGCONT);
        wait_until("the drive is up", || self.standing().0 == "up");
    }

    fn stop(self) {
        self.node.stop();
        // The kernel closes what a ring had open a moment after its process has ended.
        wait_until("nobody uses the device", || {
            self.below.try_weft(&["vdisk", "detach", "d"]).status.success()
        });
        self.below.stop();
    }
}

#[test]
fn vdisks_with_two_copies_go_on_without_a_drive_that_hangs() {
    if !may_begin() {
        return;
    }
    let scratch = Scratch::new("attach-hangs");
    let own = Hangable::new(&scratch);
    let vdisks = own.four_vdisks(&scratch, "0 8M");
    wait_until("there are two copies of everything", || {
        vdisks
            .iter()
            .all(|(name, _)| own.node.json(&["vdisk", "show", name])["usage"]["copies"]["reached"] == true)
    });

    own.hang();
    for (name, socket) in &vdisks {
        write(&nbd_uri(socket, name), 6, "1M 1M");
        expect(&nbd_uri(socket, name), 5, "0 1M");
        expect(&nbd_uri(socket, name), 6, "1M 1M");
    }
    let (state, reason) = own.standing();
    assert_eq!(state, "hangs", "{reason}");
    assert!(reason.contains("vDisks go on without it"), "{reason}");
    let trouble = own.node.json(&["status"])["trouble"].to_string();
    assert!(trouble.contains("drive 0 hangs: it has not answered for"), "{trouble}");

    own.answer();
    for (name, socket) in &vdisks {
        write(&nbd_uri(socket, name), 7, "2M 1M");
        expect(&nbd_uri(socket, name), 6, "1M 1M");
        expect(&nbd_uri(socket, name), 7, "2M 1M");
    }
    own.stop();
}

/// The drive below does a few requests in a second, each in its time.
#[test]
fn a_drive_that_is_slow_is_told() {
    if !may_begin() {
        return;
    }
    let scratch = Scratch::new("attach-slow");
    let own = Hangable::new(&scratch);
    let vdisks = own.four_vdisks(&scratch, "0 1M");
    own.below.weft(&["vdisk", "set", "d", "--iops-limit", "4"]);
    let mut clients: Vec<Child> = vdisks
        .iter()
        .map(|(name, socket)| {
            let script =
                format!("while qemu-io -f raw -c 'write -P 6 1M 4k' '{}'; do :; done", nbd_uri(socket, name));
            Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).spawn().expect("sh can be started")
        })
        .collect();
    let began = Instant::now();
    wait_until("the drive is told to be slow", || own.standing().0 == "slow");
    step(&format!("it was told after {:.1} s", began.elapsed().as_secs_f64()));
    wait_until("and in words", || {
        own.node.json(&["status"])["trouble"].to_string().contains("drive 0 is slow: ")
    });
    for client in &mut clients {
        client.kill().expect("it is our child");
        client.wait().expect("it is our child");
    }
    for (name, socket) in &vdisks {
        expect(&nbd_uri(socket, name), 5, "0 1M");
    }
    own.below.weft(&["vdisk", "set", "d", "--iops-limit", "none"]);
    own.stop();
}

#[test]
fn what_has_one_copy_waits_for_a_drive_that_hangs() {
    if !may_begin() {
        return;
    }
    let scratch = Scratch::new("attach-waits");
    let own = Hangable::new(&scratch);
    let vdisks: Vec<_> =
        ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, scratch.socket(name))).into();
    for (name, socket) in &vdisks {
        own.node.weft(&["vdisk", "create", name, "--size", "64M", "--rf", "1"]);
        own.node.export(name, socket);
        write(&nbd_uri(socket, name), 5, "0 8M");
    }
    own.hang();
    let mut clients: Vec<Child> = vdisks
        .iter()
        .map(|(name, socket)| {
            let orders = ["-c", "write -P 6 1M 1M", "-c", "read -P 5 0 1M", "-c", "read -P 6 1M 1M"];
            let mut client = Command::new("qemu-io");
            client.args(["-f", "raw"]).args(orders).arg(nbd_uri(socket, name)).stdout(Stdio::null());
            client.spawn().expect("qemu-io can be started")
        })
        .collect();
    wait_until("the drive is told to hang", || own.standing().0 == "hangs");
    let (_, reason) = own.standing();
    assert!(reason.contains("what needs it waits"), "{reason}");
    std::thread::sleep(Duration::from_secs(5));
    let mut waits = 0;
    for client in &mut clients {
        waits += usize::from(client.try_wait().expect("it is our child").is_none());
    }
    assert!(waits > 0, "what some of them need lies there");
    own.answer();
    for client in &mut clients {
        let status = client.wait().expect("it is our child");
        assert!(status.success(), "nobody had an error");
    }
    own.stop();
}

#[test]
fn a_stop_does_not_wait_for_all_that_is_in_the_page_cache() {
    if !may_begin() {
        return;
    }
    let _nobody_kills = DEAD_DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new("attach-slow");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "1G"]);
    // Minutes of what the writer leaves behind.
    node.weft(&["vdisk", "create", "v", "--size", "512M", "--bw-limit", "500K"]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    let mut writer = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={device}"), "bs=1M", "count=200", "conv=notrunc,fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("dd can be started");
    wait_until("the vDisk is written", || node.vdisk_writes("v") > 1);
    let log = node.log.clone();
    node.stop();
    let told = std::fs::read_to_string(log).expect("the node has a log");
    assert!(told.contains("the rest is lost, as in a power cut"), "{told}");
    wait_for_end("a writer whose device has gone", &mut writer);
    assert!(!Path::new(&dir.join("mnt-v")).exists(), "nothing is left behind");
    let node = Node::start(&dir, &[]);
    node.stop();
}

/// The node's own thread waits in the kernel for what the node itself has to answer.
#[test]
fn a_node_that_dies_while_it_writes_back_a_device_ends() {
    if !may_begin() {
        return;
    }
    let _alone = DEAD_DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new("attach-dies");
    let dir = scratch.file("node");
    let mut node = Node::start(&dir, &["--drive-size", "1G"]);
    node.weft(&["vdisk", "create", "v", "--size", "256M", "--bw-limit", "500K"]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    // Whoever closes a device last waits until all is written.
    let open = std::fs::File::open(&device).expect("the device can be opened");
    tool(&["dd", "if=/dev/zero", &format!("of={device}"), "bs=1M", "count=40", "conv=notrunc"]);
    let before = node.vdisk_writes("v");
    let mut detach = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["vdisk", "detach", "v", "--dir", node.dir_text()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("weft can be started");
    wait_until("the device is written back", || node.vdisk_writes("v") > before + 1);
    node.signal(libc::SIGKILL);
    wait_until("the node has ended", || !node.is_running());
    wait_for_end("who asked for the end of the device", &mut detach);
    drop(open);
    let node = Node::start(&dir, &[]);
    node.stop();
}

#[test]
fn a_stop_writes_what_a_file_system_has_in_memory() {
    if !may_begin() {
        return;
    }
    let _nobody_kills = DEAD_DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new("attach-mounted");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "1G"]);
    node.weft(&["vdisk", "create", "v", "--size", "256M"]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    mkfs("ext4", &device);
    let mounted = Mounted::new(&device, &scratch.file("mnt"));
    // Nobody asks for any of it to be written.
    std::fs::write(mounted.at.join("note"), vec![0x5a; 3 << 20]).expect("a file can be written");
    node.stop();
    let _ = try_tool(&["umount", "--lazy", mounted.text()]);
    std::mem::forget(mounted);
    let node = Node::start(&dir, &[]);
    let device = node.weft(&["vdisk", "attach", "v"]);
    let mounted = Mounted::new(&device, &scratch.file("mnt"));
    let note = std::fs::read(mounted.at.join("note")).expect("what was written before the stop is there");
    assert!(note == vec![0x5a; 3 << 20], "{} bytes are left", note.len());
    mounted.unmount();
    node.weft(&["vdisk", "detach", "v"]);
    node.stop();
}
