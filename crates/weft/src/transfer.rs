//! `weft import` and `weft export`: disk images into vDisks, and vDisks or snapshots into images, by qemu-img over an export
//! that is there for as long as that takes.
//! Promises: what is not written in the image takes no space in the vDisk, and the other way round; what was cut short, by Ctrl-C
//! too, leaves neither an export, nor a vDisk or an image that looks whole, and says what it could not tidy up.

use crate::arguments::{ExportArguments, Format, ImportArguments, Place};
use crate::client::{Client, path_part};
use crate::output;
use crate::size;
use crate::status::text;
use crate::trouble::Trouble;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use weft_lab::interrupt::Watch;

/// Requests that qemu-img keeps on their way.
const REQUESTS: &str = "16";

/// An export for this command alone; it ends with it.
struct Window {
    client: Client,
    name: String,
    socket: PathBuf,
}

impl Window {
    fn open(place: &Place, name: &str) -> Result<Self, Trouble> {
        let client = Client::find(place)?;
        let unique = format!("weft-{}-{:x}.sock", std::process::id(), unique_number());
        let socket = absolute(&std::env::temp_dir())?.join(unique);
        let address = format!("unix:{}", socket.display());
        let path = format!("/v1/vdisks/{}/exports", path_part(name));
        client.post(&path, &json!({ "address": address, "name": "transfer" }))?;
        Ok(Self { client, name: name.to_string(), socket })
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///transfer?socket={}", self.socket.display())
    }

    /// A line about what is left, if it cannot be closed: that takes nothing from what was copied.
    fn close(&self) -> Option<String> {
        let (name, address) = (&self.name, format!("unix:{}", self.socket.display()));
        let path = format!("/v1/vdisks/{}/exports?address={}", path_part(name), path_part(&address));
        let trouble = self.client.delete(&path).err()?;
        Some(format!(
            "the export of {name} for this command stays: {}; end it (weft vdisk unexport {name} --nbd {address})",
            trouble.line()
        ))
    }
}

/// The node runs in another directory. And qemu-img takes a name for an option, a protocol or a description of an image if it looks
/// like one; what begins with a slash never does.
fn absolute(path: &Path) -> Result<PathBuf, Trouble> {
    std::path::absolute(path)
        .map_err(|error| Trouble::bad_input(format!("the path `{}` cannot be used: {error}", path.display())))
}

/// Something that no other command draws at this moment.
fn unique_number() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos())
}

pub fn import(arguments: &ImportArguments, json: bool) -> Result<(), Trouble> {
    let ImportArguments { file, vdisk, format, follow, rf, container, overwrite, place } = arguments;
    let path_of_image = absolute(file)?;
    let image = inspect(&path_of_image, *format, *follow)?;
    let client = Client::find(place)?;
    // From here on nobody who asks to stop leaves half a vDisk behind.
    let watch = Watch::begin();
    let path = format!("/v1/vdisks/{}", path_part(vdisk));
    let vdisks = client.get("/v1/vdisks")?;
    let there = crate::status::list(&vdisks).iter().find(|known| known["name"] == vdisk.as_str()).cloned();
    match &there {
        Some(_) if !overwrite => {
            return Err(Trouble::bad_input(format!(
                "a vDisk {vdisk} exists already; choose another name, or let the image take its place (--overwrite)"
            )));
        }
        Some(known) if known["size"].as_u64().unwrap_or(0) < image.size => {
            return Err(Trouble::bad_input(format!(
                "the image has {} bytes, and vDisk {vdisk} {}; make it larger first (weft vdisk resize)",
                image.size,
                text(&known["size"])
            )));
        }
        Some(known) => {
            check_unused(vdisk, known)?;
            if known["size"].as_u64().unwrap_or(0) > image.size {
                let told =
                    format!("vDisk {vdisk} is larger than the image; what it holds behind its end stays");
                output::complain(told);
            }
        }
        None => {
            let mut body = json!({ "name": vdisk, "size": image.size });
            if let Some(factor) = rf {
                body["factor"] = json!(factor);
            }
            if let Some(container) = container {
                body["container"] = json!(container);
            }
            client.post("/v1/vdisks", &body)?;
        }
    }
    let (mut begun, mut left) = (false, Vec::new());
    let copied = Window::open(place, vdisk).and_then(|window| {
        begun = true;
        let uri = window.uri();
        let mut line = vec!["convert", "-n", "-W", "-m", REQUESTS, "-f", &image.format, "-O", "raw"];
        if there.is_none() {
            // A new vDisk reads as zeros: holes of the image need not be written.
            line.push("--target-is-zero");
        }
        let copied = qemu_img(&line, &[path_of_image.as_os_str(), uri.as_ref()], !json, &watch);
        left.extend(window.close());
        copied
    });
    if let Err(trouble) = copied {
        if there.is_none() {
            left = take_back(&client, vdisk, left);
        } else if begun {
            left.insert(0, format!("vDisk {vdisk} is half overwritten: import into it again"));
        }
        return Err(cut(trouble, &left, watch.asked()));
    }
    let made = client.get(&path)?;
    if there.is_none() && made["size"].as_u64().is_some_and(|size| size > image.size) {
        output::complain(format_args!(
            "the image has {} bytes, and vDisk {vdisk} {}: it has whole blocks, and zeros behind the image's end",
            image.size,
            text(&made["size"])
        ));
    }
    crate::vdisk::tell(json, &made, || {
        format!("imported {} ({}, {}) as {vdisk}", file.display(), image.format, size::show(image.size))
    });
    tidied(&left)
}

