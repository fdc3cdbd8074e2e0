//! The configuration file of `weft up`: TOML, keys are the names of the options.
//! Promises: what is given on the command line or in the environment counts before the file; a key that is not known or
//! whose value makes no sense is an error that names the key and the file.

use crate::arguments::UpOptions;
use crate::size;
use crate::trouble::Trouble;
use crate::up;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use weft_node::DRIVES_MAX;

/// Read if it is there and no other is named.
const DEFAULT_FILE: &str = "/etc/weft/weft.toml";

/// Every key, in the order of `packaging/weft.toml`.
pub const KEYS: [&str; 10] =
    ["dir", "drives", "drive-size", "drive", "rf", "shards", "read-cache", "api", "transport", "log"];

/// Options that destroy something: to stand in a file that is read at every start is not what anybody wants.
const COMMAND_LINE_ONLY: [&str; 3] = ["force", "replace-lost", "accept-records"];

/// The options of `weft up`, completed by the file. None named: by the file in its usual place, if there is one.
pub fn complete(given: UpOptions, named: Option<&Path>) -> Result<UpOptions, Trouble> {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok(given),
        Err(error) => {
            return Err(Trouble::bad_input(format!(
                "the configuration file {} cannot be read: {error}; name another with --config",
                path.display()
            )));
        }
    };
    let file =
        read(&text).map_err(|reason| Trouble::bad_input(format!("in {}: {reason}", path.display())))?;
    if named.is_none() && is_of_another_node(&given, &file) {
        return Ok(given);
    }
    Ok(merge(given, file))
}

/// Whether the file says what another directory's node is to have. Nobody named it: a node that is tried out beside that one must
/// not take its devices.
fn is_of_another_node(given: &UpOptions, file: &UpOptions) -> bool {
    matches!((&given.dir, &file.dir), (Some(dir), Some(other)) if dir != other)
}

fn merge(given: UpOptions, file: UpOptions) -> UpOptions {
    UpOptions {
        dir: given.dir.or(file.dir),
        drives: given.drives.or(file.drives),
        drive_size: given.drive_size.or(file.drive_size),
        drive: if given.drive.is_empty() { file.drive } else { given.drive },
        rf: given.rf.or(file.rf),
        shards: given.shards.or(file.shards),
        read_cache: given.read_cache.or(file.read_cache),
        api: given.api.or(file.api),
        transport: given.transport.or(file.transport),
        log: given.log.or(file.log),
    }
}

fn read(text: &str) -> Result<UpOptions, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // The message alone: the drawing of the place takes several lines.
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line} is not TOML as it must be: {}", error.message().replace('\n', ", "))
    })?;
    let mut options = UpOptions::default();
    for (key, value) in &table {
        put(&mut options, key, value)?;
    }
    Ok(options)
}

fn put(options: &mut UpOptions, key: &str, value: &Value) -> Result<(), String> {
    match key {
        "dir" => options.dir = Some(PathBuf::from(text(key, value)?)),
        "drives" => options.drives = Some(number(key, value, DRIVES_MAX)?),
        "drive-size" => options.drive_size = Some(bytes(key, value)?),
        "drive" => options.drive = paths(key, value)?,
        "rf" => options.rf = Some(number(key, value, 3)?),
        "shards" => options.shards = Some(number(key, value, 64)?),
        "read-cache" => options.read_cache = Some(bytes_or_none(key, value)?),
        "api" => options.api = Some(address(key, value)?),
        "transport" => options.transport = Some(address(key, value)?),
        "log" => {
            let level = up::log_level(text(key, value)?).map_err(|reason| format!("`{key}`: {reason}"))?;
            options.log = Some(level);
        }
        key if COMMAND_LINE_ONLY.contains(&key) => {
            return Err(format!("`{key}` destroys something, so it is for the command line only"));
        }
        key => return Err(format!("there is no key `{key}`; there are {}", KEYS.join(", "))),
    }
    Ok(())
}

fn address(key: &str, value: &Value) -> Result<SocketAddr, String> {
    let address = text(key, value)?;
    address.parse().map_err(|_| format!("`{key}`: `{address}` is no address: write it like 127.0.0.1:7070"))
}

fn text<'a>(key: &str, value: &'a Value) -> Result<&'a str, String> {
    match value.as_str() {
        Some("") | None => Err(format!("`{key}` must be a text in quotes, not {value}")),
        Some(text) => Ok(text),
    }
}

fn number(key: &str, value: &Value, max: u32) -> Result<u32, String> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    match number {
        Some(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("`{key}` must be a number from 1 to {max}, not {value}")),
    }
}

fn bytes(key: &str, value: &Value) -> Result<u64, String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
    size::parse(&text).map_err(|reason| format!("`{key}`: {reason}"))
}

fn bytes_or_none(key: &str, value: &Value) -> Result<u64, String> {
    if value.as_integer() == Some(0) || value.as_str() == Some("0") { Ok(0) } else { bytes(key, value) }
}

