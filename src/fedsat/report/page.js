"use strict";
// Draws the charts from the data in #data, without a library: lines and dots are SVG, maps are small images in SVG.
const DATA = JSON.parse(document.getElementById("data").textContent);
const TIP_ROWS = 16;
let zoomed = false;
const shown = DATA.groups.map(() => true);
const byId = (id) => document.getElementById(id);
const colour = (g) => DATA.groups[g].colour;
const dash = (g) => DATA.groups[g].dash.join(" ");
const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(1));

function add(parent, tag, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return parent.appendChild(node);
}

// ---- tooltip, next to the pointer --------------------------------------------------------------------------------
function showTip(event, title, rows = []) {
  const tip = byId("tip");
  tip.textContent = title;
  for (const [g, text] of rows.slice(0, TIP_ROWS)) {
    const row = tip.appendChild(document.createElement("div"));
    row.appendChild(document.createElement("i")).style.background = colour(g);
    row.append(text);
  }
  if (rows.length > TIP_ROWS) tip.appendChild(document.createElement("div")).textContent = `and ${rows.length - TIP_ROWS} more`;
  tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}
const hideTip = () => { byId("tip").hidden = true; };

// ---- axes -------------------------------------------------------------------------------------------------------
function ticks(low, high, about) {
  const raw = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw - 1e-9);
  const all = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) all.push(+v.toFixed(6));
  return all;
}

