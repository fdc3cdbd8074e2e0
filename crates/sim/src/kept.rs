//! Seeds that failed once. They are run first, for ever.

use crate::plan::Plan;

const TEXT: &str = include_str!("../seeds/kept.txt");

/// A line of the file: plan, seed, and why it is kept.
#[derive(Debug, Clone)]
pub struct Kept {
    pub plan: Plan,
    pub seed: u64,
    pub why: String,
}

/// All kept seeds, in the order of the file.
pub fn kept() -> Vec<Kept> {
    TEXT.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Kept> {
    let (what, why) = line.split_once('#').unwrap_or((line, ""));
    let mut words = what.split_whitespace();
    let plan = words.next()?;
    let plan = Plan::named(plan).unwrap_or_else(|| panic!("kept seeds name a plan that is: {line}"));
    let seed = words.next().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| panic!("kept seeds have a number: {line}"));
    Some(Kept { plan, seed, why: why.trim().to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_understood_and_says_why() {
        for kept in kept() {
            assert!(!kept.why.is_empty(), "{kept:?} does not say why it is kept");
        }
        let line = parse("power 17 # a torn frame").expect("it is a seed");
        assert_eq!((line.plan, line.seed, line.why.as_str()), (Plan::Power, 17, "a torn frame"));
        assert!(parse("# only a remark").is_none());
    }
}
