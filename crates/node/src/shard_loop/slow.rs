//! Whether a drive is slow: while it has something to do, it gets next to nothing done.
//! Promises: being slow and not being it any more are told once each, by turns; a drive for which many wait and that gets much done
//! is busy, not slow; how often a drive is asked makes no difference; time in which this shard itself stood still does not count.
//! Leaves to others: what the drives are asked (`drive_io`), when to look (`hangs`), what follows from it (the control plane).
//!
//! Measured is what a drive does in the time in which it has something to do, not how long a request takes: behind a deep queue each
//! takes long, on the best of drives. Any drive in order, a disk at 7,200 turns too, is far above these figures.

use super::hangs::PAUSE_US;
use weft_engine::Time;

/// A request may take so long ...
const REQUEST_US: u64 = 100_000;

/// ... and so long more for each of these bytes (5 MB/s).
const BYTES_PER_US: u64 = 5;

/// What a drive did is judged when it had something to do for so long ...
const BUSY_US: u64 = 5_000_000;

/// ... or after this time, if it is in order beyond doubt: it did so many requests ...
const GLANCE_US: u64 = 5_000_000;
const REQUESTS_TO_TELL: u64 = 20;

/// ... in a part of the time they may take. What lies between is neither slow nor in order, so that nothing flaps.
const FINE_PART: u64 = 2;

/// What is older says nothing of the drive any more.
const OLD_US: u64 = 600_000_000;

/// After so many judgements in a row it is slow, or is not any more.
const ROW: u32 = 3;

/// If more than this part of the time says nothing of the drive, nobody knows that it is slow.
const EXCUSED_PART: u64 = 10;

/// A slow drive of which nobody wants anything is asked for something small after this time: who writes avoids it, and nobody else may
/// come to see that it is in order again. More often than `REQUESTS_TO_TELL` in `GLANCE_US` ...
const PROBE_US: u64 = 200_000;

/// ... or so much later, if that failed: a place that cannot be read says nothing of the rest.
const PROBE_FAILED_US: u64 = 600_000_000;

/// A drive that is slow again so soon after it was in order has to be in order for twice as long as the last time, so that it does not
/// come and go ...
const RELAPSE_US: u64 = 3_600_000_000;

/// ... but for so many times `ROW` judgements at most.
const PATIENCE_MAX: u32 = 128;

/// What one drive has to do and gets done.
#[derive(Default)]
pub struct Pace {
    /// When this was last brought up to date.
    at: Time,
    /// It is not probed before this.
    next_probe: Time,
    /// In flight, hints aside.
    asked: u32,
    /// Hints may take their time, and so may what comes behind them.
    hints: u32,
    /// Something has ended since the last look.
    has_news: bool,
    done: Done,
    /// Judgements in a row.
    slow: u32,
    fine: u32,
    is_told: bool,
    /// When it was in order again, and after how many times `ROW` judgements it is the next time.
    recovered: Option<Time>,
    patience: u32,
}

/// Since the last judgement.
#[derive(Default)]
struct Done {
    since: Time,
    /// In so much of that time the drive had something to do ...
    busy_us: u64,
    /// ... and in so much of this there were hints too, or this shard was late.
    excused_us: u64,
    requests: u64,
    bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Slow,
    Between,
    Fine,
    /// Too little was asked for too long, or it may not be the drive.
    Unknown,
}

impl Pace {
    pub fn begin(&mut self, now: Time, is_hint: bool) {
        self.settle(now);
        *self.count(is_hint) += 1;
    }

    /// Something ended, well or not.
    pub fn end(&mut self, now: Time, is_hint: bool, bytes: u64) {
        self.settle(now);
        *self.count(is_hint) -= 1;
        self.has_news |= !is_hint;
        self.done.requests += u64::from(!is_hint);
        self.done.bytes += bytes;
        if !is_hint {
            self.next_probe = now.after(PROBE_US);
        }
    }

    /// Something failed that was asked only to see how long it takes: that says nothing.
    pub fn probe_failed(&mut self, now: Time) {
        self.settle(now);
        self.asked -= 1;
        self.next_probe = now.after(PROBE_FAILED_US);
    }

