//! Real etcd processes on free ports of the loopback, with their data in a temporary directory.

use crate::wait_for;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use weft_node::config::cluster::ClusterStore;
use weft_node::config::etcd::Etcd;

/// One member. Dropped, it is killed and its directory removed.
pub struct Server {
    dir: PathBuf,
    name: String,
    client_port: u16,
    peer_port: u16,
    /// Where it waits for other members.
    peer_listen: u16,
    /// `name=peer address` of all members.
    members: String,
    process: Option<Child>,
}

/// Of all directories and ports of this test process.
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Ports below those that the kernel gives to connections, so that a restarted member finds its own free.
fn free_port() -> u16 {
    loop {
        let step = COUNTER.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + ((std::process::id() * 97 + step) % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub fn temporary_directory(name: &str) -> PathBuf {
    let step = COUNTER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("weft-etcd-{}-{step}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
    dir
}

impl Server {
    /// An etcd of one member, ready to be asked.
    pub fn start() -> Self {
        let mut server = Self::cluster(1).pop().expect("one was asked for");
        server.launch();
        server.wait_until_ready();
        server
    }

    /// Members that know each other, not running yet.
    pub fn cluster(count: usize) -> Vec<Self> {
        let mut servers: Vec<Self> = (0..count)
            .map(|at| {
                let peer_port = free_port();
                Self {
                    dir: temporary_directory("member"),
                    name: format!("m{at}"),
                    client_port: free_port(),
                    peer_port,
                    peer_listen: peer_port,
                    members: String::new(),
                    process: None,
                }
            })
            .collect();
        let member = |server: &Self| format!("{}=http://127.0.0.1:{}", server.name, server.peer_port);
        let members = servers.iter().map(member).collect::<Vec<_>>().join(",");
        for server in &mut servers {
            server.members = members.clone();
        }
        servers
    }

    /// An empty etcd of one member that was made with the same words, and so has the same id.
    pub fn twin(&self) -> Self {
        let mut twin = Self {
            dir: temporary_directory("twin"),
            name: self.name.clone(),
            client_port: free_port(),
            peer_port: self.peer_port,
            peer_listen: free_port(),
            members: self.members.clone(),
            process: None,
        };
        twin.launch();
        twin.wait_until_ready();
        twin
    }

    pub fn launch(&mut self) {
        assert!(self.process.is_none(), "a member runs once");
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new("etcd");
        command
            .args(["--name", &self.name, "--log-level", "error", "--logger", "zap"])
            .args(["--listen-client-urls", &url(self.client_port)])
            .args(["--advertise-client-urls", &url(self.client_port)])
            .args(["--listen-peer-urls", &url(self.peer_listen)])
            .args(["--initial-advertise-peer-urls", &url(self.peer_port)])
            .args(["--initial-cluster", &self.members])
            .arg("--data-dir")
            .arg(self.dir.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: only an async-signal-safe call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // It shall not outlive a test that is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        self.process =
            Some(command.spawn().expect("etcd can be started (scripts/ensure-tools.sh test installs it)"));
    }

    pub fn wait_until_ready(&mut self) {
        let etcd = self.client();
        wait_for("etcd is ready", || {
            let process = self.process.as_mut().expect("it was launched");
            let ended = process.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "etcd ended by itself: {ended:?}");
            etcd.get("/ready").ok()
        });
    }

    /// As by a crash: kill -9.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a child can be killed");
            process.wait().expect("a child can be waited for");
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        self.launch();
        self.wait_until_ready();
    }

    /// Copies what it has now, under a name; for those that use it it has crashed.
    pub fn copy(&mut self, name: &str) {
        self.kill();
        copy_into(&self.dir.join("data"), &self.dir.join(name));
        self.launch();
        self.wait_until_ready();
    }

    /// It goes on with what was copied.
    pub fn put_back(&mut self, name: &str) {
        self.kill();
        std::fs::remove_dir_all(self.dir.join("data")).expect("it is there");
        copy_into(&self.dir.join(name), &self.dir.join("data"));
        self.launch();
        self.wait_until_ready();
    }

    pub fn port(&self) -> u16 {
        self.client_port
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    /// A client of its own: its requests are counted by itself.
    pub fn client(&self) -> Etcd {
        client(&[self.endpoint()])
    }

    /// A new, empty cluster in this etcd.
    pub fn new_cluster(&self) -> ClusterStore {
        let store = ClusterStore::new(self.client(), "test").expect("it is a name");
        store.init(77).expect("an empty cluster is made");
        store
    }

    /// Forgets all revisions before this one.
    pub fn compact(&self, revision: u64) {
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        ureq::post(&format!("{}/v3/kv/compaction", self.endpoint()))
            .send_string(&body)
            .expect("etcd compacts what is behind it");
    }
}

fn copy_into(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.is_ok_and(|status| status.success()), "a directory can be copied");
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Asks the first of them first.
pub fn client(endpoints: &[String]) -> Etcd {
    Etcd::beginning_with(endpoints, 0).expect("these are endpoints")
}
