//! The NBD clients that people use, each against a real node.

use crate::support::{Node, Scratch, is_installed, nbd_uri, tool, try_tool, wait_until};
use std::io::Write;
use std::path::Path;

const MIB: usize = 1 << 20;

struct Served {
    node: Node,
    scratch: Scratch,
}

fn serve(name: &str) -> Served {
    let scratch = Scratch::new(name);
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    node.export_new("v", "64M", &scratch.socket("v"));
    Served { node, scratch }
}

impl Served {
    fn uri(&self) -> String {
        nbd_uri(&self.scratch.socket("v"), "v")
    }
}

/// A file of `bytes` with a pattern that never repeats within it, and with holes.
fn make_file(path: &Path, bytes: usize) {
    let mut file = std::fs::File::create(path).expect("a file can be made");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..bytes / MIB {
        let mut chunk = vec![0; MIB];
        if number % 3 != 2 {
            for word in chunk.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
        }
        file.write_all(&chunk).expect("a file can be written");
    }
}

fn same(left: &Path, right: &Path) {
    tool(&["cmp", left.to_str().expect("plain"), right.to_str().expect("plain")]);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are plain")
}

#[test]
fn nbdinfo_sees_size_abilities_and_the_list() {
    let served = serve("nbdinfo");
    let told = tool(&["nbdinfo", &served.uri()]);
    assert!(told.contains("67108864"), "the size is told: {told}");
    assert!(told.contains("can_multi_conn: true"), "several connections are fine: {told}");
    for ability in ["can_flush", "can_fua", "can_trim", "can_zero"] {
        assert!(told.contains(&format!("{ability}: true")), "{ability} is there: {told}");
    }
    assert_eq!(tool(&["nbdinfo", "--size", &served.uri()]).trim(), "67108864");
    let list = format!("nbd+unix:///?socket={}", served.scratch.socket("v").display());
    assert!(tool(&["nbdinfo", "--list", &list]).contains("\"v\""), "the export is listed");
    let mapped = tool(&["nbdinfo", "--map", &served.uri()]);
    assert!(mapped.contains("hole"), "a new vDisk is all holes: {mapped}");
    served.node.stop();
}

#[test]
fn nbdcopy_takes_a_file_in_and_gives_it_back() {
    let served = serve("nbdcopy");
    let (source, back) = (served.scratch.file("source"), served.scratch.file("back"));
    make_file(&source, 64 * MIB);
    tool(&["nbdcopy", text(&source), &served.uri()]);
    tool(&["nbdcopy", &served.uri(), text(&back)]);
    same(&source, &back);
    served.node.stop();
}

#[test]
fn qemu_tools_convert_compare_and_map() {
    let served = serve("qemu-img");
    let (source, back) = (served.scratch.file("source"), served.scratch.file("back"));
    make_file(&source, 64 * MIB);
    let uri = served.uri();
    tool(&["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", text(&source), &uri]);
    tool(&["qemu-img", "compare", "-f", "raw", "-F", "raw", text(&source), &uri]);
    tool(&["qemu-img", "convert", "-f", "raw", "-O", "raw", &uri, text(&back)]);
    same(&source, &back);
    let map = tool(&["qemu-img", "map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"zero\": true"), "the zeros of the file take no space: {map}");
    let socket = served.scratch.socket("v");
    let list = tool(&["qemu-nbd", "--list", "--socket", text(&socket)]);
    assert!(list.contains("export: 'v'"), "qemu-nbd lists it: {list}");
    served.node.stop();
}

#[test]
fn qemu_io_writes_zeroes_discards_and_forces() {
    let served = serve("qemu-io");
    let uri = served.uri();
    let steps = [
        "write -P 0x5a 0 1M",
        "write -f -P 0x11 1M 64k",
        "read -P 0x5a 0 1M",
        "read -P 0x11 1M 64k",
        "write -z 0 64k",
        "read -P 0 0 64k",
        "read -P 0x5a 64k 64k",
        "write -z -u 128k 64k",
        "read -P 0 128k 64k",
        "discard 256k 128k",
        // Half a block and one that crosses blocks: neighbours stay.
        "write -P 0x77 524800 512",
        "read -P 0x5a 524288 512",
        "read -P 0x77 524800 512",
        "read -P 0x5a 525312 512",
        "write -P 0x66 602112 8192",
        "read -P 0x66 602112 8192",
        "flush",
        "write -P 0x42 67104768 4k",
        "read -P 0x42 67104768 4k",
    ];
    let mut line = vec!["qemu-io", "-f", "raw"];
    for step in &steps {
        line.extend(["-c", step]);
    }
    line.push(&uri);
    let told = tool(&line);
    assert!(!told.contains("Pattern verification failed"), "what was written reads back: {told}");
    served.node.stop();
}

