//! What is measured: an NBD export, a file or a block device, and how a durable write is asked of it.
//! Promises: a text that cannot be understood is refused with the reason.
//! Leaves to others: finding the export of a vDisk (the caller's resolver), touching the target (`label`).

use crate::error::LabError;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// How a write of the target is made durable before it counts as done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Every acknowledged write is durable already (Weft, or an export in write-through mode).
    EveryWrite,
    /// fio sends a flush behind every write. With more than one outstanding I/O such a flush covers only writes that had
    /// completed before it, so this flatters the target.
    FlushAfterWrite,
    /// The same storage under another NBD address, whose writes are durable when acknowledged.
    OtherUri(String),
    /// Files and devices: opened with O_DSYNC.
    OpenDsync,
}

/// Where the target is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Nbd {
        uri: String,
        server_pid: Option<u32>,
        /// That process is one of several that do the work.
        in_cluster: bool,
    },
    File(PathBuf),
    Device(PathBuf),
}

/// One thing to measure, and the name it has in tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    pub label: String,
    pub kind: Kind,
    pub durability: Durability,
}

/// What the resolver of vDisk names finds out.
#[derive(Clone, Debug)]
pub struct WeftExport {
    /// An NBD URI of the vDisk.
    pub uri: String,
    /// The process of the node that exports it, for its CPU and memory.
    pub server_pid: Option<u32>,
    /// Other nodes may serve it, or keep copies.
    pub in_cluster: bool,
}

