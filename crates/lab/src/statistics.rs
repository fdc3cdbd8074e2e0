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
