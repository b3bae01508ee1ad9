"use strict";
// Draws the charts from the data in #data, without a library: lines and dots are SVG, maps are small images in SVG.
const DATA = JSON.parse(document.getElementById("data").textContent);
const TIP_ROWS = 16;
let zoomed = false;
const shown = DATA.groups.map(() => true);
const byId = (id) => document.getElementById(id);
const isDark = () => document.documentElement.dataset.theme === "dark";
// Lighter on a dark ground, so that dark colours can be seen.
const colour = (g) => (isDark() ? `color-mix(in srgb, ${DATA.groups[g].colour} 72%, white)` : DATA.groups[g].colour);
const dash = (g) => DATA.groups[g].dash.join(" ");
const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));

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
  byId(id).parentNode.querySelector(".alt")?.remove();
  return { svg, x, y, left, right, top, bottom, width, height };
}

// The numbers of the chart #id as a table, for readers who cannot see it; `rows` is called when the table is opened.
function alternative(id, head, rows) {
  byId(id).parentNode.querySelector(".alt")?.remove();
  const details = document.createElement("details");
  details.className = "alt";
  details.appendChild(document.createElement("summary")).textContent = "as a table";
  details.ontoggle = () => {
    if (!details.open || details.childElementCount > 1) return;
    const box = details.appendChild(document.createElement("div"));
    box.className = "scroll tall";
    const table = box.appendChild(document.createElement("table"));
    [head, ...rows()].forEach((cells, r) => {
      const row = table.appendChild(document.createElement("tr"));
      cells.forEach((cell, c) => { row.appendChild(document.createElement(r && c ? "td" : "th")).textContent = cell ?? "–"; });
    });
  };
  byId(id).after(details);
}

// A note in place of a chart that cannot be drawn.
function empty(id, text) {
  byId(id).parentNode.querySelector(".alt")?.remove();
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
      const range = band.low ? ` (${[band.low[i], band.high[i]].map((v) => number(v, unit ? 1 : 3)).join(" to ")})` : "";
      return [g, `${group.label}  ${number(band.mean[i], unit ? 1 : 3)}${unit}${range}`, band.mean[i], group.rounds[i]];
    });
    if (!rows.length) return;
    rows.sort((a, b) => b[2] - a[2]);
    mark.setAttribute("visibility", "visible");
    mark.setAttribute("x1", x(rows[0][3]));
    mark.setAttribute("x2", x(rows[0][3]));
    showTip(event, `round ${rows[0][3]}`, rows);
  };
  svg.onpointerleave = () => { mark.setAttribute("visibility", "hidden"); hideTip(); };
  const rounds = [...new Set(groups.flatMap(([group]) => group.rounds))].sort((a, b) => a - b);
  alternative(id, ["round", ...groups.map(([group]) => group.label)], () => rounds.map((round) => [
    round, ...groups.map(([group]) => number(group.curves[id].mean[group.rounds.indexOf(round)], unit ? 1 : 3)),
  ]));
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
    const chosen = group.each_client && sameData(g) ? group.each_client.accuracy[focus.client] : null;
    if (chosen === null || chosen === undefined) return;
    add(svg, "path", { d: `M${x(chosen)} ${middle + 8}l-4 7h8z`, fill: "var(--ink)", class: "chosen" });
  });
  alternative("clients", ["method", "worst", "10th percentile", "median", "best"], () => groups.map(([group]) => [
    group.label, ...[0, 0.1, 0.5, 1].map((share) => number(group.clients[Math.round(share * (group.clients.length - 1))])),
  ]));
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
// `mark` is the chosen row and column, and `pick` is called with those that are clicked.
function drawMap(id, { rows, names, column, columns, share, tip, xlabel, mark = [], pick, numbers = false, square = false, describe = id }) {
  const box = byId(id), width = Math.max(200, box.clientWidth);
  const longest = Math.max(...names.map((name) => name.length));
  const left = Math.min(110, 14 + 6.4 * Math.min(longest, 15)), inner = width - left - 4;
  const tall = square ? Math.min(inner, 460) : Math.min(400, Math.max(150, rows.length * 20));
  const wide = square ? tall : inner, height = tall + 34;
  box.replaceChildren();
  const svg = add(box, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe });
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
  const [row, place] = mark, outline = { fill: "none", stroke: "var(--mark)", "stroke-width": 2 };
  if (rows[row]) add(svg, "rect", { x: left, y: row * cell[1] + 1, width: wide, height: Math.max(2, cell[1] - 2), ...outline });
  if (place in rows[0]) add(svg, "rect", { x: left + place * cell[0], y: 1, width: Math.max(2, cell[0]), height: tall - 2, ...outline });
  if (pick) {
    svg.style.cursor = "pointer";
    svg.onclick = (event) => {
      const bounds = svg.getBoundingClientRect();
      const c = Math.floor((event.clientX - bounds.left - left) / cell[0]), r = Math.floor((event.clientY - bounds.top) / cell[1]);
      if (r in rows) pick(r, c in rows[0] ? c : null);
    };
  }
  alternative(id, ["", ...rows[0].map((_, c) => column(c))], () => rows.map((values, r) => [names[r], ...values]));
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
  alternative("weights", ["round", "weights, %"], () => rounds.map((round, i) => [round, shares[i].map((v) => number(v)).join(", ")]));
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
  alternative("priority", ["round", "class"], () => rounds.map((round, i) => [round, names[priority[i]]]));
}
