"use strict";
// What all pages share. All text goes in by textContent, so no label can become markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const { results, columns, started } = DATA;
const COLOURS = ["#2f6fde", "#e07b1a", "#1f9d6b", "#c2418f", "#8a63d2", "#b3892a", "#2aa5b8", "#d14b4b"];
const MIB = 1048576;
const labels = results.targets.map(target => target.label);
const colour = label => COLOURS[Math.max(0, labels.indexOf(label)) % COLOURS.length];
const hidden = new Set();

const byId = id => document.getElementById(id);
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function shape(tag, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const number = value => value === null || value === undefined ? "–" : (Math.abs(value) < 10 ? fine : whole).format(value);
const median = list => {
  const sorted = [...list].sort((a, b) => a - b), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

// Points that follow each other without a gap; a gap is where there is no value.
function unbroken(points, value) {
  const parts = [[]];
  for (const point of points) if (value(point) === null) parts.push([]); else parts.at(-1).push(point);
  return parts.filter(part => part.length);
}

function niceMax(value) {
  if (!(value > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map(factor => factor * step).find(limit => limit >= value * 1.04) || 12 * step;
}

function showTip(event, head, lines) {
  const tip = byId("tip");
  tip.replaceChildren(element("div", { class: "muted" }, head), ...lines.map(([label, text]) => element("div", {}, element("i", { style: `background:${colour(label)}` }), `${label}: ${text}`)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 16, innerWidth - box.width - 8)}px`;
  tip.style.top = `${Math.max(8, event.clientY - box.height - 12)}px`;
}

function table(id, head, lines, left = 1) {
  const cell = (tag, text, index, row) => element(tag, { class: index < left ? "left" : "" }, `${text}`);
  byId(id).replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((text, index) => cell("th", text, index)))),
    element("tbody", {}, ...lines.map(line => element("tr", line.first ? { class: "first" } : {}, ...line.cells.map((text, index) => cell("td", text, index))))));
}

function drawLegend(draw) {
  byId("legend").replaceChildren(...labels.map(label => {
    const button = element("button", { type: "button", class: hidden.has(label) ? "off" : "", title: "hide or show" }, element("i", { style: `background:${colour(label)}` }), label);
    button.onclick = () => { hidden.has(label) ? hidden.delete(label) : hidden.add(label); draw(); };
    return button;
  }));
}

// Buttons of which one is chosen.
function drawChoice(id, choices, chosen, choose) {
  byId(id).replaceChildren(...Object.entries(choices).map(([key, text]) => {
    const button = element("button", { type: "button", "aria-pressed": chosen === key }, text);
    button.onclick = () => choose(key);
    return button;
  }));
}

const drawProvenance = () => byId("provenance").replaceChildren(element("tbody", {}, ...Object.entries(results.provenance).map(([key, value]) =>
  element("tr", {}, element("td", {}, key.replaceAll("_", " ")), element("td", { class: "left wrap" }, `${value}`)))));

const drawMeanings = meanings => byId("columns").replaceChildren(...meanings.flatMap(([title, meaning]) => [element("dt", {}, title), element("dd", {}, meaning)]));

// What every page has at its top, and light or dark.
function drawFrame() {
  byId("title").textContent = `${results.scenario.replaceAll("-", " ").replace(/^./, letter => letter.toUpperCase())}: ${labels.join(", ")}`;
  byId("subtitle").textContent = `Weft lab, ${started}, ${results.provenance.cpu_model} × ${results.provenance.cpu_count}, ${results.provenance.fio_version}`;
  if (results.warnings.length) {
    byId("warnings").hidden = false;
    byId("warnings").querySelector("ul").replaceChildren(...results.warnings.map(text => element("li", {}, text)));
  }
  document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
  byId("theme").onclick = () => document.documentElement.classList.toggle("dark");
}

