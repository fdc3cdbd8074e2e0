//! Starting a member: its directory, etcd, its drives, its lease; then following the store.

use super::life::Beginning;
use super::nodes::ClusterBook;
use super::{Member, jobs, life, mirror};
use crate::config::cluster::{ClusterError, ClusterStore, Deadline, Moment, NodeState, OLDER_WAIT};
use crate::config::etcd::{Etcd, EtcdError};
use crate::config::{DirectoryLock, DriveRecord, Membership, MembershipStage};
use crate::control::drives::DrivePlan;
use crate::control::start::{self, Settings, StartError, io_error};
use crate::control::{Control, Part, SharedControl, Stage, member, notices};
use crate::join;
use crate::shard_loop::{Identity, PeerListener, Shards};
use crate::words::say;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_engine::cluster::detection::LEASE_US;
use weft_engine::interface::View;

/// Etcd may be starting at the same time as its nodes.
const ETCD_WAIT: Duration = Duration::from_secs(60);
const ETCD_PAUSE: Duration = Duration::from_millis(500);

/// The cluster knows of this node's drives within this time.
const ANNOUNCE_WAIT: Duration = Duration::from_secs(10);

/// The lease of a life that has ended is over before.
const OTHER_WAIT: Duration = Duration::from_micros(3 * LEASE_US);

/// Copies of a new vDisk for which nobody has said a number.
const FACTOR: u32 = 2;

