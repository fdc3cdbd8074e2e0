//! Bad input to every command, file and socket: one clear line, exit code 2, no panic, and the node stays up.

use crate::support::checker::{BLOCK, content};
use crate::support::nbd::{self, EINVAL, ENOSPC, NbdClient};
use crate::support::{Node, Scratch, await_ready, run_weft, send_signal, spawn_node_telling, weft_output};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

/// Exit code `code`, and one line on stderr (log lines of a node apart) that begins with `weft: `.
fn assert_told(output: &Output, code: i32, what: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("panicked"), "{what}: a panic: {stderr}");
    assert_eq!(output.status.code(), Some(code), "{what}: {stderr}");
    let told: Vec<&str> = stderr.lines().filter(|line| line.starts_with("weft: ")).collect();
    assert_eq!(told.len(), 1, "{what}: one line tells it: {stderr}");
    assert!(told[0].len() > 20 && told[0].len() < 400, "{what}: the line says something: {}", told[0]);
    assert_eq!(stderr.lines().last(), Some(told[0]), "{what}: and it is the last: {stderr}");
}

#[test]
fn commands_that_make_no_sense_end_with_2() {
    let scratch = Scratch::new("senseless");
    let (dir, nothing) = (scratch.file("made"), scratch.file("nothing"));
    let (dir, nothing) = (dir.to_str().expect("plain"), nothing.to_str().expect("plain"));
    let cases: &[&[&str]] = &[
        &[],
        &["frobnicate"],
        &["vdisk"],
        &["vdisk", "create"],
        &["vdisk", "create", "v"],
        &["vdisk", "create", "v", "--size", "much"],
        &["vdisk", "create", "v", "--size", "0"],
        &["vdisk", "create", "v", "--size", "-5G"],
        &["vdisk", "create", "v", "--size", "99999999999999999999G"],
        &["vdisk", "create", "v", "--size", "1G", "--rf", "0"],
        &["vdisk", "create", "v", "--size", "1G", "--rf", "nine"],
        &["vdisk", "create", "v", "--size", "1G", "--colour", "red"],
        &["vdisk", "export", "v"],
        &["vdisk", "resize", "v", "--size", "1Q"],
        &["status", "--api", "not an address"],
        &["status", "--api", "127.0.0.1:99999"],
        &["status", "--api", "nonsense:x"],
        &["status", "--api", "https://127.0.0.1:7070"],
        &["export", "v", "/dev/null", "--force"],
        &["export", "v", "/proc", "--force"],
        &["up", "--dir", dir, "--drives", "0"],
        &["up", "--dir", dir, "--drives", "1000000"],
        &["up", "--dir", dir, "--api", "127.0.0.1:0", "--drive-size", "1K"],
        &["up", "--dir", dir, "--drive-size", "huge"],
        &["up", "--dir", dir, "--log", "verbose"],
        &["up", "--dir", dir, "--api", "nowhere"],
        &["up", "--dir", dir, "--rf", "7"],
        &["up", "--dir", dir, "--api", "127.0.0.1:0", "--drive", "/nonexistent/drive"],
        &["up", "--dir", dir, "--api", "127.0.0.1:0", "--drive", "/etc/passwd"],
        &["up", "--dir", dir, "--api", "127.0.0.1:0", "--drive", "/dev/null"],
        &["up", "--dir", "/proc/version"],
        &["up", "--dir", "/proc/sys/weft"],
        &["check", nothing],
        &["inspect", "drive", "--dir", nothing],
        &["inspect"],
        &["inspect", "nonsense"],
        &["lab"],
        &["lab", "run", "four-corners"],
        &["lab", "run", "nine-corners", "--target", "file:/tmp/x", "--out", nothing],
        &["lab", "run", "four-corners", "--target", "carrier-pigeon:x", "--out", nothing],
        &["lab", "report", nothing],
        &["lab", "report", "/etc/passwd"],
        &["completions", "klingon"],
        &["stats", "--dir"],
        &["up", "--dir", dir, "--config", "/nonexistent/weft.toml"],
        &["cluster"],
        &["cluster", "init"],
        &["cluster", "init", "--etcd", "https://127.0.0.1:1"],
        &["cluster", "init", "--etcd", "http://127.0.0.1:1", "--name", "a/b"],
        &["cluster", "init", "--etcd", "http://127.0.0.1:1", "--dir", dir, "--node-name", "12"],
        &["cluster", "init", "--etcd", "http://127.0.0.1:1", "--dir", dir, "--transport", "0.0.0.0:7071"],
        &["node", "join", "--dir", dir],
        &["node", "join", "--etcd", "http://127.0.0.1:1"],
        &["node", "join", "--etcd", "http://127.0.0.1:1", "--dir", dir, "--shards", "65"],
        &["node", "join", "--etcd", "http://127.0.0.1:1", "--dir", dir, "--api", "somewhere"],
        &["node", "join", "--etcd", "http://127.0.0.1:1", "--dir", dir, "--name", "a b"],
        &["node", "drain"],
        &["node", "drain", "2", "--undo", "--no-wait"],
        &["node", "remove"],
        &["drive", "add"],
        &["drive", "add", "--files", "0"],
        &["drive", "add", "--files", "1", "--size", "huge"],
        &["drive", "remove", "first"],
        &["drive", "remove", "3", "--lost", "--undo"],
        &["pg"],
        &["vdisk", "move", "v"],
    ];
    for case in cases {
        assert_told(&weft_output(case), 2, &format!("weft {case:?}"));
    }
}

