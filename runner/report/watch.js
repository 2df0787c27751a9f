"use strict";
// Follows a run or a sweep: asks the server what is new, changes that, and leaves everything else where it is.

const POLL_MS = 1000;
const PATIENCE_MS = 60000;
const live = document.createElement("p");
live.id = "live";
live.role = "status";
document.body.prepend(live);

let tag = ""; // of the newest content
let shown = new Map(); // id of an element -> its HTML as it came
let lastChange = "";
let isGoingOn = false;

function say(kind, text) {
  if (live.textContent !== text) {
    live.className = kind;
    live.textContent = text;
  }
}

function sayState() {
  if (isGoingOn) {
    say("following", `Following. Last change at ${lastChange}.`);
  } else {
    say("over", `No process is at work. Last change at ${lastChange}; if it goes on, so does this page.`);
  }
}

// Makes the children of an element those of another one; each has an id.
function takeIn(parent, fresh, changed) {
  const kept = new Set([...fresh.children].map((node) => node.id));
  for (const node of [...parent.children]) {
    if (!kept.has(node.id)) {
      node.remove();
    }
  }
  for (const [place, next] of [...fresh.children].entries()) {
    const before = document.getElementById(next.id);
    const node = before ? merge(before, next, changed) : next;
    if (parent.children[place] !== node) {
      parent.insertBefore(node, parent.children[place] ?? null);
    }
  }
}

// Returns the element that stands for the new one from now on.
function merge(before, next, changed) {
  if (!changed.has(next.id)) {
    return before;
  }
  if (next.matches("section, .small")) {
    takeIn(before, next, changed);
    return before;
  }
  const { scrollTop, scrollLeft } = before;
  for (const lasting of [".chart", "video"]) {
    const [old, placeholder] = [before.querySelector(lasting), next.querySelector(lasting)];
    if (old && placeholder) {
      old.dataset.file = placeholder.dataset.file ?? "";
      old.style.minHeight = placeholder.style.minHeight;
      placeholder.replaceWith(old);
    }
  }
  if (next.matches("details")) {
    next.open = before.open;
  }
  before.replaceWith(next);
  keepOrder(before, next);
  next.scrollTo(scrollLeft, scrollTop);
  return next;
}

function keepOrder(before, next) {
  const ordered = before.querySelector("th[aria-sort]");
  const header = ordered && [...next.querySelectorAll("th")].find((th) => th.textContent === ordered.textContent);
  if (header) {
    orderBy(header, ordered.ariaSort);
  }
}

// A video goes on until the new one has come whole; then that one plays, if the old one did.
async function load(video) {
  const file = video.dataset.file;
  if (video.dataset.loaded === file) {
    return;
  }
  video.dataset.loaded = file;
  const reply = await fetch(file);
  if (!reply.ok) {
    video.closest("figure").querySelector("figcaption").textContent = `${file} is not shown: ${await reply.text()}`;
    return;
  }
  const [wasPlaying, before] = [!video.paused, video.src];
  video.src = URL.createObjectURL(await reply.blob());
  URL.revokeObjectURL(before);
  if (wasPlaying) {
    await video.play();
  }
}

function isSameChart(one, other) {
  const definition = (spec) => JSON.stringify({ ...spec, datasets: Object.keys(spec.datasets) });
  return definition(one) === definition(other);
}

// A chart of the same definition takes in its points: what the reader has chosen in it stays chosen.
async function refreshChart(key, before) {
  const spec = charts.specs[key];
  const view = drawn.get(key)?.view;
  if (!view || !before || !isSameChart(before, spec)) {
    await drawChart(key);
  } else if (JSON.stringify(before.datasets) !== JSON.stringify(spec.datasets)) {
    for (const [name, rows] of Object.entries(spec.datasets)) {
      view.data(name, structuredClone(rows));
    }
    await view.runAsync();
  }
}

async function show(content) {
  const fresh = new DOMParser().parseFromString(`<main>${content.html}</main>`, "text/html").querySelector("main");
  for (const video of fresh.querySelectorAll("video")) {
    video.dataset.file = video.getAttribute("src");
    video.removeAttribute("src");
  }
  const now = new Map([...fresh.querySelectorAll("[id]")].map((node) => [node.id, node.outerHTML]));
  const changed = new Set([...now.keys()].filter((id) => shown.get(id) !== now.get(id)));
  shown = now;
  takeIn(document.querySelector("main"), fresh, changed);
  const before = charts.specs;
  charts.specs = content.specs;
  for (const key of drawn.keys()) {
    if (!(key in charts.specs)) {
      drawn.get(key).finalize();
      drawn.delete(key);
    }
  }
  for (const key of Object.keys(charts.specs)) {
    await refreshChart(key, before[key]);
  }
  await Promise.all([...document.querySelectorAll("video")].map(load));
}

async function refresh() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const reply = await fetch("update", { cache: "no-store", headers, signal: AbortSignal.timeout(PATIENCE_MS) });
  if (reply.status !== 304) {
    if (!reply.ok) {
      throw new Error(await reply.text());
    }
    const content = await reply.json();
    tag = reply.headers.get("ETag");
    if (content.problem) {
      say("lost", content.problem);
      return;
    }
    lastChange = new Date().toLocaleTimeString();
    isGoingOn = content.is_going_on;
    document.title = content.title;
    await show(content);
    document.documentElement.dataset.shown = tag;
  }
  if (shown.size) {
    sayState();
  }
}

async function follow() {
  say("following", "Reading ...");
  for (;;) {
    try {
      if (!document.hidden) {
        await refresh();
      }
    } catch (error) {
      const since = lastChange ? ` The last change was at ${lastChange}.` : "";
      say("lost", `The server has ended or does not answer: this page no longer updates.${since}`);
      console.warn(error);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

follow();
