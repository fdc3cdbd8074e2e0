//! A real node in a directory of its own, and the tools that speak to it.
//! Promises: nothing is left running or mounted when a test ends, however it ends; every wait has a deadline far above
//! what is needed, and nothing is ever asserted about speed.

pub mod checker;
pub mod cluster;
pub mod counting;
pub mod http;
pub mod nbd;
pub mod net;

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub const WEFT: &str = env!("CARGO_BIN_EXE_weft");

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory that goes away with the test, unless the test failed.
pub struct Scratch {
    pub path: PathBuf,
    /// For sockets, whose paths must be short.
    short: PathBuf,
}

impl Scratch {
    pub fn new(name: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("{name}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&unique);
        let short = std::env::temp_dir().join(format!("weft-{}-{number}", std::process::id()));
        for directory in [&path, &short] {
            std::fs::create_dir_all(directory).expect("a scratch directory can be made");
        }
        Self { path, short }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.short.join(name)
    }
}

impl Scratch {
    /// What a node that was killed left behind when the test had something attached.
    fn clean_attachments(&self) {
        let here = self.path.to_str().expect("the scratch directory has a plain name");
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for mount in
            mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|at| at.starts_with(here))
        {
            detach_loop_devices(mount);
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
    }
}

/// Whether this machine has what block devices of vDisks need; says so if not.
pub fn can_attach() -> bool {
    let there = Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    if !there {
        println!("/dev/fuse or /dev/loop-control is not here: attaching cannot be tried");
    }
    there
}

/// Takes away the loop devices whose files lie below `directory`; harmless where there are none.
pub fn detach_loop_devices(directory: &str) {
    let loops =
        Command::new("losetup").args(["--noheadings", "--list", "--output", "NAME,BACK-FILE"]).output();
    let loops = loops.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for line in loops.lines().filter(|line| line.contains(directory)) {
        let device = line.split_whitespace().next().unwrap_or_default();
        let _ = Command::new("losetup").args(["--detach", device]).status();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.clean_attachments();
        let _ = std::fs::remove_dir_all(&self.short);
        if std::thread::panicking() {
            // The big files are of no use to a reader; the logs and the config are.
            for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
                eprintln!("kept: {}", entry.path().display());
            }
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A running `weft up`. Killed on drop.
pub struct Node {
    pub dir: PathBuf,
    pub log: PathBuf,
    child: Child,
    /// What it said when it was ready.
    pub ready: String,
}

impl Node {
    /// Starts a node and waits until it says that it is ready.
    pub fn start(dir: &Path, arguments: &[&str]) -> Node {
        Self::try_start(dir, arguments).unwrap_or_else(|told| panic!("the node did not start: {told}"))
    }

    /// ... or tells what it said when it ended instead.
    pub fn try_start(dir: &Path, arguments: &[&str]) -> Result<Node, String> {
        let (mut child, log) = spawn_node(dir, arguments);
        let ready = await_ready(&mut child, &log)?;
        Ok(Node { dir: dir.to_path_buf(), log, child, ready })
    }

    /// As a power switch would for the process: no goodbye.
    pub fn kill(mut self) {
        self.end_now();
    }

    fn end_now(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it as a person would, and checks that it went well.
    pub fn stop(mut self) {
        run_weft(&["down", "--dir", self.dir_text()]);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                assert!(status.success(), "a clean stop ends with 0, not {status}: {}", self.log_text());
                return;
            }
            assert!(Instant::now() < deadline, "the node did not stop: {}", self.log_text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// It stands still (SIGSTOP), or goes on (SIGCONT).
    pub fn signal(&self, signal: libc::c_int) {
        send_signal(&self.child, signal);
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_none()
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the node has told `text`. What it tells comes beside what it does: one that is ready may not have told yet why it
    /// goes without a drive.
    pub fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log_text().contains(text) {
            assert!(Instant::now() < deadline, "waited in vain for {text:?} in: {}", self.log_text());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn dir_text(&self) -> &str {
        self.dir.to_str().expect("the scratch directory has a plain name")
    }

    /// `weft ARGUMENTS --dir DIR`, which must work; its stdout.
    pub fn weft(&self, arguments: &[&str]) -> String {
        let output = self.try_weft(arguments);
        assert!(
            output.status.success(),
            "weft {arguments:?} ended with {}: {}; log: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            read_tail(&self.log)
        );
        String::from_utf8(output.stdout).expect("output is text").trim().to_string()
    }

    pub fn try_weft(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--dir", self.dir_text()]);
        weft_output(&all)
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        serde_json::from_str(&self.weft(&all)).expect("--json prints JSON")
    }

    /// Makes a vDisk and exports it on a socket.
    pub fn export_new(&self, name: &str, size: &str, socket: &Path) {
        self.weft(&["vdisk", "create", name, "--size", size]);
        self.export(name, socket);
    }

    /// Where it is exported from then on.
    pub fn export(&self, name: &str, socket: &Path) -> String {
        self.weft(&["vdisk", "export", name, "--nbd", &format!("unix:{}", socket.display())]);
        nbd_uri(socket, name)
    }

    /// What a command says that is refused as a mistake of whoever gave it.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.try_weft(arguments);
        assert_eq!(output.status.code(), Some(2), "weft {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Write requests that this vDisk has answered since the node started.
    pub fn vdisk_writes(&self, name: &str) -> u64 {
        let stats = self.json(&["stats", name]);
        stats["vdisks"][0]["writes"].as_u64().expect("statistics count the writes of a vDisk")
    }

    /// Write requests, or parts of them, that went around this vDisk's log since the node started.
    pub fn writes_around_the_log(&self, name: &str) -> u64 {
        let stats = self.json(&["stats", name]);
        stats["vdisks"][0]["engine"]["writes_to_bypass"].as_u64().expect("statistics say where writes went")
    }

    /// Bytes that can be written on all drives together.
    pub fn free_bytes(&self) -> u64 {
        let stats = self.json(&["stats"]);
        let drives = stats["drives"].as_array().expect("statistics list the drives");
        drives.iter().map(|drive| drive["free_bytes"].as_u64().unwrap_or(0)).sum()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end_now();
        if std::thread::panicking() {
            eprintln!("log of the node: {}", read_tail(&self.log));
        }
    }
}

/// Writes `pattern` into a range (as qemu-io takes it: offset and length) of what is exported there.
pub fn write(uri: &str, pattern: u8, range: &str) {
    tool(&["qemu-io", "-f", "raw", "-c", &format!("write -P {pattern} {range}"), uri]);
}

/// The range holds nothing but `pattern`.
pub fn expect(uri: &str, pattern: u8, range: &str) {
    tool(&["qemu-io", "-r", "-f", "raw", "-c", &format!("read -P {pattern} {range}"), uri]);
}

pub fn send_signal(child: &Child, signal: libc::c_int) {
    // SAFETY: the child has not been waited for, so its number is still its own.
    let sent = unsafe { libc::kill(child.id() as libc::pid_t, signal) };
    assert_eq!(sent, 0, "a child can be sent a signal");
}

/// A node that nobody waits for yet; its stderr goes to the log beside its directory.
pub fn spawn_node(dir: &Path, arguments: &[&str]) -> (Child, PathBuf) {
    let log = dir.with_extension("log");
    let stderr = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&log)
        .expect("the log of a node can be opened");
    (spawn_node_telling(dir, arguments, stderr), log)
}

/// ... or to `stderr`.
pub fn spawn_node_telling(dir: &Path, arguments: &[&str], stderr: std::fs::File) -> Child {
    let mut command = Command::new(WEFT);
    command.args(["up", "--dir"]).arg(dir).args(["--api", "127.0.0.1:0"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    // SAFETY: prctl is async-signal-safe and touches nothing of the parent.
    unsafe {
        command.pre_exec(|| {
            // A test that is killed takes its node along.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn().expect("weft can be started")
}

/// What it says when it is ready, or what it said when it ended instead.
pub fn await_ready(child: &mut Child, log: &Path) -> Result<String, String> {
    let stdout = child.stdout.take().expect("stdout is piped");
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let deadline = Instant::now() + PATIENCE * 2;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.contains("ready") => return Ok(line),
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("nothing within the time; log: {}", read_tail(log)));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().expect("a child can be waited for");
                return Err(format!("{status}: {}", read_tail(log)));
            }
        }
    }
}

pub fn read_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// `weft ARGUMENTS`, whatever comes of it. A command that hangs is ended, and shows as exit code 124.
pub fn weft_output(arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "5", "90", WEFT])
        .args(arguments)
        .env_remove("WEFT_DIR")
        .stdin(Stdio::null())
        .output()
        .expect("weft can be run")
}

pub fn run_weft(arguments: &[&str]) -> String {
    let output = weft_output(arguments);
    assert!(
        output.status.success(),
        "weft {arguments:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output is text")
}

/// Runs a tool that must succeed; its stdout.
pub fn tool(line: &[&str]) -> String {
    let output = try_tool(line);
    assert!(
        output.status.success(),
        "{line:?} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn try_tool(line: &[&str]) -> Output {
    let output = Command::new("timeout").args(["-k", "5", "180"]).args(line).stdin(Stdio::null()).output();
    let output = output.expect("timeout of coreutils is there");
    assert!(
        output.status.code() != Some(127),
        "{} is not installed: scripts/ensure-tools.sh test installs it",
        line[0]
    );
    output
}

pub fn is_installed(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// A process that is ended with what it is for.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks again and again until the answer is yes.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub fn nbd_uri(socket: &Path, name: &str) -> String {
    format!("nbd+unix:///{name}?socket={}", socket.display())
}

/// Flips one bit of a file in place, durably.
pub fn flip_bit(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).expect("the file is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("the offset lies in the file");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, offset).expect("the file can be written");
    file.sync_all().expect("the file can be flushed");
}

/// Where `needle` (a whole block) lies in a file, at block boundaries.
pub fn find_blocks(path: &Path, needle: &[u8]) -> Vec<u64> {
    use std::io::Read;
    assert_eq!(needle.len(), 4096, "whole blocks are looked for");
    let mut file = std::fs::File::open(path).expect("the file is there");
    let mut chunk = vec![0; 4 << 20];
    let (mut at, mut found) = (0, Vec::new());
    loop {
        let mut filled = 0;
        while filled < chunk.len() {
            match file.read(&mut chunk[filled..]).expect("the file can be read") {
                0 => break,
                count => filled += count,
            }
        }
        for (number, block) in chunk[..filled].chunks_exact(4096).enumerate() {
            if block == needle {
                found.push(at + number as u64 * 4096);
            }
        }
        if filled < chunk.len() {
            return found;
        }
        at += filled as u64;
    }
}

/// All files in a directory and those in it.
pub fn files_below(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut directories) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("it can be listed").flatten() {
            let path = entry.path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    files
}

/// What all shards have counted under this name, in an answer to `weft stats`.
pub fn counted_by_shards(stats: &serde_json::Value, name: &str) -> u64 {
    let shards = stats["shards"].as_array().expect("shards are listed");
    shards.iter().filter_map(|shard| shard["engine"][name].as_u64()).sum()
}

/// A step of a long test, seen when the test fails.
pub fn step(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "  {text}");
}
