//! Nodes of one shard and one drive each, one family on all of them, and what a control plane would tell them.

use super::proxy::Proxy;
use crate::api::PeerStatsView;
use crate::config::cluster::{Deadline, Moment};
use crate::drives::{AreaFile, OpenDrive};
use crate::shard_loop::{
    Answer, Identity, Mail, Mailbox, News, PeerListener, Question, Route, ShardStatistics, Shards,
};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use weft_engine::buffer::Buffer;
use weft_engine::interface::{
    Ceiling, Compression, DriveState, DriveView, FamilyRecord, Geometry, GroupView, Notice, Order, Reply,
    Request, View,
};
use weft_engine::{DriveId, Epoch, FamilyId, GroupId, ShardId};

pub const FAMILY: FamilyId = FamilyId(5);
pub const SIZE: u64 = 64 << 20;
pub const CLUSTER: u64 = 0x1234_5678_9abc;

/// Shards of a node are numbered from a multiple of this on.
const SHARDS_PER_NODE: u32 = 64;

/// Nothing in these tests takes half as long, on any machine.
pub const LONG: Duration = Duration::from_secs(120);

pub struct Cluster {
    pub nodes: Vec<Node>,
    book: Arc<(Mutex<Book>, Condvar)>,
    notices: UnboundedSender<(ShardId, News)>,
    runtime: tokio::runtime::Handle,
    end_runtime: Option<tokio::sync::oneshot::Sender<()>>,
    directory: PathBuf,
}

pub struct Node {
    pub shard: ShardId,
    drive: DriveId,
    /// Of the process that it would be.
    pub life: u64,
    shards: Option<Shards>,
    listener: Option<PeerListener>,
    /// Until when it serves: far away, unless a test makes it a new one.
    pub deadline: Deadline,
    /// Others reach this node through it.
    pub wire: Proxy,
}

/// What the config store would hold, and what was noticed.
struct Book {
    record: FamilyRecord,
    owner: usize,
    mailboxes: BTreeMap<ShardId, Arc<Mailbox>>,
    notices: Vec<(ShardId, Notice)>,
    /// All other news, in the order in which they came.
    news: Vec<(ShardId, News)>,
}

