//! qcow2 images served over NBD by a `qemu-storage-daemon` of our own, with both kinds of snapshots that qcow2 has.
//! Promises: the daemon ends with the platform, and with this process, however that ends.

use super::files::{make_new, prepared, remove_all};
use super::{Platform, PlatformTarget, Volume, nbd};
use crate::error::LabError;
use crate::qmp;
use crate::target::Target;
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the daemon may take until it answers.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Where a snapshot is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the image: a copy of its first table, and shared clusters are copied when they are written.
    Internal,
    /// The image is written no more, and a new one on top of it takes the writes.
    Chain,
}

pub struct Images {
    way: Way,
    dir: PathBuf,
    sockets: PathBuf,
    daemon: Option<Child>,
    monitor: Option<qmp::Client>,
    disks: Vec<Disk>,
    files: Vec<PathBuf>,
    targets: Vec<Target>,
}

struct Disk {
    name: String,
    bytes: u64,
    /// The node of the image that takes the writes, and its file.
    top: String,
    file: PathBuf,
}

impl Images {
    pub fn open(
        platform: &PlatformTarget,
        dir: &Path,
        way: Way,
        volumes: &[Volume],
        snapshot_bytes: u64,
    ) -> Result<Images, LabError> {
        let dir = prepared(dir, volumes, snapshot_bytes)?;
        let sockets = short_directory().map_err(|why| platform.failed("making sockets", why))?;
        let mut images = Images {
            way,
            dir,
            sockets,
            daemon: None,
            monitor: None,
            disks: Vec::new(),
            files: Vec::new(),
            targets: Vec::new(),
        };
        images.start().map_err(|why| platform.failed("starting qemu-storage-daemon", why))?;
        for volume in volumes {
            images.add(volume).map_err(|why| platform.failed("making and serving the images", why))?;
        }
        Ok(images)
    }

