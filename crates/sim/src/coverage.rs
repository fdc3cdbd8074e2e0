//! What a run met: how often each fault was done, each judge judged, and each thing of interest happened.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The fault table. Each class can be switched on and off per seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    PowerCutNode,
    PowerCutAll,
    KillNode,
    KillAll,
    PauseNode,
    ClockJump,
    UnreadableBlock,
    FlipInStore,
    FlipOnRead,
    LostWrite,
    MisdirectedWrite,
    SlowDrive,
    HungDrive,
    MissingDrive,
    ReplacedDrive,
    NetworkWeather,
    Partition,
    StoreCut,
    OwnerMove,
    StaleOwner,
    GroupChange,
    DrainDrive,
    DrainNode,
    AddNode,
    Settle,
    FamilyCreate,
    FamilyDrop,
    FamilyGrow,
    ResizeCache,
    /// Where one node at a time may be away while a drive of another is lost.
    AbsentNode,
}

impl Fault {
    pub const ALL: [Fault; 30] = [
        Fault::PowerCutNode,
        Fault::PowerCutAll,
        Fault::KillNode,
        Fault::KillAll,
        Fault::PauseNode,
        Fault::ClockJump,
        Fault::UnreadableBlock,
        Fault::FlipInStore,
        Fault::FlipOnRead,
        Fault::LostWrite,
        Fault::MisdirectedWrite,
        Fault::SlowDrive,
        Fault::HungDrive,
        Fault::MissingDrive,
        Fault::ReplacedDrive,
        Fault::NetworkWeather,
        Fault::Partition,
        Fault::StoreCut,
        Fault::OwnerMove,
        Fault::StaleOwner,
        Fault::GroupChange,
        Fault::DrainDrive,
        Fault::DrainNode,
        Fault::AddNode,
        Fault::Settle,
        Fault::FamilyCreate,
        Fault::FamilyDrop,
        Fault::FamilyGrow,
        Fault::ResizeCache,
        Fault::AbsentNode,
    ];

    /// Whether it can take away a drive's only copy of something for good. Such faults hit one drive
    /// per round, and only where everything has two copies.
    pub fn destroys(self) -> bool {
        matches!(
            self,
            Fault::UnreadableBlock
                | Fault::FlipInStore
                | Fault::FlipOnRead
                | Fault::LostWrite
                | Fault::MisdirectedWrite
                | Fault::ReplacedDrive
        )
    }

    /// Whether a drive that is up may not be heard of for long.
    pub fn keeps_from_telling(self) -> bool {
        !matches!(
            self,
            Fault::PowerCutNode
                | Fault::PowerCutAll
                | Fault::KillNode
                | Fault::KillAll
                | Fault::OwnerMove
                | Fault::Settle
                | Fault::FamilyCreate
                | Fault::FamilyDrop
                | Fault::FamilyGrow
                | Fault::ResizeCache
        )
    }
}

/// Counts of everything. Adding two is what a longer run would have counted.
#[derive(Clone, Default, Debug)]
pub struct Coverage {
    pub seeds: u64,
    pub events: u64,
    pub steps: u64,
    pub virtual_us: u64,
    faults: BTreeMap<Fault, u64>,
    met: BTreeMap<Fault, u64>,
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub fn fault(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// The consequence of an earlier fault was seen by the engine.
    pub fn met(&mut self, fault: Fault) {
        *self.met.entry(fault).or_default() += 1;
    }

    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: &'static str, number: u64) {
        if number > 0 {
            *self.counts.entry(what).or_default() += number;
        }
    }

    pub fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub fn faults(&self, fault: Fault) -> u64 {
        self.faults.get(&fault).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Coverage) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.steps += other.steps;
        self.virtual_us += other.virtual_us;
        for (&fault, &number) in &other.faults {
            *self.faults.entry(fault).or_default() += number;
        }
        for (&fault, &number) in &other.met {
            *self.met.entry(fault).or_default() += number;
        }
        for (&what, &number) in &other.counts {
            *self.counts.entry(what).or_default() += number;
        }
    }

    /// A table for people. `seconds` is what it took, in real time.
    pub fn report(&self, seconds: f64) -> String {
        let mut text = String::new();
        let rate = self.events as f64 / seconds.max(1e-9);
        let _ = writeln!(
            text,
            "{} seeds, {} events ({} engine steps), {:.0} virtual seconds in {:.1} s: {:.0} events/s",
            self.seeds,
            self.events,
            self.steps,
            self.virtual_us as f64 / 1e6,
            seconds,
            rate
        );
        let _ = writeln!(text, "faults:");
        for fault in Fault::ALL {
            if let Some(number) = self.faults.get(&fault) {
                let _ = write!(text, "  {:<22}{number:>10}", format!("{fault:?}"));
                if let Some(met) = self.met.get(&fault) {
                    let _ = write!(text, "   met {met}");
                }
                let _ = writeln!(text);
            }
        }
        let _ = writeln!(text, "covered:");
        for (what, number) in &self.counts {
            let _ = writeln!(text, "  {what:<38}{number:>12}");
        }
        text
    }
}
