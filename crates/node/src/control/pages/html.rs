//! What pages are made of.

use crate::api::HistogramView;
use std::fmt::Write;

/// A page comes again after so many seconds.
const REFRESH_SECONDS: u32 = 5;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--dim:#667;--line:#d5dae2;--bar:#4a7fd4;--other:#d98a3d;--back:#fff;--warn:#b3261e}\
@media(prefers-color-scheme:dark){:root{--ink:#e3e7ee;--dim:#98a2b3;--line:#343b47;--bar:#6c9cf0;--other:#e0a060;--back:#14181f;--warn:#ff8a80}}\
body{font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--back);margin:1.5em auto;max-width:90em;padding:0 1em}\
a{color:var(--bar)}h1{font-size:1.35em;margin:.4em 0}h2{font-size:1.05em;margin:1.4em 0 .3em}\
p{margin:.3em 0}.dim{color:var(--dim)}.warn{color:var(--warn)}\
table{border-collapse:collapse;margin:.4em 0}td,th{padding:.15em .8em .15em 0;border-bottom:1px solid var(--line);\
text-align:right;font-variant-numeric:tabular-nums;font-weight:normal;white-space:nowrap}\
th{color:var(--dim)}td.t,th.t{text-align:left}td.w{white-space:normal;text-align:left;color:var(--dim)}\
td:first-child,th:first-child{text-align:left}\
.bar{display:inline-block;height:.75em;background:var(--bar);vertical-align:baseline;min-width:1px}\
.bar.o{background:var(--other)}.track{display:block;width:9em;text-align:left}.side .track{width:16em}\
.side{display:flex;flex-wrap:wrap;gap:0 3em}button{font:inherit}";

/// Text that is shown as it is, also in an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

pub struct Page(String);

impl Page {
    /// `path`: of this page, for the way through the others.
    pub fn new(title: &str, path: &str) -> Self {
        let title = escape(title);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
             <meta name=\"viewport\" content=\"width=device-width\"/>\
             <meta http-equiv=\"refresh\" content=\"{REFRESH_SECONDS}\"/>\
             <title>{title}</title><style>{STYLE}</style></head><body>\n<p>"
        );
        for (to, name) in
            [("/", "node"), ("/vdisk_stats", "vDisks"), ("/latency", "latency"), ("/cache_stats", "cache")]
        {
            let _ = if to == path {
                write!(page, "<b>{name}</b> ")
            } else {
                write!(page, "<a href=\"{to}\">{name}</a> ")
            };
        }
        let _ = writeln!(page, "</p><h1>{title}</h1>");
        Self(page)
    }

    /// HTML that is known to be well-formed.
    pub fn raw(&mut self, html: &str) {
        self.0.push_str(html);
        self.0.push('\n');
    }

    pub fn heading(&mut self, text: &str) {
        self.raw(&format!("<h2>{}</h2>", escape(text)));
    }

    pub fn line(&mut self, text: &str) {
        self.raw(&format!("<p class=\"dim\">{}</p>", escape(text)));
    }

    pub fn warning(&mut self, text: &str) {
        self.raw(&format!("<p class=\"warn\">{}</p>", escape(text)));
    }

    /// Headings of columns; those that begin with a space stand on the left, above text.
    pub fn begin_table(&mut self, columns: &[&str]) {
        self.0.push_str("<table><tr>");
        for column in columns {
            let class = if column.starts_with(' ') { " class=\"t\"" } else { "" };
            let _ = write!(self.0, "<th{class}>{}</th>", escape(column.trim_start()));
        }
        self.raw("</tr>");
    }

    /// Cells are HTML.
    pub fn row(&mut self, cells: &[String]) {
        self.0.push_str("<tr>");
        for cell in cells {
            let class = if cell.starts_with("<span") { " class=\"t\"" } else { "" };
            let _ = write!(self.0, "<td{class}>{cell}</td>");
        }
        self.raw("</tr>");
    }

    pub fn end_table(&mut self) {
        self.raw("</table>");
    }

    /// A histogram: a bar for each power of two with something in it or between two that have.
    pub fn histogram(&mut self, title: &str, view: &HistogramView, scale: Scale) {
        let show = |value| scale.show(value);
        self.raw(&format!("<div><h2>{}</h2>", escape(title)));
        if view.count == 0 {
            self.raw("<p class=\"dim\">none yet</p></div>");
            return;
        }
        let told = format!(
            "{} in all; half up to {}, 99 % up to {}, all up to {}",
            number(view.count),
            show(view.p50),
            show(view.p99),
            show(view.max)
        );
        self.line(&told);
        let histogram = view.histogram();
        let first = histogram.buckets().next().map_or(0, |bucket| bucket.low);
        let (from, to) = (power_above(first), power_above(view.max));
        let counts: Vec<(u32, u64)> = (from..=to)
            .map(|power| {
                let below = if power == 0 { 0 } else { histogram.below(power - 1) };
                (power, histogram.below(power) - if power == from { 0 } else { below })
            })
            .collect();
        let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        self.raw("<table>");
        for (power, count) in counts {
            self.row(&[escape(&scale.label(power)), bar(count, most, false), share(count, view.count)]);
        }
        self.raw("</table></div>");
    }

    pub fn end(mut self) -> String {
        self.0.push_str("</body></html>\n");
        self.0
    }
}