#[test]
fn names_that_are_no_text_end_no_command_in_a_panic() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new("no-text");
    let odd = |name: &[u8]| scratch.path.join(OsStr::from_bytes(name));
    let run = |arguments: &[&OsStr]| {
        let mut command = std::process::Command::new(crate::support::WEFT);
        command
            .args(arguments)
            .env_remove("WEFT_DIR")
            .env_remove("WEFT_API")
            .output()
            .expect("weft can be run")
    };
    let word = OsStr::new;
    let drive = odd(b"drive\xff");
    assert_told(&run(&[word("drive"), word("add"), word("--path"), drive.as_os_str()]), 2, "a drive");
    let report = odd(b"report\xff");
    let output = run(&[word("--json"), word("lab"), word("report"), report.as_os_str()]);
    assert_told(&output, 2, "a report");

    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    node.weft(&["vdisk", "create", "v", "--size", "8M"]);
    let image = odd(b"image\xff.img");
    let line = [word("--json"), word("export"), word("v"), image.as_os_str(), word("--dir"), dir.as_os_str()];
    let output = run(&line);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::metadata(&image).expect("it was made").len(), 8 << 20);
    node.stop();
}

#[test]
fn a_configuration_file_that_makes_no_sense_is_named() {
    let scratch = Scratch::new("config");
    let (dir, file) = (scratch.file("made"), scratch.file("weft.toml"));
    let (dir, path) = (dir.to_str().expect("plain"), file.to_str().expect("plain"));
    for text in [
        "colour = \"red\"",
        "shards = 0",
        "api = 7",
        "no toml",
        "force = true",
        "drive-size = \"1K\"",
        "log = \"loud\"",
    ] {
        std::fs::write(&file, text).expect("it can be written");
        let output = weft_output(&["up", "--dir", dir, "--api", "127.0.0.1:0", "--config", path]);
        assert_told(&output, 2, text);
    }
    std::fs::write(&file, "shards = 99").expect("it can be written");
    let stderr = weft_output(&["up", "--dir", dir, "--config", path]).stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains(path) && stderr.contains("`shards`"), "the file and the key: {stderr}");
}