/// Removes the vDisk that was made for an image which did not come: half of it is of no use to anybody. `left` is what is there
/// besides; what is there still is returned.
fn take_back(client: &Client, vdisk: &str, mut left: Vec<String>) -> Vec<String> {
    match client.delete(&format!("/v1/vdisks/{}?force=true", path_part(vdisk))) {
        // Its export has gone with it.
        Ok(_) => Vec::new(),
        Err(trouble) => {
            let why = trouble.line();
            left.insert(
                0,
                format!("vDisk {vdisk} is left half made: {why}; remove it (weft vdisk rm {vdisk} --force)"),
            );
            left
        }
    }
}

/// The trouble that cut a copy, with what there is of it now.
fn cut(trouble: Trouble, left: &[String], was_asked: bool) -> Trouble {
    match left {
        [] if was_asked => trouble.and("nothing of it is left"),
        [] => trouble,
        left => trouble.and(left.join("; ")),
    }
}

/// All was copied; what could not be tidied up is a trouble of its own.
fn tidied(left: &[String]) -> Result<(), Trouble> {
    match left {
        [] => Ok(()),
        left => Err(Trouble::failed(format!("everything was copied, but {}", left.join("; ")))),
    }
}

/// Refuses to write over what somebody uses.
fn check_unused(name: &str, known: &Value) -> Result<(), Trouble> {
    let exported = known["exports"].as_array().is_some_and(|exports| !exports.is_empty());
    if !exported && known["attached"].is_null() {
        return Ok(());
    }
    let (how, what) = if exported { ("exported", "unexport") } else { ("attached", "detach") };
    Err(Trouble::bad_input(format!(
        "vDisk {name} is {how}, so somebody may use it; end that first (weft vdisk {what} {name})"
    )))
}

pub fn export(arguments: &ExportArguments, json: bool) -> Result<(), Trouble> {
    let ExportArguments { disk, file, format, force, place } = arguments;
    let target = absolute(file)?;
    check_target(&target, *force)?;
    let format = format.unwrap_or_else(|| Format::of(file));
    let client = Client::find(place)?;
    let watch = Watch::begin();
    // What is written while a vDisk is copied would be in the image or not, block by block: its snapshot stays as it is.
    let of_its_own = !disk.contains('@');
    let snapshot = if of_its_own {
        let made = client.post("/v1/snapshots", &json!({ "vdisk": disk }))?;
        text(&made["name"])
    } else {
        disk.clone()
    };
    let mut left = Vec::new();
    let copied = copy_out(arguments, &snapshot, &target, format, !json, &watch, &mut left);
    if of_its_own && let Err(trouble) = client.delete(&format!("/v1/snapshots/{}", path_part(&snapshot))) {
        let why = trouble.line();
        left.push(format!("its snapshot stays: {why}; remove it (weft snapshot rm {snapshot})"));
    }
    copied.map_err(|trouble| cut(trouble, &left, watch.asked()))?;
    let answer = json!({ "exported": disk, "file": file.display().to_string(), "format": format.word() });
    crate::vdisk::tell(json, &answer, || {
        format!("exported {disk} to {} ({})", file.display(), format.word())
    });
    tidied(&left)
}

