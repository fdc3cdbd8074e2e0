//! `scripts/install.sh`: what the units name is there afterwards, a configuration that was changed stays, and it can be undone.

use crate::support::{Scratch, WEFT, files_below};
use std::path::Path;
use std::process::{Command, Output};

fn install(root: &Path, arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new(script);
    command.args(arguments).env("DESTDIR", root).env("WEFT_PROGRAM", WEFT);
    command.output().expect("bash is there")
}

#[test]
fn what_the_units_name_is_installed_and_a_configuration_stays() {
    let scratch = Scratch::new("install");
    let root = scratch.file("root");
    let first = install(&root, &[]);
    assert!(first.status.success(), "{first:?}");
    let under = |path: &str| root.join(path.trim_start_matches('/'));
    for unit in ["weft.service", "weft@.service"] {
        let text = std::fs::read_to_string(under("/lib/systemd/system").join(unit)).expect("it is there");
        let start =
            text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
        let program = start.split(' ').next().expect("it has a program");
        let version = Command::new(under(program)).arg("--version").output().expect("it can be run");
        assert!(version.status.success(), "{version:?}");
        let page = text.lines().find_map(|line| line.strip_prefix("Documentation=file://"));
        let page = page.expect("it says where to read");
        assert!(under(page).is_file(), "{unit} names {page}");
    }
    for document in files_below(&under("/usr/share/doc/weft")) {
        let Ok(text) = std::fs::read_to_string(&document) else { continue };
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let target = document.parent().expect("it is in a directory").join(link);
            assert!(link.starts_with("http") || target.exists(), "{} links to {link}", document.display());
        }
    }
    let config = under("/etc/weft/weft.toml");
    std::fs::write(&config, "dir = \"/srv/weft\"\n").expect("it can be changed");
    let again = install(&root, &[]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(std::fs::read_to_string(&config).expect("it is there"), "dir = \"/srv/weft\"\n");
    let wrong = install(&root, &["--now"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let undone = install(&root, &["--undo"]);
    assert!(undone.status.success(), "{undone:?}");
    assert_eq!(files_below(&root), [config], "nothing else is left");
}
