//! Times as people write them: `90s`, `10m`, `2h`, or plain seconds.

/// Seconds meant by `text`, or why it means none.
pub fn parse_seconds(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let seconds = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(not_a_time(text)),
    };
    let number: u64 = number.parse().map_err(|_| not_a_time(text))?;
    number.checked_mul(seconds).filter(|&seconds| seconds > 0).ok_or_else(|| not_a_time(text))
}

/// `seconds` in the largest unit that tells them whole.
pub fn show(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    match units.into_iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

fn not_a_time(text: &str) -> String {
    format!("`{text}` is no time: write it like 90s, 10m or 2h")
}

#[cfg(test)]
mod tests {
    use super::{parse_seconds, show};

    #[test]
    fn times_are_understood_or_refused() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400)] {
            assert_eq!(parse_seconds(text), Ok(seconds));
        }
        for text in ["90s", "10m", "2h", "1d", "1h"] {
            assert_eq!(parse_seconds(text).map(show).as_deref(), Ok(text));
        }
        for bad in ["", "m", "0", "-1s", "1.5h", "10 weeks", "99999999999999999999"] {
            assert!(parse_seconds(bad).is_err(), "{bad:?}");
        }
    }
}