#[test]
fn the_command_line_counts_before_the_environment_and_that_before_the_file() {
    let scratch = Scratch::new("precedence");
    let file = scratch.file("weft.toml");
    let path = file.to_str().expect("plain");
    // None of these can be made, so the complaint tells which one was chosen.
    std::fs::write(&file, "dir = \"/proc/of-the-file\"").expect("it can be written");
    let chosen = |line: &[&str], environment: &[(&str, &str)]| {
        let mut command = std::process::Command::new(crate::support::WEFT);
        command.arg("up").args(line).env_remove("WEFT_DIR").envs(environment.iter().copied());
        let output = command.output().expect("it can be started");
        assert_told(&output, 2, "a directory that cannot be made");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let environment = [("WEFT_DIR", "/proc/of-the-environment"), ("WEFT_CONFIG", path)];
    let line = ["--dir", "/proc/of-the-line"];
    assert!(chosen(&line, &environment).contains("of-the-line"));
    assert!(chosen(&[], &environment).contains("of-the-environment"));
    assert!(
        chosen(&[], &environment[1..]).contains("of-the-file"),
        "also when the file is named by the environment"
    );
}

#[test]
fn a_directory_that_is_named_counts_before_an_address_of_the_environment() {
    let scratch = Scratch::new("named");
    let (dir, other) = (scratch.file("none"), scratch.file("other"));
    let (dir, other) = (dir.to_str().expect("plain"), other.to_str().expect("plain"));
    let asked = |line: &[&str]| {
        let mut command = std::process::Command::new(crate::support::WEFT);
        command.arg("status").args(line).env("WEFT_API", "127.0.0.1:1").env("WEFT_DIR", other);
        let output = command.output().expect("it can be started");
        assert_told(&output, 1, "nobody is there");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(asked(&["--dir", dir]).contains(&format!("no node runs on {dir}")));
    for line in [&[][..], &["--api", "127.0.0.1:2"], &["--dir", dir, "--api", "127.0.0.1:2"]] {
        assert!(asked(line).contains("--api 127.0.0.1:"), "an address counts before a directory: {line:?}");
    }
}

#[test]
fn what_may_be_otherwise_at_the_next_start_ends_with_1() {
    let scratch = Scratch::new("taken");
    let dir = scratch.file("node");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = listener.local_addr().expect("it has an address").to_string();
    let output = weft_output(&["up", "--dir", dir.to_str().expect("plain"), "--api", &address]);
    assert_told(&output, 1, "an address that is taken");
}

#[test]
fn without_etcd_nobody_joins_and_nothing_is_left() {
    let scratch = Scratch::new("no-etcd");
    let dir = scratch.file("node");
    let text = dir.to_str().expect("plain");
    for case in [&["node", "join"][..], &["cluster", "init"]] {
        let mut line = case.to_vec();
        line.extend(["--etcd", "127.0.0.1:1", "--dir", text]);
        assert_told(&weft_output(&line), 1, &format!("{case:?} without etcd"));
    }
    assert!(!dir.exists(), "nothing was made");
}

#[test]
fn help_teaches_and_completions_are_scripts() {
    for command in [
        "up",
        "down",
        "status",
        "stats",
        "inspect",
        "check",
        "lab",
        "completions",
        "vdisk",
        "cluster",
        "node",
        "drive",
        "pg",
    ] {
        let help = crate::support::run_weft(&[command, "--help"]);
        assert!(help.contains("Usage:"), "{command} --help: {help}");
    }
    assert!(crate::support::run_weft(&["--version"]).starts_with("weft "));
    assert!(crate::support::run_weft(&["completions", "bash"]).contains("weft"));
}

#[test]
fn a_command_without_a_node_fails_in_one_line() {
    let scratch = Scratch::new("nobody");
    let dir = scratch.file("none");
    let dir = dir.to_str().expect("plain");
    for case in [
        &["status"][..],
        &["down"],
        &["stats"],
        &["vdisk", "ls"],
        &["vdisk", "create", "v", "--size", "1G"],
        &["vdisk", "attach", "v"],
        &["vdisk", "move", "v", "--to", "1"],
        &["cluster", "status"],
        &["node", "ls"],
        &["node", "drain", "1"],
        &["node", "remove", "1"],
        &["drive", "ls"],
        &["drive", "add", "--files", "1"],
        &["drive", "remove", "1"],
        &["pg", "ls"],
    ] {
        let mut line = case.to_vec();
        line.extend(["--dir", dir]);
        assert_told(&weft_output(&line), 1, &format!("{case:?} without a node"));
    }
    // An address where nobody, or somebody else, answers.
    assert_told(&weft_output(&["status", "--api", "127.0.0.1:1"]), 1, "nobody listens");
    std::fs::create_dir_all(dir).expect("a directory can be made");
    std::fs::write(Path::new(dir).join("api"), "\u{1}garbage\n").expect("a file can be written");
    let output = weft_output(&["status", "--dir", dir]);
    assert!(matches!(output.status.code(), Some(1 | 2)), "garbage in DIR/api is an error");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}

#[test]
fn requests_that_cannot_be_met_end_with_2_and_change_nothing() {
    let scratch = Scratch::new("refused");
    let mut node = Node::start(&scratch.file("node"), &["--drive-size", "256M"]);
    node.export_new("v", "8M", &scratch.socket("v"));
    let file = scratch.file("precious");
    std::fs::write(&file, "precious").expect("a file can be written");
    let over_file = format!("unix:{}", file.display());
    let missing = format!("unix:{}/no/such/place", scratch.path.display());
    let too_long = format!("unix:/tmp/{}", "x".repeat(200));
    let taken = format!("unix:{}", scratch.socket("v").display());
    let long_name = "n".repeat(64);
    let cases: &[&[&str]] = &[
        &["vdisk", "create", "v", "--size", "1G"],
        &["vdisk", "create", "../etc", "--size", "1G"],
        &["vdisk", "create", "", "--size", "1G"],
        &["vdisk", "create", ".", "--size", "1G"],
        &["vdisk", "create", "a b", "--size", "1G"],
        &["vdisk", "create", &long_name, "--size", "1G"],
        &["vdisk", "create", "w", "--size", "1G", "--rf", "3"],
        &["vdisk", "show", "nothere"],
        &["vdisk", "show", "../.."],
        &["vdisk", "show", ".."],
        &["vdisk", "rm", ""],
        &["vdisk", "rm", "nothere"],
        &["vdisk", "rm", "v"],
        &["vdisk", "resize", "nothere", "--size", "1G"],
        &["vdisk", "export", "nothere", "--nbd", "unix:/tmp/x"],
        &["vdisk", "export", "v", "--nbd", &over_file],
        &["vdisk", "export", "v", "--nbd", &missing],
        &["vdisk", "export", "v", "--nbd", &too_long],
        &["vdisk", "export", "v", "--nbd", &taken],
        &["vdisk", "export", "v", "--nbd", "tcp:nowhere:port"],
        &["vdisk", "export", "v", "--nbd", "tcp:127.0.0.1"],
        &["vdisk", "export", "v", "--nbd", "pigeon:1"],
        &["vdisk", "unexport", "v", "--nbd", "tcp:127.0.0.1:9"],
        &["vdisk", "unexport", "nothere"],
        &["vdisk", "attach", "nothere"],
        &["vdisk", "detach", "v"],
        &["stats", "nothere"],
    ];
    for case in cases {
        assert_told(&node.try_weft(case), 2, &format!("weft {case:?}"));
    }
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
    assert!(node.is_running(), "the node is up after all that");
    let list = node.json(&["vdisk", "ls"]);
    assert_eq!(list.as_array().map(Vec::len), Some(1), "nothing was made");

    // A second node on the same directory, and offline tools on a running one.
    let dir = node.dir_text().to_string();
    assert_told(&weft_output(&["up", "--dir", &dir, "--api", "127.0.0.1:0"]), 1, "a second node");
    assert_told(&weft_output(&["check", &dir]), 2, "check of a running node");
    node.stop();
}

#[test]
fn damaged_files_are_told_and_not_made_worse() {
    let scratch = Scratch::new("damaged");
    let dir = scratch.file("node");
    let text = dir.to_str().expect("plain").to_string();
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    node.export_new("v", "8M", &scratch.socket("v"));
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    client.write(0, &content(0, 5)).expect("a write works");
    client.disconnect();
    node.stop();

    let up = ["up", "--dir", &text, "--api", "127.0.0.1:0"];
    for name in ["drive-0.data", "drive-0.log"] {
        let file = dir.join(name);
        // Cut short, and put back.
        let size = std::fs::metadata(&file).expect("it is there").len();
        let aside = scratch.file("aside");
        std::fs::rename(&file, &aside).expect("a rename works");
        assert_told(&weft_output(&up), 2, &format!("{name} is missing"));
        assert!(!file.exists(), "a missing drive is not made again, empty");
        tool_copy(&aside, &file);
        let handle = std::fs::File::options().write(true).open(&file).expect("it opens");
        handle.set_len(size / 2).expect("it can be cut");
        assert_told(&weft_output(&up), 1, &format!("{name} was cut short"));
        std::fs::rename(&aside, &file).expect("a rename works");
    }

    // The config: garbage instead of it, and put back.
    let config = dir.join("config.redb");
    let good = std::fs::read(&config).expect("the config is there");
    for bad in [&b"this is no database"[..], &[], &vec![0xff; good.len()][..]] {
        std::fs::write(&config, bad).expect("it can be written");
        assert_told(&weft_output(&up), 1, &format!("a config of {} bad bytes", bad.len()));
        let checked = weft_output(&["check", &text]);
        assert_told(&checked, 2, "check with a bad config");
    }
    std::fs::write(&config, &good).expect("it can be written");

    let node = Node::start(&dir, &[]);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    assert!(client.read(0, BLOCK as u32).expect("a read works") == content(0, 5), "nothing was lost");
    client.disconnect();
    node.stop();
}

fn tool_copy(from: &Path, to: &Path) {
    crate::support::tool(&[
        "cp",
        "--sparse=always",
        from.to_str().expect("plain"),
        to.to_str().expect("plain"),
    ]);
}

#[test]
fn with_two_copies_a_missing_drive_stays_away_until_told_otherwise() {
    let scratch = Scratch::new("missing");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drives", "3", "--drive-size", "192M"]);
    node.export_new("v", "8M", &scratch.socket("v"));
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    for block in 0..1024 {
        client.write(block * BLOCK as u64, &content(block as usize, 1)).expect("a write works");
    }
    client.disconnect();
    node.stop();
    for name in ["drive-1.data", "drive-1.log"] {
        std::fs::rename(dir.join(name), scratch.file(name)).expect("a rename works");
    }
    for arguments in [&[][..], &["--replace-lost"]] {
        let node = Node::start(&dir, arguments);
        assert!(node.ready.contains("2 of"), "it says that a drive is away: {}", node.ready);
        let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
        for block in 0..1024 {
            let bytes = client.read(block * BLOCK as u64, BLOCK as u32).expect("a read works");
            assert!(bytes == content(block as usize, 1), "block {block} is there");
        }
        client.write(0, &content(0, 1)).expect("writes go on");
        client.disconnect();
        node.stop();
    }
}

#[test]
fn another_node_at_the_address_of_a_killed_one_is_not_taken_for_it() {
    let scratch = Scratch::new("other-run");
    let first = Node::start(&scratch.file("first"), &["--drive-size", "256M"]);
    let dir = first.dir.clone();
    first.kill();
    let second = Node::start(&scratch.file("second"), &["--drive-size", "256M"]);
    // As if it had been given the port that is free now.
    std::fs::copy(second.dir.join("api"), dir.join("api")).expect("a file can be copied");
    second.weft(&["vdisk", "create", "v", "--size", "8M"]);
    let output = weft_output(&["vdisk", "rm", "v", "--dir", dir.to_str().expect("it is text")]);
    assert_told(&output, 1, "the directory of a killed node");
    assert!(String::from_utf8_lossy(&output.stderr).contains("another one answers at"));
    assert!(second.weft(&["vdisk", "ls"]).contains('v'));
}

#[test]
fn garbage_on_sockets_leaves_the_node_serving() {
    let scratch = Scratch::new("garbage");
    let mut node = Node::start(&scratch.file("node"), &["--drive-size", "256M"]);
    node.export_new("v", "8M", &scratch.socket("v"));
    let socket = scratch.socket("v");
    let mut client = NbdClient::connect_patiently(&socket, "v");
    client.write(0, &content(0, 1)).expect("a write works");
    let api = std::fs::read_to_string(node.dir.join("api")).expect("the address is there");
    let api = api.trim().trim_start_matches("http://").to_string();
    let mut random = SmallRng::seed_from_u64(99);
    for round in 0..100 {
        let mut bytes = vec![0; random.random_range(1..3000)];
        random.fill(&mut bytes[..]);
        if round % 3 == 0 {
            let head = "POST /v1/vdisks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
            let mut request = format!("{head}Content-Length: {}\r\n\r\n", bytes.len()).into_bytes();
            request.extend(&bytes);
            bytes = request;
        }
        if let Ok(mut stream) = TcpStream::connect(&api) {
            let _ = stream.write_all(&bytes);
        }
        if let Ok(mut stream) = UnixStream::connect(&socket) {
            let _ = stream.write_all(&bytes);
        }
    }
    fuzz_handshakes(&socket, &mut random);
    fuzz_requests(&socket, &mut random);
    assert!(node.is_running(), "the node is up after all that: {}", node.log_text());
    assert!(client.read(4096 * 2000, 4096).is_ok(), "an old connection still works");
    let mut client = NbdClient::connect_patiently(&socket, "v");
    client.write(0, &content(0, 2)).expect("a write works");
    assert!(client.read(0, BLOCK as u32).expect("a read works") == content(0, 2));
    client.disconnect();
    node.weft(&["status"]);
    assert!(!node.log_text().contains("panicked"), "nothing panicked: {}", node.log_text());
    node.stop();
}

/// Options with random numbers, lengths and bodies.
fn fuzz_handshakes(socket: &Path, random: &mut SmallRng) {
    for _ in 0..200 {
        let Ok(mut stream) = nbd::greet(socket) else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
        for _ in 0..random.random_range(1..6) {
            let mut body = vec![0; random.random_range(0..200)];
            random.fill(&mut body[..]);
            let option = if random.random_bool(0.9) { random.random_range(0..14) } else { random.random() };
            // ABORT is answered at once and ends it; the others may be answered with errors.
            if nbd::send_option(&mut stream, option, &body).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

/// A good handshake, then requests with random fields; half of them leave in the middle.
fn fuzz_requests(socket: &Path, random: &mut SmallRng) {
    for _ in 0..100 {
        let Ok(client) = NbdClient::connect(socket, "v") else { continue };
        drop(client);
        let Ok(mut stream) = nbd::greet(socket) else { continue };
        let body = [&1u32.to_be_bytes()[..], b"v", &0u16.to_be_bytes()].concat();
        if nbd::send_option(&mut stream, 7, &body).is_err() {
            continue;
        }
        for cookie in 0..random.random_range(1..20) {
            let offset =
                if random.random_bool(0.5) { random.random_range(0..9 << 20) } else { random.random() };
            let len = if random.random_bool(0.8) { random.random_range(0..1 << 16) } else { random.random() };
            let command = if random.random_bool(0.9) { random.random_range(0..9) } else { random.random() };
            let flags = if random.random_bool(0.7) { 0 } else { random.random() };
            let mut bytes = nbd::request_header(flags, command, cookie, offset, len);
            if command == nbd::WRITE && len < 1 << 16 && random.random_bool(0.8) {
                bytes.resize(bytes.len() + len as usize, 0xee);
            }
            if random.random_bool(0.05) {
                bytes[0] ^= 1;
            }
            if stream.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
        let mut taken = vec![0; 1 << 16];
        while stream.read(&mut taken).is_ok_and(|count| count > 0 && random.random_bool(0.9)) {}
    }
}

#[test]
fn requests_outside_the_vdisk_are_refused_one_by_one() {
    let scratch = Scratch::new("outside");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "256M"]);
    node.export_new("v", "8M", &scratch.socket("v"));
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    let size = client.size;
    assert_eq!(client.read(size, 4096), Err(EINVAL), "a read behind the end");
    assert_eq!(client.read(size - 2048, 4096), Err(EINVAL), "a read across the end");
    assert!(
        matches!(client.write(size, &[0; 4096]), Err(ENOSPC | EINVAL)),
        "a write behind the end is refused as the protocol says"
    );
    assert_eq!(client.trim(u64::MAX - 100, 4096), Err(EINVAL), "a trim that overflows");
    let unknown = client.call(77, 0, 0, 0, &[]).expect("the connection holds");
    assert_eq!(unknown.error, EINVAL, "an unknown command");
    client.write(size - 4096, &[7; 4096]).expect("the last block works");
    assert_eq!(client.read(size - 4096, 4096), Ok(vec![7; 4096]));
    client.disconnect();
    assert!(NbdClient::connect(&scratch.socket("v"), "other").is_err(), "another name is refused");
    node.stop();
}

#[test]
fn what_is_too_long_for_the_api_is_told_in_its_own_way() {
    let scratch = Scratch::new("too-long");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    let api = std::fs::read_to_string(node.dir.join("api")).expect("it runs");
    let mut stream = TcpStream::connect(api.trim()).expect("it listens");
    let body = format!("{{\"name\": \"{}\"}}", "x".repeat(100 << 10));
    let head = format!(
        "POST /v1/vdisks HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // It may be answered, and closed, before all of it is sent.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("{\"error\":"), "{answer}");
    node.stop();
}

#[test]
fn a_log_that_cannot_be_written_is_no_reason_to_end() {
    let scratch = Scratch::new("full-log");
    let dir = scratch.file("node");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("it is everywhere");
    let mut child = spawn_node_telling(&dir, &["--drive-size", "512M"], full);
    // Nobody reads the line that says that it is ready either, after this.
    await_ready(&mut child, &scratch.file("no.log")).expect("it starts");
    let dir = dir.to_str().expect("a plain name");
    for line in [
        &["vdisk", "create", "v", "--size", "16M", "--dir", dir][..],
        &["vdisk", "export", "v", "--nbd", &format!("unix:{}", scratch.socket("s").display()), "--dir", dir],
        &["vdisk", "resize", "v", "--size", "32M", "--dir", dir],
    ] {
        run_weft(line);
    }
    send_signal(&child, libc::SIGTERM);
    let status = child.wait().expect("it can be waited for");
    assert!(status.success(), "{status}");
    assert!(!scratch.socket("s").exists(), "its socket is gone");
}

#[test]
fn who_says_nothing_to_the_api_is_sent_away_and_keeps_nobody_out() {
    let scratch = Scratch::new("silent");
    let node = Node::start(&scratch.file("node"), &[]);
    let address = std::fs::read_to_string(node.dir.join("api")).expect("the node has told its address");
    let mut silent: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(address.trim()).expect("it listens")).collect();
    let mut half = TcpStream::connect(address.trim()).expect("it listens");
    half.write_all(b"POST /v1/vdisks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        .expect("it reads");
    node.weft(&["vdisk", "create", "v", "--size", "64M"]);
    for stream in &mut silent {
        // Far longer than it takes, and shorter than for ever.
        stream.set_read_timeout(Some(Duration::from_secs(180))).expect("a timeout can be set");
        let mut told = Vec::new();
        stream.read_to_end(&mut told).expect("the connection ends");
    }
    half.set_read_timeout(Some(Duration::from_secs(180))).expect("a timeout can be set");
    let mut told = [0; 32];
    half.read_exact(&mut told).expect("it is answered");
    assert!(told.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&told));
    node.weft(&["vdisk", "rm", "v"]);
    node.stop();
}

#[test]
fn clients_that_fill_one_export_leave_room_at_the_others() {
    let scratch = Scratch::new("crowded");
    let node = Node::start(&scratch.file("node"), &[]);
    node.export_new("v", "8M", &scratch.socket("v"));
    node.export_new("w", "8M", &scratch.socket("w"));
    let mut clients = Vec::new();
    while let Ok(client) = NbdClient::connect(&scratch.socket("v"), "v") {
        clients.push(client);
        assert!(clients.len() <= 1024, "a shard has no more places");
    }
    assert!(clients.len() > 500, "an export has many: {}", clients.len());
    let mut other = NbdClient::connect(&scratch.socket("w"), "w").expect("there is room at another export");
    other.write(0, &content(0, 1)).expect("a write works");
    // The others are still served, and who leaves makes room.
    clients[0].write(0, &content(0, 2)).expect("a write works");
    clients.pop().expect("there are many").disconnect();
    clients.push(NbdClient::connect_patiently(&scratch.socket("v"), "v"));
    drop(clients);
    other.disconnect();
    node.stop();
}

#[test]
fn what_the_api_cannot_read_is_refused_with_a_document() {
    let scratch = Scratch::new("unreadable");
    let node = Node::start(&scratch.file("node"), &[]);
    let api = crate::support::http::api_of(&scratch.file("node"));
    let large = format!("{{ \"name\": \"{}\" }}", "a".repeat(1 << 20));
    for (method, path, body, status) in [
        ("GET", "/v1/vdisks/%ff", "", 400),
        ("POST", "/v1/vdisks", &large, 413),
        ("PATCH", "/v1/vdisks", "", 405),
    ] {
        let answer = crate::support::http::request(&api, method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let document: serde_json::Value = serde_json::from_str(&answer.body)
            .unwrap_or_else(|error| panic!("{method} {path} is answered by {:?}: {error}", answer.body));
        assert!(document["error"].as_str().is_some_and(|line| !line.is_empty()), "{document}");
    }
    node.stop();
}