// An empty chart with axes in the box #id; x and y map values to pixels.
function frame(id, { xs, ys, height = 230, left = 34, xlabel = "round", describe }) {
  const box = byId(id), width = Math.max(200, box.clientWidth);
  box.replaceChildren();
  const svg = add(box, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe });
  const bottom = height - 32, right = width - 14, top = 8;
  const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0] || 1)) * (right - left);
  const y = (v) => bottom - ((v - ys[0]) / (ys[1] - ys[0] || 1)) * (bottom - top);
  for (const v of ticks(...ys, 5)) {
    add(svg, "line", { class: "axis", x1: left, x2: right, y1: y(v), y2: y(v) });
    add(svg, "text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, v);
  }
  for (const v of ticks(...xs, width / 70)) add(svg, "text", { x: x(v), y: bottom + 15, "text-anchor": "middle" }, v);
  add(svg, "text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, xlabel);
  return { svg, x, y, left, right, top, bottom, width, height };
}

// A note in place of a chart that cannot be drawn.
function empty(id, text) {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = text;
  byId(id).replaceChildren(note);
}

const path = (xs, ys, x, y) => xs.map((v, i) => [v, ys[i]]).filter(([, value]) => value !== null)
  .map(([v, value], i) => `${i ? "L" : "M"}${x(v).toFixed(1)} ${y(value).toFixed(1)}`).join("");
const lastRound = () => Math.max(...DATA.groups.map((group) => group.rounds.at(-1)));

// ---- curves over rounds, all groups shown -------------------------------------------------------------------------
function drawCurves(id, top, unit) {
  const groups = DATA.groups.map((group, g) => [group, g]).filter(([group, g]) => shown[g] && group.curves[id]);
  const ys = unit && zoomed ? lateRange(groups.map(([group]) => group.curves[id].mean)) : top ? [0, top] : range(id);
  const chart = frame(id, { xs: [0, lastRound()], ys, describe: `${id.replaceAll("_", " ")} over rounds` });
  const { svg, x, y } = chart;
  // When zoomed in, the first rounds lie below the chart and are clipped.
  add(add(svg, "clipPath", { id: `${id}-area` }), "rect", { x: 0, y: 0, width: chart.width, height: chart.bottom + 1 });
  const area = add(svg, "g", { "clip-path": `url(#${id}-area)` });
  for (const [group, g] of groups) {
    const band = group.curves[id];
    if (band.low) {
      const edge = path([...group.rounds].reverse(), [...band.low].reverse(), x, y).replace("M", "L");
      add(area, "path", { d: path(group.rounds, band.high, x, y) + edge + "Z", fill: colour(g), opacity: 0.16 });
    }
  }
  for (const [group, g] of groups) {
    const style = { fill: "none", stroke: colour(g), "stroke-width": 1.8, "stroke-dasharray": dash(g), "stroke-linejoin": "round" };
    add(area, "path", { class: "curve", d: path(group.rounds, group.curves[id].mean, x, y), ...style });
    if (group.rounds.length === 1) add(svg, "circle", { cx: x(group.rounds[0]), cy: y(group.curves[id].mean[0]), r: 3, fill: colour(g) });
  }
  const mark = add(svg, "line", { class: "axis", y1: chart.top, y2: chart.bottom, visibility: "hidden" });
  svg.onpointermove = (event) => {
    const place = event.clientX - svg.getBoundingClientRect().left;
    const wanted = ((place - chart.left) / (chart.right - chart.left)) * lastRound();
    const rows = groups.map(([group, g]) => {
      const i = nearest(group.rounds, wanted), band = group.curves[id];
      const range = band.low ? ` (${number(band.low[i])} to ${number(band.high[i])})` : "";
      return [g, `${group.label}  ${number(band.mean[i])}${unit}${range}`, band.mean[i], group.rounds[i]];
    });
    if (!rows.length) return;
    rows.sort((a, b) => b[2] - a[2]);
    mark.setAttribute("visibility", "visible");
    mark.setAttribute("x1", x(rows[0][3]));
    mark.setAttribute("x2", x(rows[0][3]));
    showTip(event, `round ${rows[0][3]}`, rows);
  };
  svg.onpointerleave = () => { mark.setAttribute("visibility", "hidden"); hideTip(); };
}

// The axis range of a metric that is not in per cent.
function range(id) {
  const values = DATA.groups.flatMap((group) => (group.curves[id] ? group.curves[id].mean : [])).filter((v) => v !== null);
  return [Math.min(0, ...values), 1.05 * Math.max(0, ...values) || 1];
}

// The range of the second halves of the curves, rounded to multiples of five.
function lateRange(curves) {
  const late = curves.flatMap((values) => values.slice(Math.floor(values.length / 2)));
  return late.length ? [5 * Math.floor(Math.min(...late) / 5), 5 * Math.ceil(Math.max(...late) / 5 + 0.2)] : [0, 100];
}

function nearest(sorted, wanted) {
  let best = 0;
  sorted.forEach((v, i) => { if (Math.abs(v - wanted) < Math.abs(sorted[best] - wanted)) best = i; });
  return best;
}

// ---- clients --------------------------------------------------------------------------------------------------------
function drawClients() {
  const groups = DATA.groups.map((group, g) => [group, g]).filter(([group, g]) => shown[g] && group.clients);
  if (!groups.length) return empty("clients", "The selected runs have no client accuracies.");
  const row = 40, height = groups.length * row + 40, least = Math.min(...groups.map(([group]) => group.clients[0]));
  const { svg, x } = frame("clients", {
    xs: [10 * Math.floor(least / 10.01), 100], ys: [0, 0], height, left: 8, xlabel: "accuracy of a client, %", describe: "accuracies of clients",
  });
  svg.querySelectorAll("line, text[text-anchor=end]").forEach((node) => node.remove());
  groups.forEach(([group, g], i) => {
    const values = group.clients, middle = i * row + 28;
    const at = (share) => values[Math.round(share * (values.length - 1))];
    add(svg, "text", { class: "strong", x: 8, y: middle - 12 }, `${group.label}: worst ${number(values[0])}, median ${number(at(0.5))}`);
    for (const v of values) add(svg, "line", { x1: x(v), x2: x(v), y1: middle - 6, y2: middle + 6, stroke: colour(g), opacity: 0.45 });
    add(svg, "rect", { x: x(at(0.1)), width: Math.max(1, x(at(0.9)) - x(at(0.1))), y: middle - 2, height: 4, fill: colour(g) });
    add(svg, "circle", { cx: x(at(0.5)), cy: middle, r: 4.5, fill: "var(--panel)", stroke: colour(g), "stroke-width": 2 });
    const text = `worst ${number(values[0])}\n10th percentile ${number(at(0.1))}\nmedian ${number(at(0.5))}\nbest ${number(values.at(-1))}`;
    const target = add(svg, "rect", { x: 0, y: middle - 22, width: svg.clientWidth || 300, height: row, fill: "transparent" });
    target.onpointermove = (event) => showTip(event, `${group.label}\n${text}`);
    target.onpointerleave = hideTip;
  });
}

// ---- maps: grids of coloured cells ----------------------------------------------------------------------------------
function rgb(name) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
}

function image(rows, share) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const context = canvas.getContext("2d"), pixels = context.createImageData(canvas.width, canvas.height);
  const ramp = [rgb("--low"), rgb("--middle"), rgb("--high")], nothing = rgb("--empty");
  rows.forEach((row, r) => row.forEach((value, c) => {
    const s = share(value);
    const [from, to, t] = s < 0.5 ? [ramp[0], ramp[1], 2 * s] : [ramp[1], ramp[2], 2 * s - 1];
    const mixed = s === null ? nothing : from.map((v, i) => v + (to[i] - v) * t);
    pixels.data.set([...mixed, 255], 4 * (r * canvas.width + c));
  }));
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