/// Refuses to write over what is there, unless that is wanted. A device or a pipe never is: a file of its name would take its place.
fn check_target(file: &Path, force: bool) -> Result<(), Trouble> {
    match std::fs::metadata(file) {
        Ok(there) if !there.is_file() => Err(Trouble::bad_input(format!(
            "{} is there and is no regular file, so no image can take its place; choose another file",
            file.display()
        ))),
        Ok(_) if !force => Err(Trouble::bad_input(format!(
            "{} exists already; choose another file, or replace it (--force)",
            file.display()
        ))),
        _ => Ok(()),
    }
}

/// Copies a snapshot into a file, which has its name when it is whole. What could not be tidied up is added to `left`.
fn copy_out(
    arguments: &ExportArguments,
    snapshot: &str,
    file: &Path,
    format: Format,
    progress: bool,
    watch: &Watch,
    left: &mut Vec<String>,
) -> Result<(), Trouble> {
    let part = make_part(file).map_err(|error| {
        Trouble::bad_input(format!(
            "no file can be made at {}: {error}; choose another place",
            file.display()
        ))
    })?;
    let copied = Window::open(&arguments.place, snapshot).and_then(|window| {
        let uri = window.uri();
        let line = ["convert", "-W", "-m", REQUESTS, "-f", "raw", "-O", format.word()];
        let copied = qemu_img(&line, &[uri.as_ref(), part.as_os_str()], progress, watch);
        left.extend(window.close());
        copied
    });
    // Somebody may have put something there meanwhile.
    let placed = copied.and_then(|()| check_target(file, arguments.force)).and_then(|()| {
        put_in_place(&part, file).map_err(|error| {
            Trouble::failed(format!("the image cannot be put at {}: {error}", file.display()))
        })
    });
    if placed.is_err() {
        if let Err(error) = std::fs::remove_file(&part) {
            left.push(format!("half of it stays in {}: {error}; remove it", part.display()));
        }
        return placed;
    }
    if let Err(error) = flush_directory_of(file) {
        left.push(format!("its name at {} may not survive a power cut: {error}", file.display()));
    }
    Ok(())
}

/// Makes the file that the image is called while it is not whole. It is of this command alone: another one may have the same target,
/// and a file of somebody's own may have any name.
fn make_part(file: &Path) -> std::io::Result<PathBuf> {
    let mut number = 0;
    loop {
        let mut name = file.file_name().map(OsStr::to_os_string).unwrap_or_default();
        name.push(format!(".{}-{number}.part", std::process::id()));
        let part = file.with_file_name(name);
        match std::fs::File::create_new(&part) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|_| part),
        }
    }
}

/// Qemu-img leaves it to the kernel when what it wrote reaches the drive: the name comes when it has.
fn put_in_place(part: &Path, file: &Path) -> std::io::Result<()> {
    std::fs::File::open(part)?.sync_all()?;
    std::fs::rename(part, file)
}

/// Then the name is there for good.
fn flush_directory_of(file: &Path) -> std::io::Result<()> {
    let dir = file.parent().unwrap_or(Path::new("/"));
    std::fs::File::open(dir)?.sync_all()
}

struct Image {
    format: String,
    /// Bytes, as whoever uses it sees them.
    size: u64,
}

/// What the image is. One that names other files is refused, unless they are to be followed: whoever made it could name any file that
/// its reader can read.
fn inspect(file: &Path, format: Option<Format>, follow: bool) -> Result<Image, Trouble> {
    // A pipe would be waited for until somebody writes to it, and an image is not read from its beginning to its end.
    if let Ok(there) = std::fs::metadata(file)
        && !(there.is_file() || there.file_type().is_block_device())
    {
        return Err(Trouble::bad_input(format!(
            "{} is neither a file nor a block device, so no image can be read there",
            file.display()
        )));
    }
    let mut command = Command::new("qemu-img");
    command.args(["info", "--output", "json"]);
    if let Some(format) = format {
        command.args(["-f", format.word()]);
    }
    let output = command.arg(file).stdin(Stdio::null()).output().map_err(|error| missing(&error))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Trouble::bad_input(format!("{} is no image that can be read: {why}", file.display())));
    }
    let info: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| Trouble::failed(format!("qemu-img says nothing that makes sense: {error}")))?;
    let format = info["format"].as_str().unwrap_or("raw").to_string();
    if !["raw", "qcow2"].contains(&format.as_str()) {
        return Err(Trouble::bad_input(format!(
            "{} is of the format {format}: make it raw or qcow2 first (qemu-img convert)",
            file.display()
        )));
    }
    let data = &info["format-specific"]["data"]["data-file"];
    if let Some(other) = info["backing-filename"].as_str().or(data.as_str())
        && !follow
    {
        return Err(Trouble::bad_input(format!(
            "{} reads from another file, {other}; if you trust it, import what it shows of that too (--follow)",
            file.display()
        )));
    }
    match info["virtual-size"].as_u64() {
        Some(size) if size > 0 => Ok(Image { format, size }),
        _ => Err(Trouble::bad_input(format!("{} holds nothing", file.display()))),
    }
}