#[test]
fn fio_verifies_what_it_wrote_at_depth() {
    let served = serve("fio");
    let uri = format!("--uri={}", served.uri());
    for (mode, size) in [("randwrite", "4k"), ("write", "1M"), ("randrw", "8k")] {
        let (rw, bs) = (format!("--rw={mode}"), format!("--bs={size}"));
        tool(&[
            "fio",
            "--name=v",
            "--ioengine=nbd",
            &uri,
            &rw,
            &bs,
            "--size=32M",
            "--iodepth=32",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
        ]);
    }
    served.node.stop();
}

#[test]
fn a_read_only_export_refuses_writes_and_tcp_serves_several() {
    let served = serve("tcp");
    served.node.weft(&["vdisk", "create", "w", "--size", "8M"]);
    let port = free_port();
    let address = format!("tcp:127.0.0.1:{port}");
    served.node.weft(&["vdisk", "export", "w", "--nbd", &address]);
    served.node.weft(&["vdisk", "export", "v", "--nbd", &address, "--read-only"]);
    let (read_only, writable) = (format!("nbd://127.0.0.1:{port}/v"), format!("nbd://127.0.0.1:{port}/w"));
    assert!(tool(&["nbdinfo", &read_only]).contains("is_read_only: true"));
    assert!(tool(&["nbdinfo", &writable]).contains("is_read_only: false"));
    tool(&["qemu-io", "-f", "raw", "-c", "write -P 1 0 4k", &writable]);
    let refused = try_tool(&["qemu-io", "-f", "raw", "-c", "write -P 1 0 4k", &read_only]);
    assert!(!refused.status.success(), "a read-only export takes no writes");
    served.node.weft(&["vdisk", "unexport", "v", "--nbd", &address]);
    assert!(!try_tool(&["nbdinfo", &read_only]).status.success(), "it is no longer exported there");
    assert!(tool(&["nbdinfo", &served.uri()]).contains("67108864"), "elsewhere it still is");
    served.node.stop();
}

#[test]
fn a_resize_is_seen_by_new_connections_and_kept() {
    let served = serve("resize");
    served.node.weft(&["vdisk", "resize", "v", "--size", "96M"]);
    assert_eq!(tool(&["nbdinfo", "--size", &served.uri()]).trim(), "100663296");
    tool(&["qemu-io", "-f", "raw", "-c", "write -P 9 95M 1M", &served.uri()]);
    let dir = served.node.dir.clone();
    served.node.stop();
    // Exports come back with the node.
    let node = Node::start(&dir, &[]);
    let uri = nbd_uri(&served.scratch.socket("v"), "v");
    assert_eq!(tool(&["nbdinfo", "--size", &uri]).trim(), "100663296");
    tool(&["qemu-io", "-f", "raw", "-c", "read -P 9 95M 1M", &uri]);
    node.stop();
    assert!(!served.scratch.socket("v").exists(), "a clean stop takes its socket away");
}

#[test]
fn nbdfuse_shows_it_as_a_file() {
    if !is_installed("nbdfuse") || !Path::new("/dev/fuse").exists() {
        println!("nbdfuse or /dev/fuse is not here: nothing to try");
        return;
    }
    let served = serve("nbdfuse");
    let mount = served.scratch.file("mount");
    std::fs::create_dir(&mount).expect("a directory can be made");
    let file = mount.join("nbd");
    let mut fuse = std::process::Command::new("nbdfuse")
        .args([text(&mount), &served.uri()])
        .spawn()
        .expect("nbdfuse can be started");
    wait_until("the file is there", || file.exists());
    let shown = std::fs::metadata(&file).map(|metadata| metadata.len());
    let copied = std::process::Command::new("dd")
        .args(["if=/dev/urandom", &format!("of={}", file.display()), "bs=1M", "count=4", "conv=notrunc"])
        .status();
    // Away with it before anything may fail.
    let _ = std::process::Command::new("umount").arg(&mount).status();
    let _ = fuse.wait();
    assert_eq!(shown.expect("the file can be looked at"), 64 << 20);
    assert!(copied.is_ok_and(|status| status.success()), "the file can be written");
    served.node.stop();
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("some port is free");
    listener.local_addr().expect("it has an address").port()
}