    /// Whether it became slow, or is not any more; None if nothing has changed. To be called more often than once in `PAUSE_US` while
    /// anything is in flight; so much later than it was meant to be.
    pub fn look(&mut self, now: Time, late_us: u64) -> Option<bool> {
        self.settle(now);
        if self.asked > 0 {
            self.done.excused_us += late_us;
        }
        let judgement = self.done.judge(now, std::mem::take(&mut self.has_news))?;
        self.done = Done { since: now, ..Done::default() };
        match judgement {
            Judgement::Slow => (self.slow, self.fine) = (self.slow + 1, 0),
            Judgement::Fine => (self.slow, self.fine) = (0, self.fine + 1),
            Judgement::Between | Judgement::Unknown => (self.slow, self.fine) = (0, 0),
        }
        let is_over = if self.is_told { self.fine >= ROW * self.patience } else { self.slow >= ROW };
        is_over.then(|| {
            self.is_told = !self.is_told;
            if self.is_told {
                let is_relapse = self.recovered.is_some_and(|at| now.since(at) < RELAPSE_US);
                self.patience = if is_relapse { (self.patience * 2).min(PATIENCE_MAX) } else { 1 };
            } else {
                self.recovered = Some(now);
            }
            self.is_told
        })
    }

    /// When to ask it for something.
    pub fn probe_at(&self) -> Option<Time> {
        (self.is_told && self.asked == 0).then_some(self.next_probe)
    }

    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        (self.asked, self.hints) == (0, 0)
    }

    fn count(&mut self, is_hint: bool) -> &mut u32 {
        if is_hint { &mut self.hints } else { &mut self.asked }
    }

    fn settle(&mut self, now: Time) {
        let us = now.since(self.at);
        self.at = now;
        // If nobody looked for so long, this shard stood still, and what ended meanwhile is only seen now.
        if self.asked > 0 && us <= PAUSE_US {
            self.done.busy_us += us;
            self.done.excused_us += if self.hints > 0 { us } else { 0 };
        }
    }
}

