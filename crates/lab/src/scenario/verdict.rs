//! The formulas behind a verdict. All take one sample per second of the database's I/Os, without the first second (its start)
//! and without what is left of a second at the end.
//! Promises: nothing is weighted or hidden; a median alone is never the verdict, because it does not see what lasts for less
//! than half of the time.

use super::results::{Event, Second, Window};
use crate::statistics;
use serde::{Deserialize, Serialize};

/// 95 of 100 samples of a count that comes at random with this mean lie so many standard deviations around it.
const BAND_DEVIATIONS: f64 = 1.96;
/// A window counts as degraded below this share of the expected rate, or above this multiple of the latency before.
pub const DEGRADED_RATE: f64 = 0.9;
pub const DEGRADED_LATENCY: f64 = 2.0;
/// So many seconds before and after are compared at most.
const COMPARED_S: usize = 50;
/// The worst of these many seconds in a row is told.
const SHORTFALL_S: usize = 5;

/// The rates that a load which comes at random, `expected` times a second, has in 95 of 100 seconds: a Poisson count's mean and
/// variance are the same. The lab's load comes more evenly than that, so the test is a lenient one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Band {
    pub expected_iops: f64,
    pub lower_iops: f64,
    pub upper_iops: f64,
}

impl Band {
    pub fn around(expected_iops: f64) -> Band {
        let reach = BAND_DEVIATIONS * expected_iops.sqrt();
        Band { expected_iops, lower_iops: expected_iops - reach, upper_iops: expected_iops + reach }
    }

    /// Share of the samples inside; 0 for none.
    pub fn share(&self, samples: &[f64]) -> f64 {
        let inside = samples.iter().filter(|iops| (self.lower_iops..=self.upper_iops).contains(*iops));
        inside.count() as f64 / samples.len().max(1) as f64
    }
}

/// How a run did, in figures of one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub samples: usize,
    pub in_band_share: f64,
    pub iops_mean: f64,
    pub iops_median: f64,
    pub iops_min: f64,
    pub iops_max: f64,
    /// Standard deviation over mean (CV).
    pub variation: f64,
    /// The CV of a load that comes at random, on a perfect target: 1 / sqrt(expected).
    pub variation_floor: f64,
    /// Seconds with less than 90 % of the expected rate.
    pub below_90_s: usize,
    /// 1 - the least mean of 5 seconds in a row / expected; below zero if even those had more.
    pub worst_shortfall: f64,
    /// Sum over the seconds of what was missing to the expected rate. A load of a fixed rate makes up for it later, which does
    /// not count against it.
    pub lost_ios: f64,
}

impl Verdict {
    /// None for no samples.
    pub fn of(samples: &[f64], band: &Band) -> Option<Verdict> {
        let range = statistics::range(samples)?;
        let expected = band.expected_iops;
        let width = SHORTFALL_S.min(samples.len());
        let least = samples.windows(width).map(|window| window.iter().sum::<f64>() / width as f64);
        Some(Verdict {
            samples: samples.len(),
            in_band_share: band.share(samples),
            iops_mean: samples.iter().sum::<f64>() / samples.len() as f64,
            iops_median: range.median,
            iops_min: range.min,
            iops_max: range.max,
            variation: statistics::coefficient_of_variation(samples).unwrap_or(0.0),
            variation_floor: 1.0 / expected.sqrt(),
            below_90_s: samples.iter().filter(|iops| **iops < expected * DEGRADED_RATE).count(),
            worst_shortfall: 1.0 - least.fold(f64::INFINITY, f64::min) / expected,
            lost_ios: samples.iter().map(|iops| (expected - iops).max(0.0)).sum(),
        })
    }
}

/// The seconds of a window: those that begin in it, the first of the run left out.
pub fn seconds_between(seconds: &[Second], from_s: u64, to_s: u64) -> &[Second] {
    let end = (to_s as usize).min(seconds.len());
    &seconds[(from_s.max(1) as usize).min(end)..end]
}

pub fn rates(seconds: &[Second]) -> Vec<f64> {
    seconds.iter().map(|second| second.ios as f64).collect()
}

/// The mean latency of each second. One in which nothing was answered is the slowest there is, not the fastest.
fn means_us(seconds: &[Second]) -> Vec<f64> {
    let mean = |second: &Second| if second.ios > 0 { second.us_mean } else { f64::INFINITY };
    seconds.iter().map(mean).collect()
}

