//! What a check finds, in the order it is found.
//! Promises: every problem is counted; so many of a kind are told in words that nobody drowns.

use serde::Serialize;
use std::collections::BTreeMap;
use weft_engine::DriveId;

/// Findings of one kind told in words at most.
const TOLD_MAX: u64 = 50;

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct Finding {
    pub kind: &'static str,
    /// The node that the drive is in, in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vdisk: Option<String>,
    pub text: String,
}

#[derive(Debug, Default)]
pub struct Findings {
    /// Something is lost, damaged, or has fewer copies than it should.
    pub problems: Vec<Finding>,
    /// Worth knowing, and in order.
    pub notes: Vec<Finding>,
    /// Problems by kind, also those not told in words.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Findings {
    pub fn problem(&mut self, kind: &'static str, drive: Option<DriveId>, vdisk: Option<&str>, text: String) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= TOLD_MAX {
            self.problems.push(finding(kind, drive, vdisk, text));
        }
    }

    pub fn note(&mut self, kind: &'static str, drive: Option<DriveId>, vdisk: Option<&str>, text: String) {
        self.notes.push(finding(kind, drive, vdisk, text));
    }

    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Adds the nodes that drives are in.
    pub fn name_nodes(&mut self, nodes: &BTreeMap<DriveId, u32>) {
        for finding in self.problems.iter_mut().chain(&mut self.notes) {
            finding.node = finding.drive.and_then(|drive| nodes.get(&DriveId(drive))).copied();
        }
    }

    /// Takes in what another part of the check has found.
    pub fn append(&mut self, mut other: Findings) {
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.problems.append(&mut other.problems);
        self.notes.append(&mut other.notes);
    }
}

fn finding(kind: &'static str, drive: Option<DriveId>, vdisk: Option<&str>, text: String) -> Finding {
    Finding { kind, node: None, drive: drive.map(|drive| drive.0), vdisk: vdisk.map(str::to_owned), text }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(node) = self.node {
            write!(f, "node {node}: ")?;
        }
        if let Some(drive) = self.drive {
            write!(f, "drive {drive}: ")?;
        }
        if let Some(vdisk) = &self.vdisk {
            write!(f, "vDisk {vdisk}: ")?;
        }
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_some_are_told() {
        let mut findings = Findings::default();
        for _ in 0..TOLD_MAX * 3 {
            findings.problem("unit_damaged", Some(DriveId(2)), Some("vol1"), "unit 7".into());
        }
        assert_eq!((findings.count(), findings.problems.len() as u64), (TOLD_MAX * 3, TOLD_MAX));
        assert_eq!(findings.problems[0].to_string(), "drive 2: vDisk vol1: unit 7");
        findings.name_nodes(&BTreeMap::from([(DriveId(2), 5)]));
        assert_eq!(findings.problems[0].to_string(), "node 5: drive 2: vDisk vol1: unit 7");
    }
}