    fn start(&mut self) -> std::io::Result<()> {
        let (monitor, server) = (self.sockets.join("qmp"), self.sockets.join("nbd"));
        let said = std::fs::File::create(self.sockets.join("said"))?;
        let mut command = Command::new("qemu-storage-daemon");
        command.arg("--chardev").arg(format!("socket,path={},server=on,wait=off,id=qmp", monitor.display()));
        command.args(["--monitor", "chardev=qmp"]);
        command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", server.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        // A Ctrl-C at the terminal is for the lab, which ends the load first.
        command.process_group(0);
        crate::fio::end_with_parent(&mut command);
        self.daemon = Some(command.spawn().map_err(|why| {
            std::io::Error::new(
                why.kind(),
                format!("{why}; install it (Debian: apt-get install qemu-system-common qemu-utils)"),
            )
        })?);
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            match qmp::Client::connect(&monitor) {
                Ok(client) => {
                    self.monitor = Some(client);
                    return Ok(());
                }
                Err(why) => {
                    let ended =
                        self.daemon.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
                    if ended || Instant::now() > deadline {
                        let said = std::fs::read_to_string(self.sockets.join("said")).unwrap_or_default();
                        let line = said.lines().next().map_or_else(|| why.to_string(), str::to_string);
                        return Err(std::io::Error::other(line));
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn run(&mut self, command: &str, arguments: Value) -> std::io::Result<Value> {
        self.monitor.as_mut().expect("connected before anything is asked").run(command, arguments)
    }

    fn add(&mut self, volume: &Volume) -> std::io::Result<()> {
        let file = self.dir.join(format!("{}.qcow2", volume.name));
        let top = format!("{}-0", volume.name);
        self.make_image(&file, volume.bytes, None)?;
        self.run("blockdev-add", image_node(&top, &file, false))?;
        // The log's writes are flushed before they are acknowledged; the file below would only be asked to.
        let export = json!({
            "type": "nbd", "id": volume.name, "name": volume.name, "node-name": top,
            "writable": true, "writethrough": volume.durable,
        });
        self.run("block-export-add", export)?;
        let server = self.sockets.join("nbd");
        let uri = format!("nbd+unix:///{}?socket={}", volume.name, server.display());
        let pid = self.daemon.as_ref().map(Child::id);
        self.targets.push(nbd(volume, uri, pid, false));
        self.disks.push(Disk { name: volume.name.clone(), bytes: volume.bytes, top, file });
        Ok(())
    }

    /// A new image, on top of another one or alone.
    fn make_image(&mut self, file: &Path, bytes: u64, below: Option<&Path>) -> std::io::Result<()> {
        // qemu-img would overwrite what is there.
        make_new(file, 0)?;
        self.files.push(file.to_path_buf());
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2"]);
        if let Some(below) = below {
            // Without a look at the image below (-u): it is open for writing.
            command.args(["-u", "-F", "qcow2", "-b"]).arg(below);
        }
        let output = command.arg(file).arg(bytes.to_string()).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_string();
        Err(std::io::Error::other(format!("qemu-img: {said}")))
    }

    fn internal(&mut self, number: u32) -> std::io::Result<()> {
        let actions: Vec<Value> = self
            .disks
            .iter()
            .map(|disk| {
                json!({ "type": "blockdev-snapshot-internal-sync",
                        "data": { "device": disk.top, "name": format!("lab-{number}") } })
            })
            .collect();
        self.run("transaction", json!({ "actions": actions })).map(|_| ())
    }

    fn chain(&mut self, number: u32) -> std::io::Result<()> {
        let mut actions = Vec::new();
        let mut tops = Vec::new();
        for at in 0..self.disks.len() {
            let Disk { name, bytes, top, file: below } = &self.disks[at];
            let (bytes, top, below) = (*bytes, top.clone(), below.clone());
            let file = self.dir.join(format!("{name}-{number}.qcow2"));
            let overlay = format!("{name}-{number}");
            self.make_image(&file, bytes, Some(&below))?;
            self.run("blockdev-add", image_node(&overlay, &file, true))?;
            actions.push(json!({ "type": "blockdev-snapshot", "data": { "node": top, "overlay": overlay } }));
            tops.push((overlay, file));
        }
        self.run("transaction", json!({ "actions": actions }))?;
        for (disk, (top, file)) in self.disks.iter_mut().zip(tops) {
            (disk.top, disk.file) = (top, file);
        }
        Ok(())
    }
}

/// A qcow2 node over a file that is read and written without the page cache.
fn image_node(name: &str, file: &Path, overlay: bool) -> Value {
    let mut node = json!({
        "driver": "qcow2", "node-name": name, "cache": { "direct": true },
        "file": { "driver": "file", "filename": file, "aio": aio(), "cache": { "direct": true } },
    });
    if overlay {
        // What is below it is said when the snapshot is taken.
        node["backing"] = Value::Null;
    }
    node
}

fn aio() -> &'static str {
    if crate::fio::io_uring_allowed() { "io_uring" } else { "threads" }
}

impl Platform for Images {
    fn targets(&self) -> &[Target] {
        &self.targets
    }

    fn snapshot(&mut self, number: u32) -> Result<(), String> {
        match self.way {
            Way::Internal => self.internal(number),
            Way::Chain => self.chain(number),
        }
        .map_err(|why| why.to_string())
    }

    fn remove(&mut self) -> Result<(), String> {
        self.monitor = None;
        if let Some(mut daemon) = self.daemon.take() {
            // Its images are of no value any more, so it need not close them.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let outcome = remove_all(&mut self.files);
        let _ = std::fs::remove_dir_all(&self.sockets);
        outcome
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// A new directory for sockets, whose paths may be 107 bytes long at most.
pub fn short_directory() -> std::io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("weft-lab-{}-{number}", std::process::id()));
    std::fs::create_dir(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd_client;
    use crate::platform::PlatformKind;

    fn images(name: &str, way: Way) -> (PathBuf, Images) {
        let dir = std::env::temp_dir().join(format!("weft-qcow2-{}-{name}", std::process::id()));
        let platform = PlatformTarget { label: name.into(), kind: PlatformKind::Qcow2Chain(dir.clone()) };
        let volume = |name: &str, durable| Volume { name: name.into(), bytes: 16 << 20, durable };
        let volumes = [volume("data-1", false), volume("log-1", true)];
        let images =
            Images::open(&platform, &dir, way, &volumes, 0).expect("qemu-storage-daemon is installed");
        (dir, images)
    }

    /// Overwrites and reads through the export, as a client that does not know of snapshots.
    fn write(images: &Images, volume: usize, byte: u8) {
        let crate::target::Kind::Nbd { uri, .. } = &images.targets()[volume].kind else {
            panic!("it is NBD")
        };
        let mut client = nbd_client::Client::connect(uri).expect("it is served");
        client.write_at(4096, &[byte; 65536]).expect("it can be written");
        let mut read = vec![0; 65536];
        client.read_at(4096, &mut read).expect("it can be read");
        assert!(read.iter().all(|one| *one == byte));
    }

    fn qemu_img(arguments: &[&str], file: &Path) -> String {
        let output = Command::new("qemu-img").args(arguments).arg(file).output().expect("it is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn internal_snapshots_are_in_every_image_and_keep_what_was() {
        let (dir, mut images) = images("internal", Way::Internal);
        for number in 1..=3u8 {
            write(&images, 0, number);
            write(&images, 1, 10 + number);
            images.snapshot(number.into()).expect("it can be taken");
        }
        write(&images, 0, 99);
        // Whatever is still in the daemon's memory is in the file when the daemon has ended as it should.
        images.run("quit", json!({})).expect("it ends");
        images.daemon.take().expect("it ran").wait().expect("it ends");
        for name in ["data-1", "log-1"] {
            let listed = qemu_img(&["snapshot", "-l"], &dir.join(format!("{name}.qcow2")));
            assert_eq!(listed.matches("lab-").count(), 3, "{listed}");
        }
        let old = dir.join("old.raw");
        let image = dir.join("data-1.qcow2");
        let status = Command::new("qemu-img")
            .args(["convert", "-l", "lab-2", "-O", "raw"])
            .args([&image, &old])
            .status()
            .expect("it is installed");
        assert!(status.success());
        assert_eq!(std::fs::read(&old).expect("converted")[4096], 2, "as it was at the second snapshot");
        std::fs::remove_file(old).expect("the test made it");
        images.remove().expect("it can be removed");
        std::fs::remove_dir(&dir).expect("nothing is left in it");
    }

    #[test]
    fn a_chain_gets_an_image_for_each_snapshot_and_is_served_on() {
        let (dir, mut images) = images("chain", Way::Chain);
        write(&images, 0, 1);
        images.snapshot(1).expect("it can be taken");
        write(&images, 0, 2);
        images.snapshot(2).expect("it can be taken");
        write(&images, 0, 3);
        for name in ["data-1", "log-1"] {
            let chain = qemu_img(&["info", "-U", "--backing-chain"], &dir.join(format!("{name}-2.qcow2")));
            assert_eq!(chain.matches("image: ").count(), 3, "{chain}");
        }
        let sockets = images.sockets.clone();
        // A name that is taken is refused, and nothing is overwritten.
        let error = images.snapshot(2).expect_err("the file is there already");
        assert!(error.contains("remove it"), "{error}");
        drop(images);
        assert!(!sockets.exists());
        std::fs::remove_dir(&dir).expect("nothing is left in it");
    }

    #[test]
    fn what_lies_there_already_is_left_alone() {
        let (dir, images) = images("kept", Way::Chain);
        drop(images);
        let file = dir.join("log-1.qcow2");
        std::fs::write(&file, "mine").expect("writable");
        let platform = PlatformTarget { label: "kept".into(), kind: PlatformKind::Qcow2Chain(dir.clone()) };
        let volume = |name: &str| Volume { name: name.into(), bytes: 16 << 20, durable: false };
        let error = platform.open(&[volume("data-1"), volume("log-1")], 0).err().expect("it is there");
        assert!(error.to_string().contains("name another directory"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "mine");
        std::fs::remove_file(file).expect("the test made it");
        std::fs::remove_dir(&dir).expect("what was made before the failure is gone");
    }
}
