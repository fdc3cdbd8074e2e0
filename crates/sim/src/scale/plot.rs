//! The rows as a picture: three charts, one below the other, in one SVG that needs nothing else.

use super::hardware::Hardware;
use super::row::Row;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const CHART_HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 46.0;

/// Told apart without red against green.
const COLOURS: [&str; 5] = ["#0072b2", "#d55e00", "#56b4e9", "#e69f00", "#777777"];

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    dashed: bool,
}

struct Chart {
    title: &'static str,
    unit: &'static str,
    lines: Vec<Line>,
    ticks: Vec<f64>,
    logarithmic: bool,
}

pub fn svg(rows: &[Row]) -> String {
    let charts = [rebuild(rows), moved(rows), imbalance(rows)];
    let height = CHART_HEIGHT * charts.len() as f64;
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    put(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">"
    ));
    put(format!("<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>"));
    for (number, chart) in charts.iter().enumerate() {
        put(format!(
            "<g transform=\"translate(0 {})\">\n{}</g>",
            number as f64 * CHART_HEIGHT,
            chart.svg(rows)
        ));
    }
    put("</svg>".to_string());
    text
}

/// A line of `value` for every factor.
fn by_factor(rows: &[Row], name: &str, value: impl Fn(&Row) -> f64) -> Vec<Line> {
    let of = |factor: u32| Line {
        name: format!("{name}, {factor} copies"),
        points: rows
            .iter()
            .filter(|row| row.factor == factor)
            .map(|row| (f64::from(row.nodes), value(row)))
            .collect(),
        dashed: false,
    };
    super::FACTORS.map(of).into()
}

/// Each size once, for what does not depend on the factor.
fn once(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.factor == super::FACTORS[0])
}

fn rebuild(rows: &[Row]) -> Chart {
    let mut lines = by_factor(rows, "HDD", |row| row.rebuild_hdd_s / 60.0);
    lines.extend(by_factor(rows, "SSD", |row| row.rebuild_ssd_s / 60.0));
    let spare = Hardware::SSD.spare_node_s() / 60.0;
    lines.push(Line {
        name: "SSD, into one spare node".to_string(),
        points: once(rows).map(|row| (f64::from(row.nodes), spare)).collect(),
        dashed: true,
    });
    let ticks = vec![1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0];
    Chart { title: "Rebuilding a lost node (8 TB)", unit: "minutes", lines, ticks, logarithmic: true }
}

fn moved(rows: &[Row]) -> Chart {
    let mut lines = by_factor(rows, "moved", |row| row.moved_bytes / 1e12);
    lines.push(Line {
        name: "its fair share".to_string(),
        points: once(rows).map(|row| (f64::from(row.nodes), row.share_bytes / 1e12)).collect(),
        dashed: true,
    });
    let ticks = (0..=5).map(|tick| f64::from(tick) * 2.0).collect();
    Chart { title: "Data moved when a node is added", unit: "TB", lines, ticks, logarithmic: false }
}

fn imbalance(rows: &[Row]) -> Chart {
    let mut lines = by_factor(rows, "before", |row| (row.imbalance - 1.0) * 100.0);
    lines.extend(by_factor(rows, "grown by one", |row| (row.imbalance_grown - 1.0) * 100.0));
    let ticks = (0..=5).map(|tick| f64::from(tick) * 2.0).collect();
    Chart {
        title: "Places on the fullest drive, above the mean",
        unit: "%",
        lines,
        ticks,
        logarithmic: false,
    }
}

impl Chart {
    fn height(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.ln() } else { value };
        let (low, high) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        let part = (scale(value) - scale(low)) / (scale(high) - scale(low));
        CHART_HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (CHART_HEIGHT - TOP - BOTTOM)
    }

    fn svg(&self, rows: &[Row]) -> String {
        let sizes: Vec<f64> = super::SIZES
            .into_iter()
            .filter(|size| rows.iter().any(|row| row.nodes == *size))
            .map(f64::from)
            .collect();
        let (first, last) = (sizes[0].ln(), sizes[sizes.len() - 1].ln().max(sizes[0].ln() + 1e-9));
        let across = |nodes: f64| LEFT + (nodes.ln() - first) / (last - first) * (WIDTH - LEFT - RIGHT);
        let mut text = String::new();
        let mut put = |line: String| writeln!(text, "{line}").expect("a string takes everything");
        put(format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>", self.title));
        put(format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            TOP - 10.0,
            self.unit
        ));
        for &tick in &self.ticks {
            let (y, right) = (self.height(tick), WIDTH - RIGHT);
            put(format!("<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#dddddd\"/>"));
            put(format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>", LEFT - 8.0, y + 4.0));
        }
        for &size in &sizes {
            let y = CHART_HEIGHT - BOTTOM + 18.0;
            put(format!("<text x=\"{:.1}\" y=\"{y}\" text-anchor=\"middle\">{size}</text>", across(size)));
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let foot = CHART_HEIGHT - BOTTOM + 36.0;
        put(format!("<text x=\"{middle}\" y=\"{foot}\" text-anchor=\"middle\">nodes</text>"));
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let dash = if line.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let points: Vec<String> = line
                .points
                .iter()
                .map(|&(nodes, value)| format!("{:.1},{:.1}", across(nodes), self.height(value)))
                .collect();
            put(format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                points.join(" ")
            ));
            let (x, y) = (WIDTH - RIGHT + 12.0, TOP + 8.0 + number as f64 * 20.0);
            put(format!("<path d=\"M{x} {y}h22\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>"));
            put(format!("<text x=\"{}\" y=\"{}\">{}</text>", x + 28.0, y + 4.0, line.name));
        }
        text
    }
}
