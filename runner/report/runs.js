"use strict";
// Selects runs: filters the table, overlays the curves of the selected runs, and compares their configurations. Texts
// from runs are only inserted as text.

const data = JSON.parse(document.getElementById("data").textContent);
const table = document.getElementById("runs");
const body = table.tBodies[0];
const rows = [...body.rows];
const selected = new Set(data.selected);
const [metricChoice, axisChoice, logChoice] = ["metric", "axis", "log"].map((id) => document.getElementById(id));
const NARROW = 700; // pixels
let drawing = Promise.resolve();

// -- filters ----------------------------------------------------------------------------------------------------------

// Returns a test of a cell for the text of a filter: >= 100, < 5, 1..5, or a part of its text.
function testOf(text) {
  const wanted = text.trim().toLowerCase();
  const range = /^(-?[\d.e+-]+)\.\.(-?[\d.e+-]+)$/.exec(wanted);
  const bound = /^(>=|<=|>|<|=)\s*(-?[\d.,]+(?:e[+-]?\d+)?)$/.exec(wanted);
  if (range) {
    const [low, high] = [Number(range[1]), Number(range[2])];
    return (cell) => cell.dataset.sort !== undefined && low <= Number(cell.dataset.sort) && Number(cell.dataset.sort) <= high;
  }
  if (bound) {
    const limit = Number(bound[2].replaceAll(",", ""));
    const holds = {
      ">=": (value) => value >= limit, "<=": (value) => value <= limit, ">": (value) => value > limit,
      "<": (value) => value < limit, "=": (value) => value === limit,
    }[bound[1]];
    return (cell) => cell.dataset.sort !== undefined && holds(Number(cell.dataset.sort));
  }
  return (cell) => cell.textContent.toLowerCase().includes(wanted);
}

function filterRows() {
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const inputs = [...table.querySelectorAll(".filters input")];
  const tests = inputs.map((input) => input.value.trim() && [input.closest("td").cellIndex, testOf(input.value)]).filter(Boolean);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !(words.every((word) => text.includes(word)) && tests.every(([column, test]) => test(row.cells[column])));
  }
  showCount();
}

function showCount() {
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById("count").textContent = `${shown} of ${rows.length} runs shown, ${selected.size} selected`;
}

// -- curves -----------------------------------------------------------------------------------------------------------

function chosen() {
  return [...selected].sort((one, other) => one - other);
}

// Returns the points of a run's curve; values that are missing are left out.
function pointsOf(number, metric, axis, isLog) {
  const run = data.runs[number];
  const x = run.x[axis] ?? [];
  const y = Array.isArray(run.y[metric]) ? run.y[metric] : x.map(() => run.y[metric]);
  const points = x.map((at, place) => ({ x: at, y: y[place], series: run.name }));
  return points.filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y) && (!isLog || point.y > 0));
}

// Returns the chart with its titles and names of lines instead of placeholders.
function specOf(names, xTitle, yTitle, isLog, points) {
  const fill = (key, value) => {
    if (value === "{x}") {
      return xTitle;
    }
    if (value === "{y}") {
      return yTitle;
    }
    if (Array.isArray(value) && value[0] === "{series}") {
      return names;
    }
    if (key === "columns") {
      return innerWidth < NARROW ? 1 : 3;
    }
    return key === "scale" && value.zero === false && isLog ? { type: "log" } : value;
  };
  const spec = JSON.parse(JSON.stringify(data.chart), fill);
  return { ...spec, width: "container", height: 380, datasets: { points } };
}

function showChart(spec) {
  charts.specs.overlay = spec;
  showSmoothing();
  return drawChart("overlay");
}

function removeChart() {
  drawn.get("overlay")?.finalize();
  drawn.delete("overlay");
  delete charts.specs.overlay;
  showSmoothing();
  document.querySelector("#overlay .chart").replaceChildren();
}

function drawOverlay() {
  const [metric, axis, isLog] = [Number(metricChoice.value), Number(axisChoice.value), logChoice.checked];
  const lines = chosen().map((number) => [data.runs[number].name, pointsOf(number, metric, axis, isLog)]);
  const drawnLines = lines.filter(([, points]) => points.length);
  const without = lines.filter(([, points]) => !points.length).map(([name]) => name);
  const { key, title } = data.metrics[metric] ?? { key: "", title: "" };
  document.getElementById("key").textContent = key;
  document.getElementById("without").textContent = !lines.length
    ? "Select runs in the table to show their curves."
    : without.length ? `Without this metric: ${without.join("; ")}.` : "Click on the legend to show a single line.";
  const points = drawnLines.flatMap(([, linePoints]) => linePoints);
  drawing = drawing.then(() => points.length
    ? showChart(specOf(drawnLines.map(([name]) => name), data.axes[axis], title, isLog, points))
    : removeChart());
  return drawing;
}

// -- configurations ---------------------------------------------------------------------------------------------------

function addCell(row, kind, text, name = "") {
  const cell = row.appendChild(document.createElement(kind));
  cell.textContent = text;
  cell.className = name;
}

// Shows the keys whose values differ between the selected runs; values unlike the first run's are highlighted.
function compareConfigurations() {
  const runs = chosen().map((number) => data.runs[number]).filter((run) => Object.keys(run.config).length);
  const differing = [...data.keys.keys()].filter((key) => new Set(runs.map((run) => run.config[key])).size > 1);
  const shown = document.getElementById("configurations");
  shown.replaceChildren();
  document.getElementById("differences").textContent = runs.length < 2
    ? "Select at least two runs to compare their configurations."
    : differing.length ? "Keys that differ. Values unlike those of the first selected run are highlighted."
      : "The configurations of the selected runs are equal.";
  if (runs.length < 2 || !differing.length) {
    return;
  }
  const head = shown.createTHead().insertRow();
  addCell(head, "th", "key");
  runs.forEach((run) => addCell(head, "th", run.name));
  const content = shown.createTBody();
  for (const key of differing) {
    const row = content.insertRow();
    addCell(row, "td", data.keys[key]);
    runs.forEach((run) => addCell(row, "td", run.config[key] ?? "-", run.config[key] === runs[0].config[key] ? "" : "differs"));
  }
}

// -- selection --------------------------------------------------------------------------------------------------------

function showSelection() {
  for (const row of rows) {
    const isSelected = selected.has(Number(row.dataset.run));
    row.querySelector("input").checked = isSelected;
    row.classList.toggle("selected", isSelected);
  }
  showCount();
  compareConfigurations();
  return drawOverlay();
}

function select(changed, isSelected) {
  changed.forEach((row) => selected[isSelected ? "add" : "delete"](Number(row.dataset.run)));
  showSelection();
}

function fillChoice(choice, texts) {
  texts.forEach((text, number) => choice.add(new Option(text, number)));
}

fillChoice(metricChoice, data.metrics.map(({ title }) => title));
fillChoice(axisChoice, data.axes);
[...metricChoice.options].forEach((option, number) => { option.title = data.metrics[number].key; });
table.addEventListener("input", (event) => event.target.closest(".filters") && filterRows());
body.addEventListener("change", (event) => select([event.target.closest("tr")], event.target.checked));
document.getElementById("filter").addEventListener("input", filterRows);
document.getElementById("tick").addEventListener("click", () => select(rows.filter((row) => !row.hidden), true));
document.getElementById("clear").addEventListener("click", () => select(rows, false));
[metricChoice, axisChoice, logChoice].forEach((choice) => choice.addEventListener("change", drawOverlay));
delete document.documentElement.dataset.charts;
showSelection().then(() => { document.documentElement.dataset.charts = "drawn"; });
