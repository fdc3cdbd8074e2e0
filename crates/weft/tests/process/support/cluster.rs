//! A real cluster on this machine: an etcd, nodes in directories of their own, and clients that keep a book.
//! Promises: nothing is left running when a test ends, however it ends; nothing is asserted about speed.

use super::checker::Checker;
use super::nbd::NbdClient;
use super::net::Net;
use super::{Scratch, WEFT, await_ready, read_tail, send_signal, step, try_tool};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything of a cluster may take: repairs, leases that have to end, on a machine that is busy with other work.
pub const PATIENCE: Duration = Duration::from_secs(150);

/// Requests that a client keeps in flight.
const DEPTH: usize = 8;

/// How often the tests do what they do; 1 unless WEFT_CLUSTER_ROUNDS says otherwise.
pub fn rounds() -> u64 {
    std::env::var("WEFT_CLUSTER_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

pub struct Options {
    pub nodes: u32,
    pub drive_size: &'static str,
    /// Each node in a network namespace of its own; otherwise all on the loopback.
    pub net: Option<Net>,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 3, drive_size: "1G", net: None }
    }
}

pub struct Cluster {
    // Dropped in this order: processes before the namespaces they are in, and the directories last.
    members: Vec<Member>,
    pub etcd: Etcd,
    pub net: Option<Net>,
    pub scratch: Scratch,
}

/// A node of the cluster, running or not.
pub struct Member {
    pub number: u32,
    pub dir: PathBuf,
    log: PathBuf,
    drive_size: &'static str,
    /// What a command line has to begin with to run where the node does.
    prefix: Vec<String>,
    child: Option<Child>,
}

