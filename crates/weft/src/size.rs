//! Sizes as people write them: `8G`, `512M`, `1T`, or plain bytes. All are binary (1K = 1024).

/// Bytes meant by `text`, or why it means none.
pub fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(not_a_size(text)),
    };
    if number.is_empty() {
        return Err(not_a_size(text));
    }
    let bytes = if number.contains('.') {
        let value: f64 = number.parse().map_err(|_| not_a_size(text))?;
        let bytes = value * (1u64 << shift) as f64;
        if bytes > i64::MAX as f64 {
            return Err(too_large(text));
        }
        bytes as u64
    } else {
        let value: u64 = number.parse().map_err(|_| too_large(text))?;
        value.checked_mul(1 << shift).ok_or_else(|| too_large(text))?
    };
    if bytes == 0 {
        return Err(format!("`{text}` is nothing: give a size like 8G, 512M or 1T"));
    }
    Ok(bytes)
}

/// Likewise, where 0 means none.
pub fn parse_or_none(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { parse(text) }
}

/// Bytes of a limit; 0 stands for none.
pub fn parse_limit(text: &str) -> Result<u64, String> {
    if text.trim() == "none" { Ok(0) } else { parse(text) }
}

/// Likewise, of things that are counted.
pub fn parse_count_limit(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    match trimmed.parse() {
        _ if trimmed == "none" => Ok(0),
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("`{text}` is no limit: write a number like 500, or none")),
    }
}

fn not_a_size(text: &str) -> String {
    format!("`{text}` is no size: write it like 8G, 512M or 1T (1K = 1024 bytes)")
}

fn too_large(text: &str) -> String {
    format!("`{text}` is too large to be a size")
}

/// `bytes` in the largest unit that keeps it above 1, with one decimal where that says more.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() < 0.05 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_exact() {
        assert_eq!(parse("8G"), Ok(8 << 30));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("1TiB"), Ok(1 << 40));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("1.5k"), Ok(1536));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "G", "8X", "-1G", "0", "1e9", "99999999999999999999", "20000P", "8 8G", "1.2.3G"] {
            assert!(parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_limit_is_a_size_or_a_number_or_none() {
        assert_eq!((parse_limit("none"), parse_limit("1M")), (Ok(0), Ok(1 << 20)));
        assert_eq!((parse_count_limit("none"), parse_count_limit("500")), (Ok(0), Ok(500)));
        for text in ["", "0", "-1", "5x", "None"] {
            assert!(parse_limit(text).is_err() && parse_count_limit(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(8 << 30), "8 GiB");
        assert_eq!(show(1536), "1.5 KiB");
    }
}
