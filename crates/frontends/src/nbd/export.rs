//! What a server offers: the list of exports, as the node knows it at this moment.

use weft_engine::{FamilyId, Generation};

/// What is exported at one address. Asked during the handshake only; each connection keeps the answer it got.
pub trait Exports: Send + Sync {
    /// The names, in the order to be shown.
    fn list(&self) -> Vec<String>;

    /// The export of this name. The empty name is the default export: the only one, if there is only one.
    fn find(&self, name: &str) -> Option<ExportInfo>;
}

/// One export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name it is listed under (also when it was found as the default).
    pub name: String,
    /// A line for people; may be empty.
    pub description: String,
    /// Carried by every request of the connection.
    pub family: FamilyId,
    /// Not the vDisk as it is, but this snapshot of it; then the export is read-only.
    pub snapshot: Option<Generation>,
    /// Bytes. A connection keeps the size it was told in the handshake.
    pub size: u64,
    pub read_only: bool,
}

impl ExportInfo {
    /// Whether clients may change nothing: they were promised so, or it is a snapshot.
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.snapshot.is_some()
    }
}
