//! Names and paths as parts of URIs: what could be taken for something else there is escaped.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use std::path::Path;

/// What is escaped in a path: all but what RFC 3986 calls unreserved.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// In the value of a parameter some more letters mean nothing.
const IN_QUERY: &AsciiSet = &IN_PATH.remove(b'/').remove(b':').remove(b'@').remove(b',');

/// A name as part of a path.
pub fn path_part(name: &str) -> String {
    let text = utf8_percent_encode(name, IN_PATH).to_string();
    // "." and ".." would be taken for steps in the path.
    if text.chars().all(|c| c == '.') { text.replace('.', "%2E") } else { text }
}

/// A path as the value of a parameter.
pub(crate) fn in_query(path: &Path) -> String {
    percent_encode(path.as_os_str().as_encoded_bytes(), IN_QUERY).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(path_part("demo-1"), "demo-1");
        assert_eq!(path_part("a/b?c"), "a%2Fb%3Fc");
        assert_eq!(path_part(".."), "%2E%2E");
    }
}