/// A command in its place, which ends with the test.
fn command(prefix: &[String], program: &str) -> Command {
    let mut command = match prefix.split_first() {
        None => Command::new(program),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    command.stdin(Stdio::null()).env_remove("WEFT_DIR");
    // SAFETY: prctl is async-signal-safe and touches nothing of the parent.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}

/// Threads of a process that have not been stopped.
fn running_threads(process: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    let is_stopped =
        |stat: &str| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'));
    let stats =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    stats.filter(|stat| !is_stopped(stat)).count()
}

fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Asks again and again until the answer is yes; tells what it saw last if that never happens.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(seen) = is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}: {seen}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Cluster {
    /// Nodes that are all up, and a vDisk `v` with two copies, served by one of them and exported on each.
    pub fn start(name: &str, options: Options) -> Self {
        let scratch = Scratch::new(name);
        let etcd = Etcd::start(&scratch, options.net.as_ref());
        let mut cluster = Self { members: Vec::new(), etcd, net: options.net, scratch };
        for _ in 0..options.nodes {
            cluster.join(options.drive_size, &[]);
        }
        cluster.start_all();
        cluster.wait_until_whole();
        cluster
    }

    /// Adds a node, which does not run yet; its number.
    pub fn join(&mut self, drive_size: &'static str, arguments: &[&str]) -> u32 {
        let number = self.members.len() as u32;
        let dir = self.scratch.file(&format!("node{number}"));
        // They are in the node's record: while it is down, nobody who lets the kernel choose a port may get one of them.
        let (prefix, [api, transport]) = match &self.net {
            None => (Vec::new(), [0; 2].map(|_| format!("127.0.0.1:{}", free_port()))),
            Some(net) => (net.prefix(number), [0; 2].map(|_| format!("{}:0", net.address(number)))),
        };
        let log = dir.with_extension("log");
        let member = Member { number, dir, log, drive_size, prefix, child: None };
        let dir = member.dir.to_str().expect("the scratch directory has a plain name");
        let mut line = match number {
            0 => vec!["cluster", "init", "--etcd", &self.etcd.url, "--name", "main"],
            _ => vec!["node", "join", "--etcd", &self.etcd.url, "--cluster", "main"],
        };
        line.extend(["--dir", dir, "--api", &api, "--transport", &transport]);
        line.extend(arguments);
        succeed(&line, &member.run(&line));
        self.members.push(member);
        number
    }

    pub fn member(&mut self, number: u32) -> &mut Member {
        &mut self.members[number as usize]
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.members.iter().filter(|member| member.child.is_some()).map(|member| member.number).collect()
    }

    /// A running node that is none of these.
    pub fn other_than(&self, these: &[u32]) -> u32 {
        self.numbers().into_iter().find(|number| !these.contains(number)).expect("there are enough nodes")
    }

    /// `weft ARGUMENTS` with some running node.
    pub fn weft(&self, arguments: &[&str]) -> String {
        self.members[self.other_than(&[]) as usize].weft(arguments)
    }

    pub fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        self.members[self.other_than(&[]) as usize].json(arguments)
    }

    /// `weft ARGUMENTS` with node `number`, for whoever does not wait for it.
    pub fn asking(&self, number: u32, arguments: &[&str]) -> Command {
        let member = &self.members[number as usize];
        let mut command = member.command(arguments);
        command.args(["--dir", member.dir_text()]);
        command
    }

    pub fn create(&self, name: &str, size: &str) {
        self.weft(&["vdisk", "create", name, "--size", size, "--rf", "2"]);
        self.wait_until_served(name);
        self.wait_until_whole();
    }

    pub fn socket(&self, name: &str, number: u32) -> PathBuf {
        self.scratch.socket(&format!("{name}-{number}"))
    }

    /// Node `number` listens for clients of the vDisk.
    pub fn export(&mut self, name: &str, number: u32) -> PathBuf {
        let socket = self.socket(name, number);
        self.member(number).weft(&["vdisk", "export", name, "--nbd", &format!("unix:{}", socket.display())]);
        socket
    }

    /// Who serves it; None while nobody does.
    pub fn owner(&self, name: &str) -> Result<Option<u32>, String> {
        let shown = self.json(&["vdisk", "show", name])?;
        let is_served = shown["served"].as_bool().unwrap_or(true);
        Ok(shown["owner_node"].as_u64().filter(|_| is_served).map(|node| node as u32))
    }

    /// The owner, when there is one.
    pub fn wait_until_served(&self, name: &str) -> u32 {
        let mut owner = None;
        wait_for("somebody serves the vDisk", || {
            owner = self.owner(name)?;
            owner.map(|_| ()).ok_or_else(|| "nobody does".to_string())
        });
        owner.expect("waited until there was one")
    }

    pub fn wait_for_owner(&self, name: &str, is_right: impl Fn(u32) -> bool) -> u32 {
        let mut owner = None;
        wait_for("the right node serves the vDisk", || {
            owner = self.owner(name)?.filter(|owner| is_right(*owner));
            owner.map(|_| ()).ok_or_else(|| format!("the owner is {:?}", self.owner(name)))
        });
        owner.expect("waited until there was one")
    }

    /// Everything is up and has all its copies.
    pub fn wait_until_whole(&self) {
        wait_for("the cluster is whole", || {
            let status = self.json(&["cluster", "status"])?["cluster"].take();
            let count = |field: &str| status[field].as_u64().ok_or_else(|| format!("no {field} in {status}"));
            let is_whole = count("nodes_alive")? == count("nodes")?
                && count("drives_up")? == count("drives")?
                && count("groups_whole")? == count("groups")?
                && count("vdisks_served")? == count("vdisks")?
                && count("drives")? > 0;
            if is_whole { Ok(()) } else { Err(status.to_string()) }
        });
    }

    /// The view of one node, as `weft node ls` has it.
    pub fn node_view(&self, number: u32) -> Result<Value, String> {
        let nodes = self.json(&["node", "ls"])?;
        let all = nodes.as_array().ok_or("`node ls` gives no list")?;
        let found = all.iter().find(|node| node["node"].as_u64() == Some(u64::from(number)));
        found.cloned().ok_or_else(|| format!("no node {number} in {nodes}"))
    }

    pub fn drive_of(&self, number: u32) -> u32 {
        let drives = self.json(&["drive", "ls"]).expect("the cluster lists its drives");
        let all = drives.as_array().expect("a list");
        let found = all.iter().find(|drive| drive["node"].as_u64() == Some(u64::from(number)));
        found.and_then(|drive| drive["drive"].as_u64()).expect("each node has a drive") as u32
    }

    /// The power of all nodes fails at the same time.
    pub fn kill_all(&mut self) {
        for member in &self.members {
            member.begin_to_suspend();
        }
        for member in &mut self.members {
            member.kill();
        }
    }

    /// Starts every node that does not run.
    pub fn start_all(&mut self) {
        let mut started: Vec<&mut Member> =
            self.members.iter_mut().filter(|member| member.child.is_none()).collect();
        for member in &mut started {
            member.launch();
        }
        for member in &mut started {
            member.await_ready();
        }
    }

    /// What clients of `v` read through each of these is what the book says, and then what is on the drives is sound.
    pub fn compare_and_check(self, sockets: &[PathBuf], checker: Checker) {
        self.compare(sockets, checker);
        self.cut_and_check();
    }

    /// What clients of `v` read through each of these is what the book says.
    pub fn compare(&self, sockets: &[PathBuf], mut checker: Checker) {
        for socket in sockets {
            let mut client = NbdClient::connect_patiently(socket, "v");
            checker.verify_all(&mut client);
            client.disconnect();
        }
        step(&format!(
            "{} writes were acknowledged; all of them read back through each node",
            checker.acknowledged
        ));
    }

    /// The power of all nodes fails, and what is on their drives must be sound together.
    pub fn cut_and_check(mut self) {
        self.kill_all();
        let mut line: Vec<&str> = self.members[0].prefix.iter().map(String::as_str).collect();
        line.extend(["timeout", "-k", "5", "180", WEFT, "--json", "check"]);
        line.extend(self.members.iter().map(Member::dir_text));
        let output = try_tool(&line);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("check gave no report ({error}): {}", String::from_utf8_lossy(&output.stderr))
        });
        assert!(output.status.success(), "what the drives hold is not sound: {report:#}");
        let vdisks = report["vdisks"].as_array().expect("a list");
        assert!(!vdisks.is_empty(), "with all drives there, vDisks are looked at: {report:#}");
        for vdisk in vdisks {
            let copies =
                vdisk["copies"].as_u64().unwrap_or(0) + vdisk["records_replayed"].as_u64().unwrap_or(0);
            assert!(copies > 0, "the vDisk was written to: {vdisk}");
        }
    }
}