/// Runs a member in this process until a signal or the API stops it.
pub fn run(
    settings: &Settings,
    dir: &Path,
    lock: &Arc<DirectoryLock>,
    membership: Membership,
) -> Result<(), StartError> {
    check(settings, dir, &membership)?;
    let etcd = Etcd::new(&membership.endpoints).map_err(ClusterError::from)?;
    let store = ClusterStore::new(etcd, &membership.cluster)?.expecting(membership.id);
    let store = store.remembering(dir, membership.id)?;
    wait_for_etcd(&store, membership.id)?;
    let etcd = store.etcd().clone();
    // Beside the start: a member that does not answer takes seconds.
    std::thread::spawn(move || match etcd.look_at_all() {
        Ok(notes) => notes.iter().for_each(|note| tracing::info!("{note}")),
        Err(error) => tracing::warn!(%error, "one of the addresses of etcd is wrong"),
    });
    ask_again(&store, || store.make_default_container())?;
    let node = membership.node;
    let removed = ClusterError::NodeRemoved { node };
    // Before anything is done in the node's name: a copy of a directory must not tell others where it is to be found.
    wait_for_other(&store, &membership, lock)?;
    let known = store.node(node)?.filter(|known| known.record.state != NodeState::Removed);
    let record = known.ok_or(removed)?.record;
    let api = start::bind_api(Some(settings.api.map_or_else(|| address_of(&record.api), Ok)?))?;
    let drives = store.load()?.drives;
    let mut records: Vec<DriveRecord> = drives
        .into_values()
        .map(|drive| drive.record)
        .filter(|drive| drive.node == node && drive.state != crate::config::DriveRecordState::Lost)
        .collect();
    let plan = {
        let dealt = records.len() as u32;
        let mut book = ClusterBook { store: &store, node, shards: record.shards, dealt };
        DrivePlan::make_for_member(dir, settings, &mut records, &mut book)?
    };
    let transport = record.transport.first().map_or_else(|| "127.0.0.1:0".to_string(), String::clone);
    let transport = settings.transport.map_or_else(|| address_of(&transport), Ok)?;
    start::run_to_its_end(async {
        let (to_control, news) = tokio::sync::mpsc::unbounded_channel();
        let (losses, lost) = tokio::sync::mpsc::unbounded_channel();
        let (jobs, to_do) = tokio::sync::mpsc::unbounded_channel();
        // Counted where a copy of the directory counts on, and before anybody is called.
        let life = store.change_node(node, |record| record.starts += 1)?.record.starts;
        let identity = Identity { base: member::shard_base(node), cluster: membership.id, life };
        // Until the node has its lease nothing is served.
        let lease = Some(Deadline::new(Moment(0)));
        let shards =
            Shards::start(record.shards, identity, lease, &to_control).map_err(io_error("start a shard"))?;
        let listener = PeerListener::open(transport, membership.id, shards.mailboxes.clone())
            .map_err(io_error(format!("listen for other nodes at {transport} (see `weft node ls`; if this machine has another address now, say it with --transport)")))?;
        // A port that was free to choose is known only now. Others look for the node there as soon as it lives.
        let here = listener.address().to_string();
        let api_address = api.local_addr().map_err(io_error("serve the API"))?.to_string();
        let known = store.change_node(node, |record| {
            record.transport = vec![here.clone(); record.shards as usize];
            record.api.clone_from(&api_address);
        })?;
        let config = store.load()?;
        let follower = store.follow();
        let part = Member {
            node,
            name: known.record.name,
            dir: dir.to_path_buf(),
            lock: Arc::clone(lock),
            membership: membership.clone(),
            jobs,
            chores: jobs::Chores::default(),
            losses: losses.clone(),
            life: None,
            announcing: life::Announcing::default(),
            attachments_at: None,
            mirror: Arc::new(config),
            older_records: None,
            unreachable: BTreeMap::new(),
            cuts: BTreeMap::new(),
            poor_ways: BTreeMap::new(),
            cut_off: super::cut_off::CutOff::default(),
            view: View::default(),
            peers: BTreeMap::new(),
            routes: None,
            served: BTreeMap::new(),
            failures: BTreeMap::new(),
            whole: BTreeMap::new(),
            repair: None,
            leadership: None,
            _listener: listener,
            store: store.clone(),
        };
        let keeper = |record: &DriveRecord| (record.shard % shards.mailboxes.len() as u32) as usize;
        let drives = plan.drives(&records, keeper);
        let mut beginning = Beginning {
            store: store.clone(),
            membership,
            dir: dir.to_path_buf(),
            lock: Arc::clone(lock),
            losses,
        };
        let factor = settings.factor.unwrap_or(FACTOR);
        let mut control = Control::new(dir, factor, Part::Member(Box::new(part)), &shards.mailboxes, drives);
        control.set_read_cache(settings.read_cache);
        let control = SharedControl::new(control);
        tokio::spawn(notices::listen(control.clone(), news));
        tokio::spawn(jobs::run(control.clone(), store, to_do));
        let begin = async {
            start::open_drives(&control, plan).await;
            // Not before: whoever lives is given vDisks, and on large drives that turn an opening takes longer than others should wait.
            // By then etcd may have gone again, for a moment: that is no reason to read all tables once more.
            let (until, mut is_told) = (Instant::now() + ETCD_WAIT, false);
            let living = loop {
                let begun = beginning.begin().await;
                let begun = begun.map_err(|error| io_error("begin a life")(std::io::Error::other(error)))?;
                let error = match begun {
                    Ok(living) => break living,
                    Err(error) => error,
                };
                let is_final = matches!(&error, life::LifeError::Cluster(error) if life::is_final(error));
                if matches!(&error, life::LifeError::Cluster(error) if error.is_of_older_records()) {
                    // All of the records say whether it is.
                    let store = beginning.store.clone();
                    let _ = tokio::task::spawn_blocking(move || store.load().map(drop)).await;
                }
                if is_final || Instant::now() >= until {
                    return Err(error.into());
                }
                if !std::mem::replace(&mut is_told, true) {
                    say!("weft: this node is not in the cluster yet, and tries again: {error}");
                }
                tokio::time::sleep(ETCD_PAUSE).await;
            };
            control.lock().begin_life(living, beginning.membership);
            // Not before: who loses one that could not be begun would begin the next beside us, and both count their lives.
            tokio::spawn(life::keep(control.clone(), lost));
            {
                let mut control = control.lock();
                control.stage = Stage::Ready;
                control.reconcile();
                for line in control.trouble() {
                    say!("weft: {line}");
                }
            }
            // Whoever lives is given vDisks, and follows what is said of them.
            tokio::spawn(mirror::follow(control.clone(), follower));
            tokio::spawn(mirror::tick(control.clone()));
            // Ready is who is known to the others. Should etcd have gone meanwhile, they hear of it later.
            let is_told = |control: &mut Control| {
                control.part.member().is_some_and(super::Member::is_announced).then_some(())
            };
            let _ = control.wait_for(ANNOUNCE_WAIT, is_told).await;
            tokio::spawn(super::controller::run(control.clone()));
            tokio::spawn(crate::control::snapshots::look_after(control.clone()));
            tokio::spawn(super::cut_off::watch(control.clone()));
            tokio::spawn(super::locality::watch(control.clone()));
            Ok(())
        };
        start::serve(&control, shards, dir, api, begin).await
    })
}

