//! Starting a node: its directory, drives and vDisks, in that order; then serving until it is told to stop.

use super::cache::{self, READ_CACHE_DEFAULT};
use super::drives::{DrivePlan, Found, OwnBook};
use super::refusal::Refusal;
use super::{
    Alone, Control, Family, Part, Serving, SharedControl, Stage, Standing, member, notices, older, server,
    shutdown, snapshots,
};
use crate::api::{API_FILE, RUN_FILE};
use crate::attach;
use crate::config::cluster::ClusterError;
use crate::config::{
    Config, ConfigError, ConfigStore, ContainerRecord, DirectoryLock, DriveRecord, FamilyState, LockError,
    Membership, MembershipError, RedbStore,
};
use crate::descriptors;
use crate::drives::DriveError;
use crate::join::{self, JoinError};
use crate::shard_loop::{Identity, Mail, Shards};
use crate::words::{self, say};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_engine::DriveId;
use weft_engine::FamilyId;
use weft_engine::cluster::whole::WholeGroups;
use weft_engine::interface::Order;

const API_DEFAULT: &str = "127.0.0.1:7070";

/// A start says what it waits for as often as this.
const PATIENCE: Duration = Duration::from_secs(5);

/// A start waits so long for a drive that does not answer, if there are others.
const HANGS_WAIT: Duration = Duration::from_secs(30);
/// While a drive is away and no vDisk has become ready for this long, those that are not are not waited for.
const AWAY_WAIT: Duration = Duration::from_secs(5);

/// A process that ends waits so long for threads that do something for the control plane.
const UNDER_WAY_WAIT: Duration = Duration::from_secs(5);

const SHARDS_MAX: u32 = 64;

/// What `weft up` was told.
#[derive(Debug, Clone)]
pub struct Settings {
    pub dir: PathBuf,
    /// File-backed drives there shall be; None: as many as there are, and one in a new directory.
    pub drives: Option<u32>,
    /// Bytes of each new file-backed drive.
    pub drive_size: u64,
    /// Block devices that shall be drives.
    pub drive_paths: Vec<PathBuf>,
    /// Copies for vDisks that do not ask for a number.
    pub factor: Option<u32>,
    pub shards: u32,
    /// Bytes that all shards together keep in memory for reads, until another size is asked for.
    pub read_cache: u64,
    /// None: 127.0.0.1:7070. Port 0: any that is free.
    pub api: Option<SocketAddr>,
    /// Where a member of a cluster hears other nodes; None: where it did before.
    pub transport: Option<SocketAddr>,
    /// Take devices that hold something else.
    pub force: bool,
    /// Give up drives that are missing, and let others take their place.
    pub replace_lost: bool,
    /// Take records that are older than the node has seen them.
    pub accept_records: bool,
}

impl Settings {
    /// Nothing but a directory.
    pub(super) fn of(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            drives: None,
            drive_size: 0,
            drive_paths: Vec::new(),
            factor: None,
            shards: 1,
            read_cache: READ_CACHE_DEFAULT,
            api: None,
            transport: None,
            force: false,
            replace_lost: false,
            accept_records: false,
        }
    }
}

/// Why a node does not start: one line that says what, why and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    BadInput(String),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Drive(#[from] DriveError),
    #[error(
        "config.redb in {dir} is older than the node has seen it ({starts} starts are missing): somebody has put it back, and what drives have \
         taken since would be lost or mixed up; put the newest back, or, if there is none any more, see `weft up --help` for --accept-records"
    )]
    OlderRecords { dir: PathBuf, starts: u64 },
    #[error("no drive can be used ({first}); nothing can be served")]
    NoDrive { first: String },
    #[error("the API cannot listen on {address}: {source}; choose another address with --api")]
    Api { address: SocketAddr, source: io::Error },
    #[error("cannot {doing}: {source}")]
    Io { doing: String, source: io::Error },
    #[error("{0}")]
    Refused(Refusal),
}

impl From<member::LifeError> for StartError {
    fn from(error: member::LifeError) -> Self {
        match error {
            member::LifeError::Cluster(error) => error.into(),
            member::LifeError::Membership(error) => error.into(),
        }
    }
}

impl From<Refusal> for StartError {
    fn from(refusal: Refusal) -> Self {
        StartError::Refused(refusal)
    }
}

pub(super) fn io_error(doing: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let doing = doing.into();
    move |source| StartError::Io { doing, source }
}

