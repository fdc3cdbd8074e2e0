//! Following the store: what it says becomes what this node knows, and then what it does.

use super::{Member, Phase};
use crate::config::cluster::{ClusterError, News, NodeState};
use crate::config::{FamilyConfig, FamilyState};
use crate::control::{Control, Family, Serving, SharedControl};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use weft_engine::FamilyId;

/// What is to be tried again, or has waited long enough, is looked at so often.
const TICK: Duration = Duration::from_millis(250);

/// Takes news as they come.
pub async fn follow(control: SharedControl, mut news: Receiver<News>) {
    while let Some(first) = news.recv().await {
        let mut control = control.lock();
        let Some(member) = control.part.member_mut() else { return };
        member.take(first);
        // What came together is done together.
        while let Ok(next) = news.try_recv() {
            member.take(next);
        }
        match &member.older_records {
            None => {}
            Some(ClusterError::RecordsAccepted { name }) => {
                let name = name.clone();
                member.end_deadline();
                control.end(ClusterError::RecordsAccepted { name });
                return;
            }
            Some(error) => member.end_life_by_older_records(error),
        }
        member.note_repair();
        if member.is_removed() {
            let node = member.node;
            control.end(ClusterError::NodeRemoved { node });
        }
        control.reconcile();
        control.changed.notify_waiters();
    }
}

/// Looks after what no news tell of.
pub async fn tick(control: SharedControl) {
    loop {
        tokio::time::sleep(TICK).await;
        let mut control = control.lock();
        control.announce();
        control.look_after_families();
        control.look_after_strays();
        control.look_after_attachments();
    }
}

impl Member {
    fn take(&mut self, news: News) {
        match news {
            News::Loaded(config) => {
                self.mirror = Arc::new(*config);
                self.older_records = None;
            }
            // What is known stays as it is: it is the newest that there is.
            News::Older(error) => self.older_records = Some(error),
            News::Changed { revision, changes } => {
                Arc::make_mut(&mut self.mirror).apply(revision, changes);
            }
        }
    }
}

impl Control {
    /// Compares what the store says with what this node does, and does what is missing. Harmless at any time.
    pub(in crate::control) fn reconcile(&mut self) {
        if self.part.member().is_none() {
            return;
        }
        self.take_families_over();
        self.forget_drives();
        self.tell_peers();
        // The view first: an owner begins with one that is no older than its family's record.
        self.tell_view();
        self.tell_census();
        self.silence_devices();
        self.reconcile_families();
        self.tell_routes();
        self.reconcile_exports();
        self.reconcile_attachments();
        self.order_snapshots();
    }

    /// The list of vDisks, as the API shows it.
    fn take_families_over(&mut self) {
        let Some(member) = self.part.member() else { return };
        let mut families = BTreeMap::new();
        for (&id, record) in &member.mirror.families {
            let former = self.families.remove(&id);
            let export_trouble = former.map(|former| former.export_trouble).unwrap_or_default();
            let serving = member.serving(id, &record.record);
            families.insert(id, Family { config: record.record.clone(), serving, export_trouble });
        }
        self.families = families;
    }

    /// How one vDisk is served has changed here.
    pub(super) fn note_serving(&mut self, family: FamilyId) {
        let Some(member) = self.part.member() else { return };
        if let Some(entry) = self.families.get_mut(&family) {
            entry.serving = member.serving(family, &entry.config);
        }
    }
}

impl Member {
    fn is_removed(&self) -> bool {
        let state = self.mirror.nodes.get(&self.node).map(|node| node.record.state);
        state.is_none_or(|state| state == NodeState::Removed)
    }

    fn serving(&self, family: FamilyId, config: &FamilyConfig) -> Serving {
        if config.state == FamilyState::Dropping {
            return Serving::Dropping;
        }
        match self.served.get(&family).map(|served| &served.phase) {
            None => Serving::Elsewhere,
            Some(Phase::Opening | Phase::HandingOver) => Serving::Opening,
            Some(Phase::Ready | Phase::Settling { .. }) => Serving::Ready,
            Some(Phase::Failed(failure)) => Serving::Failed(failure.reason.clone()),
            Some(Phase::Dropping) => Serving::Dropping,
        }
    }
}