// A map of rows × columns. `column` names a column, and `numbers` writes the values into the cells if there is room.
function drawMap(id, { rows, names, column, columns, share, tip, xlabel, numbers = false, square = false }) {
  const box = byId(id), width = Math.max(200, box.clientWidth);
  const longest = Math.max(...names.map((name) => name.length));
  const left = Math.min(110, 14 + 6.4 * Math.min(longest, 15)), inner = width - left - 4;
  const tall = square ? Math.min(inner, 460) : Math.min(400, Math.max(150, rows.length * 20));
  const wide = square ? tall : inner, height = tall + 34;
  box.replaceChildren();
  const svg = add(box, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": id });
  add(svg, "image", {
    href: image(rows, share), x: left, y: 0, width: wide, height: tall,
    preserveAspectRatio: "none", style: "image-rendering: pixelated",
  });
  const cell = [wide / rows[0].length, tall / rows.length];
  const every = Math.ceil(12 / cell[1]);
  names.forEach((name, r) => {
    const short = name.length > 15 ? name.slice(0, 14) + "…" : name;
    if (r % every === 0) add(svg, "text", { x: left - 6, y: Math.max(9, (r + 0.5) * cell[1] + 4), "text-anchor": "end" }, short);
  });
  for (const [place, text] of columns(cell[0])) add(svg, "text", { x: left + place * cell[0], y: tall + 14, "text-anchor": "middle" }, text);
  add(svg, "text", { x: left + wide / 2, y: height - 3, "text-anchor": "middle" }, xlabel);
  if (numbers && cell[0] >= 20 && cell[1] >= 14) writeNumbers(svg, rows, share, left, cell);
  svg.onpointermove = (event) => {
    const bounds = svg.getBoundingClientRect();
    const c = Math.floor((event.clientX - bounds.left - left) / cell[0]), r = Math.floor((event.clientY - bounds.top) / cell[1]);
    if (r in rows && c in rows[0]) showTip(event, tip(names[r], column(c), rows[r][c]));
    else hideTip();
  };
  svg.onpointerleave = hideTip;
}

function writeNumbers(svg, rows, share, left, cell) {
  rows.forEach((row, r) => row.forEach((value, c) => {
    if (!value) return;
    const fill = share(value) > 0.45 ? "var(--panel)" : "var(--ink)";
    add(svg, "text", { x: left + (c + 0.5) * cell[0], y: (r + 0.5) * cell[1] + 4, "text-anchor": "middle", style: `fill: ${fill}` }, value);
  }));
}

const perCent = (value) => (value === null ? null : value / 100);
const evenly = (labels, room) => (size) => {
  const every = Math.max(1, Math.ceil(room / size));
  return labels.map((label, i) => [i + 0.5, label]).filter((_, i) => i % every === 0);
};

function drawPartition() {
  const federation = DATA.federations[byId("federation").value || 0];
  if (!federation) return empty("partition", "The data are not available here, so the partition cannot be shown.");
  const most = Math.max(...federation.rows.map((row) => Math.max(...row)));
  const clients = federation.rows[0].map((_, i) => i);
  drawMap("partition", {
    rows: federation.rows, names: federation.classes, xlabel: `client (the darkest colour is ${most.toLocaleString("en")} samples)`,
    column: (c) => c, columns: evenly(clients, 34),
    share: (value) => (value ? Math.sqrt(value / most) : null),
    tip: (name, client, value) => `client ${client}, class ${name}\n${value.toLocaleString("en")} samples`,
  });
}

// ---- one group in detail -----------------------------------------------------------------------------------------------
function drawDetail() {
  const g = +byId("method").value || 0, group = DATA.groups[g];
  const { rounds, rows } = group.recall;
  drawMap("recall", {
    rows, names: group.classes, xlabel: "round", column: (c) => rounds[c], columns: evenly(rounds, 40), share: perCent,
    tip: (name, round, value) => `class ${name}, round ${round}\nrecall ${value === null ? "–" : value + " %"}`,
  });
  if (group.confusion) {
    // Columns have shortened names, or numbers if there are many classes.
    const short = group.classes.map((name, c) => (group.classes.length > 20 ? c : name.slice(0, 4)));
    drawMap("confusion", {
      rows: group.confusion, names: group.classes, xlabel: "predicted", square: true, numbers: true,
      column: (c) => group.classes[c], columns: evenly(short, 30),
      share: (value) => (value ? value / 100 : null),
      tip: (truth, predicted, value) => `${value ?? "–"} % of class ${truth}\nare predicted as ${predicted}`,
    });
  } else empty("confusion", "No confusion matrix: the run is not finished, or has too many classes.");
  drawWeights(group, g);
  drawPriority(group, g);
}

function drawWeights(group, g) {
  const { rounds, shares, equal, seed } = group.weights;
  const top = Math.min(100, 1.08 * Math.max(...shares.map((s) => Math.max(...s)), equal));
  const { svg, x, y, left, right } = frame("weights", { xs: [0, rounds.at(-1)], ys: [0, top], describe: "weights over rounds" });
  add(svg, "line", { x1: left, x2: right, y1: y(equal), y2: y(equal), stroke: "var(--muted)", "stroke-dasharray": "4 3" });
  rounds.forEach((round, i) => shares[i].forEach((share) => {
    add(svg, "circle", { cx: x(round).toFixed(1), cy: y(share).toFixed(1), r: 1.7, fill: colour(g), opacity: 0.5 });
  }));
  svg.onpointermove = (event) => {
    const i = nearest(rounds, ((event.clientX - svg.getBoundingClientRect().left - left) / (right - left)) * rounds.at(-1));
    const range = `${number(Math.min(...shares[i]))} to ${number(Math.max(...shares[i]))} %`;
    showTip(event, `round ${rounds[i]}, seed ${seed}\n${shares[i].length} clients, weights ${range}`);
  };
  svg.onpointerleave = hideTip;
}

function drawPriority(group, g) {
  const { rounds, priority } = group.weights;
  if (priority.every((c) => c === null)) return empty("priority", "This method has no priority class.");
  const names = group.classes, longest = Math.max(...names.map((name) => name.length));
  const { svg, x, y, left, right } = frame("priority", {
    xs: [0, rounds.at(-1)], ys: [names.length - 0.5, -0.5], left: Math.min(110, 14 + 6.4 * Math.min(longest, 15)), describe: "priority class over rounds",
  });
  svg.querySelectorAll(".axis, text[text-anchor=end]").forEach((node) => node.remove());
  const every = Math.ceil(names.length / 16);
  names.forEach((name, c) => {
    if (c % every) return;
    add(svg, "line", { class: "axis", x1: left, x2: right, y1: y(c), y2: y(c) });
    add(svg, "text", { x: left - 6, y: y(c) + 4, "text-anchor": "end" }, name.length > 15 ? name.slice(0, 14) + "…" : name);
  });
  rounds.forEach((round, i) => {
    if (priority[i] !== null) add(svg, "circle", { cx: x(round), cy: y(priority[i]), r: 3, fill: colour(g) });
  });
  svg.onpointermove = (event) => {
    const i = nearest(rounds, ((event.clientX - svg.getBoundingClientRect().left - left) / (right - left)) * rounds.at(-1));
    showTip(event, `round ${rounds[i]}\npriority: class ${names[priority[i]] ?? "–"}`);
  };
  svg.onpointerleave = hideTip;
}

// ---- controls -----------------------------------------------------------------------------------------------------------
function drawShared() {
  for (const { name, unit } of DATA.metrics) drawCurves(name, unit ? 100 : null, unit ? " %" : "");
  drawCurves("effective_clients", null, "");
  drawClients();
}

function draw() { drawShared(); drawPartition(); drawDetail(); }

function makeCurves() {
  for (const { name, title } of DATA.metrics) {
    const figure = byId("curves").appendChild(document.createElement("figure"));
    figure.appendChild(document.createElement("figcaption")).textContent = title[0].toUpperCase() + title.slice(1);
    figure.appendChild(document.createElement("div")).id = name;
  }
}

function makeKeys() {
  DATA.groups.forEach((group, g) => {
    const button = byId("keys").appendChild(document.createElement("button"));
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    const swatch = add(button, "svg", { width: 22, height: 10 });
    add(swatch, "line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke: colour(g), "stroke-width": 3, "stroke-dasharray": dash(g) });
    button.append(group.label);
    button.onclick = () => {
      shown[g] = !shown[g];
      button.setAttribute("aria-pressed", shown[g]);
      drawShared();
    };
  });
}

function makeChoice(id, labels, redraw) {
  const select = byId(id);
  labels.forEach((label, i) => select.add(new Option(label, i)));
  select.hidden = labels.length < 2;
  select.onchange = redraw;
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
setTheme(prefersDark.matches);
prefersDark.onchange = () => { setTheme(prefersDark.matches); draw(); };
byId("theme").onclick = () => { setTheme(document.documentElement.dataset.theme !== "dark"); draw(); };
byId("zoom").onclick = () => {
  zoomed = !zoomed;
  byId("zoom").setAttribute("aria-pressed", zoomed);
  drawShared();
};
makeCurves();
makeKeys();
makeChoice("method", DATA.groups.map((group) => group.label), drawDetail);
makeChoice("federation", DATA.federations.map((federation) => federation.label), drawPartition);
// Start with FedSat if it is among the methods.
byId("method").value = Math.max(0, DATA.groups.findIndex((group) => group.label.startsWith("fedsat")));
draw();
let drawnAt = innerWidth;
addEventListener("resize", () => { if (innerWidth !== drawnAt) { drawnAt = innerWidth; draw(); } });
