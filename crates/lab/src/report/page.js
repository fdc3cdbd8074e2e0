// Draws the page of measured rows from the results embedded in it.
const METRICS = { rate: "throughput", latency: "latency" };
let metric = "rate";

const inBytes = row => row.figure === "bytes-per-second";
const unit = row => metric === "latency" ? "µs" : inBytes(row) ? "MiB/s" : "IOPS";
const headline = (row, summary) => inBytes(row) ? summary.bytes_per_s_median / MIB : summary.iops_median;
const perSecond = (row, summary) => {
  const range = inBytes(row) ? summary.bytes_per_s_per_second : summary.iops_per_second, scale = inBytes(row) ? MIB : 1;
  return range && { min: range.min / scale, max: range.max / scale };
};
const of = (row, label) => results.measurements.find(one => one.row === row.key && one.target === label);

// One value per second: the median over the repeats, with their least and greatest.
function series(row, measurement) {
  const seconds = new Map();
  for (const run of measurement.runs) {
    const merged = new Map();
    for (const sample of [...run.read.series, ...run.write.series]) {
      const one = merged.get(sample.second) || { iops: 0, bytes: 0, time: 0 };
      one.iops += sample.iops;
      one.bytes += sample.bytes_per_s;
      one.time += sample.latency_us * sample.iops;
      merged.set(sample.second, one);
    }
    for (const [second, one] of merged) {
      if (!seconds.has(second)) seconds.set(second, []);
      // A second without any I/O has no latency.
      if (metric !== "latency") seconds.get(second).push(inBytes(row) ? one.bytes / MIB : one.iops);
      else if (one.iops) seconds.get(second).push(one.time / one.iops);
    }
  }
  const point = ([second, values]) => values.length ? { second, value: median(values), min: Math.min(...values), max: Math.max(...values) } : { second, value: null };
  return [...seconds].sort((a, b) => a[0] - b[0]).map(point);
}