/// What a histogram's values are.
#[derive(Debug, Clone, Copy)]
pub enum Scale {
    /// Microseconds.
    Time,
    /// Bytes of requests: mostly powers of two, so a bar says where it begins.
    Size,
    Number,
}

impl Scale {
    fn show(self, value: u64) -> String {
        match self {
            Scale::Time => microseconds(value),
            Scale::Size => bytes(value),
            Scale::Number => number(value),
        }
    }

    /// Of the bar below this power of two and not below the one before.
    fn label(self, power: u32) -> String {
        match self {
            Scale::Time | Scale::Number => format!("below {}", self.show(1 << power)),
            Scale::Size => format!("from {}", self.show(1 << power >> 1)),
        }
    }
}

/// The lowest power of two above a value.
fn power_above(value: u64) -> u32 {
    (64 - value.leading_zeros()).min(41)
}

/// A bar as long as its part of the longest.
pub fn bar(count: u64, most: u64, other: bool) -> String {
    let per_mille = (u128::from(count) * 1000 / u128::from(most.max(1))).min(1000);
    let class = if other { "bar o" } else { "bar" };
    if count == 0 {
        return "<span class=\"track\"></span>".to_string();
    }
    format!(
        "<span class=\"track\"><span class=\"{class}\" style=\"width:{}.{}%\"></span></span>",
        per_mille / 10,
        per_mille % 10
    )
}

/// Parts in percent; nothing of nothing is a dash.
pub fn share(part: u64, all: u64) -> String {
    if all == 0 { "-".to_string() } else { format!("{:.1} %", part as f64 * 100.0 / all as f64) }
}

pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

pub fn bytes(value: u64) -> String {
    for (unit, name) in [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if value >= unit {
            let scaled = value as f64 / unit as f64;
            return if value.is_multiple_of(unit) || scaled >= 100.0 {
                format!("{scaled:.0} {name}")
            } else {
                format!("{scaled:.1} {name}")
            };
        }
    }
    format!("{value} B")
}

pub fn microseconds(value: u64) -> String {
    time(value as f64)
}

/// Microseconds in the unit that fits.
pub fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.1} µs"),
        us if us < 1_000.0 => format!("{us:.0} µs"),
        us if us < 100_000.0 => format!("{:.1} ms", us / 1_000.0),
        us if us < 1_000_000.0 => format!("{:.0} ms", us / 1_000.0),
        us => format!("{:.1} s", us / 1_000_000.0),
    }
}

/// As people say it.
pub fn duration(us: u64) -> String {
    match us / 1_000_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