/// Runs a node in this process until a signal or the API stops it.
pub fn run(settings: Settings) -> Result<(), StartError> {
    check(&settings)?;
    std::fs::create_dir_all(&settings.dir)
        .map_err(io_error(format!("make the directory {}", settings.dir.display())))?;
    let dir = settings.dir.canonicalize().map_err(io_error(format!("use {}", settings.dir.display())))?;
    let lock = Arc::new(DirectoryLock::take(&dir)?);
    attach::serves_block_devices();
    descriptors::raise_limit();
    for line in attach::clean_up(&dir) {
        tracing::warn!("{line}");
    }
    if let Some(membership) = Membership::read(&dir)? {
        return member::start::run(&settings, &dir, &lock, membership);
    }
    join::refuse_unfinished(&dir)?;
    if settings.transport.is_some() {
        let line = format!("{} is no member of a cluster, so nobody is heard by --transport", dir.display());
        return Err(StartError::BadInput(line));
    }
    let listener = bind_api(settings.api)?;
    let mut store = RedbStore::open(&dir, true)?;
    let mut config = store.load()?;
    if config.node.node == 0 {
        config.node.node = rand::random::<u64>() | 1;
    }
    older::count_start(&dir, &mut store, &mut config, settings.accept_records)?;
    if !config.containers.iter().any(ContainerRecord::is_default) {
        // Also of a directory that an older version made.
        let default = ContainerRecord::default();
        store.put_container(&default)?;
        config.containers.push(default);
    }
    let renamed = config.name_snapshots_apart();
    if !renamed.is_empty() {
        store.put_snapshots(&renamed)?;
    }
    let mut book = OwnBook { store: &mut store, node: &mut config.node };
    let plan = DrivePlan::make(&dir, &settings, &mut config.drives, &mut book)?;
    run_to_its_end(async {
        let (to_control, news) = tokio::sync::mpsc::unbounded_channel();
        let shards = Shards::start(settings.shards, Identity::default(), None, &to_control)
            .map_err(io_error("start a shard"))?;
        let control = assemble(&settings, &dir, Box::new(store), config, &plan, &shards);
        tokio::spawn(notices::listen(control.clone(), news));
        tokio::spawn(snapshots::look_after(control.clone()));
        let begin = start(&control, &settings, plan);
        serve(&control, shards, &dir, listener, begin).await
    })
}

/// Runs the control plane to its end. What is still under way on other threads then, such as making a large drive, is not waited for
/// long: it is as if the process had been killed.
pub(super) fn run_to_its_end(work: impl Future<Output = Result<(), StartError>>) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io_error("start the control plane"))?;
    let ended = runtime.block_on(work);
    runtime.shutdown_timeout(UNDER_WAY_WAIT);
    ended
}

/// Early: an address that is taken is told before drives are made.
pub(super) fn bind_api(wanted: Option<SocketAddr>) -> Result<std::net::TcpListener, StartError> {
    let address = wanted.unwrap_or_else(|| API_DEFAULT.parse().expect("the default is an address"));
    let listener =
        std::net::TcpListener::bind(address).map_err(|source| StartError::Api { address, source })?;
    listener.set_nonblocking(true).map_err(|source| StartError::Api { address, source })?;
    Ok(listener)
}

fn check(settings: &Settings) -> Result<(), StartError> {
    let bad = |line: String| Err(StartError::BadInput(line));
    if settings.shards == 0 || settings.shards > SHARDS_MAX {
        return bad(format!(
            "{} shards are not possible: choose 1 to {SHARDS_MAX} (--shards)",
            settings.shards
        ));
    }
    if let Some(factor) = settings.factor
        && !(1..=3).contains(&factor)
    {
        return bad(format!("{factor} copies are not possible: choose 1, 2 or 3 (--rf)"));
    }
    cache::check_size(settings.read_cache)?;
    Ok(())
}