function chart(row) {
  const width = 760, height = 230, left = 62, right = 10, top = 14, bottom = 28;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${row.title} over time` });
  const all = labels.filter(label => !hidden.has(label)).map(label => ({ label, one: of(row, label) })).filter(({ one }) => one && one.summary)
    .map(({ label, one }) => ({ label, points: series(row, one) })).filter(({ points }) => points.length);
  const last = Math.max(1, ...all.flatMap(({ points }) => points.map(point => point.second)));
  const first = Math.min(1, last - 1);
  const limit = niceMax(Math.max(0, ...all.flatMap(({ points }) => points.map(point => point.max || 0))));
  const x = second => left + (second - first) / Math.max(1, last - first) * (width - left - right);
  const y = value => height - bottom - value / limit * (height - top - bottom);
  for (let part = 0; part <= 4; part++) {
    const value = limit * part / 4;
    svg.append(shape("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: part ? "grid" : "axis" }));
    svg.append(shape("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  const step = Math.max(1, Math.ceil(last / 12));
  for (let second = step; second <= last; second += step) svg.append(shape("text", { x: x(second), y: height - 9, "text-anchor": "middle" }, second));
  svg.append(shape("text", { x: left, y: 8 }, unit(row)), shape("text", { x: width - right, y: 8, "text-anchor": "end" }, "seconds"));
  for (const { label, points } of all) {
    for (const part of unbroken(points, point => point.value)) {
      const upper = part.map(point => `${x(point.second)},${y(point.max)}`), lower = part.map(point => `${x(point.second)},${y(point.min)}`).reverse();
      svg.append(shape("polygon", { points: [...upper, ...lower].join(" "), fill: colour(label), opacity: .14 }));
      svg.append(shape("polyline", { points: part.map(point => `${x(point.second)},${y(point.value)}`).join(" "), fill: "none", stroke: colour(label), "stroke-width": 2, "stroke-linejoin": "round" }));
      if (part.length === 1) svg.append(shape("circle", { cx: x(part[0].second), cy: y(part[0].value), r: 3, fill: colour(label) }));
    }
  }
  const cross = shape("line", { y1: top, y2: height - bottom, class: "cross", visibility: "hidden" });
  svg.append(cross, shape("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom, fill: "transparent" }));
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * width;
    const second = Math.min(last, Math.max(first, Math.round(first + (at - left) / (width - left - right) * (last - first))));
    cross.setAttribute("x1", x(second)); cross.setAttribute("x2", x(second)); cross.setAttribute("visibility", "visible");
    const lines = all.map(({ label, points }) => ({ label, point: points.find(point => point.second === second) })).filter(({ point }) => point);
    showTip(event, `second ${second}`, lines.map(({ label, point }) => [label, (point.value === null ? "no I/O" : `${number(point.value)} ${unit(row)}`) + (point.max > point.min ? `  (${number(point.min)} – ${number(point.max)})` : "")]));
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); byId("tip").hidden = true; });
  return svg;
}

function bars(row) {
  const list = element("div", { class: "bars" });
  const shown = labels.map(label => of(row, label)).filter(one => one && !hidden.has(one.target));
  const range = summary => metric === "latency" ? null : perSecond(row, summary);
  const value = summary => metric === "latency" ? (summary.read || summary.write || { us_mean: 0 }).us_mean + (summary.flush ? summary.flush.us_mean : 0) : headline(row, summary);
  const good = shown.filter(one => one.summary);
  const limit = Math.max(1e-9, ...good.map(one => Math.max(value(one.summary), (range(one.summary) || { max: 0 }).max)));
  for (const one of shown) {
    const text = one.summary ? `${number(value(one.summary))} ${unit(row)}` : "failed";
    const bar = element("div", { class: "bar" }, element("div", { class: "name" }, element("span", { title: one.target }, one.target), element("span", {}, text)));
    if (one.summary) {
      const track = element("div", { class: "track" }, element("div", { class: "fill", style: `width:${value(one.summary) / limit * 100}%;background:${colour(one.target)}` }));
      const ends = range(one.summary);
      if (ends && ends.max > 0) track.append(element("div", { class: "whisker", style: `left:${ends.min / limit * 100}%;width:${Math.max(0, (ends.max - ends.min) / limit * 100)}%`, title: `one-second samples: ${number(ends.min)} to ${number(ends.max)} ${unit(row)}` }));
      bar.append(track);
    }
    list.append(bar);
  }
  return list;
}

function ratio(row, one) {
  const base = of(row, results.baseline);
  return base && base.summary && one.summary && headline(row, base.summary) > 0 ? headline(row, one.summary) / headline(row, base.summary) : null;
}

function drawRatios() {
  const shown = labels.filter(label => !hidden.has(label));
  const lines = results.rows.map(row => ({ row, parts: shown.map(label => of(row, label)).filter(Boolean).map(one => ({ label: one.target, ratio: ratio(row, one) })).filter(part => part.ratio !== null) })).filter(line => line.parts.length);
  const width = 1120, left = 300, thick = 9, gap = 14;
  const height = lines.reduce((sum, line) => sum + line.parts.length * (thick + 2) + gap, 26);
  const most = Math.max(1, ...lines.flatMap(line => line.parts.map(part => part.ratio)));
  const step = [.25, .5, 1, 2, 5, 10, 50, 100, 1000].find(step => most / step <= 8) || most / 4;
  const limit = Math.ceil(most * 1.02 / step) * step;
  const x = value => left + value / limit * (width - left - 60);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "ratio to the baseline by row" });
  for (let value = 0; value <= limit + step / 2; value += step) {
    svg.append(shape("line", { x1: x(value), x2: x(value), y1: 16, y2: height, class: "grid" }), shape("text", { x: x(value), y: 10, "text-anchor": "middle" }, `${Number(value.toFixed(2))}×`));
  }
  let y = 22;
  for (const { row, parts } of lines) {
    svg.append(shape("text", { x: left - 12, y: y + parts.length * (thick + 2) / 2 + 4, "text-anchor": "end", class: "name" }, row.title));
    for (const { label, ratio } of parts) {
      const bar = shape("rect", { x: left, y, width: Math.max(1, x(ratio) - left), height: thick, rx: 2.5, fill: colour(label) });
      bar.addEventListener("pointermove", event => showTip(event, row.title, [[label, `${ratio.toFixed(2)}×`]]));
      bar.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
      svg.append(bar, shape("text", { x: x(ratio) + 6, y: y + thick - .5, class: "value" }, ratio.toFixed(2)));
      y += thick + 2;
    }
    y += gap;
  }
  svg.append(shape("line", { x1: x(1), x2: x(1), y1: 16, y2: height, class: "cross" }));
  byId("ratios").replaceChildren(svg);
  byId("ratio-note").textContent = `Throughput of each row divided by that of ${results.baseline}, measured in the same run.`;
}

function drawRows() {
  byId("rows").replaceChildren(...results.rows.filter(row => results.measurements.some(one => one.row === row.key)).map(row =>
    element("section", { class: "card row" }, element("div", { class: "head" }, element("h3", {}, row.title), element("p", { class: "muted" }, `${row.explanation} Depth ${row.depth}.`)), bars(row), chart(row))));
}

function drawControls() {
  drawLegend(draw);
  drawChoice("metrics", METRICS, metric, key => { metric = key; draw(); });
}

function drawTables() {
  const figures = [], latency = [];
  for (const row of results.rows) {
    let first = true;
    for (const one of results.measurements.filter(one => one.row === row.key)) {
      const summary = one.summary, title = first ? row.title : "";
      if (!summary) {
        figures.push({ first, cells: [title, one.target, "failed", "", "", "", "", "", "", "", ""] });
        first = false;
        continue;
      }
      const range = perSecond(row, summary);
      const share = ratio(row, one);
      const pair = key => [summary.read, summary.write].filter(Boolean).map(way => number(way[key])).join(" / ") + (summary.flush ? ` + ${number(summary.flush[key])}` : "");
      figures.push({ first, cells: [title, one.target, number(summary.iops_median), number(summary.bytes_per_s_median / MIB), share === null ? "–" : share.toFixed(2), pair("us_mean"), pair("us_p99"),
        range ? `${number(range.min)} – ${number(range.max)}` : "–", summary.spread === null ? "–" : `${Math.round(summary.spread * 100)} %`, number(summary.server_cpu_us_per_io), summary.server_resident_bytes === null ? "–" : number(summary.server_resident_bytes / MIB)] });
      for (const [name, way] of [["read", summary.read], ["write", summary.write], ["flush", summary.flush]]) {
        if (way) latency.push({ first, cells: [title, one.target, name, number(way.us_mean), number(way.us_p50), number(way.us_p95), number(way.us_p99), number(way.us_p999), number(way.us_max)] });
      }
      first = false;
    }
  }
  table("figures", ["row", ...columns.map(column => column[0])], figures, 2);
  table("latency", ["row", "target", "direction", "mean", "p50", "p95", "p99", "p99.9", "max"], latency, 3);
  table("targets", ["target", "place", "durable writes", "capacity MiB", "idle CPU %", "idle RSS MiB", "freshly filled", "never written"], results.targets.map(target => ({ cells: [
    target.label, target.place, target.durable_writes, number(target.capacity_bytes / MIB), number(target.idle_cpu_percent), target.idle_resident_bytes === null ? "–" : number(target.idle_resident_bytes / MIB),
    target.prefilled ? "yes" : "no", target.never_written_bytes === null ? "not known" : `${number(target.never_written_bytes / MIB)} MiB`] })), 3);
  const more = [["p50, p95, p99.9", "As p99: half of the I/Os, 95 of 100, 999 of 1,000 took no longer."], ["direction", "Reads or writes; in a mix both, apart from each other. Flush: sent behind every write, which is durable only then."],
    ["idle CPU, idle RSS", "What the server used before any load: percent of one core, and resident memory."],
    ["never written", "How much of the range that is read holds nothing, so that reads of it measure nothing. Should be 0."]];
  drawMeanings([...columns, ...more]);
  drawProvenance();
}

function draw() { drawControls(); drawRatios(); drawRows(); }

drawFrame();
drawTables();
draw();