impl Member {
    pub fn dir_text(&self) -> &str {
        self.dir.to_str().expect("the scratch directory has a plain name")
    }

    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "node {} runs once", self.number);
        let stderr = std::fs::File::options().create(true).append(true).open(&self.log);
        let mut command = command(&self.prefix, WEFT);
        command.args(["up", "--dir"]).arg(&self.dir).args(["--drives", "1", "--drive-size", self.drive_size]);
        command.stdout(Stdio::piped()).stderr(stderr.expect("the log of a node can be opened"));
        self.child = Some(command.spawn().expect("weft can be started"));
    }

    pub fn await_ready(&mut self) {
        let child = self.child.as_mut().expect("it was launched");
        if let Err(told) = await_ready(child, &self.log) {
            panic!("node {} did not start: {told}", self.number);
        }
    }

    pub fn start(&mut self) {
        self.launch();
        self.await_ready();
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        end(&mut self.child);
    }

    /// It stands still, and knows nothing of it.
    pub fn suspend(&self) {
        self.begin_to_suspend();
        let Some(child) = &self.child else { return };
        wait_for("all its threads stand still", || match running_threads(child.id()) {
            0 => Ok(()),
            count => Err(format!("{count} go on")),
        });
    }

    /// Its threads go on until they hear of it.
    fn begin_to_suspend(&self) {
        if let Some(child) = &self.child {
            send_signal(child, libc::SIGSTOP);
        }
    }

    pub fn resume(&self) {
        send_signal(self.child.as_ref().expect("it was suspended"), libc::SIGCONT);
    }

    /// As a person stops it; it must go well.
    pub fn stop(&mut self) {
        let line = ["down", "--dir", self.dir_text()];
        succeed(&line, &self.run(&line));
        let code = self.wait_for_the_end();
        assert_eq!(code, Some(0), "a clean stop: {}", read_tail(&self.log));
    }

    /// Its exit code, when it has ended.
    pub fn wait_for_the_end(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("a node that is to end runs");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("a child can be asked") {
                return status.code();
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("node {} did not stop: {}", self.number, read_tail(&self.log));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `weft ARGUMENTS`, where the node is; whatever comes of it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("weft can be run")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&self.prefix, "timeout");
        command.args(["-k", "5", "60", WEFT]).args(arguments);
        command
    }

    pub fn try_weft(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--dir", self.dir_text()]);
        self.run(&all)
    }

    pub fn weft(&self, arguments: &[&str]) -> String {
        succeed(arguments, &self.try_weft(arguments))
    }

    pub fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut all = arguments.to_vec();
        all.push("--json");
        let output = self.try_weft(&all);
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("no JSON: {error}"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        end(&mut self.child);
        if std::thread::panicking() {
            eprintln!("log of node {}: {}", self.number, read_tail(&self.log));
        }
    }
}

