"use strict";
// Follows a run or a sweep: requests changes from the server, applies them, and leaves everything else unchanged.

const POLL_MS = 1000;
const PATIENCE_MS = 60000;
const live = document.createElement("p");
live.id = "live";
live.role = "status";
document.body.prepend(live);

let tag = ""; // tag of the shown content; "" until all of it is shown
let shown = new Map(); // id of an element -> its HTML as received
let lastChange = "";
let isRunning = false;

function say(kind, text) {
  if (live.textContent !== text) {
    live.className = kind;
    live.textContent = text;
  }
}

function sayState() {
  if (isRunning) {
    say("following", `Following. Last change at ${lastChange}.`);
  } else {
    say("over", `No process is running. Last change at ${lastChange}. This page updates if the run resumes.`);
  }
}

// Replaces the children of an element by those of another one; each has an id.
function replaceChildren(parent, fresh, changed) {
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

// Returns the element that replaces the old one.
function merge(before, next, changed) {
  if (!changed.has(next.id)) {
    return before;
  }
  if (next.matches("section, .small")) {
    replaceChildren(before, next, changed);
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

async function fetchVideo(file) {
  const reply = await fetch(file);
  if (!reply.ok) {
    throw new Error(await reply.text());
  }
  return reply.blob();
}

// Shows below a video why it cannot be played; "" removes the note.
function sayBelow(video, problem) {
  const caption = video.closest("figure").querySelector("figcaption");
  const note = caption.querySelector("span") ?? caption.appendChild(document.createElement("span"));
  note.textContent = problem;
}

// A video keeps playing until the new one is complete, which then starts if the old one was playing.
async function load(video) {
  const file = video.dataset.file;
  if (video.dataset.loaded === file) {
    return;
  }
  let content;
  try {
    content = await fetchVideo(file);
  } catch (error) {
    sayBelow(video, ` ${file} cannot be shown: ${error.message}`);
    return;
  }
  const [wasPlaying, before] = [!video.paused, video.src];
  video.src = URL.createObjectURL(content);
  video.dataset.loaded = file;
  URL.revokeObjectURL(before);
  sayBelow(video, "");
  if (wasPlaying) {
    video.play().catch(() => {}); // the browser may block it; the reader can start it
  }
}

function isSameChart(one, other) {
  const definition = (spec) => JSON.stringify({ ...spec, datasets: Object.keys(spec.datasets) });
  return definition(one) === definition(other);
}

// If only the data of a chart changed, it is updated in place and keeps the reader's selection.
async function refreshChart(key, spec) {
  const [before, view] = [charts.specs[key], drawn.get(key)?.view];
  if (!view || !before || !isSameChart(before, spec)) {
    charts.specs[key] = spec;
    await drawChart(key);
  } else if (JSON.stringify(before.datasets) !== JSON.stringify(spec.datasets)) {
    await redraw(view, spec);
    charts.specs[key] = spec;
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
  shown = new Map(); // after an error here, all of the next content counts as changed
  replaceChildren(document.querySelector("main"), fresh, changed);
  shown = now;
  for (const key of Object.keys(charts.specs)) {
    if (!(key in content.specs)) {
      drawn.get(key)?.finalize();
      drawn.delete(key);
      delete charts.specs[key];
    }
  }
  for (const [key, spec] of Object.entries(content.specs)) {
    await refreshChart(key, spec);
  }
  showSmoothing();
  document.title = content.title;
  isRunning = content.is_running;
  lastChange = new Date().toLocaleTimeString();
}

// Returns the new content with its tag, or null if nothing has changed.
async function askServer() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const reply = await fetch("update", { cache: "no-store", headers, signal: AbortSignal.timeout(PATIENCE_MS) });
  if (reply.status === 304) {
    return null;
  }
  if (!reply.ok) {
    return { problem: `The server answers ${reply.status} ${reply.statusText}: this page no longer updates.` };
  }
  return { ...(await reply.json()), tag: reply.headers.get("ETag") };
}

async function refresh() {
  let content;
  try {
    content = await askServer();
  } catch (error) {
    const since = lastChange ? ` The last change was at ${lastChange}.` : "";
    say("lost", `The server has ended or is not responding. This page no longer updates.${since}`);
    console.warn(error);
    return;
  }
  if (content?.problem) {
    say("lost", content.problem);
    return;
  }
  if (content) {
    tag = ""; // after an error while drawing, everything is requested again
    await show(content);
    tag = content.tag;
  }
  sayState();
  await Promise.all([...document.querySelectorAll("video")].map(load));
}

async function follow() {
  say("following", "Reading ...");
  for (;;) {
    try {
      if (!document.hidden) {
        await refresh();
      }
    } catch (error) {
      say("lost", `This page cannot show the changes: ${error}`);
      console.error(error);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

follow();
