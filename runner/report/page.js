"use strict";
// Draws the charts in the colours of the reader's choice, and orders tables by a click.

const charts = JSON.parse(document.getElementById("charts").textContent);
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let drawn = [];

async function drawCharts() {
  drawn.forEach((result) => result.finalize());
  drawn = [];
  const theme = prefersDark.matches ? "dark" : "light";
  for (const [number, spec] of charts.specs.entries()) {
    const place = document.getElementById(`chart-${number}`);
    try {
      drawn.push(
        await vegaEmbed(place, structuredClone(spec), {
          mode: "vega-lite",
          renderer: "svg",
          config: charts.themes[theme],
          tooltip: { theme },
          actions: { export: true, source: false, compiled: false, editor: false },
        }),
      );
    } catch (error) {
      place.textContent = `This chart cannot be drawn: ${error}`;
      console.error(error);
    }
  }
  document.documentElement.dataset.charts = "drawn";
}

// What is not known stays last, in either order.
function compare(one, other, sign) {
  const [mine, theirs] = [one.dataset.sort, other.dataset.sort];
  if (mine === undefined || theirs === undefined) {
    return (mine === undefined) - (theirs === undefined);
  }
  const difference = Number(mine) - Number(theirs);
  return sign * (Number.isNaN(difference) ? mine.localeCompare(theirs) : difference);
}

function orderBy(header) {
  const column = header.cellIndex;
  const order = header.ariaSort === "ascending" ? "descending" : "ascending";
  const body = header.closest("table").tBodies[0];
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].sort((one, other) => compare(one.cells[column], other.cells[column], sign));
  body.append(...rows);
  for (const sibling of header.parentNode.cells) {
    sibling.ariaSort = sibling === header ? order : null;
  }
}

for (const header of document.querySelectorAll("table.sortable th")) {
  header.addEventListener("click", () => orderBy(header));
}
prefersDark.addEventListener("change", drawCharts);
drawCharts();