impl Cluster {
    /// `count` nodes; a family with two copies of everything, served by node 0.
    pub fn start(count: usize) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("weft-peer-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a temporary directory can be made");
        let (notices, mut news) = tokio::sync::mpsc::unbounded_channel();
        let record = FamilyRecord {
            family: FAMILY,
            epoch: Epoch(0),
            size: SIZE,
            factor: 2,
            segments: Vec::new(),
            version: 0,
            origin: None,
            rollback: None,
            compression: Compression::default(),
            ceiling: Ceiling::default(),
        };
        let book =
            Book { record, owner: 0, mailboxes: BTreeMap::new(), notices: Vec::new(), news: Vec::new() };
        let book = Arc::new((Mutex::new(book), Condvar::new()));
        let shared = Arc::clone(&book);
        std::thread::spawn(move || {
            while let Some((shard, news)) = news.blocking_recv() {
                let mut book = shared.0.lock().expect("nobody panics");
                match news {
                    News::Engine(notice) => book.on_notice(shard, notice),
                    other => book.news.push((shard, other)),
                }
                shared.1.notify_all();
            }
        });
        let (end_runtime, ended) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(ended));
        let nodes = (0..count as u32).map(|number| Node {
            shard: ShardId(number * SHARDS_PER_NODE),
            drive: DriveId(number),
            life: 0,
            shards: None,
            listener: None,
            deadline: Deadline::new(Moment::now().after(50 * LONG)),
            wire: Proxy::start(),
        });
        let nodes = nodes.collect();
        let end_runtime = Some(end_runtime);
        let mut cluster = Self { nodes, book, notices, runtime: handle, end_runtime, directory };
        for node in 0..count {
            cluster.start_node(node, true);
        }
        cluster.wait_until_all_are_reached();
        cluster.open_family(0);
        cluster
    }

    /// Starts a node; `format`: its drive is a new one.
    pub fn start_node(&mut self, number: usize, format: bool) {
        let node = &mut self.nodes[number];
        node.life += 1;
        let identity = Identity { base: node.shard.0, cluster: CLUSTER, life: node.life };
        let shards = Shards::start(1, identity, Some(node.deadline.clone()), &self.notices);
        let shards = shards.expect("a shard starts");
        let mailbox = Arc::clone(&shards.mailboxes[0]);
        let listener = {
            let _inside = self.runtime.enter();
            let address = "127.0.0.1:0".parse().expect("an address");
            PeerListener::open(address, CLUSTER, shards.mailboxes.clone()).expect("a port is free")
        };
        node.wire.set_target(Some(listener.address()));
        node.shards = Some(shards);
        node.listener = Some(listener);
        let drive = open_drive(&self.directory, node.drive, format);
        let geometry = drive.geometry;
        mailbox.send(Mail::Drive(drive));
        mailbox.send(Mail::Order(Order::OpenDrive {
            drive: node.drive,
            geometry,
            format,
            incarnation: None,
        }));
        let (shard, drive) = (node.shard, node.drive);
        self.book.0.lock().expect("nobody panics").mailboxes.insert(shard, Arc::clone(&mailbox));
        self.wait_for("the drive is ready", shard, |notice| *notice == Notice::DriveReady { drive });
        mailbox.send(Mail::Peers(self.addresses(number)));
        mailbox.send(Mail::Order(Order::View(self.view())));
        self.tell_routes();
    }

    /// Ends a node as abruptly as a thread can be ended: nothing is settled.
    pub fn stop_node(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.wire.set_target(None);
        drop(node.listener.take());
        self.book.0.lock().expect("nobody panics").mailboxes.remove(&node.shard);
        node.shards.take().expect("it runs").stop();
    }

    /// The family is served by this node from now on, in the next epoch.
    pub fn open_family(&mut self, owner: usize) {
        let shard = self.nodes[owner].shard;
        let (record, former) = {
            let mut book = self.book.0.lock().expect("nobody panics");
            book.record.epoch.0 += 1;
            let former = std::mem::replace(&mut book.owner, owner);
            (book.record.clone(), former)
        };
        let epoch = record.epoch;
        if former != owner {
            self.send(former, Mail::Order(Order::CloseFamily { family: FAMILY }));
        }
        self.send(owner, Mail::Order(Order::OpenFamily(record)));
        self.tell_routes();
        self.wait_for(
            "the family is served",
            shard,
            |notice| matches!(notice, Notice::FamilyReady { epoch: ready, .. } if *ready == epoch),
        );
    }

    /// Everything goes into egroups.
    pub fn settle(&self) {
        let owner = self.book.0.lock().expect("nobody panics").owner;
        self.send(owner, Mail::Order(Order::Settle { family: FAMILY }));
        let settled = |notice: &Notice| *notice == Notice::FamilySettled { family: FAMILY };
        self.wait_for("all is settled", self.nodes[owner].shard, settled);
    }

    /// Asks a node, whether it serves the family or not.
    pub fn ask(&self, node: usize, request: Request) -> mpsc::Receiver<Reply> {
        let (to, reply) = mpsc::channel();
        let answer = Answer::new(move |reply| {
            // A test that has failed does not listen any more.
            let _ = to.send(reply);
        });
        self.send(node, Mail::Request { family: FAMILY, request, answer });
        reply
    }

    pub fn write(&self, node: usize, offset: u64, data: &[u8]) {
        let request = Request::Write { offset, data: Buffer::copied(data) };
        let reply = self.ask(node, request).recv_timeout(LONG).expect("a write is answered");
        assert_eq!(reply, Reply::Done, "the write at {offset}");
    }

    pub fn read(&self, node: usize, offset: u64, len: u32) -> Vec<u8> {
        let reply =
            self.ask(node, Request::Read { offset, len }).recv_timeout(LONG).expect("a read is answered");
        let Reply::Data(pieces) = reply else { panic!("the read at {offset}: {reply:?}") };
        pieces.iter().flat_map(|piece| piece.bytes().iter().copied()).collect()
    }

    pub fn statistics(&self, node: usize) -> PeerStatsView {
        self.all_statistics(node).shard.peers
    }

    /// How often a node has answered each node's requests.
    pub fn asked_by(&self, node: usize) -> BTreeMap<u32, u64> {
        self.all_statistics(node).families.remove(&FAMILY).unwrap_or_default().asked_by
    }

    fn all_statistics(&self, node: usize) -> ShardStatistics {
        let (to, answer) = tokio::sync::oneshot::channel();
        self.send(node, Mail::Question(Question::Statistics { details: true, to }));
        answer.blocking_recv().expect("a shard answers")
    }

    pub fn send(&self, node: usize, mail: Mail) {
        let book = self.book.0.lock().expect("nobody panics");
        if let Some(mailbox) = book.mailboxes.get(&self.nodes[node].shard) {
            mailbox.send(mail);
        }
    }

    /// The port of a node, without the wire that can be cut.
    pub fn port(&self, node: usize) -> SocketAddr {
        self.nodes[node].listener.as_ref().expect("it runs").address()
    }

    fn view(&self) -> View {
        let drives = self.nodes.iter().map(|node| {
            let view = DriveView { shard: node.shard, domain: node.drive.0, state: DriveState::Up };
            (node.drive, view)
        });
        let count = self.nodes.len() as u32;
        let groups = (0..count).map(|number| {
            let members = vec![DriveId(number), DriveId((number + 1) % count)];
            (GroupId(number), GroupView { members, former: Vec::new() })
        });
        View { version: 1, drives: drives.collect(), groups: Arc::new(groups.collect()) }
    }

    /// Where a node finds the others.
    pub fn addresses(&self, number: usize) -> BTreeMap<ShardId, SocketAddr> {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != number);
        others.map(|(_, node)| (node.shard, node.wire.address)).collect()
    }

    /// Who serves the family.
    pub fn routes(&self) -> BTreeMap<FamilyId, Route> {
        let book = self.book.0.lock().expect("nobody panics");
        let route = Route { shard: self.nodes[book.owner].shard, epoch: book.record.epoch };
        BTreeMap::from([(FAMILY, route)])
    }

    fn tell_routes(&self) {
        let routes = self.routes();
        for mailbox in self.book.0.lock().expect("nobody panics").mailboxes.values() {
            mailbox.send(Mail::Routes(routes.clone()));
        }
    }

    /// Waits for these news of a node's shard, and takes all that it told until then: in the order in which they came.
    pub fn wait_for_news(&self, node: usize, last: &News) -> Vec<News> {
        let shard = self.nodes[node].shard;
        let deadline = Instant::now() + LONG;
        let mut book = self.book.0.lock().expect("nobody panics");
        loop {
            if book.news.iter().any(|(from, news)| *from == shard && news == last) {
                return book.take_news(shard);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{last:?} of {shard}: not in time; told {:?}", book.news);
            book = self.book.1.wait_timeout(book, left).expect("nobody panics").0;
        }
    }

    /// All other news of a node's shard so far.
    pub fn take_news(&self, node: usize) -> Vec<News> {
        self.book.0.lock().expect("nobody panics").take_news(self.nodes[node].shard)
    }

    /// All nodes reach each other: what was told before that is of the start.
    pub fn wait_until_all_are_reached(&self) {
        for node in 0..self.nodes.len() {
            wait_until(&format!("node {node} reaches all others"), || {
                self.statistics(node).answering + 1 >= self.nodes.len() as u64
            });
        }
        for node in 0..self.nodes.len() {
            self.take_news(node);
        }
    }

    /// Waits for a notice, and takes it.
    fn wait_for(&self, what: &str, shard: ShardId, is_it: impl Fn(&Notice) -> bool) {
        let deadline = Instant::now() + LONG;
        let mut book = self.book.0.lock().expect("nobody panics");
        loop {
            let found = book.notices.iter().position(|(from, notice)| *from == shard && is_it(notice));
            if let Some(found) = found {
                book.notices.remove(found);
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what}: not in time; noticed {:?}", book.notices);
            book = self.book.1.wait_timeout(book, left).expect("nobody panics").0;
        }
    }
}

