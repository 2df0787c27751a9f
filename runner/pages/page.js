"use strict";
// Draws the charts in the reader's colour scheme, smooths curves, and sorts tables on click.

const charts = JSON.parse(document.getElementById("charts").textContent);
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map(); // key of a figure -> its view
const smoothing = document.getElementById("smoothing");

function isSmoothable(spec) {
  return (spec.layer ?? []).some((layer) => layer.name === "raw");
}

// Returns the exponential moving average of each series, without a bias to the first value as in TensorBoard; rows keep
// the value in `raw`. A missing value stays missing. A row that repeats the x of the row before it joins two line parts.
function smooth(rows, weight) {
  const states = new Map();
  return rows.map((row) => {
    if (!Number.isFinite(row.y)) {
      return { ...row };
    }
    let state = states.get(row.series);
    if (row.x !== state?.x) {
      const { sum = 0, total = 0 } = state ?? {};
      state = { x: row.x, sum: weight * sum + (1 - weight) * row.y, total: weight * total + 1 - weight };
      states.set(row.series, state);
    }
    return { ...row, y: state.sum / state.total, raw: row.y };
  });
}

function shownRows(spec, rows) {
  const weight = Number(smoothing.querySelector("input").value);
  return weight > 0 && isSmoothable(spec) ? smooth(rows, weight) : structuredClone(rows);
}

function shownSpec(spec) {
  const datasets = Object.entries(spec.datasets).map(([name, rows]) => [name, shownRows(spec, rows)]);
  return { ...structuredClone({ ...spec, datasets: {} }), datasets: Object.fromEntries(datasets) };
}

// Replaces the data of a drawn chart.
async function redraw(view, spec) {
  for (const [name, rows] of Object.entries(spec.datasets)) {
    view.data(name, shownRows(spec, rows));
  }
  await view.runAsync();
}

async function smoothCharts() {
  smoothing.querySelector("output").textContent = Number(smoothing.querySelector("input").value).toFixed(2);
  const views = Object.entries(charts.specs).filter(([key, spec]) => isSmoothable(spec) && drawn.has(key));
  await Promise.all(views.map(([key, spec]) => redraw(drawn.get(key).view, spec)));
}

function showSmoothing() {
  smoothing.hidden = !Object.values(charts.specs).some(isSmoothable);
}

// The old drawing is removed when the new one is ready, to avoid flickering.
async function drawChart(key) {
  const place = document.getElementById(key).querySelector(".chart");
  const theme = prefersDark.matches ? "dark" : "light";
  const stage = document.createElement("div");
  stage.className = "stage";
  place.append(stage);
  drawn.get(key)?.finalize();
  drawn.delete(key);
  try {
    const result = await vegaEmbed(stage, shownSpec(charts.specs[key]), {
      mode: "vega-lite",
      renderer: "svg",
      config: charts.themes[theme],
      tooltip: { theme },
      actions: { export: true, source: false, compiled: false, editor: false },
    });
    drawn.set(key, result);
  } catch (error) {
    stage.textContent = `This chart cannot be drawn: ${error}`;
    console.error(error);
  }
  place.replaceChildren(stage);
  stage.classList.remove("stage");
}

async function drawCharts() {
  showSmoothing();
  for (const key of Object.keys(charts.specs)) {
    await drawChart(key);
  }
  document.documentElement.dataset.charts = "drawn";
}

// Unknown values are sorted last in both directions.
function compare(one, other, sign) {
  const [mine, theirs] = [one.dataset.sort, other.dataset.sort];
  if (mine === undefined || theirs === undefined) {
    return (mine === undefined) - (theirs === undefined);
  }
  const difference = Number(mine) - Number(theirs);
  return sign * (Number.isNaN(difference) ? mine.localeCompare(theirs) : difference);
}

function orderBy(header, order) {
  const column = header.cellIndex;
  const body = header.closest("table").tBodies[0];
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].sort((one, other) => compare(one.cells[column], other.cells[column], sign));
  body.append(...rows);
  for (const sibling of header.parentNode.cells) {
    sibling.ariaSort = sibling === header ? order : null;
  }
}

document.addEventListener("click", (event) => {
  const header = event.target.closest("table.sortable th");
  if (header) {
    orderBy(header, header.ariaSort === "ascending" ? "descending" : "ascending");
  }
});
smoothing.addEventListener("input", smoothCharts);
smoothing.addEventListener("submit", (event) => event.preventDefault());
prefersDark.addEventListener("change", drawCharts);
drawCharts();