/// The mean latency of the middle second: one slow second in a window does not move it. None: it had no I/O, or there is none.
pub fn middle_us(seconds: &[Second]) -> Option<f64> {
    statistics::median(&means_us(seconds)).filter(|us| us.is_finite())
}

/// Whether that latency is worse than what was before the first disturbance.
fn is_slow(us: Option<f64>, before: &Window) -> bool {
    // Without a middle second before, none is known to be slow.
    before.us_middle.is_some_and(|before| us.is_none_or(|us| us > before * DEGRADED_LATENCY))
}

/// Whether a window is worse than what was before the first disturbance.
pub fn degraded(window: &Window, before: &Window, band: &Band) -> bool {
    window.seconds > 0
        && (window.iops_mean < band.expected_iops * DEGRADED_RATE || is_slow(window.us_middle, before))
}

/// The number of the first event behind which it is worse, and stays so behind the next one. One alone may be the drive's mood.
pub fn first_degraded(events: &[Event]) -> Option<u32> {
    events.windows(2).find(|pair| pair[0].degraded && pair[1].degraded).map(|pair| pair[0].number)
}

/// Whether what was before all disturbances and what is behind the last one are the same, second by second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Seconds that were compared, before and after.
    pub seconds: (usize, usize),
    /// Medians of the seconds' rates.
    pub iops: (f64, f64),
    /// Medians of the seconds' mean latencies; none if there was no I/O at all in the middle one, which is slower than any.
    pub us: (Option<f64>, Option<f64>),
    /// How likely so different rates, or latencies, are by chance: [`statistics::rank_sum`].
    pub iops_p: f64,
    pub us_p: f64,
    /// Whether they are lower afterwards, as the same test sees it: medians may be equal, or say otherwise. Not in older results.
    #[serde(default)]
    pub iops_fell: Option<bool>,
    #[serde(default)]
    pub us_fell: Option<bool>,
}

impl Comparison {
    /// Of the seconds next to the disturbances. None: too few.
    pub fn of(before: &[Second], after: &[Second]) -> Option<Self> {
        let before = &before[before.len().saturating_sub(COMPARED_S)..];
        let after = &after[..after.len().min(COMPARED_S)];
        let iops = (rates(before), rates(after));
        let by_rate = statistics::rank_sum(&iops.0, &iops.1)?;
        let by_latency = statistics::rank_sum(&means_us(before), &means_us(after))?;
        Some(Self {
            seconds: (before.len(), after.len()),
            iops_p: by_rate.p,
            us_p: by_latency.p,
            iops_fell: Some(by_rate.fell),
            us_fell: Some(by_latency.fell),
            iops: (statistics::median(&iops.0)?, statistics::median(&iops.1)?),
            us: (middle_us(before), middle_us(after)),
        })
    }
}