impl Done {
    /// `has_news`: something has ended right now. While nothing does the drive hangs, which is told sooner; that is one judgement,
    /// however long it lasts.
    fn judge(&self, now: Time, has_news: bool) -> Option<Judgement> {
        let may_take_us = self.requests * REQUEST_US + self.bytes / BYTES_PER_US;
        let is_fine = may_take_us >= self.busy_us * FINE_PART;
        let age_us = now.since(self.since);
        if self.busy_us >= BUSY_US && has_news {
            let is_known = self.excused_us * EXCUSED_PART <= self.busy_us;
            return Some(match may_take_us < self.busy_us {
                true if is_known => Judgement::Slow,
                true => Judgement::Unknown,
                false if is_fine => Judgement::Fine,
                false => Judgement::Between,
            });
        }
        if age_us >= GLANCE_US && self.requests >= REQUESTS_TO_TELL && is_fine {
            return Some(Judgement::Fine);
        }
        (age_us >= OLD_US).then_some(Judgement::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK_US: u64 = 400_000;
    const NOTHING: [bool; 0] = [];

    /// A drive that does one request at a time, of which some wait.
    struct Story {
        pace: Pace,
        now: Time,
        look_at: Option<Time>,
        late_us: u64,
    }

    impl Story {
        fn new() -> Self {
            Self { pace: Pace::default(), now: Time(9_000_000), look_at: None, late_us: 0 }
        }

        /// Looks as `Hangs` has it: some time after something began, and again if anything is in flight then.
        fn go_to(&mut self, at: Time, told: &mut Vec<bool>) {
            while let Some(look_at) = self.look_at.take_if(|look_at| *look_at <= at) {
                told.extend(self.pace.look(look_at, self.late_us));
                self.look_at = (self.pace.asked > 0).then(|| look_at.after(LOOK_US));
            }
            self.now = at;
        }

        fn begin(&mut self) {
            self.pace.begin(self.now, false);
            self.look_at.get_or_insert(self.now.after(LOOK_US));
        }

        /// What is told in so many seconds in which requests of this size are begun every `every_us`, and take so long each.
        fn pass(&mut self, seconds: u64, every_us: u64, takes_us: u64, size: u64) -> Vec<bool> {
            let end = self.now.after(seconds * 1_000_000);
            let mut told = Vec::new();
            while self.now < end {
                let began = self.now;
                self.begin();
                self.go_to(began.after(takes_us), &mut told);
                self.pace.end(self.now, false, size);
                self.go_to(began.after(every_us.max(takes_us)), &mut told);
            }
            told
        }

        /// What is told in so many seconds in which nobody wants anything, and what it is asked all the same takes so long.
        fn leave_alone(&mut self, seconds: u64, takes_us: u64) -> Vec<bool> {
            let end = self.now.after(seconds * 1_000_000);
            let mut told = Vec::new();
            while let Some(at) = self.pace.probe_at().filter(|at| *at < end) {
                self.go_to(at, &mut told);
                self.begin();
                self.go_to(at.after(takes_us), &mut told);
                self.pace.end(self.now, false, 4096);
            }
            self.go_to(end.max(self.now), &mut told);
            told
        }

        /// The same with so many more in flight all the time.
        fn pass_with_queue(&mut self, seconds: u64, queue: u32, takes_us: u64) -> Vec<bool> {
            (0..queue).for_each(|_| self.begin());
            let told = self.pass(seconds, takes_us, takes_us, 4096);
            (0..queue).for_each(|_| self.pace.end(self.now, false, 4096));
            told
        }
    }

    #[test]
    fn a_drive_that_is_busy_and_does_nothing_is_slow_within_seconds_and_so_is_its_end() {
        let mut story = Story::new();
        assert_eq!(story.pass(60, 0, 2_000, 4096), NOTHING, "an SSD at work");
        assert_eq!(story.pass(14, 0, 200_000, 4096), NOTHING);
        assert_eq!(story.pass(8, 0, 200_000, 4096), [true]);
        assert_eq!(story.pass(60, 0, 200_000, 4096), NOTHING);
        assert_eq!(story.pass(60, 0, 70_000, 4096), NOTHING, "in between");
        assert_eq!(story.pass(22, 0, 2_000, 4096), [false]);
        assert_eq!(story.pass(60, 0, 70_000, 4096), NOTHING, "in between");
    }

    #[test]
    fn how_often_it_is_asked_makes_no_difference() {
        for every_us in [100_000, 133_000, 200_000, 400_000, 1_000_000] {
            let mut story = Story::new();
            assert_eq!(story.pass(600, every_us, 3_000, 4096), NOTHING, "every {every_us} us");
            assert_eq!(story.pass(600, every_us, 60_000, 4096), NOTHING, "every {every_us} us");
            assert_eq!(story.pass(600, every_us, 250_000, 4096), [true], "every {every_us} us");
            assert_eq!(story.pass(600, every_us, 3_000, 4096), [false], "every {every_us} us");
        }
    }

    #[test]
    fn what_waits_behind_much_is_not_slow() {
        let mut story = Story::new();
        assert_eq!(story.pass_with_queue(120, 64, 20_000), NOTHING, "a disk with a deep queue");
        assert_eq!(story.pass(120, 0, 800_000, 8_000_000), NOTHING, "few requests, and large ones");
        assert_eq!(story.pass_with_queue(60, 64, 200_000), [true], "nobody gets anything");
    }

    #[test]
    fn one_hang_does_not_make_it_slow_and_many_do() {
        let mut story = Story::new();
        for _ in 0..2 {
            assert_eq!(story.pass(3, 250_000, 3_000, 4096), NOTHING);
            assert_eq!(
                story.pass(1, 0, 11_000_000, 4096),
                NOTHING,
                "it hangs for a while when it has done little before"
            );
        }
        for _ in 0..10 {
            assert_eq!(story.pass(20, 10_000, 3_000, 4096), NOTHING);
            assert_eq!(story.pass(1, 0, 60_000_000, 4096), NOTHING, "it hangs, and answers");
        }
        let told: Vec<bool> = (0..10).flat_map(|_| story.pass(1, 3_000_000, 2_500_000, 4096)).collect();
        assert_eq!(told, [true]);
    }

    #[test]
    fn what_lasts_for_less_than_three_judgements_is_not_told() {
        let mut story = Story::new();
        for _ in 0..10 {
            assert_eq!(story.pass(11, 0, 500_000, 4096), NOTHING);
            assert_eq!(story.pass(12, 0, 5_000, 4096), NOTHING);
        }
    }

    #[test]
    fn a_slow_drive_that_nobody_wants_anything_of_is_asked_until_it_is_in_order() {
        let mut story = Story::new();
        assert_eq!(story.pace.probe_at(), None, "nobody thinks it slow");
        assert_eq!(story.pass(24, 0, 200_000, 4096), [true]);
        assert_eq!(story.leave_alone(600, 250_000), NOTHING, "it is slow all the same");
        assert_eq!(story.leave_alone(30, 2_000), [false]);
        assert_eq!(story.pace.probe_at(), None);
    }

    #[test]
    fn one_that_is_slow_again_and_again_has_to_be_in_order_for_longer_and_longer() {
        let mut story = Story::new();
        for (at_least, at_most) in [(10, 30), (32, 50), (55, 90), (100, 160)] {
            assert_eq!(story.pass(24, 0, 200_000, 4096), [true]);
            assert_eq!(story.leave_alone(at_least, 2_000), NOTHING);
            assert_eq!(story.leave_alone(at_most - at_least, 2_000), [false]);
        }
        let in_a_day = story.now.after(86_400_000_000);
        story.go_to(in_a_day, &mut Vec::new());
        assert_eq!(story.pass(24, 0, 200_000, 4096), [true]);
        assert_eq!(story.leave_alone(30, 2_000), [false], "that was long ago");
    }

    #[test]
    fn what_fails_says_nothing_and_is_not_asked_again_for_long() {
        let mut story = Story::new();
        assert_eq!(story.pass(24, 0, 200_000, 4096), [true]);
        for _ in 0..3 {
            let at = story.pace.probe_at().expect("it is slow");
            story.go_to(at, &mut Vec::new());
            story.begin();
            story.pace.probe_failed(story.now);
            assert!(story.pace.is_idle());
            assert_eq!(story.pace.probe_at(), Some(story.now.after(PROBE_FAILED_US)));
        }
    }

    #[test]
    fn hints_may_take_their_time_and_so_may_what_comes_behind_them() {
        let mut story = Story::new();
        story.pace.begin(story.now, true);
        assert_eq!(story.pass(120, 0, 300_000, 4096), NOTHING);
        story.pace.end(story.now, true, 0);
        assert_eq!(story.pass(60, 0, 300_000, 4096), [true]);
        story.pace.begin(story.now, true);
        assert_eq!(story.pass(120, 0, 300_000, 4096), NOTHING, "nor do they make a slow drive a quick one");
        assert_eq!(story.pass(30, 0, 3_000, 4096), [false], "what is quick beside them is");
    }

    #[test]
    fn a_shard_that_stood_still_says_nothing_of_its_drives() {
        let mut story = Story::new();
        for _ in 0..100 {
            story.pace.begin(story.now, false);
            story.now = story.now.after(30_000_000);
            assert_eq!(story.pace.look(story.now, 0), None);
            story.pace.end(story.now, false, 4096);
        }
    }

    #[test]
    fn what_is_late_with_this_shard_is_not_slow() {
        let mut story = Story::new();
        story.late_us = 50_000;
        assert_eq!(story.pass(60, 0, 200_000, 4096), NOTHING);
        story.late_us = 5_000;
        assert_eq!(story.pass(60, 0, 200_000, 4096), [true]);
    }

    #[test]
    fn what_was_seen_long_ago_does_not_count() {
        let mut story = Story::new();
        for _ in 0..100 {
            assert_eq!(story.pass(4, 0, 200_000, 4096), NOTHING);
            let later = story.now.after(OLD_US);
            story.go_to(later, &mut Vec::new());
        }
        for _ in 0..100 {
            assert_eq!(story.pass(8, 0, 8_000_000, 4096), NOTHING, "it has to wake up, once a day");
            let later = story.now.after(86_400_000_000);
            story.go_to(later, &mut Vec::new());
        }
    }
}
