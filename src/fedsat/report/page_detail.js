// One method in detail, beside another: the choices (a method, another, a class, a client), and all that depends on them.
const focus = { other: null, class: 0, client: null };
const first = () => +byId("method").value || 0;
const chosen = () => DATA.groups[first()];
const pair = () => [first(), ...(focus.other === null ? [] : [focus.other])];
const sameData = (g) => DATA.groups[g].federation === chosen().federation && DATA.groups[g].clients?.length === chosen().clients?.length;
const sameClasses = (g) => String(DATA.groups[g].classes) === String(chosen().classes);
const federation = () => DATA.federations[chosen().federation];
const clientName = (k) => federation()?.names?.[k] ?? `client ${k}`;
const title = (id, text) => { byId(id).textContent = text; };
const lastRecall = (g) => DATA.groups[g].recall.rows.map((row) => row.at(-1));
const worst = (values) => values.reduce((least, v, i) => (v !== null && (values[least] === null || v < values[least]) ? i : least), 0);

// ---- sortable tables -----------------------------------------------------------------------------------------------
// Makes the headings of a table buttons that sort its rows. `order` is [column, descending], kept when it is rebuilt.
function sortable(table, order = []) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
  const value = (row, c) => {
    const cell = row.cells[c], found = cell.dataset.value ?? cell.textContent, plain = found.replaceAll(",", "");
    return { text: found, number: /^[−-]?[\d.]/.test(plain) ? parseFloat(plain.replace("−", "-")) : null };
  };
  const sort = () => {
    const [column, down] = order;
    heads.forEach((head, c) => head.setAttribute("aria-sort", c !== column ? "none" : down ? "descending" : "ascending"));
    if (column === undefined) return;
    const numeric = rows.some((row) => value(row, column).number !== null);
    const compare = (a, b) => {
      const [one, two] = [value(a, column), value(b, column)];
      if (!numeric) return one.text.localeCompare(two.text, "en", { numeric: true }) * (down ? -1 : 1);
      if (one.number === null || two.number === null) return (one.number === null) - (two.number === null);
      return (one.number - two.number) * (down ? -1 : 1);
    };
    body.replaceChildren(...[...rows].sort(compare));
  };
  heads.forEach((head, c) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    if (!button.textContent) button.setAttribute("aria-label", "method");
    button.onclick = () => {
      const down = order[0] === c ? !order[1] : rows.some((row) => value(row, c).number !== null) && c > 0;
      [order[0], order[1]] = [c, down];
      sort();
    };
    head.replaceChildren(button);
  });
  sort();
}

// A table whose rows can be picked. Columns are {label, digits}, rows {name, values, picked}.
const orders = {};
function pickTable(id, caption, columns, rows, pick) {
  const box = byId(id), scrolled = box.scrollTop, had = box.contains(document.activeElement) ? document.activeElement.dataset.row : undefined;
  const table = document.createElement("table");
  const title = table.createCaption();
  title.textContent = caption;
  title.className = "hidden";
  const head = table.createTHead().insertRow(), body = table.createTBody();
  for (const { label } of columns) {
    const cell = head.appendChild(document.createElement("th"));
    cell.scope = "col";
    cell.textContent = label;
  }
  rows.forEach(({ name, values, picked }, r) => {
    const row = body.insertRow(), cell = row.appendChild(document.createElement("th"));
    cell.scope = "row";
    cell.dataset.value = name;
    const button = cell.appendChild(document.createElement("button"));
    button.type = "button";
    button.className = "pick";
    button.dataset.row = r;
    button.textContent = name;
    button.setAttribute("aria-pressed", picked);
    row.className = picked ? "picked" : "";
    row.onclick = () => pick(r);
    values.forEach((value, c) => {
      const { digits = 1, signed } = columns[c + 1];
      const text = typeof value === "string" ? value : number(value, digits);
      row.insertCell().textContent = signed && value > 0 ? `+${text}` : text.replace("-", "−");
      if (typeof value === "number") row.lastChild.dataset.value = value;
    });
  });
  sortable(table, (orders[id] ??= []));
  box.replaceChildren(table);
  box.scrollTop = scrolled;
  if (had !== undefined) box.querySelector(`[data-row="${had}"]`)?.focus();
}

