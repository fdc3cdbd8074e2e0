//! What a node is called.

use std::path::Path;

const LETTERS_MAX: usize = 63;

/// Directories that say nothing about the node in them.
const PLAIN_DIRECTORIES: [&str; 3] = ["weft", "weft-data", "data"];

/// A name of all digits would be taken for a number.
pub(super) fn is_good(name: &str) -> bool {
    (1..=LETTERS_MAX).contains(&name.len())
        && name.bytes().all(is_letter)
        && !name.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_".contains(&byte)
}

/// The name of a node that was not given one: of its machine, and of its directory where that says more.
pub fn default_name(dir: &Path) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    made_of(&host, &dir.file_name().unwrap_or_default().to_string_lossy())
}

fn made_of(host: &str, directory: &str) -> String {
    let host = host.trim().split('.').next().unwrap_or_default();
    let host = if host.is_empty() { "node" } else { host };
    let wanted = if directory.is_empty() || PLAIN_DIRECTORIES.contains(&directory) {
        host.to_string()
    } else {
        format!("{host}-{directory}")
    };
    let letter = |byte: u8| if is_letter(byte) { char::from(byte) } else { '-' };
    let name: String = wanted.bytes().map(letter).take(LETTERS_MAX).collect();
    if is_good(&name) { name } else { format!("node-{}", &name[..name.len().min(LETTERS_MAX - 5)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_called_like_its_machine_and_its_directory() {
        assert_eq!(made_of("db-2.example.org\n", "weft-data"), "db-2");
        assert_eq!(made_of("db-2", "n1"), "db-2-n1");
        assert_eq!(made_of("", "weft"), "node");
        for (host, directory) in
            [("42", "data"), ("ü", "a b/c"), (&*"h".repeat(99), "d"), (&*"4".repeat(99), "")]
        {
            let name = made_of(host, directory);
            assert!(is_good(&name), "{name}");
        }
    }

    #[test]
    fn a_number_is_no_name() {
        assert!(is_good("n1") && is_good("1.2"));
        assert!(!is_good("12") && !is_good("") && !is_good("a b") && !is_good(&"x".repeat(64)));
    }
}