/// Seconds from an event until the rate is above the lower end of the band and the latency not degraded: 0 if that was so in
/// its own second and the next (most of its own may lie before it), none if it was not again before `to_s`.
pub fn recovery_s(seconds: &[Second], from_s: u64, to_s: u64, before: &Window, band: &Band) -> Option<u64> {
    let fine =
        |second: &Second| second.ios as f64 >= band.lower_iops && !is_slow(Some(second.us_mean), before);
    let window = seconds_between(seconds, from_s, to_s);
    let skipped = usize::from(window.len() > 1 && fine(&window[0]) && !fine(&window[1]));
    window[skipped..].iter().position(fine).map(|at| (at + skipped) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples around a mean with this deviation: a saw whose teeth have the right height.
    fn saw(mean: f64, deviation: f64, count: usize) -> Vec<f64> {
        (0..count).map(|at| if at % 2 == 0 { mean - deviation } else { mean + deviation }).collect()
    }

    #[test]
    fn the_band_is_that_of_a_count_that_comes_at_random() {
        let rounded = |expected: f64| {
            let band = Band::around(expected);
            ((band.lower_iops * 100.0).round() / 100.0, (band.upper_iops * 100.0).round() / 100.0)
        };
        assert_eq!(rounded(4200.0), (4072.98, 4327.02));
        assert_eq!(rounded(6300.0), (6144.43, 6455.57));
        assert_eq!(rounded(6400.0), (6243.20, 6556.80));
    }

    #[test]
    fn figures_worked_out_by_hand() {
        let band = Band::around(100.0);
        assert_eq!((band.lower_iops, band.upper_iops), (80.4, 119.6));
        let verdict = Verdict::of(&[100.0, 80.0, 0.0, 150.0, 120.0, 90.0], &band).expect("samples");
        assert_eq!(verdict.samples, 6);
        assert_eq!(verdict.in_band_share, 2.0 / 6.0, "100 and 90");
        assert_eq!(verdict.iops_mean, 90.0);
        assert_eq!((verdict.iops_median, verdict.iops_min, verdict.iops_max), (95.0, 0.0, 150.0));
        // Deviations from 90: 10, -10, -90, 60, 30, 0; squares sum up to 12800; over 5: 2560; root 50.596.
        assert!((verdict.variation - 50.596_442 / 90.0).abs() < 1e-6, "{}", verdict.variation);
        assert_eq!(verdict.variation_floor, 0.1);
        assert_eq!(verdict.below_90_s, 2, "80 and 0; 90 is not below");
        // Means of five: (100+80+0+150+120)/5 = 90, (80+0+150+120+90)/5 = 88.
        assert!((verdict.worst_shortfall - 0.12).abs() < 1e-9, "{}", verdict.worst_shortfall);
        assert_eq!(verdict.lost_ios, 20.0 + 100.0 + 10.0, "what was made up for later does not count");
        assert_eq!(Verdict::of(&[], &band), None);
        let one = Verdict::of(&[50.0], &band).expect("a sample");
        assert_eq!((one.worst_shortfall, one.variation), (0.5, 0.0));
    }

    #[test]
    fn a_quiet_run_and_one_with_snapshots_look_as_they_should() {
        // The shapes that are known of a load of 4200: deviation 0.8 % and all in the band; 2.2 % and nearly all.
        let band = Band::around(4200.0);
        let quiet = Verdict::of(&saw(4201.0, 32.0, 53), &band).expect("samples");
        assert_eq!(quiet.in_band_share, 1.0);
        assert!(quiet.variation < 0.008 && quiet.below_90_s == 0, "{quiet:?}");
        let mut samples = saw(4200.0, 35.0, 22);
        samples.extend([3926.0, 4504.0]);
        let snapshots = Verdict::of(&samples, &band).expect("samples");
        assert_eq!((snapshots.in_band_share * 24.0).round(), 22.0);
        assert!((snapshots.iops_mean - 4200.0).abs() < 5.0, "{snapshots:?}");
        assert!(snapshots.variation > 0.02 && snapshots.variation < 0.025, "{snapshots:?}");
        assert_eq!(snapshots.below_90_s, 0, "a dip of 7 % is none of 10 %");
    }

    #[test]
    fn what_is_the_same_before_and_after_is_told_from_what_is_not() {
        let seconds = |rates: &[f64], us: f64| -> Vec<Second> {
            let second = |(at, rate): (usize, &f64)| Second {
                ios: *rate as u64,
                us_mean: us + (at % 3) as f64,
                ..Second::default()
            };
            rates.iter().enumerate().map(second).collect()
        };
        let (before, after) = (saw(1200.0, 20.0, 9), saw(1200.0, 21.0, 10));
        let same = Comparison::of(&seconds(&before, 400.0), &seconds(&after, 400.0)).expect("enough");
        assert!(same.us_p > 0.5 && same.iops_p > 0.5, "{same:?}");
        let slow = Comparison::of(&seconds(&before, 400.0), &seconds(&after, 410.0)).expect("enough");
        assert!(slow.us_p < 0.001 && slow.us.1 > slow.us.0, "2 % in every second is seen: {slow:?}");
        let mut frozen = seconds(&after, 300.0);
        frozen[2..8].fill(Second::default());
        let frozen = Comparison::of(&seconds(&before, 400.0), &frozen).expect("enough");
        assert!(frozen.us.1.is_none() && frozen.us.0.is_some(), "no I/O is not quick: {frozen:?}");
        let few = Comparison::of(&seconds(&saw(1200.0, 20.0, 900), 400.0), &seconds(&after, 400.0));
        assert_eq!(few.expect("enough").seconds, (50, 10), "those next to the disturbances");
        assert!(Comparison::of(&seconds(&before, 400.0), &[]).is_none());
    }

    #[test]
    fn a_median_hides_what_the_verdict_shows() {
        // A neighbour for somewhat less than half of the time: dips to a third, then a burst that makes up for them.
        let mut samples = saw(4190.0, 60.0, 68);
        for _ in 0..13 {
            samples.extend([1300.0, 2400.0, 5200.0, 5400.0]);
        }
        let band = Band::around(4200.0);
        let verdict = Verdict::of(&samples, &band).expect("samples");
        assert!((verdict.iops_median - 4200.0).abs() < 100.0, "the median sees nothing: {verdict:?}");
        assert!(verdict.in_band_share < 0.6, "{verdict:?}");
        assert!(verdict.variation > 0.2, "{verdict:?}");
        assert_eq!(verdict.below_90_s, 26);
        assert_eq!(verdict.lost_ios.round(), (13.0 * (2900.0 + 1800.0) + 34.0 * 70.0f64).round());
    }

    fn window(iops_mean: f64, us_middle: f64) -> Window {
        Window { seconds: 10, iops_mean, us_middle: Some(us_middle), ..Window::default() }
    }

    #[test]
    fn the_first_degraded_snapshot_is_the_first_of_two_in_a_row() {
        let band = Band::around(1000.0);
        let before = window(1000.0, 300.0);
        let marks = |windows: &[Window]| -> Vec<Event> {
            let event = |(at, window): (usize, &Window)| Event {
                number: at as u32 + 1,
                degraded: degraded(window, &before, &band),
                ..Event::default()
            };
            windows.iter().enumerate().map(event).collect()
        };
        let (fine, slow, short) = (window(995.0, 320.0), window(1000.0, 650.0), window(880.0, 300.0));
        assert_eq!(first_degraded(&marks(&[fine, fine, fine])), None);
        assert_eq!(first_degraded(&marks(&[fine, slow, fine, fine])), None, "once is a mood");
        assert_eq!(first_degraded(&marks(&[fine, slow, fine, short, slow])), Some(4));
        assert_eq!(first_degraded(&marks(&[slow, short])), Some(1));
        // The shape of the published figure: flat until the tenth, then strongly worse.
        let knee: Vec<Window> =
            (1..=16).map(|at| if at < 10 { fine } else { window(600.0, 2000.0) }).collect();
        assert_eq!(first_degraded(&marks(&knee)), Some(10));
        let nothing = Window::default();
        assert!(!degraded(&nothing, &before, &band), "a window without seconds says nothing");
    }

    #[test]
    fn who_freezes_for_almost_half_of_the_time_is_degraded() {
        let band = Band::around(100.0);
        let second = |ios, us_mean| Second { ios, us_mean, ..Second::default() };
        // Four seconds of nothing, and then what had been missed: the mean rate is as it should be.
        let mut seconds = vec![second(0, 0.0); 4];
        seconds.extend([second(400, 90_000.0), second(200, 25.0)]);
        seconds.extend([second(100, 10.0); 4]);
        let after = Window { us_middle: middle_us(&seconds), ..window(100.0, 0.0) };
        assert!(degraded(&after, &window(100.0, 10.0), &band), "{after:?}");
        let frozen = [second(0, 0.0), second(0, 0.0), second(300, 10.0)];
        let after = Window { us_middle: middle_us(&frozen), ..window(100.0, 0.0) };
        assert_eq!(after.us_middle, None);
        assert!(
            degraded(&after, &window(100.0, 10.0), &band),
            "no I/O in the middle second is slower than any"
        );
    }

    #[test]
    fn recovery_is_counted_from_the_disturbance_on() {
        let band = Band::around(100.0);
        let before = window(100.0, 10.0);
        let second = |ios, us_mean| Second { ios, us_mean, ..Second::default() };
        let seconds =
            [second(100, 10.0), second(100, 10.0), second(40, 10.0), second(100, 50.0), second(95, 12.0)];
        assert_eq!(
            recovery_s(&seconds, 1, 5, &before, &band),
            Some(3),
            "its own second ended well, the next not"
        );
        assert_eq!(recovery_s(&seconds, 1, 2, &before, &band), Some(0));
        assert_eq!(recovery_s(&seconds, 2, 5, &before, &band), Some(2));
        let late =
            [seconds[0], seconds[1], second(95, 10.0), second(0, 0.0), second(40, 9.0), second(100, 10.0)];
        assert_eq!(recovery_s(&late, 2, 6, &before, &band), Some(3), "it happened at the end of a second");
        assert_eq!(recovery_s(&late, 2, 3, &before, &band), Some(0), "more is not known of it");
        assert_eq!(recovery_s(&seconds, 2, 4, &before, &band), None);
        assert_eq!(middle_us(&seconds), Some(10.0));
        assert_eq!(rates(seconds_between(&seconds, 0, 3)), [100.0, 40.0], "the first second is its start");
        assert!(seconds_between(&seconds, 7, 9).is_empty());
    }
}
