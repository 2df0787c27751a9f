"use strict";
// Draws the charts in the reader's colour scheme, and sorts tables on click.

const charts = JSON.parse(document.getElementById("charts").textContent);
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map(); // key of a figure -> its view

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
    const result = await vegaEmbed(stage, structuredClone(charts.specs[key]), {
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
prefersDark.addEventListener("change", drawCharts);
drawCharts();