/// Serves the API, runs `begin` until the node is ready, and goes on until it is told to stop.
pub(super) async fn serve(
    control: &SharedControl,
    shards: Shards,
    dir: &Path,
    listener: std::net::TcpListener,
    begin: impl Future<Output = Result<(), StartError>>,
) -> Result<(), StartError> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(io_error("serve the API"))?;
    let address = listener.local_addr().map_err(io_error("serve the API"))?;
    let api = tokio::spawn(server::serve(listener, server::router(control.clone())));
    tokio::spawn(super::exports::look_after(control.clone()));
    // Watched from here on, so that a start that takes long can be ended too.
    let mut signals = Signals::new().map_err(io_error("listen for signals"))?;
    let stop = Arc::clone(&control.lock().stop);
    let started = tokio::select! {
        started = begin => started.and_then(|()| write_api_file(dir, address, &control.lock().run)).map(|()| true),
        () = signals.wait() => Ok(false),
        () = stop.notified() => Ok(false),
    };
    match started {
        Err(error) => {
            shutdown::stop(control, shards).await;
            return Err(error);
        }
        Ok(false) => {}
        Ok(true) => {
            words::to_stdout(format_args!("{}", ready_line(control, address)));
            tokio::select! {
                () = signals.wait() => {}
                () = stop.notified() => {}
            }
        }
    }
    say!("weft: stopping; what was acknowledged is safe");
    tokio::select! {
        () = shutdown::stop(control, shards) => {}
        () = signals.wait_for_another() => {
            say!("weft: stopped at once; the next start replays what was not settled");
            words::last_words();
            // Not by way of what is still under way: it may wait for a drive that never answers.
            std::process::exit(0);
        }
    }
    api.abort();
    match control.lock().ended_by.take() {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

fn assemble(
    settings: &Settings,
    dir: &Path,
    store: Box<dyn ConfigStore>,
    config: Config,
    plan: &DrivePlan,
    shards: &Shards,
) -> SharedControl {
    // Drives are dealt to the shards in turn.
    let keeper = |record: &DriveRecord| record.drive as usize % shards.mailboxes.len();
    let drives = plan.drives(&config.drives, keeper);
    let families = config
        .families
        .into_iter()
        .map(|config| {
            let serving =
                if config.state == FamilyState::Dropping { Serving::Dropping } else { Serving::Opening };
            (config.id(), Family { config, serving, export_trouble: BTreeMap::new() })
        })
        .collect();
    let mut whole = WholeGroups::default();
    for group in config.groups.iter().filter(|group| !group.former.is_empty()) {
        // The first view of this life tells of them.
        whole.changed(group.id(), 1);
    }
    let alone = Alone {
        store,
        node: config.node,
        groups: config.groups.into_iter().map(|group| (group.id(), group)).collect(),
        snapshots: config.snapshots.into_iter().map(|record| (record.key(), record)).collect(),
        schedules: config.schedules.into_iter().map(|record| (FamilyId(record.family), record)).collect(),
        consistency: config.consistency.into_iter().map(|group| (group.name.clone(), group)).collect(),
        containers: config.containers.into_iter().map(|record| (record.name.clone(), record)).collect(),
        whole,
        view_version: 0,
        failures: BTreeMap::new(),
        reached: BTreeMap::new(),
        left_out: BTreeSet::new(),
    };
    let factor = settings.factor.unwrap_or(if plan.kept() >= 2 { 2 } else { 1 });
    let mut control = Control::new(dir, factor, Part::Alone(Box::new(alone)), &shards.mailboxes, drives);
    control.families = families;
    control.set_read_cache(settings.read_cache);
    SharedControl::new(control)
}

/// Opens drives, then vDisks, then exports.
async fn start(control: &SharedControl, settings: &Settings, plan: DrivePlan) -> Result<(), StartError> {
    open_drives(control, plan).await;
    {
        let mut control = control.lock();
        if control.drives_up().is_empty() {
            let first = control
                .drives
                .iter()
                .find_map(|(id, drive)| match &drive.standing {
                    Standing::Down(reason) => Some(format!("drive {id}: {reason}")),
                    _ => None,
                })
                .unwrap_or_else(|| "there is none".to_string());
            return Err(StartError::NoDrive { first });
        }
        if control.factor as usize > control.drives_kept() {
            let (factor, kept) = (control.factor, control.drives_kept());
            return Err(StartError::BadInput(format!(
                "{factor} copies (--rf) need {factor} drives, and there are {kept}; add drives (--drives {factor}) or \
                 choose fewer copies"
            )));
        }
        let mut factors: BTreeSet<u32> =
            control.families.values().map(|family| control.policy(&family.config).factor).collect();
        factors.insert(control.factor);
        factors.extend(control.part.alone().groups.values().map(|group| group.factor));
        for factor in factors {
            control.arrange_groups(factor)?;
        }
        control.send_view();
        control.tell_census();
        let all: Vec<_> = control.families.iter().map(|(&id, family)| (id, family.config.state)).collect();
        for (family, state) in all {
            match state {
                FamilyState::Live => control.open_family(family)?,
                FamilyState::Dropping => control.drop_family(family)?,
            }
        }
    }
    let (mut since, mut least) = (Instant::now(), usize::MAX);
    wait_patiently(control, "vDisks are being opened", |control| {
        // One that waits for the store is not waited for: it is served when the store takes its records.
        let waits = |family: &FamilyId| control.segment_wishes.iter().any(|wish| wish.family == *family);
        let opening = control.families.iter().filter(|(_, entry)| entry.serving == Serving::Opening);
        let left = opening.filter(|(family, _)| !waits(family)).count();
        if left < least {
            (since, least) = (Instant::now(), left);
        }
        // What some need may be on a drive that is away or hangs. The others do not wait for it: it is exported when it is served.
        let is_away = control.drives.values().any(|drive| drive.standing.is_away());
        let may_be_away = is_away || !control.hanging.is_empty();
        if since.elapsed() >= AWAY_WAIT && may_be_away { 0 } else { left }
    })
    .await;
    let mut control = control.lock();
    control.restore_exports();
    control.stage = Stage::Ready;
    for line in control.trouble() {
        say!("weft: {line}");
    }
    if settings.factor.is_none() && control.factor == 1 {
        tracing::debug!("one copy of everything: a lost drive loses data");
    }
    Ok(())
}

/// Opens drives, and waits until each is in use or known not to be usable.
pub(super) async fn open_drives(control: &SharedControl, plan: DrivePlan) {
    control.lock().begin_opening(plan);
    wait_patiently(control, "drives are being opened", |control| {
        // One that hangs is not waited for for ever, if there are others: it is used when it answers.
        let has_others = !control.drives_up().is_empty();
        let is_waited_for = |id: &DriveId| {
            let since = control.hanging.get(id).filter(|_| has_others);
            since.is_none_or(|since| since.elapsed() < HANGS_WAIT)
        };
        let opening = control.drives.iter().filter(|(_, drive)| drive.standing == Standing::Opening);
        opening.filter(|(id, _)| is_waited_for(id)).count()
    })
    .await;
    let control = control.lock();
    for (id, _) in control.drives.iter().filter(|(_, drive)| drive.standing == Standing::Opening) {
        say!("weft: drive {id} does not answer; the node starts without it, and uses it when it does");
    }
}

/// Waits until nothing is left, and says now and then how many are.
async fn wait_patiently(control: &SharedControl, what: &str, mut left: impl FnMut(&mut Control) -> usize) {
    loop {
        let done = control.wait_for(PATIENCE, |control| (left(control) == 0).then_some(())).await;
        if done.is_some() {
            return;
        }
        let count = left(&mut control.lock());
        say!("weft: {what}: {count} left");
    }
}

impl Control {
    pub(super) fn begin_opening(&mut self, plan: DrivePlan) {
        for (drive, found) in plan.found {
            if let Found::Open { open, format } = found {
                let geometry = open.geometry;
                let entry = &self.drives[&drive];
                // What is looked at from here may not have answered in time: the keeper sees what it is given.
                let incarnation = entry.record.incarnation;
                let keeper = self.keeper(entry);
                keeper.send(Mail::Drive(open));
                keeper.send(Mail::Order(Order::OpenDrive { drive, geometry, format, incarnation }));
            }
        }
    }
}

/// Whole or not at all: who reads it while it is written gets nothing, not half an address.
fn write_api_file(dir: &Path, address: SocketAddr, run: &str) -> Result<(), StartError> {
    // The address last: whoever finds it finds the run that has it.
    for (file, text) in [(RUN_FILE, run.to_string()), (API_FILE, address.to_string())] {
        let (path, new) = (dir.join(file), dir.join("api.new"));
        std::fs::write(&new, format!("{text}\n"))
            .and_then(|()| std::fs::rename(&new, &path))
            .map_err(io_error(format!("write {}", path.display())))?;
    }
    Ok(())
}

fn ready_line(control: &SharedControl, address: SocketAddr) -> String {
    let control = control.lock();
    let (up, all) = (control.drives_up().len(), control.drives_kept());
    let vdisks = control.families.values().filter(|family| family.serving != Serving::Dropping).count();
    if let Some(member) = control.part.member() {
        return format!("weft is ready: {}, API http://{address}, drives up {up} of {all}", member.who());
    }
    let meaning = match control.factor {
        1 => "RF 1: each block is kept once, so a lost drive loses data".to_string(),
        factor => {
            format!("RF {factor}: each block is kept on {factor} drives, so {} may be lost", factor - 1)
        }
    };
    // What holds for new vDisks need not hold for those that are there.
    let fewer = control.families.values().filter(|family| family.config.factor < control.factor).count();
    let meaning = match fewer {
        0 => meaning,
        _ => format!("{meaning} (not of {fewer} vDisks, which want fewer copies: `weft vdisk ls`)"),
    };
    let meaning = if up < all { format!("{meaning}; while drives are away, fewer") } else { meaning };
    format!("weft is ready: API http://{address}, drives up {up} of {all}, vDisks {vdisks}; {meaning}")
}

/// A signal that comes sooner behind the first one is the same wish.
const SECOND_SIGNAL: Duration = Duration::from_secs(1);

/// SIGINT, SIGTERM, and SIGHUP: the terminal that it was started from goes.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// None if it is ignored (`nohup`): then it stays so.
    hangup: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let hangup = if is_ignored(libc::SIGHUP) { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {}
        }
    }

    /// Somebody asks again, and means it: a terminal that goes away, a session that ends and a script that passes a signal on
    /// say the same twice in one go.
    async fn wait_for_another(&mut self) {
        let said = Instant::now();
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
            if said.elapsed() >= SECOND_SIGNAL {
                return;
            }
        }
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all zeros is valid for this plain struct, which the call only fills in: nothing is set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
