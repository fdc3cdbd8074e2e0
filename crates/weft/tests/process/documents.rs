//! What the documents name exists: paths, links, commands and their options, make targets.

use crate::support::files_below;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository is there")
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut files = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    let pages = files_below(&root().join("docs"));
    files.extend(pages.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, text)
    };
    files.into_iter().map(read).collect()
}

/// Everything between single backticks outside of fenced blocks.
fn code_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            words.extend(line.split('`').skip(1).step_by(2).map(str::to_string));
        }
    }
    words
}

/// A path of the repository: no spaces or patterns, and it begins or ends as one.
fn looks_like_path(word: &str) -> bool {
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let begins = ["crates/", "docs/", "scripts/", ".ci/"].iter().any(|part| word.starts_with(part));
    plain
        && word.contains('/')
        && !word.starts_with('/')
        && !word.starts_with("./")
        && (begins || word.ends_with(".rs"))
}

#[test]
fn paths_in_the_documents_exist() {
    let root = root();
    // A page about one crate names files as its reader would look for them.
    let mut bases = vec![root.clone(), root.join("crates")];
    for entry in std::fs::read_dir(root.join("crates")).expect("crates can be listed").flatten() {
        bases.extend([entry.path(), entry.path().join("src")]);
    }
    let mut missing = Vec::new();
    for (file, text) in documents() {
        for word in code_words(&text).iter().filter(|word| looks_like_path(word)) {
            if !bases.iter().any(|base| base.join(word).exists()) {
                missing.push(format!("{}: `{word}`", file.display()));
            }
        }
    }
    assert!(missing.is_empty(), "named but not there:\n{}", missing.join("\n"));
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    let mut missing = Vec::new();
    for (file, text) in documents() {
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            if target.starts_with("http") || target.starts_with('#') || target.contains(char::is_whitespace) {
                continue;
            }
            let target = target.split('#').next().unwrap_or_default();
            if !file.parent().expect("a file lies somewhere").join(target).exists() {
                missing.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(missing.is_empty(), "links into nothing:\n{}", missing.join("\n"));
}

/// `weft ...` and `make ...` in backticks or at the start of a line of a code block.
fn commands(text: &str, program: &str) -> BTreeSet<String> {
    let prefix = format!("{program} ");
    let lines = text.lines().map(|line| line.trim().trim_start_matches("$ ").to_string());
    let candidates = code_words(text).into_iter().chain(lines);
    candidates.filter(|line| line.starts_with(&prefix)).collect()
}

#[test]
fn commands_in_the_documents_exist_with_their_options() {
    let mut wrong = Vec::new();
    for (file, text) in documents() {
        for command in commands(&text, "weft") {
            let words: Vec<&str> = command.split_whitespace().skip(1).collect();
            let verbs =
                words.iter().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
            let verbs: Vec<&str> = verbs.copied().filter(|word| !word.starts_with('-')).collect();
            // Words behind the command are names: the longest prefix that is a command is meant.
            let help = (1..=verbs.len()).rev().find_map(|count| {
                let mut line = verbs[..count].to_vec();
                line.push("--help");
                let output = crate::support::weft_output(&line);
                output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
            });
            let Some(help) = help else {
                // A sentence that begins with the name of the program is no command.
                if !verbs.is_empty() && code_words(&text).contains(&command) {
                    wrong.push(format!("{}: {command}", file.display()));
                }
                continue;
            };
            let options = words.iter().filter_map(|word| {
                let option =
                    word.trim_matches(|c| "[]().,`".contains(c)).split('=').next().unwrap_or_default();
                option.starts_with("--").then(|| option.to_string())
            });
            for option in options {
                if !help.contains(&option) {
                    wrong.push(format!("{}: {command}: no {option}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "commands that do not exist:\n{}", wrong.join("\n"));
}

#[test]
fn make_targets_in_the_documents_exist() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("the Makefile is there");
    for (file, text) in documents() {
        for command in commands(&text, "make") {
            let Some(target) = command.split_whitespace().nth(1) else { continue };
            let plain = target.chars().all(|c| c.is_ascii_lowercase());
            // Only in backticks or code is it a command; prose has sentences with `make`.
            if plain && code_words(&text).contains(&command) {
                let there = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
                assert!(there, "{}: make has no target {target}", file.display());
            }
        }
    }
}