impl Target {
    /// Reads `[LABEL=]PLACE[,pid=N][,durable=always|flush|URI]`, where PLACE is `weft:NAME`, `nbd+unix:///NAME?socket=PATH`,
    /// `nbd://HOST[:PORT]/NAME`, `file:PATH`, or the path of a block device.
    pub fn parse(text: &str, resolve: &dyn Fn(&str) -> Option<WeftExport>) -> Result<Target, LabError> {
        let bad = |why: &'static str| LabError::BadTarget { text: text.to_string(), why };
        let (label, rest) = split_label(text);
        let mut parts = rest.split(',').peekable();
        let mut place = parts.next().unwrap_or_default().to_string();
        let (mut pid, mut durable) = (None, None);
        for part in parts {
            if let Some(number) = part.strip_prefix("pid=") {
                pid = Some(number.parse::<u32>().map_err(|_| bad("pid= wants a process number"))?);
            } else if let Some(way) = part.strip_prefix("durable=") {
                durable = Some(match way {
                    "always" => Durability::EveryWrite,
                    "flush" => Durability::FlushAfterWrite,
                    uri if is_nbd(uri) => {
                        crate::nbd_client::Address::parse(uri).map_err(bad)?;
                        Durability::OtherUri(uri.to_string())
                    }
                    _ => return Err(bad("durable= wants always, flush or an NBD address")),
                });
            } else {
                // A comma of the path itself.
                place = format!("{place},{part}");
            }
        }
        let (kind, default_durability) = if let Some(name) = place.strip_prefix("weft:") {
            let export = resolve(name).ok_or_else(|| LabError::NoSuchVdisk { name: name.to_string() })?;
            let (uri, in_cluster) = (export.uri, export.in_cluster);
            let kind = Kind::Nbd { uri, server_pid: pid.or(export.server_pid), in_cluster };
            (kind, Durability::EveryWrite)
        } else if is_nbd(&place) {
            crate::nbd_client::Address::parse(&place).map_err(bad)?;
            let (uri, in_cluster) = (place.clone(), false);
            (Kind::Nbd { uri, server_pid: pid, in_cluster }, Durability::FlushAfterWrite)
        } else if let Some(path) = place.strip_prefix("file:") {
            if path.is_empty() {
                return Err(bad("file: wants a path behind it"));
            }
            // Written to as a file it would be measured through the page cache, and not be looked at as a device is.
            if std::fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
                return Err(bad(
                    "that is no file: name a block device without file:, and a file in a directory",
                ));
            }
            (Kind::File(PathBuf::from(path)), Durability::OpenDsync)
        } else if place.starts_with('/') {
            (device(Path::new(&place)).map_err(bad)?, Durability::OpenDsync)
        } else {
            return Err(bad(
                "it should begin with weft:, nbd+unix:, nbd://, file:, or be the path of a block device",
            ));
        };
        if !matches!(kind, Kind::Nbd { .. }) && (pid.is_some() || durable.is_some()) {
            return Err(bad("pid= and durable= are for NBD targets only"));
        }
        let durability = durable.unwrap_or(default_durability);
        let addresses = match (&kind, &durability) {
            (Kind::Nbd { uri, .. }, Durability::OtherUri(other)) => vec![uri.as_str(), other],
            (Kind::Nbd { uri, .. }, _) => vec![uri.as_str()],
            (Kind::File(path) | Kind::Device(path), _) => vec![path.to_str().unwrap_or_default()],
        };
        if !addresses.into_iter().all(survives_a_job_file) {
            return Err(bad(NOT_FOR_JOB_FILES));
        }
        Ok(Target { label: label.unwrap_or(&place).to_string(), kind, durability })
    }

    /// The address or path, as fio gets it.
    pub fn place(&self) -> &str {
        match &self.kind {
            Kind::Nbd { uri, .. } => uri,
            Kind::File(path) | Kind::Device(path) => path.to_str().unwrap_or("(a path that is not text)"),
        }
    }

    /// The address by which its durable writes go, if that is another one: the same storage, or so it is said.
    pub(crate) fn second_address(&self) -> Option<&str> {
        match &self.durability {
            Durability::OtherUri(other) => Some(other),
            Durability::EveryWrite | Durability::FlushAfterWrite | Durability::OpenDsync => None,
        }
    }

    /// All by which something is written to it.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.place()).chain(self.second_address())
    }

    pub(crate) fn server_pid(&self) -> Option<u32> {
        match self.kind {
            Kind::Nbd { server_pid, .. } => server_pid,
            Kind::File(_) | Kind::Device(_) => None,
        }
    }

    /// The lines of fio's global section that lead the load to this target.
    pub(crate) fn fio_lines(&self, durable: bool, io_uring: bool) -> String {
        match &self.kind {
            Kind::Nbd { uri, .. } => {
                let (uri, flush) = match &self.durability {
                    Durability::OtherUri(other) if durable => (other, ""),
                    Durability::FlushAfterWrite if durable => (uri, "fsync=1\n"),
                    _ => (uri, ""),
                };
                format!("ioengine=nbd\nuri={uri}\n{flush}")
            }
            Kind::File(path) | Kind::Device(path) => {
                let engine = if io_uring { "io_uring" } else { "libaio" };
                // fio separates several names by colons, so one inside a name is escaped.
                let name = path.to_str().unwrap_or_default().replace(':', "\\:");
                let sync = if durable { "sync=dsync\n" } else { "" };
                format!("ioengine={engine}\ndirect=1\nfilename={name}\n{sync}")
            }
        }
    }

    /// One line on how a durable write is asked of it.
    pub(crate) fn durability_explained(&self) -> &'static str {
        match self.durability {
            Durability::EveryWrite => "every acknowledged write is durable",
            Durability::FlushAfterWrite => "a flush is sent behind every write",
            Durability::OtherUri(_) => "through its write-through address",
            Durability::OpenDsync => "opened with O_DSYNC",
        }
    }
}

/// Why an address or a path cannot be used.
pub(crate) const NOT_FOR_JOB_FILES: &str = "fio would read another name in its job file: rename it, so that it has no #, ;, $, control character or blank at an end";

/// Whether fio, reading this in a job file, takes it for what it is. It cuts lines at `#` and `;`, wherever they stand, takes blanks
/// off their ends and puts values in for `$`: a load would go to another place than the one that was looked at.
pub(crate) fn survives_a_job_file(text: &str) -> bool {
    let harmful = |letter: char| "#;$".contains(letter) || letter.is_control();
    !text.is_empty() && text.trim() == text && !text.chars().any(harmful)
}

