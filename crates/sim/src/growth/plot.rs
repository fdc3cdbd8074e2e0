//! The course of a run as a picture: three charts over the same time, in one SVG that needs nothing else.

use super::hardware::SECOND;
use super::meter::Seen;
use super::report::course;
use super::scenario::Growth;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;

type Chart = (&'static str, &'static str, fn(&Seen) -> f64);

const CHARTS: [Chart; 3] = [
    ("Reads and writes of pages, all VMs", "a second", |seen| seen.iops),
    ("Read of 32 KiB, mean", "ms", |seen| seen.read_ms),
    ("Log write of 8 KiB, mean", "ms", |seen| seen.log_write_ms),
];

pub fn svg(growth: &Growth) -> String {
    let course = course(growth);
    let second = |at: u64| (at - growth.began) as f64 / SECOND as f64;
    let marks = [(second(growth.joined), "4 nodes join"), (second(growth.moved), "all copies in place")];
    let height = HEIGHT * CHARTS.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, chart) in CHARTS.iter().enumerate() {
        let body = draw(chart, &course, &marks, second(growth.world.now));
        writeln!(text, "<g transform=\"translate(0 {})\">\n{body}</g>", number as f64 * HEIGHT)
            .expect("a string takes everything");
    }
    text + "</svg>\n"
}

/// A round number of which about four make `most`.
fn tick(most: f64) -> f64 {
    let rough = most / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough);
    round.expect("ten powers are enough") * power
}

fn draw(chart: &Chart, course: &[(f64, Seen)], marks: &[(f64, &str)], end: f64) -> String {
    let (title, unit, value) = *chart;
    let most = course.iter().map(|(_, seen)| value(seen)).fold(0.0, f64::max).max(1e-9);
    let step = tick(most);
    let top = (most / step).ceil() * step;
    let across = |second: f64| LEFT + second / end * (WIDTH - LEFT - RIGHT);
    let up = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    put(format!("<text x=\"{LEFT}\" y=\"18\" font-size=\"15\">{title}</text>"));
    put(format!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{unit}</text>", LEFT - 8.0, TOP - 8.0));
    let digits = if step < 0.1 { 2 } else { usize::from(step < 1.0) };
    for number in 0..=(top / step).round() as usize {
        let (at, right) = (number as f64 * step, WIDTH - RIGHT);
        put(format!("<path d=\"M{LEFT} {:.1}H{right}\" stroke=\"#dddddd\"/>", up(at)));
        put(format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{at:.digits$}</text>",
            LEFT - 8.0,
            up(at) + 4.0
        ));
    }
    let foot = HEIGHT - BOTTOM + 16.0;
    let seconds = tick(end);
    for number in 0..=(end / seconds) as usize {
        let at = number as f64 * seconds;
        put(format!("<text x=\"{:.1}\" y=\"{foot}\" text-anchor=\"middle\">{at:.0} s</text>", across(at)));
    }
    for (second, what) in marks {
        let (x, bottom) = (across(*second), HEIGHT - BOTTOM);
        put(format!("<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#d55e00\" stroke-dasharray=\"5 4\"/>"));
        // The first name ends at its line, the second begins there: they may be close together.
        let (anchor, dx) = if *second == marks[0].0 { ("end", -5.0) } else { ("start", 5.0) };
        let y = TOP - 8.0;
        put(format!("<text x=\"{:.1}\" y=\"{y}\" text-anchor=\"{anchor}\">{what}</text>", x + dx));
    }
    let middle = super::report::STEP_S as f64 / 2.0;
    let points: Vec<String> = course
        .iter()
        .map(|(second, seen)| format!("{:.1},{:.1}", across(second + middle), up(value(seen))))
        .collect();
    let points = points.join(" ");
    put(format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\"/>"));
    text
}
