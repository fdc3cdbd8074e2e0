// Draws the page of a scenario with a timeline: targets laid over each other, what was done to them as vertical lines.
const METRICS = { us_mean: "mean", us_p50: "median", us_p99: "p99", us_max: "max" };
let metric = "us_mean";
const SCALES = { log: "log", linear: "linear" };
let scale = "log";
const MARK = "#d14b4b";
const time = us => us >= 1e6 ? `${number(us / 1e6)} s` : us >= 1000 ? `${number(us / 1000)} ms` : `${number(us)} µs`;
const percent = share => `${Math.round(share * 100)} %`;
const shown = () => results.runs.filter(run => !hidden.has(run.target) && run.verdict);
const stream = (run, name) => (run.series.find(one => one.stream === name) || { seconds: [] }).seconds;
const neighbour = results.scenario === "noisy-neighbour";

// Lines over a common axis. Several runs of one target have its colour.
//   lines: [{ label, points: [[x, y], ...] }], y null where there is nothing
//   marks: [{ x, until, text }]: vertical lines, with `until` a strip
//   troubles: [{ label, x, count }]: seconds in which I/Os failed, as dots at the foot
function chart({ title, note, lines, marks = [], troubles = [], band, log = false, format, unit, xName, whole = false }) {
  const width = 1120, height = 250, left = 66, right = 12, top = 16, bottom = 30;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const ys = lines.flatMap(line => line.points.map(point => point[1])).filter(value => value !== null && value > 0);
  const xs = lines.flatMap(line => line.points.map(point => point[0]));
  const first = xs.length ? xs.reduce((a, b) => Math.min(a, b)) : 0, last = Math.max(first + 1, xs.length ? xs.reduce((a, b) => Math.max(a, b)) : 1);
  let greatest = ys.length ? ys.reduce((a, b) => Math.max(a, b)) : 1;
  if (band) greatest = Math.max(greatest, band.upper_iops);
  const least = ys.length ? ys.reduce((a, b) => Math.min(a, b)) : 1;
  const low = log ? 10 ** Math.floor(Math.log10(least)) : 0, high = log ? 10 ** Math.ceil(Math.log10(greatest * 1.02)) : niceMax(greatest);
  const x = value => left + (value - first) / (last - first) * (width - left - right);
  const share = value => log ? Math.log10(Math.max(value, low) / low) / Math.max(1, Math.log10(high / low)) : value / high;
  const y = value => height - bottom - Math.min(1, share(value)) * (height - top - bottom);
  const ticks = log ? Array.from({ length: Math.round(Math.log10(high / low)) + 1 }, (_, at) => low * 10 ** at) : [0, 1, 2, 3, 4].map(part => high * part / 4);
  for (const mark of marks.filter(mark => mark.until)) svg.append(shape("rect", { x: x(mark.x), y: top, width: Math.max(1, x(Math.min(mark.until, last)) - x(mark.x)), height: height - top - bottom, fill: MARK, opacity: .08 }));
  if (band) {
    svg.append(shape("rect", { x: left, y: y(band.upper_iops), width: width - left - right, height: Math.max(1, y(band.lower_iops) - y(band.upper_iops)), class: "band" }));
    svg.append(shape("line", { x1: left, x2: width - right, y1: y(band.expected_iops), y2: y(band.expected_iops), class: "expected" }));
  }
  for (const [at, value] of ticks.entries()) {
    svg.append(shape("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: at ? "grid" : "axis" }));
    svg.append(shape("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  const step = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200].find(step => (last - first) / step <= 16) || Math.ceil((last - first) / 16);
  for (let value = Math.ceil(first / step) * step; value <= last; value += step) svg.append(shape("text", { x: x(value), y: height - 10, "text-anchor": "middle" }, value));
  svg.append(shape("text", { x: left, y: 9 }, unit), shape("text", { x: width - right, y: 9, "text-anchor": "end" }, xName));
  for (const mark of marks) svg.append(shape("line", { x1: x(mark.x), x2: x(mark.x), y1: top, y2: height - bottom, stroke: MARK, "stroke-width": 1, opacity: .55 }));
  for (const { label, points } of lines) {
    const place = ([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    for (const part of unbroken(points, point => point[1])) svg.append(shape("polyline", { points: part.map(place).join(" "), fill: "none", stroke: colour(label), "stroke-width": 1.7, "stroke-linejoin": "round", opacity: .9 }));
    if (whole) for (const [at, value] of points) if (value !== null) svg.append(shape("circle", { cx: x(at), cy: y(value), r: 3, fill: colour(label) }));
  }
  for (const { label, x: at, count } of troubles) {
    const dot = shape("circle", { cx: x(at), cy: height - bottom, r: 4.5, fill: colour(label), stroke: MARK, "stroke-width": 2 });
    dot.append(shape("title", {}, `${label}: ${count} I/Os failed in second ${at}`));
    svg.append(dot);
  }
  const cross = shape("line", { y1: top, y2: height - bottom, class: "cross", visibility: "hidden" });
  svg.append(cross, shape("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom, fill: "transparent" }));
  const tables = lines.map(line => ({ label: line.label, values: new Map(line.points) }));
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const at = Math.min(last, Math.max(first, Math.round(first + ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * (last - first))));
    cross.setAttribute("x1", x(at)); cross.setAttribute("x2", x(at)); cross.setAttribute("visibility", "visible");
    const here = [...new Set(marks.filter(mark => mark.until ? at >= Math.floor(mark.x) && at <= mark.until : Math.floor(mark.x) === at).map(mark => mark.text))].join(", ");
    const values = tables.filter(line => line.values.has(at)).map(line => [line.label, line.values.get(at) === null ? "nothing" : `${format(line.values.get(at))}${unit === "IOPS" || unit === "MiB/s" ? ` ${unit}` : ""}`]);
    showTip(event, `${xName === "seconds" ? "second" : xName} ${at}${here ? `: ${here}` : ""}`, values);
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); byId("tip").hidden = true; });
  return element("section", { class: "card" }, element("h3", {}, title), element("p", { class: "muted" }, note), svg);
}

// What was done to the shown targets; nearly at the same time is once.
function marks() {
  const found = new Map();
  if (neighbour) {
    const events = shown().flatMap(run => run.events);
    if (!events.length) return [];
    return [{ x: Math.min(...events.map(event => event.at_s)), until: Math.max(...events.map(event => event.at_s + event.took_s)), text: "neighbour" }];
  }
  for (const run of shown()) for (const event of run.events) {
    const key = `${Math.round(event.at_s)} ${event.text}`;
    if (!found.has(key)) found.set(key, { x: event.at_s, text: event.text });
  }
  return [...found.values()];
}

const overTime = (name, value) => shown().map(run => ({ label: run.target, points: stream(run, name).map((second, at) => [at, value(second)]) })).filter(line => line.points.length);

function drawCharts() {
  const latency = second => second.ios ? second[metric] : null;
  const common = { marks: marks(), xName: "seconds" };
  const times = { log: scale === "log", format: time, unit: `latency, ${METRICS[metric]}` };
  const done = neighbour ? "Shaded: the neighbour reads." : "Red lines: snapshots.";
  const list = [
    chart({ ...common, title: "Database: I/Os per second", note: `Grey: the band in which a perfect target has 95 of 100 seconds or more. ${done}${shown().some(run => run.errors) ? " Dots at the foot: I/Os failed." : ""}`, lines: overTime("database", second => second.ios), troubles: shown().flatMap(run => run.errors_by_second.map(([x, count]) => ({ label: run.target, x, count }))), band: results.band, format: number, unit: "IOPS" }),
    chart({ ...common, ...times, title: "Database: latency", note: `All reads and writes of each second. ${done}`, lines: overTime("database", latency) }),
    chart({ ...common, ...times, title: "Log writes: latency", note: `What a commit waits for: durable writes of 32 KiB. ${done}`, lines: overTime("log-writes", latency) }),
  ];
  if (neighbour) {
    list.push(chart({ ...common, title: "Neighbour: MiB per second", note: "What it got while the database ran beside it.", lines: overTime("scan", second => second.bytes / MIB), format: number, unit: "MiB/s" }));
  } else {
    const byNumber = value => shown().filter(run => run.events.length > 1).map(run => ({ label: run.target, points: run.events.map(event => [event.number, event.error ? null : value(event)]) }));
    const numbered = { xName: "snapshot", whole: true, format: time, unit: "" };
    if (byNumber(() => 0).length) {
      list.push(chart({ ...numbered, log: scale === "log", title: "How long each snapshot took", note: "From asking for it to the answer that it is there, for all volumes together.", lines: byNumber(event => event.took_s * 1e6) }));
      list.push(chart({ ...numbered, log: scale === "log", title: "Database latency behind each snapshot", note: `Until the next one, all I/Os, ${METRICS[metric]}. A knee shows with how many snapshots a target gets slower.`, lines: byNumber(event => event.after[metric]) }));
    }
  }
  byId("charts").replaceChildren(...list);
}

function drawVerdicts() {
  const sentences = [...DATA.sentences];
  byId("verdicts").replaceChildren(...results.runs.map(run => {
    const head = element("div", { class: "name" }, element("i", { style: `background:${colour(run.target)}` }), run.target + (results.provenance.repeats > 1 ? `, run ${run.repeat + 1}` : ""));
    if (!run.verdict) return element("div", { class: "verdict" }, head, element("div", { class: "big" }, "failed"), element("p", { class: "muted" }, run.error || "too short for figures"));
    const sentence = sentences.shift().split(": ").slice(1).join(": ");
    return element("div", { class: "verdict" }, head, element("div", { class: "big" }, percent(run.verdict.in_band_share), element("span", {}, " of the seconds in the band")), element("p", { class: "muted" }, sentence));
  }));
}

function drawTables() {
  const of = run => results.provenance.repeats > 1 ? `${run.target}, run ${run.repeat + 1}` : run.target;
  table("figures", columns.map(column => column[0]), results.runs.map(run => {
    const verdict = run.verdict;
    if (!verdict) return { cells: [of(run), "failed", ...columns.slice(2).map(() => "")] };
    return { cells: [of(run), number(verdict.iops_mean), percent(verdict.in_band_share), `${(verdict.variation * 100).toFixed(1)} %`, verdict.below_90_s, percent(Math.max(0, verdict.worst_shortfall)), number(verdict.lost_ios), number(run.whole.us_p50), number(run.whole.us_p99), number(run.whole.us_max / 1000), run.errors, run.server && run.server.cpu_us_per_io !== null ? number(run.server.cpu_us_per_io) : "–"] };
  }));
  table("phases", ["target", "phase", "seconds", "IOPS", "in band", "p50 us", "p99 us", "p99.9 us", "max ms", "log p50 us", "log p99 us", "scan MiB/s"], results.runs.flatMap(run => run.phases.map((phase, at) => {
    const one = phase.window;
    return { first: at === 0, cells: [at ? "" : of(run), phase.name, one.seconds, number(one.iops_mean), percent(one.in_band_share), number(one.us_p50), number(one.us_p99), number(one.us_p999), number(one.us_max / 1000), number(phase.log_us_p50), number(phase.log_us_p99), one.scan_bytes_per_s ? number(one.scan_bytes_per_s / MIB) : "–"] };
  })), 2);
  table("events", ["target", "what", "at s", "took ms", "IOPS before", "IOPS after", "us before", "us after", "p99 us after", "max ms after", "back in band after s", "degraded", "trouble"], results.runs.flatMap(run => run.events.map((event, at) => ({ first: at === 0, cells: [at ? "" : of(run), event.text, event.at_s.toFixed(1), number(event.took_s * 1000), number(event.before.iops_mean), number(event.after.iops_mean), number(event.before.us_middle), number(event.after.us_middle), number(event.after.us_p99), number(event.after.us_max / 1000), event.recovery_s === null ? "not" : event.recovery_s, event.degraded ? "yes" : "", event.error || ""] }))), 2);
  byId("degraded").textContent = neighbour ? "" : DATA.degraded;
  table("targets", ["target", "place", "snapshots", "durable writes"], results.targets.map(target => ({ cells: [target.label, target.place, target.snapshots, target.durable_writes] })), 4);
  const more = [["us before, us after", "Mean latency of the middle second of up to ten seconds before, and of the time until the next disturbance."],
    ["back in band after s", "Seconds until the rate was above the lower end of the band and the latency not degraded; 0: so it was in its own second and the next."],
    ["expected", `${number(results.band.expected_iops)} I/Os per second, as asked for. The band is ${number(results.band.lower_iops)} to ${number(results.band.upper_iops)}.`]];
  if (results.client) more.push(["client", `On nothing at all this client reaches ${number(results.client.iops_mean)} I/Os per second, and ${percent(results.client.in_band_share)} of this client's seconds lie in the band, with a CV of ${(results.client.variation * 100).toFixed(1)} %. No target can look better than that.`]);
  drawMeanings([...columns, ...DATA.phaseColumns, ...more]);
  drawProvenance();
}

function draw() {
  drawLegend(draw);
  drawChoice("metrics", METRICS, metric, key => { metric = key; draw(); });
  drawChoice("scales", SCALES, scale, key => { scale = key; draw(); });
  drawCharts();
}

drawFrame();
byId("explanation").textContent = results.explanation;
drawVerdicts();
drawTables();
draw();
