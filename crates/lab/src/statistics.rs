//! The few statistics the reports use. All take plain slices and say what they do with empty ones.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Least, middle and greatest of some samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Range {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

/// None for no samples.
pub fn range(samples: &[f64]) -> Option<Range> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    Some(Range { min, median: median_of_sorted(&sorted), max })
}

/// The middle one, or the mean of the middle two; none for no samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    range(samples).map(|range| range.median)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Standard deviation divided by the mean; none for fewer than two samples or a mean of zero.
pub fn coefficient_of_variation(samples: &[f64]) -> Option<f64> {
    if samples.len() < 2 {
        return None;
    }
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>();
    let deviation = (squares / (samples.len() - 1) as f64).sqrt();
    (mean > 0.0).then_some(deviation / mean)
}

/// Distance of the greatest and least, divided by the median; none for fewer than two samples.
pub fn spread(samples: &[f64]) -> Option<f64> {
    let range = range(samples)?;
    (samples.len() >= 2 && range.median > 0.0).then(|| (range.max - range.min) / range.median)
}

/// The rank-sum test of Mann, Whitney and Wilcoxon: the share of all ways to deal these samples into two heaps of these sizes whose
/// sums of ranks differ from what is expected by at least as much (two-sided, exact, ties share their ranks). Small: hardly by
/// chance. None for heaps of fewer than 4, of which none could be told apart. Takes memory and time for some 100 samples, not thousands.
pub fn rank_sum(one: &[f64], other: &[f64]) -> Option<RankSum> {
    if one.len().min(other.len()) < 4 {
        return None;
    }
    let all: Vec<f64> = one.iter().chain(other).copied().collect();
    // Twice the rank, so that shared ones are whole numbers too.
    let twice_rank = |sample: &f64| {
        let below = all.iter().filter(|other| *other < sample).count();
        let same = all.iter().filter(|other| *other == sample).count();
        2 * below + same + 1
    };
    let ranks: Vec<usize> = all.iter().map(twice_rank).collect();
    // ways[count][sum]: to choose so many of the samples seen so far with this sum.
    let (count, most) = (one.len(), ranks.iter().sum::<usize>());
    let mut ways = vec![vec![0.0_f64; most + 1]; count + 1];
    ways[0][0] = 1.0;
    for &rank in &ranks {
        for chosen in (1..=count).rev() {
            for sum in (rank..=most).rev() {
                ways[chosen][sum] += ways[chosen - 1][sum - rank];
            }
        }
    }
    let seen: usize = ranks[..count].iter().sum();
    // Twice the expected sum, which need not be whole, against twice each sum.
    let expected = count * (all.len() + 1) * 2;
    let distance = |sum: usize| (2 * sum).abs_diff(expected);
    let total: f64 = ways[count].iter().sum();
    let sums = ways[count].iter().enumerate();
    let far: f64 = sums.filter(|(sum, _)| distance(*sum) >= distance(seen)).map(|(_, ways)| ways).sum();
    Some(RankSum { p: far / total, fell: 2 * seen > expected })
}

/// What [`rank_sum`] says of two heaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankSum {
    pub p: f64,
    /// Whether the other heap is the lower one.
    pub fell: bool,
}

/// How often each latency (in nanoseconds, as fio rounds them into about 1 % wide bins) was seen. Unlike percentiles,
/// these can be added up over runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies(pub BTreeMap<u64, u64>);

impl Latencies {
    pub fn add(&mut self, other: &Latencies) {
        for (latency, count) in &other.0 {
            *self.0.entry(*latency).or_default() += count;
        }
    }

    /// The latency in nanoseconds that `percent` of the I/Os did not exceed; none if there were none.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let total: u64 = self.0.values().sum();
        let wanted = (total as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (latency, count) in &self.0 {
            seen += count;
            if seen >= wanted {
                return Some(*latency);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_tell_what_is_hardly_chance() {
        let p = |one: &[f64], other: &[f64]| rank_sum(one, other).expect("enough samples").p;
        let near =
            |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-9, "{value} is not {wanted}");
        // Two of the 70 ways to choose four of eight are as far apart.
        near(p(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]), 2.0 / 70.0);
        near(p(&[5.0, 6.0, 7.0, 8.0], &[1.0, 2.0, 3.0, 4.0]), 2.0 / 70.0);
        near(p(&[1.0, 3.0, 5.0, 7.0], &[2.0, 4.0, 6.0, 8.0]), 48.0 / 70.0);
        near(p(&[2.0; 5], &[2.0; 9]), 1.0);
        // Ranks 1, 2 and twice the shared 4.5 against the two others of those and 7, 8, 9.
        near(p(&[1.0, 2.0, 3.0, 3.0], &[3.0, 3.0, 7.0, 8.0, 9.0]), 10.0 / 126.0);
        let rising = |from: u32| -> Vec<f64> { (from..from + 50).map(f64::from).collect() };
        assert!(p(&rising(0), &rising(20)) < 1e-6, "also with as many as are ever compared");
        assert_eq!(rank_sum(&[1.0; 3], &[2.0; 50]), None, "too few to say anything");
        let fell = |one: &[f64], other: &[f64]| rank_sum(one, other).expect("enough samples").fell;
        assert!(!fell(&rising(0), &rising(20)) && fell(&rising(20), &rising(0)));
        let some_less = [[1604.0; 6].as_slice(), &[1400.0; 5]].concat();
        assert!(fell(&[1604.0; 10], &some_less), "the medians are the same");
    }

    #[test]
    fn medians_ranges_and_spreads() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(range(&[4.0, 1.0, 2.0, 3.0]), Some(Range { min: 1.0, median: 2.5, max: 4.0 }));
        assert_eq!(spread(&[10.0]), None);
        assert_eq!(spread(&[9.0, 10.0, 12.0]), Some(0.3));
        assert_eq!(coefficient_of_variation(&[5.0, 5.0]), Some(0.0));
        assert!((coefficient_of_variation(&[2.0, 4.0]).expect("two") - 0.4714).abs() < 0.001);
        assert_eq!(coefficient_of_variation(&[0.0, 0.0]), None);
    }

    #[test]
    fn percentiles_agree_with_a_sorted_list_also_after_adding_up() {
        let mut all = Latencies::default();
        let mut list = Vec::new();
        for part in 0..3u64 {
            let mut one = Latencies::default();
            for step in 0..100 {
                let latency = (step * 37 + part * 11) % 251;
                *one.0.entry(latency).or_default() += 1;
                list.push(latency);
            }
            all.add(&one);
        }
        list.sort();
        for percent in [0.0, 1.0, 50.0, 95.0, 99.0, 99.9, 100.0] {
            let rank = ((list.len() as f64 * percent / 100.0).ceil() as usize).max(1) - 1;
            assert_eq!(all.percentile(percent), Some(list[rank]), "{percent}");
        }
        assert_eq!(Latencies::default().percentile(50.0), None);
    }
}