fn paths(key: &str, value: &Value) -> Result<Vec<PathBuf>, String> {
    let paths: Option<Vec<PathBuf>> = match value {
        Value::String(path) => Some(vec![PathBuf::from(path)]),
        Value::Array(paths) => paths.iter().map(|path| path.as_str().map(PathBuf::from)).collect(),
        _ => None,
    };
    paths.ok_or_else(|| format!("`{key}` must be a list of paths in quotes, not {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    const EVERYTHING: &str = r#"
        dir = "/var/lib/weft"
        drives = 3
        drive-size = "100G"
        drive = ["/dev/sdb", "/dev/sdc"]
        rf = 2
        shards = 4
        read-cache = "2G"
        api = "10.0.0.1:7070"
        transport = "10.0.0.1:7071"
        log = "debug"
    "#;

    fn given(line: &[&str]) -> UpOptions {
        let line = ["weft", "up"].iter().chain(line);
        match Arguments::try_parse_from(line).expect("it is a command").command {
            Command::Up(up) => up.options,
            other => panic!("not up: {other:?}"),
        }
    }

    #[test]
    fn the_file_in_its_usual_place_is_for_its_own_directory() {
        let file = read(EVERYTHING).expect("it is read");
        assert!(is_of_another_node(&given(&["--dir", "/tmp/tried"]), &file));
        assert!(!is_of_another_node(&given(&["--dir", "/var/lib/weft"]), &file));
        assert!(!is_of_another_node(&UpOptions::default(), &file));
        let anywhere = UpOptions { dir: None, ..file };
        assert!(!is_of_another_node(&given(&["--dir", "/tmp/tried"]), &anywhere));
    }

    #[test]
    fn every_option_can_be_in_the_file() {
        let options = read(EVERYTHING).expect("it is read");
        let expected = UpOptions {
            dir: Some("/var/lib/weft".into()),
            drives: Some(3),
            drive_size: Some(100 << 30),
            drive: vec!["/dev/sdb".into(), "/dev/sdc".into()],
            rf: Some(2),
            shards: Some(4),
            read_cache: Some(2 << 30),
            api: Some(([10, 0, 0, 1], 7070).into()),
            transport: Some(([10, 0, 0, 1], 7071).into()),
            log: Some("debug".to_string()),
        };
        assert_eq!(options, expected);
        assert_eq!(merge(UpOptions::default(), options), expected, "nothing is lost on the way");
    }

    #[test]
    fn the_command_line_counts_before_the_file() {
        let line = [
            ["--dir", "there"],
            ["--drives", "5"],
            ["--drive-size", "1G"],
            ["--drive", "/dev/sdd"],
            ["--rf", "1"],
            ["--shards", "2"],
            ["--read-cache", "0"],
            ["--api", "127.0.0.1:0"],
            ["--transport", "127.0.0.1:0"],
            ["--log", "warn"],
        ];
        let full = given(&line.concat());
        let file = read(EVERYTHING).expect("it is read");
        assert_eq!(merge(full.clone(), file.clone()), full, "each of them");
        let merged = merge(given(&["--shards", "2"]), file.clone());
        assert_eq!(merged, UpOptions { shards: Some(2), ..file }, "and only what was given");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("drive_size = \"1G\"", "`drive_size`"),
            ("[cluster]\nname = \"main\"", "`cluster`"),
            ("shards = 0", "`shards`"),
            ("shards = \"2\"", "`shards`"),
            ("drives = 49", "`drives`"),
            ("rf = 4", "`rf`"),
            ("drive-size = \"much\"", "`drive-size`"),
            ("read-cache = \"some\"", "`read-cache`"),
            ("drive = 7", "`drive`"),
            ("dir = \"\"", "`dir`"),
            ("api = \"nowhere\"", "`api`"),
            ("log = \"loud\"", "`loud`"),
            ("force = true", "command line only"),
            ("rf = 2\nrf = 3", "line 2"),
            ("rf = 2\n\nshards = = 3", "line 3"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(named) && !error.contains('\n'), "{text}: {error}");
        }
        let missing = complete(UpOptions::default(), Some(Path::new("/nonexistent/weft.toml")));
        assert!(matches!(missing, Err(Trouble::BadInput(_))), "a file that was named must be there");
    }

    #[test]
    fn the_file_in_the_package_has_every_key_with_its_default() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/weft.toml");
        let text = std::fs::read_to_string(path).expect("it is there");
        let commented: String = text
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')))
            .map(|line| format!("{line}\n"))
            .collect();
        let table: Table = commented.parse().expect("without the marks it is TOML");
        for key in KEYS {
            assert!(table.contains_key(key) || text.contains(&format!("\n{key} = ")), "{key}");
        }
        read(&commented).expect("all keys are known");
        read(&text).expect("and so it is as it stands");
    }
}
