//! How often values of each size came: latencies, sizes, queue depths.
//! Promises: a bucket is at most an eighth as wide as the values in it, so a percentile is never more than 12.5 % above the
//! exact one, and exact below 16; memory is bounded and taken as it is needed (2.5 KiB at most); sums and differences of
//! histograms are exact.
//! Leaves to others: what the values mean, and when to count.

/// Each power of two is cut into 8 buckets.
const SUB_BITS: u32 = 3;
const SUBS: u64 = 1 << SUB_BITS;

/// Values of 2^41 and more are counted in the last one: 36 minutes of nanoseconds, 25 days of microseconds.
const BUCKETS_MAX: usize = 320;

/// Buckets that memory is taken for at once.
const STEP: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Up to the highest bucket that was ever counted in.
    counts: Vec<u64>,
    count: u64,
    total: u64,
}

/// A bucket with something in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Its values are from `low` to `high`, both included.
    pub low: u64,
    pub high: u64,
    pub count: u64,
}

fn bucket_of(value: u64) -> usize {
    if value < SUBS {
        return value as usize;
    }
    let power = value.ilog2();
    let sub = (value >> (power - SUB_BITS)) & (SUBS - 1);
    (u64::from(power - SUB_BITS + 1) * SUBS + sub) as usize
}

/// The lowest value of a bucket.
fn low_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUBS {
        return bucket;
    }
    (SUBS + bucket % SUBS) << (bucket / SUBS - 1)
}

impl Histogram {
    pub const EMPTY: Self = Self { counts: Vec::new(), count: 0, total: 0 };

    pub fn record(&mut self, value: u64) {
        self.add_to(bucket_of(value).min(BUCKETS_MAX - 1), 1);
        self.total = self.total.saturating_add(value);
    }

    fn add_to(&mut self, bucket: usize, count: u64) {
        if bucket >= self.counts.len() {
            self.counts.resize((bucket + 1).next_multiple_of(STEP), 0);
        }
        self.counts[bucket] += count;
        self.count += count;
    }

    /// What was counted elsewhere counts here too.
    pub fn add(&mut self, other: &Self) {
        for (bucket, &count) in other.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add_to(bucket, count);
        }
        self.total = self.total.saturating_add(other.total);
    }

    /// What was counted since this was `earlier`. An earlier one that has counted more belongs to another life: then all of
    /// this is new.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bucket: usize| earlier.counts.get(bucket).copied().unwrap_or(0);
        let has_grown = (0..self.counts.len().max(earlier.counts.len()))
            .all(|bucket| before(bucket) <= self.counts.get(bucket).copied().unwrap_or(0));
        if !has_grown {
            return self.clone();
        }
        let counts: Vec<u64> =
            self.counts.iter().enumerate().map(|(bucket, count)| count - before(bucket)).collect();
        Self { counts, count: self.count - earlier.count, total: self.total.saturating_sub(earlier.total) }
    }

    /// One that was told as its buckets, by their lowest values, and its total.
    pub fn from_parts(total: u64, buckets: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut histogram = Self::default();
        for (low, count) in buckets {
            histogram.add_to(bucket_of(low).min(BUCKETS_MAX - 1), count);
        }
        histogram.total = total;
        histogram
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all values.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total as f64 / self.count as f64 }
    }

    /// The value that `part` (0 to 1) of all values do not exceed, or a little more: the highest of its bucket. 0 if nothing
    /// was counted.
    pub fn percentile(&self, part: f64) -> u64 {
        self.bucket_at(part).map_or(0, |bucket| bucket.high)
    }

    /// Likewise, or a little less: for values that are mostly powers of two, of which it is the exact one.
    pub fn floor(&self, part: f64) -> u64 {
        self.bucket_at(part).map_or(0, |bucket| bucket.low)
    }

    /// The bucket of the value that `part` of all values do not exceed.
    fn bucket_at(&self, part: f64) -> Option<Bucket> {
        let rank = ((part * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        self.buckets().find(|bucket| {
            seen += bucket.count;
            seen >= rank
        })
    }

    /// The highest value, or a little more.
    pub fn max(&self) -> u64 {
        self.buckets().last().map_or(0, |bucket| bucket.high)
    }

    /// Those with something in them, in order.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let some = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        some.map(|(bucket, &count)| Bucket { low: low_of(bucket), high: low_of(bucket + 1) - 1, count })
    }

    /// How many values are below this power of two.
    pub fn below(&self, power: u32) -> u64 {
        let end = bucket_of(1 << power).min(self.counts.len());
        self.counts[..end].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Draw;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_touch_each_other() {
        for bucket in 0..BUCKETS_MAX {
            let (low, next) = (low_of(bucket), low_of(bucket + 1));
            assert!(low < next, "bucket {bucket}");
            assert_eq!((bucket_of(low), bucket_of(next - 1)), (bucket, bucket));
            assert!(next - low <= (low / SUBS).max(1), "bucket {bucket} is narrow");
        }
        assert_eq!(low_of(BUCKETS_MAX - 1), 15 << 38, "what is said above about the last one");
    }

    #[test]
    fn percentiles_are_the_exact_ones_or_a_little_more() {
        let mut draw = Draw::new(7);
        for spread in [10, 1 << 12, 1 << 30, 1 << 40] {
            let mut histogram = Histogram::default();
            let mut exact: Vec<u64> = (0..5_000).map(|_| draw.below(spread) * draw.below(3) / 2).collect();
            exact.iter().for_each(|&value| histogram.record(value));
            exact.sort_unstable();
            for part in [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let rank = ((part * 5_000.0_f64).ceil() as usize).max(1);
                let (told, is) = (histogram.percentile(part), exact[rank - 1]);
                assert!(told >= is && told <= is + is / 8, "{part} of {spread}: {told}, and it is {is}");
                let floor = histogram.floor(part);
                assert!(
                    floor <= is && is <= floor + floor / 8,
                    "{part} of {spread}: {floor}, and it is {is}"
                );
            }
            assert_eq!(histogram.total(), exact.iter().sum::<u64>());
            assert_eq!(histogram.count(), 5_000);
            for power in 0..41 {
                let below = exact.iter().filter(|&&value| value < 1 << power).count() as u64;
                assert_eq!(histogram.below(power), below, "below 2^{power}");
            }
        }
    }

    #[test]
    fn sums_and_differences_are_as_if_counted_together() {
        let mut draw = Draw::new(3);
        let (mut first, mut second, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for at in 0..1_000 {
            let power = draw.below(40);
            let value = draw.below(1 << power);
            if at % 3 == 0 {
                first.record(value)
            } else {
                second.record(value)
            }
            both.record(value);
        }
        let mut sum = first.clone();
        sum.add(&second);
        let told = |histogram: &Histogram| {
            (histogram.buckets().collect::<Vec<_>>(), histogram.count(), histogram.total())
        };
        assert_eq!(told(&sum), told(&both));
        assert_eq!(told(&both.since(&first)), told(&second));
        let again = Histogram::from_parts(both.total(), both.buckets().map(|b| (b.low, b.count)));
        assert_eq!(told(&again), told(&both));
        assert_eq!(told(&first.since(&both)), told(&first), "a life that began after the other");
    }

    #[test]
    fn nothing_counted_is_nothing_and_the_largest_values_are_kept() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.percentile(0.5), histogram.max(), histogram.count()), (0, 0, 0));
        histogram.record(u64::MAX);
        histogram.record(u64::MAX);
        assert_eq!((histogram.count(), histogram.total()), (2, u64::MAX));
        assert!(histogram.max() >= 15 << 38);
        assert!(histogram.counts.len() <= BUCKETS_MAX);
    }
}