// ---- answers ---------------------------------------------------------------------------------------------------------
// Since when a class has been above or below one half.
function since(g, c) {
  const { rounds, rows } = DATA.groups[g].recall, values = rows[c], now = values.at(-1);
  if (now === null) return "not in the test set";
  const last = values.findLastIndex((v) => v !== null && v >= 50 !== now >= 50);
  if (last < 0) return now >= 50 ? "above 50 % from the start" : "never above 50 %";
  return `${now >= 50 ? "above" : "below"} 50 % since round ${rounds[last + 1]}`;
}

function drawAnswers() {
  const texts = pair().map((g) => {
    const values = lastRecall(g), c = worst(values), group = DATA.groups[g];
    return `${group.label}: class ${group.classes[c]} is recognised worst, with a recall of ${number(values[c], 0)} % (${since(g, c)}).`;
  });
  const c = focus.class, name = chosen().classes[c];
  const best = DATA.groups.map((_, g) => g).filter((g) => sameClasses(g) && sameData(g)).sort((a, b) => lastRecall(b)[c] - lastRecall(a)[c])[0];
  const own = lastRecall(first())[c];
  if (best !== undefined && best !== first() && lastRecall(best)[c] > own) {
    texts.push(`Class ${name}: ${DATA.groups[best].label} reaches ${number(lastRecall(best)[c], 0)} %, ${chosen().label} ${number(own, 0)} % (${since(first(), c)}).`);
  } else if (DATA.groups.length > 1) texts.push(`Class ${name}: no other method here has a higher recall than ${chosen().label} (${number(own, 0)} %).`);
  const holders = federation()?.rows[c]?.filter((n) => n > 0).length;
  if (holders !== undefined) texts.push(`Class ${name} is held by ${holders} of ${federation().rows[c].length} clients.`);
  const k = focus.client, accuracy = chosen().each_client?.accuracy[k];
  if (accuracy !== undefined && accuracy !== null) {
    const held = federation()?.classes.filter((_, i) => federation().rows[i][k] > 0);
    const which = !held ? "" : held.length > 6 ? `; it holds ${held.length} classes` : `; it holds ${held.join(", ")}`;
    texts.push(`${clientName(k)}: accuracy ${number(accuracy)} % with ${chosen().label}${which}.`);
  }
  byId("answers").replaceChildren(...texts.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

// ---- classes -----------------------------------------------------------------------------------------------------------
function drawClassTable() {
  const groups = pair().filter(sameClasses), rows = chosen().recall.rows, { rounds } = chosen().recall;
  const known = DATA.class_columns.filter(({ name }) => name !== "recall" && groups.some((g) => DATA.groups[g].details.measures[name]));
  const two = groups.length > 1, of = (g, name, c) => DATA.groups[g].details.measures[name]?.[c] ?? null;
  const columns = [{ label: "class" }, { label: "samples" }, ...groups.map((g) => ({ label: `recall %, ${DATA.groups[g].label}` }))];
  if (two) columns.push({ label: `${DATA.groups[groups[0]].label} − ${DATA.groups[groups[1]].label}`, signed: true });
  columns.push({ label: "best recall % (round)" });
  for (const { label, unit } of known) {
    for (const g of groups) columns.push({ label: `${label}${unit ? ` ${unit}` : ""}${two ? `, ${DATA.groups[g].label}` : ""}`, digits: unit ? 1 : 3 });
  }
  pickTable("classes", "measures of each class", columns, chosen().classes.map((name, c) => {
    const recalls = groups.map((g) => of(g, "recall", c) ?? lastRecall(g)[c]);
    const top = rows[c].reduce((best, v, i) => (v !== null && (best === null || v > rows[c][best]) ? i : best), null);
    const values = [String(chosen().details.samples?.[c] ?? "–"), ...recalls];
    if (two) values.push(recalls.includes(null) ? null : recalls[0] - recalls[1]);
    values.push(top === null ? "–" : `${rows[c][top]} (${rounds[top]})`);
    for (const each of known) for (const g of groups) values.push(of(g, each.name, c));
    return { name, values, picked: c === focus.class };
  }), (c) => { focus.class = c; byId("class").value = c; follow(); });
  const ranges = chosen().details.intervals?.[focus.class];
  title("classes-note", `Recall and other measures of the final model on the test set${ranges ? `; 95 % interval of the recall of class ${chosen().classes[focus.class]}: ${ranges[0]} to ${ranges[1]} %` : ""}. `
    + "Click a class to follow it, or a heading to sort.");
}

// Lines of several groups: series are [group, points], points [x, y].
function drawLines(id, series, { xs, ys = [0, 100], xlabel, xname, yname, describe, diagonal = false, dots = false }) {
  if (!series.length) return empty(id, "Not available: no run has counts of its scores, or there are too many classes.");
  const chart = frame(id, { xs, ys, xlabel, describe }), { svg, x, y } = chart;
  if (diagonal) add(svg, "line", { class: "axis", x1: x(0), y1: y(0), x2: x(100), y2: y(100), "stroke-dasharray": "4 3" });
  for (const [g, points] of series) {
    const d = path(points.map((p) => p[0]), points.map((p) => p[1]), x, y);
    add(svg, "path", { class: "curve", d, fill: "none", stroke: colour(g), "stroke-width": 1.8, "stroke-dasharray": dash(g), "stroke-linejoin": "round" });
    if (dots || points.length === 1) for (const p of points) add(svg, "circle", { cx: x(p[0]), cy: y(p[1]), r: 2.5, fill: colour(g) });
  }
  svg.onpointermove = (event) => {
    const wanted = xs[0] + ((event.clientX - svg.getBoundingClientRect().left - chart.left) / (chart.right - chart.left)) * (xs[1] - xs[0]);
    const rows = series.map(([g, points]) => {
      const p = points[nearest(points.map((one) => one[0]), wanted)];
      return [g, `${DATA.groups[g].label}  ${yname} ${number(p[1])} % at ${number(p[0], xname === "round" ? 0 : 1)}`, p[1]];
    });
    showTip(event, `${xname} ${number(Math.min(xs[1], Math.max(xs[0], wanted)), 0)}`, rows.sort((a, b) => b[2] - a[2]));
  };
  svg.onpointerleave = hideTip;
  alternative(id, ["method", xname, yname], () => series.flatMap(([g, points]) => points.map((p) => [DATA.groups[g].label, number(p[0]), number(p[1])])));
}

function drawClassCharts() {
  const c = focus.class, name = chosen().classes[c];
  const visible = DATA.groups.map((_, g) => g).filter((g) => (shown[g] || pair().includes(g)) && sameClasses(g));
  const recalls = visible.map((g) => [g, DATA.groups[g].recall.rounds.map((round, i) => [round, DATA.groups[g].recall.rows[c][i]])]);
  title("class_recall-title", `Class ${name}: recall over the rounds, %`);
  drawLines("class_recall", recalls, { xs: [0, lastRound()], xlabel: "round", xname: "round", yname: "recall", describe: `recall of class ${name} over rounds` });
  const curves = (kind) => visible.map((g) => [g, DATA.groups[g].details.curves?.[c]?.[kind]]).filter(([, points]) => points);
  title("roc-title", `Class ${name}: ROC curve, recall in %`);
  drawLines("roc", curves("roc"), { xs: [0, 100], xlabel: "false alarms, % of the other classes' samples", xname: "false alarms", yname: "recall", diagonal: true, describe: `ROC curves of class ${name}` });
  title("pr-title", `Class ${name}: precision and recall, precision in %`);
  drawLines("pr", curves("pr"), { xs: [0, 100], xlabel: "recall, %", xname: "recall", yname: "precision", describe: `precision-recall curves of class ${name}` });
  title("reliability-title", `Class ${name}: reliability, share of the class in %`);
  drawLines("reliability", curves("reliability"), { xs: [0, 100], xlabel: "predicted probability of the class, %", xname: "probability", yname: "share", diagonal: true, dots: true, describe: `reliability curves of class ${name}` });
}

function drawMaps(g, suffix) {
  const group = DATA.groups[g], { rounds, rows } = group.recall, mark = sameClasses(g) ? focus.class : -1;
  const pick = sameClasses(g) ? (r) => { focus.class = r; byId("class").value = r; follow(); } : undefined;
  title(`recall${suffix}-title`, `${group.label}: recall of each class over the rounds`);
  drawMap(`recall${suffix}`, {
    rows, names: group.classes, xlabel: "round", column: (c) => rounds[c], columns: evenly(rounds, 40), share: perCent,
    mark: [mark], pick, describe: `recall of each class over rounds, ${group.label}`,
    tip: (name, round, value) => `class ${name}, round ${round}\nrecall ${value === null ? "–" : value + " %"}`,
  });
  title(`confusion${suffix}-title`, `${group.label}: final confusion matrix, % of each true class`);
  if (!group.confusion) return empty(`confusion${suffix}`, "No confusion matrix: the run is not finished, or has too many classes.");
  // Columns have shortened names, or numbers if there are many classes.
  const short = group.classes.map((name, c) => (group.classes.length > 20 ? c : name.slice(0, 4)));
  drawMap(`confusion${suffix}`, {
    rows: group.confusion, names: group.classes, xlabel: "predicted", square: true, numbers: true,
    column: (c) => group.classes[c], columns: evenly(short, 30), share: (value) => (value ? value / 100 : null),
    mark: [mark], pick, describe: `confusion matrix, ${group.label}`,
    tip: (truth, predicted, value) => `${value ?? "–"} % of class ${truth}\nare predicted as ${predicted}`,
  });
}

// ---- clients -----------------------------------------------------------------------------------------------------------
function pickClient(k) {
  focus.client = k;
  byId("client").value = k;
  follow();
}

function drawClientTable() {
  const groups = pair().filter((g) => DATA.groups[g].each_client && sameData(g)), own = federation();
  if (!chosen().each_client) {
    byId("each_client").replaceChildren();
    return title("each_client-note", "The accuracies of single clients are not available: the run is not finished, or there are too many clients.");
  }
  const columns = [{ label: "client" }, ...(own ? [{ label: "samples" }, { label: "classes" }] : [])];
  for (const g of groups) columns.push({ label: `accuracy %, ${DATA.groups[g].label}` });
  if (groups.length > 1) columns.push({ label: `${DATA.groups[groups[0]].label} − ${DATA.groups[groups[1]].label}`, signed: true });
  orders.each_client ??= [own ? 3 : 1, false];
  pickTable("each_client", "accuracy of each client", columns, chosen().each_client.accuracy.map((_, k) => {
    const held = own ? own.rows.map((row) => row[k] ?? 0) : [], values = groups.map((g) => DATA.groups[g].each_client.accuracy[k]);
    const data = own ? [k < own.rows[0].length ? String(held.reduce((a, b) => a + b, 0)) : "–", String(held.filter((n) => n).length)] : [];
    const difference = groups.length > 1 ? [values.includes(null) ? null : values[0] - values[1]] : [];
    return { name: own?.names?.[k] ?? String(k), values: [...data, ...values, ...difference], picked: k === focus.client };
  }), pickClient);
  title("each_client-note", `Clients and their accuracies are those of seed ${chosen().each_client.seed}. Click a client to follow it, or a heading to sort; only the first 25 are printed.`);
}

// The classes that the chosen client holds: how many samples, and how well they are recognised.
function drawClientClasses() {
  const own = federation(), k = focus.client;
  title("client_classes-title", k === null ? "The classes of a client" : `${clientName(k)}: recall of the classes that it holds, %`);
  title("client_classes-note", "");
  if (!own || k === null || !(k in own.rows[0])) return empty("client_classes", "The data of this client are not available here.");
  const held = own.rows.map((row, c) => [row[k], c]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 25);
  const groups = pair().filter(sameClasses), counted = chosen().each_client?.recall;
  const recall = (g, c) => (counted && sameData(g) ? DATA.groups[g].each_client?.recall?.[k][c] ?? null : lastRecall(g)[c]);
  const tall = 26, longest = Math.max(...held.map(([, c]) => own.classes[c].length));
  const { svg, x, bottom } = frame("client_classes", {
    xs: [0, 100], ys: [0, 0], height: held.length * tall + 44, left: Math.min(200, 24 + 6.4 * (Math.min(longest, 15) + 12)), xlabel: "recall, %", describe: `recall of the classes of ${clientName(k)}`,
  });
  svg.querySelectorAll("line, text[text-anchor=end]").forEach((node) => node.remove());
  held.forEach(([n, c], i) => {
    const y = 8 + (i + 0.5) * tall, name = own.classes[c];
    const label = `${name.length > 15 ? name.slice(0, 14) + "…" : name} (${n.toLocaleString("en")})`;
    add(svg, "line", { class: "axis", x1: x(0), x2: x(100), y1: y, y2: y });
    add(svg, "text", { class: c === focus.class ? "strong" : "", x: x(0) - 8, y: y + 4, "text-anchor": "end" }, label);
    groups.forEach((g, j) => {
      const value = recall(g, c);
      if (value === null) return;
      add(svg, "circle", { cx: x(value), cy: y, r: 5.5, fill: j ? "var(--panel)" : colour(g), stroke: colour(g), "stroke-width": 2 });
    });
    const target = add(svg, "rect", { x: 0, y: y - tall / 2, width: x(100), height: tall, fill: "transparent" });
    target.style.cursor = "pointer";
    target.onpointermove = (event) => showTip(event, `class ${name}, ${n.toLocaleString("en")} samples`, groups.map((g) => [g, `${DATA.groups[g].label}  recall ${number(recall(g, c))} %`]));
    target.onpointerleave = hideTip;
    target.onclick = () => { hideTip(); focus.class = c; byId("class").value = c; follow(); };
  });
  add(svg, "line", { class: "axis", x1: x(0), x2: x(0), y1: 8, y2: bottom });
  const names = groups.map((g, j) => `${j ? "○" : "●"} ${DATA.groups[g].label}`).join("   ");
  title("client_classes-note", `${names}. Training samples in brackets. ${counted ? "Recall on the client's own samples." : "Recall on the test set."}`);
  alternative("client_classes", ["class", "samples", ...groups.map((g) => DATA.groups[g].label)], () => held.map(([n, c]) => [own.classes[c], n, ...groups.map((g) => number(recall(g, c)))]));
}

function drawPartition() {
  const shownOne = DATA.federations[byId("federation").value || 0];
  if (!shownOne) return empty("partition", "The data are not available here, so the partition cannot be shown.");
  const most = Math.max(...shownOne.rows.map((row) => Math.max(...row))), ours = shownOne === federation();
  const clients = shownOne.rows[0].map((_, i) => i);
  drawMap("partition", {
    rows: shownOne.rows, names: shownOne.classes, xlabel: `client (the darkest colour is ${most.toLocaleString("en")} samples)`,
    column: (c) => shownOne.names?.[c] ?? c, columns: evenly(clients, 34), describe: "samples of each class that each client holds",
    share: (value) => (value ? Math.sqrt(value / most) : null), mark: ours ? [focus.class, focus.client] : [],
    pick: ours ? (r, c) => { focus.class = r; byId("class").value = r; if (c !== null && chosen().each_client) pickClient(c); else follow(); } : undefined,
    tip: (name, client, value) => `client ${client}, class ${name}\n${value.toLocaleString("en")} samples`,
  });
}
