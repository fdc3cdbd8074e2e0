//! Copies of an image in vDisks that share: what they take, and that each is whole whatever becomes of the others.

use crate::support::cluster::wait_for;
use crate::support::{Node, Scratch, nbd_uri, run_weft, step, tool};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use serde_json::Value;
use std::path::Path;

const MIB: u64 = 1 << 20;
const IMAGE: u64 = 40 * MIB;

/// An image of which a part compresses, a part does not, and a part is zeros.
fn make_image(path: &Path) {
    let mut random = SmallRng::seed_from_u64(7);
    let mut bytes = vec![0; IMAGE as usize];
    for (at, block) in bytes.chunks_exact_mut(4096).enumerate() {
        match at / 300 % 4 {
            0 => random.fill_bytes(block),
            3 => {}
            _ => random.fill_bytes(&mut block[..1200]),
        }
    }
    std::fs::write(path, bytes).expect("the image can be written");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

fn shared(node: &Node, figure: &str) -> u64 {
    let stats = node.json(&["stats"]);
    let drives = stats["drives"].as_array().expect("a list of drives");
    drives.iter().map(|drive| drive[figure].as_u64().expect("a number")).sum()
}

fn usage(node: &Node, name: &str) -> Value {
    node.json(&["vdisk", "show", name])["usage"].clone()
}

/// Copies the image, and waits until it lies in its place.
fn copy(node: &Node, scratch: &Scratch, image: &Path, name: &str, container: &str) {
    node.weft(&["vdisk", "create", name, "--size", "40M", "--container", container]);
    let socket = scratch.socket(name);
    node.export(name, &socket);
    tool(&["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", text(image), &nbd_uri(&socket, name)]);
    wait_for("the copy is in its place", || {
        let usage = usage(node, name);
        let is_there = usage["log_bytes"] == 0 && usage["placed_bytes"].as_u64() >= Some(29 * MIB);
        if is_there { Ok(()) } else { Err(format!("{name}: {usage:#}")) }
    });
}

fn compare(scratch: &Scratch, image: &Path, name: &str) {
    tool(&[
        "qemu-img",
        "compare",
        "-f",
        "raw",
        "-F",
        "raw",
        text(image),
        &nbd_uri(&scratch.socket(name), name),
    ]);
}

#[test]
fn copies_of_an_image_take_the_room_of_one() {
    let scratch = Scratch::new("dedup");
    let image = scratch.file("image");
    make_image(&image);
    let node = Node::start(&scratch.file("node"), &["--drive-size", "1G"]);
    let made = node.weft(&["container", "create", "desktops", "--compression", "lz4", "--dedup", "on"]);
    assert!(made.contains("dedup on"), "{made}");
    for name in ["a", "b", "c", "d", "e"] {
        copy(&node, &scratch, &image, name, "desktops");
    }
    let stored = usage(&node, "a")["stored_bytes"].as_u64().expect("a number");
    let saved = shared(&node, "shared_saved_bytes");
    assert!(saved > 4 * stored * 8 / 10, "{saved} bytes saved of four copies of {stored}");
    for name in ["a", "e"] {
        compare(&scratch, &image, name);
    }

    step("kill -9, and the first one goes");
    let dir = node.dir.clone();
    node.kill();
    let node = Node::start(&dir, &[]);
    assert_eq!(shared(&node, "shared_saved_bytes"), saved, "that follows from what lies on the drive");
    for name in ["a", "b", "c", "d", "e"] {
        compare(&scratch, &image, name);
    }
    node.weft(&["vdisk", "rm", "a", "--force"]);
    wait_for("what the first one had is held by the others", || {
        let held = shared(&node, "shared_held_bytes");
        if held > stored * 7 / 10 { Ok(()) } else { Err(format!("{held} of {stored} bytes")) }
    });
    for name in ["b", "c", "d", "e"] {
        compare(&scratch, &image, name);
    }

    step("what was written before the restart is found again");
    wait_for("hashes are known", || {
        let known = shared(&node, "shared_entries");
        if known > 1000 { Ok(()) } else { Err(format!("{known} hashes")) }
    });
    let before = shared(&node, "shared_saved_bytes");
    copy(&node, &scratch, &image, "f", "desktops");
    let after = shared(&node, "shared_saved_bytes");
    assert!(after > before + stored * 7 / 10, "{before}, then {after} of {stored}");

    step("what was written without is shared when it is switched on");
    copy(&node, &scratch, &image, "g", "default");
    assert_eq!(node.json(&["vdisk", "show", "g"])["dedup"], false);
    let before = shared(&node, "shared_saved_bytes");
    node.weft(&["vdisk", "set", "g", "--compression", "lz4", "--dedup", "on"]);
    assert_eq!(node.json(&["vdisk", "show", "g"])["dedup_from"], "vdisk");
    wait_for("it is packed again", || {
        let after = shared(&node, "shared_saved_bytes");
        if after > before + stored * 7 / 10 {
            Ok(())
        } else {
            Err(format!("{before}, then {after} of {stored}"))
        }
    });
    for name in ["b", "f", "g"] {
        compare(&scratch, &image, name);
    }
    node.stop();
    let report: Value =
        serde_json::from_str(&run_weft(&["--json", "check", text(&dir)])).expect("the report is JSON");
    assert_eq!(
        (&report["sound"], &report["problems_count"]),
        (&Value::from(true), &Value::from(0)),
        "{report:#}"
    );
    assert!(report["drives"][0]["shared_bytes"].as_u64() > Some(after), "{report:#}");
    let shown = run_weft(&["inspect", "drive", "--dir", text(&dir)]);
    assert!(shown.contains("that egroups need not have of their own"), "{shown}");
    let egroups = run_weft(&["inspect", "egroup", "f", "--dir", text(&dir)]);
    let name =
        egroups.lines().nth(1).and_then(|line| line.split_whitespace().next()).expect("it has egroups");
    let shown = run_weft(&["inspect", "egroup", "f", name, "--units", "--dir", text(&dir)]);
    assert!(shown.contains("blocks elsewhere") && shown.contains(" 0 damaged"), "{shown}");
}
