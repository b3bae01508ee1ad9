// What the charts show: methods, class, client, lines, theme; and paper.
function drawShared() {
  for (const { name, unit } of DATA.metrics) drawCurves(name, unit ? 100 : null, unit ? " %" : "");
  drawCurves("effective_clients", null, "");
  drawClients();
  drawClassCharts();
}

// Everything that depends on the choices.
function follow() {
  drawAnswers();
  drawClassTable();
  drawClassCharts();
  drawMaps(first(), "");
  document.querySelectorAll(".other").forEach((figure) => { figure.hidden = focus.other === null; });
  if (focus.other !== null) drawMaps(focus.other, "_other");
  drawClients();
  drawClientTable();
  drawClientClasses();
  drawPartition();
  title("weights-caption", `${chosen().label}: weights of the sampled clients, % (dashed: equal weights)`);
  drawWeights(chosen(), first());
  title("priority-caption", `${chosen().label}: priority class`);
  drawPriority(chosen(), first());
}

function draw() { drawShared(); follow(); }

// After another method was chosen: its classes and clients, beginning with the worst ones.
function chooseMethod() {
  const group = chosen(), clients = group.each_client?.accuracy ?? [];
  if (focus.other === first()) [focus.other, byId("other").value] = [null, ""];
  focus.class = worst(lastRecall(first()));
  focus.client = clients.length ? worst(clients) : null;
  fill("class", group.classes.map((name, c) => [name, c]), focus.class);
  fill("client", clients.map((_, k) => [federation()?.names?.[k] ?? k, k]), focus.client);
  if (group.federation !== null) byId("federation").value = group.federation;
  draw();
}

function fill(id, options, value) {
  const select = byId(id);
  select.replaceChildren(...options.map(([label, key]) => new Option(label, key)));
  select.value = value;
  select.parentNode.hidden = options.length < 2;
}

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
    const swatch = add(button, "svg", { width: 22, height: 10, "aria-hidden": "true" });
    add(swatch, "line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke: colour(g), "stroke-width": 3, "stroke-dasharray": dash(g) });
    button.append(group.label);
    button.onclick = () => {
      shown[g] = !shown[g];
      button.setAttribute("aria-pressed", shown[g]);
      drawShared();
    };
  });
}

function makeChoices() {
  const labels = DATA.groups.map((group, g) => [group.label, g]);
  // Start with FedSat if it is among the methods, beside the first of the others.
  const start = Math.max(0, DATA.groups.findIndex((group) => group.label.startsWith("fedsat")));
  fill("method", labels, start);
  focus.other = labels.length > 1 ? Number(start === 0) : null;
  fill("other", [["nothing", ""], ...labels], focus.other ?? "");
  byId("other").parentNode.hidden = labels.length < 2;
  DATA.federations.forEach((one, i) => byId("federation").add(new Option(one.label, i)));
  byId("federation").hidden = DATA.federations.length < 2;
  byId("method").onchange = chooseMethod;
  byId("other").onchange = () => {
    const value = byId("other").value;
    focus.other = value === "" || +value === first() ? null : +value;
    follow();
  };
  byId("class").onchange = () => { focus.class = +byId("class").value; follow(); };
  byId("client").onchange = () => { focus.client = +byId("client").value; follow(); };
  byId("federation").onchange = drawPartition;
}

const setTheme = (dark) => { document.documentElement.dataset.theme = dark ? "dark" : "light"; };
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
setTheme(prefersDark.matches);
prefersDark.onchange = () => { setTheme(prefersDark.matches); draw(); };
byId("theme").onclick = () => { setTheme(!isDark()); draw(); };
byId("zoom").onclick = () => {
  zoomed = !zoomed;
  byId("zoom").setAttribute("aria-pressed", zoomed);
  drawShared();
};
document.querySelectorAll("#comparison table").forEach((table) => sortable(table));
makeCurves();
makeKeys();
makeChoices();
chooseMethod();
let drawnAt = innerWidth, theme = "light";
addEventListener("resize", () => { if (innerWidth !== drawnAt) { drawnAt = innerWidth; draw(); } });
// Paper is white: print in light colours, at a width that fits.
addEventListener("beforeprint", () => {
  theme = document.documentElement.dataset.theme;
  document.documentElement.classList.add("paper");
  setTheme(false);
  draw();
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("paper");
  setTheme(theme === "dark");
  draw();
});