/// Its stdout.
fn succeed(line: &[&str], output: &Output) -> String {
    assert!(
        output.status.success(),
        "weft {line:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

/// An etcd of one member.
pub struct Etcd {
    pub url: String,
    peer_url: String,
    dir: PathBuf,
    prefix: Vec<String>,
    child: Option<Child>,
}

impl Etcd {
    fn start(scratch: &Scratch, net: Option<&Net>) -> Self {
        let (prefix, address) = match net {
            None => (Vec::new(), "127.0.0.1".to_string()),
            Some(net) => (net.hub_prefix(), net.hub_address()),
        };
        let url = || format!("http://{address}:{}", free_port());
        let mut etcd = Self { url: url(), peer_url: url(), dir: scratch.file("etcd"), prefix, child: None };
        etcd.launch();
        etcd
    }

    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "etcd runs once");
        let mut command = command(&self.prefix, "etcd");
        command
            .args(["--name", "e", "--log-level", "error", "--logger", "zap"])
            .args(["--listen-client-urls", &self.url, "--advertise-client-urls", &self.url])
            .args(["--listen-peer-urls", &self.peer_url, "--initial-advertise-peer-urls", &self.peer_url])
            .args(["--initial-cluster", &format!("e={}", self.peer_url), "--data-dir"])
            .arg(&self.dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child =
            Some(command.spawn().expect("etcd can be started (scripts/ensure-tools.sh test installs it)"));
        wait_for("etcd is ready", || {
            let child = self.child.as_mut().expect("it was launched");
            let ended = child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "etcd ended by itself: {ended:?}");
            let mut curl = self::command(&self.prefix, "curl");
            let asked = curl.args(["-sf", "-m", "5", &format!("{}/health", self.url)]).output();
            let healthy = asked.is_ok_and(|output| output.status.success());
            if healthy { Ok(()) } else { Err("it does not answer".to_string()) }
        });
    }

    pub fn kill(&mut self) {
        end(&mut self.child);
    }

    /// Another one begins at the same address, with what is in this directory beside the first one's: nothing, or what it
    /// had.
    pub fn replace(&mut self, directory: &str) {
        self.kill();
        self.dir.set_file_name(directory);
        self.launch();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A port below those that the kernel gives to whoever lets it choose, so that a restarted etcd or node finds its own free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + ((std::process::id() * 61 + step) % 10_000) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A client with a book that goes on while the cluster has its troubles.
pub struct Load {
    shared: Arc<Shared>,
    thread: JoinHandle<Checker>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    slowest_us: AtomicU64,
}

impl Load {
    /// The client stays connected to `socket`: an error, or an end of the connection, fails the test.
    pub fn start(mut checker: Checker, socket: &Path) -> Self {
        let mut client = NbdClient::connect_patiently(socket, "v");
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !told.stop.load(Ordering::Acquire) {
                checker.load(&mut client, DEPTH, 16).expect("the connection holds");
                told.slowest_us.fetch_max(checker.take_slowest().as_micros() as u64, Ordering::AcqRel);
                told.answered.fetch_add(16, Ordering::AcqRel);
            }
            while client.in_flight() > 0 {
                checker.take_reply(&mut client).expect("the connection holds");
            }
            client.disconnect();
            checker
        });
        Self { shared, thread }
    }

    /// Waits until so many more requests have been answered.
    pub fn go_on(&self, more: u64) {
        let answered = || self.shared.answered.load(Ordering::Acquire);
        let goal = answered() + more;
        wait_for("the client gets its answers", || {
            assert!(!self.thread.is_finished(), "the client has ended; see above");
            if answered() >= goal { Ok(()) } else { Err(format!("{} of {goal}", answered())) }
        });
    }

    /// The longest that any request took since the last time it was asked, told.
    pub fn tell_pause(&self, what: &str) -> Duration {
        let slowest = Duration::from_micros(self.shared.slowest_us.swap(0, Ordering::AcqRel));
        step(&format!("pause: {:6} ms  {what}", slowest.as_millis()));
        assert!(slowest < Duration::from_secs(60), "clients do not wait for a minute");
        slowest
    }

    pub fn stop(self) -> Checker {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