impl Book {
    fn take_news(&mut self, shard: ShardId) -> Vec<News> {
        self.news.extract_if(.., |(from, _)| *from == shard).map(|(_, news)| news).collect()
    }

    /// The compare-and-set of a config store.
    fn on_notice(&mut self, shard: ShardId, notice: Notice) {
        let Notice::ChangeSegments { family, epoch, version, segments } = notice else {
            return self.notices.push((shard, notice));
        };
        let taken = epoch == self.record.epoch && version == self.record.version + 1;
        if taken {
            self.record.segments = segments;
            self.record.version = version;
        }
        if let Some(mailbox) = self.mailboxes.get(&shard) {
            mailbox.send(Mail::Order(Order::SegmentsChanged { family, epoch, version, taken }));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(shards) = node.shards.take() {
                shards.stop();
            }
        }
        drop(self.end_runtime.take());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn open_drive(directory: &std::path::Path, drive: DriveId, make: bool) -> OpenDrive {
    let geometry = Geometry { log: 32 << 20, data: 256 << 20 };
    let area = |name: &str, len: u64| {
        let path = directory.join(format!("drive-{drive}.{name}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(make).truncate(make).custom_flags(libc::O_DIRECT);
        let file = options.open(path).expect("a drive's file opens");
        file.set_len(len).expect("a file can be as long as a drive");
        AreaFile { file: Arc::new(file), offset: 0 }
    };
    OpenDrive {
        drive,
        geometry,
        log: area("log", geometry.log),
        data: area("data", geometry.data),
        takes_discards: false,
    }
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}