/// Refuses what makes no sense for a member.
fn check(settings: &Settings, dir: &Path, membership: &Membership) -> Result<(), StartError> {
    let bad = |line: String| Err(StartError::BadInput(line));
    if membership.stage == MembershipStage::Importing {
        return bad(format!(
            "{} is being moved into the cluster {}; finish that first with `weft cluster init --name {} --dir {}`",
            dir.display(),
            membership.cluster,
            membership.cluster,
            dir.display()
        ));
    }
    if settings.accept_records {
        return bad("the records of a cluster are accepted for all of its nodes: `weft cluster accept-records`, not with \
                    --accept-records"
            .to_string());
    }
    if settings.replace_lost {
        return bad("a node of a cluster gives drives up with `weft drive remove DRIVE --lost`, not with \
                    --replace-lost"
            .to_string());
    }
    // From wherever they come: from here on the cluster is told them.
    Ok(join::check_addresses(settings.api, settings.transport)?)
}

fn address_of(text: &str) -> Result<SocketAddr, StartError> {
    text.parse().map_err(|_| StartError::BadInput(format!("the node's record has {text:?} for an address")))
}

/// The node may have lived elsewhere until a moment ago: a machine that was started anew, a directory that was moved.
fn wait_for_other(
    store: &ClusterStore,
    membership: &Membership,
    lock: &DirectoryLock,
) -> Result<(), StartError> {
    let until = Instant::now() + OTHER_WAIT;
    let mut is_told = false;
    loop {
        let may_begin = || store.may_begin(membership.node, &lock.place(), membership.former_life());
        match ask_again(store, may_begin) {
            Ok(()) => return Ok(()),
            Err(error @ ClusterError::AliveElsewhere { .. }) if Instant::now() < until => {
                if !is_told {
                    say!("weft: waiting for a lease to end: {error}");
                    is_told = true;
                }
                std::thread::sleep(ETCD_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether somebody may say something better: a member of etcd that does not answer yet, or the same one a moment later.
fn may_pass(store: &ClusterStore, error: &ClusterError, older_since: Option<Instant>) -> bool {
    match error {
        ClusterError::Etcd(EtcdError::Unreachable { .. } | EtcdError::NoQuorum { .. }) => true,
        error if error.is_of_older_records() => {
            older_since.is_none_or(|since| since.elapsed() < OLDER_WAIT) || is_one_silent(store)
        }
        // By one that came up empty, perhaps.
        ClusterError::NoCluster { .. } | ClusterError::OtherCluster { .. } => is_one_silent(store),
        _ => false,
    }
}

/// Whether a member of etcd does not answer yet that may know better than the others.
fn is_one_silent(store: &ClusterStore) -> bool {
    let etcd = store.etcd();
    etcd.look_everywhere("/").is_ok_and(|pages| pages.len() < etcd.endpoints().len())
}

/// Asks once more where the first answer was old and, as all of the records say, etcd is not.
fn ask_again<T>(store: &ClusterStore, ask: impl Fn() -> Result<T, ClusterError>) -> Result<T, ClusterError> {
    match ask() {
        Err(error) if error.is_of_older_records() => {
            store.load()?;
            ask()
        }
        answer => answer,
    }
}

fn wait_for_etcd(store: &ClusterStore, id: u64) -> Result<(), StartError> {
    let began = Instant::now();
    let mut older_since = None;
    let mut is_told = false;
    loop {
        // All of it: what says that it is older may be in any record.
        match store.check(id).and_then(|_| store.load()) {
            Ok(_) => {
                store.keep_seen();
                return Ok(());
            }
            Err(error) if began.elapsed() < ETCD_WAIT && may_pass(store, &error, older_since) => {
                older_since = error.is_of_older_records().then(|| older_since.unwrap_or_else(Instant::now));
                if !is_told {
                    say!("weft: waiting for etcd: {error}");
                    is_told = true;
                }
                std::thread::sleep(ETCD_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