fn is_nbd(place: &str) -> bool {
    place.starts_with("nbd://") || place.starts_with("nbd+unix://")
}

/// `LABEL=PLACE` if what is before the first equals sign looks like a label, and not like a part of an address.
pub(crate) fn split_label(text: &str) -> (Option<&str>, &str) {
    if let Some((label, place)) = text.split_once('=') {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_. ".contains(letter);
        if !label.is_empty() && label.chars().all(plain) {
            return (Some(label), place);
        }
    }
    (None, text)
}

fn device(path: &Path) -> Result<Kind, &'static str> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::metadata(path) {
        Ok(facts) if facts.file_type().is_block_device() => Ok(Kind::Device(path.to_path_buf())),
        Ok(facts) if facts.is_file() => Err("that is a file: put file: in front of it"),
        Ok(_) => Err("that is neither a block device nor a file"),
        Err(_) => Err("no such block device"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Target, LabError> {
        Target::parse(text, &|name| {
            (name == "demo").then(|| WeftExport {
                uri: "nbd+unix:///demo?socket=/run/w".into(),
                server_pid: Some(7),
                in_cluster: true,
            })
        })
    }

    #[test]
    fn every_form_of_a_target_is_understood() {
        let weft = parse("weft:demo").expect("known");
        assert_eq!(weft.label, "weft:demo");
        assert_eq!(
            weft.kind,
            Kind::Nbd { uri: "nbd+unix:///demo?socket=/run/w".into(), server_pid: Some(7), in_cluster: true }
        );
        assert_eq!(weft.durability, Durability::EveryWrite);

        let qemu = parse("qsd=nbd+unix:///raw?socket=/tmp/q,pid=12,durable=nbd+unix:///wt?socket=/tmp/q")
            .expect("fine");
        assert_eq!(qemu.label, "qsd");
        assert_eq!(qemu.server_pid(), Some(12));
        assert!(qemu.fio_lines(true, true).contains("uri=nbd+unix:///wt?socket=/tmp/q"));
        assert!(qemu.fio_lines(false, true).contains("uri=nbd+unix:///raw?socket=/tmp/q"));

        let unix = parse("nbd+unix:///raw?socket=/tmp/q").expect("fine");
        assert_eq!(unix.label, "nbd+unix:///raw?socket=/tmp/q", "the equals sign of the address is no label");
        assert!(unix.fio_lines(true, true).contains("fsync=1"));

        let file = parse("raw=file:/tmp/a:b,c").expect("fine");
        assert_eq!(file.kind, Kind::File("/tmp/a:b,c".into()));
        assert!(file.fio_lines(true, false).contains("filename=/tmp/a\\:b,c\nsync=dsync"));
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_the_reason() {
        for (text, part) in [
            ("weft:other", "not known"),
            ("demo", "should begin with"),
            ("file:", "wants a path"),
            ("/nowhere/at/all", "no such block device"),
            ("/etc/hostname", "put file: in front"),
            ("file:/tmp/x,pid=1", "NBD targets only"),
            ("nbd://h/e,pid=many", "process number"),
            ("nbd://h/e,durable=maybe", "wants always"),
            ("nbd://h/e,durable=nbd://h:port/e", "its port"),
            ("file:/dev/null", "no file"),
            ("file:/tmp", "no file"),
            ("file:/tmp/a#2.img", "another name"),
            ("file:/tmp/a;b", "another name"),
            ("file:/tmp/a ", "another name"),
            ("file:/tmp/${HOME}", "another name"),
            ("file:/tmp/a\nfilename=b", "another name"),
            ("nbd://h/vol#1", "another name"),
            ("nbd://h/e,durable=nbd://h/vol;1", "another name"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains('\n'), "one line: {error}");
        }
    }
}