fn missing(error: &std::io::Error) -> Trouble {
    Trouble::failed(format!("qemu-img cannot be run: {error}; install qemu-utils"))
}

/// Runs qemu-img until it ends or somebody asks to stop; its progress goes to stderr, where it disturbs no script.
fn qemu_img(line: &[&str], places: &[&OsStr], progress: bool, watch: &Watch) -> Result<(), Trouble> {
    let mut command = Command::new("qemu-img");
    command.args(line);
    // Its line is written over and over: in a log that would be hundreds of pieces.
    if progress && std::io::stderr().is_terminal() {
        command.arg("-p");
    }
    command.args(places).stdin(Stdio::null()).stdout(std::io::stderr()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| missing(&error))?;
    let mut words = child.stderr.take().expect("it has a pipe");
    let why = std::thread::spawn(move || {
        let mut why = String::new();
        let _ = words.read_to_string(&mut why);
        why
    });
    let ended = wait(&mut child, watch).map_err(|error| missing(&error))?;
    let why = why.join().unwrap_or_default();
    if ended.success() {
        return Ok(());
    }
    if watch.asked() {
        return Err(Trouble::failed("stopped before it was whole"));
    }
    Err(Trouble::failed(format!("qemu-img could not copy it: {}", why.trim())))
}

/// Ctrl-C reaches the child as well; who ends only this process means both.
fn wait(child: &mut Child, watch: &Watch) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(ended) = child.try_wait()? {
            return Ok(ended);
        }
        if watch.asked() {
            child.kill()?;
            return child.wait();
        }
        watch.rest(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_tells_the_format() {
        assert_eq!(Format::of(Path::new("a.qcow2")).word(), "qcow2");
        assert_eq!(Format::of(Path::new("a.QCOW2")).word(), "qcow2");
        assert_eq!(Format::of(Path::new("a.img")).word(), "raw");
    }

    #[test]
    fn what_is_not_whole_yet_has_a_name_that_nobody_else_has() {
        let dir = std::env::temp_dir().join(format!("weft-part-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory can be made");
        let file = dir.join("a.img");
        let parts = [(); 3].map(|()| make_part(&file).expect("a file can be made"));
        for (number, part) in parts.iter().enumerate() {
            assert!(part.exists() && !parts[..number].contains(part), "{}", part.display());
            let name = part.file_name().and_then(OsStr::to_str).expect("a plain name");
            assert!(name.starts_with("a.img.") && name.ends_with(".part"), "{name}");
        }
        assert!(make_part(&dir.join("nowhere/a.img")).is_err());
        std::fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn only_regular_files_are_replaced() {
        for (path, force, refused) in [
            ("/dev/null", true, "no regular file"),
            ("/", true, "no regular file"),
            ("/dev/null", false, "no regular file"),
            ("/proc/version", false, "--force"),
        ] {
            let told = check_target(Path::new(path), force);
            assert!(
                matches!(&told, Err(Trouble::BadInput(line)) if line.contains(refused)),
                "{path}: {told:?}"
            );
        }
        assert!(check_target(Path::new("/proc/version"), true).is_ok());
        assert!(check_target(Path::new("/nonexistent/a.img"), false).is_ok());
    }

    #[test]
    fn names_are_no_protocols_and_no_options() {
        for name in ["a:b.img", "-o", "json:{}", "nbd:unix:/x"] {
            let path = absolute(Path::new(name)).expect("it is a name");
            assert!(path.is_absolute() && path.ends_with(name), "{}", path.display());
        }
        assert!(absolute(Path::new("")).is_err());
    }

    #[test]
    fn what_was_cut_tells_what_is_left_of_it() {
        let left = ["vDisk v is half overwritten".to_string(), "its export stays".to_string()];
        let told = |left: &[String], was_asked| cut(Trouble::failed("it broke off"), left, was_asked).line();
        assert_eq!(told(&left, true), "it broke off; vDisk v is half overwritten; its export stays");
        assert_eq!(told(&[], true), "it broke off; nothing of it is left");
        assert_eq!(told(&[], false), "it broke off");
    }
}
