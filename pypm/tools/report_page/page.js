// The page: which graph is shown, stepping, search, panning. All text enters as text nodes.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const svg = $("graph"), world = $("world");
const total = data.steps.length;
const READABLE = 0.5; // below this scale, the whole graph is not what is looked at first
const LARGE = 2000; // nodes from which a drawing may take a while
const view = { count: 0, side: "before", step: undefined, weights: false, headroom: false };
const toggled = new Map(); // groups that the reader has opened or closed
let chosen = null; // what the panel tells of: { node }, { rule }, { miss }, { refusal } or { decision }
let scene, sight = { x: 0, y: 0, k: 1 }, shownAt;

/** An element; children that are strings become text. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), () => patiently(value));
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
/** A name that may break after its dots and underscores. */
const broken = (name) => name.split(/(?<=[._])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));

/** Do what may redraw the graph; where it is large, after the browser has painted a sign of it. */
function patiently(act) {
  if (data.nodes.length < LARGE) return act();
  document.body.dataset.busy = "true";
  requestAnimationFrame(() => setTimeout(() => {
    try { act(); } finally { delete document.body.dataset.busy; }
  }));
}
const ruleOf = (step) => data.rules[data.steps[step].rule];
const swatch = (rule) => el("span", { class: `swatch c${rule % 8}` });
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// --- what is shown -----------------------------------------------------------------------------

function isOpen(opened) {
  return (key) => key === "" || (toggled.has(key) ? toggled.get(key) : opened.has(key));
}

function draw() {
  const start = performance.now();
  let opened;
  const drawn = drawing(data, view, (key, root) => {
    opened ??= openedFirst(root);
    return isOpen(opened)(key);
  });
  scene = drawn.scene;
  const laid = performance.now();
  world.innerHTML = drawn.text;
  document.body.dataset.layout = Math.round(laid - start);
  document.body.dataset.drawn = Math.round(performance.now() - start);
  mark();
}

/** What is open unless toggled: levels that fit, and the way to what is looked at. */
function openedFirst(root) {
  const opened = openAtFirst(root, view.step);
  const seek = (group) => {
    for (const item of group.items) {
      const here = item.items ? seek(item) : item.node === chosen?.node || (item.step ?? -1) === view.step;
      if (!here) continue;
      if (item.items) opened.add(item.key);
      opened.add(group.key);
      return true;
    }
    return false;
  };
  if (view.step !== undefined || (chosen && chosen.node !== undefined)) seek(root);
  return opened;
}

/** The drawn item that stands for a node, or for a region. */
function itemOf({ node, step }) {
  if (node !== undefined) return scene.items.get(node)?.shownAs;
  const group = scene.groups.get(`s${step}`);
  if (group) return group.shownAs;
  return [...scene.items.values()].find((item) => item.step === step)?.shownAs;
}

const selector = (item) => (item.items ? `[data-group="${item.key}"]` : `[data-node="${item.node}"]`);

function mark() {
  world.querySelectorAll(".chosen, .reads, .feeds").forEach((e) => e.classList.remove("chosen", "reads", "feeds"));
  const nodes = chosen?.node !== undefined ? [chosen.node] : chosen?.sites || [];
  for (const node of nodes) {
    const item = itemOf({ node });
    if (!item || item === scene.root) continue;
    world.querySelector(selector(item))?.classList.add("chosen");
    if (nodes.length > 1) continue;
    const key = name(item);
    world.querySelectorAll(`[data-to="${key}"]`).forEach((e) => e.classList.add("reads"));
    world.querySelectorAll(`[data-from="${key}"]`).forEach((e) => e.classList.add("feeds"));
  }
}

/** Show the graph at one side of a rewrite, or of all of them. */
function show(step, side, look = true) {
  view.step = step;
  view.side = side;
  view.count = step === undefined ? (side === "before" ? 0 : total) : step + (side === "after");
  $("before").setAttribute("aria-pressed", side === "before");
  $("after").setAttribute("aria-pressed", side === "after");
  $("position").textContent = step === undefined ? `all ${plural(total, "rewrite")}` : `${step + 1} of ${total}, ${side}`;
  $("back").disabled = step === undefined && side === "before";
  $("forward").disabled = !total || (step === total - 1 && side === "after") || (step === undefined && side === "after");
  draw();
  if (look) lookAtView();
  tell();
}

function lookAtView() {
  const item = view.step === undefined ? undefined : itemOf({ step: view.step });
  if (item && item !== scene.root) lookAt(item, 1.15);
  else {
    fit();
    if (sight.k >= READABLE) return;
    const region = [...scene.groups.values()].find((group) => group.isOpen && group.key[0] === "s");
    lookAt(region || scene.root, READABLE + 0.15);
  }
}

function stepBy(by) {
  const at = view.step === undefined ? (view.side === "before" ? -1 : 2 * total) : 2 * view.step + (view.side === "after");
  const next = at + by;
  chosen = null;
  if (next < 0) show(undefined, "before");
  else if (next < 2 * total) show(next >> 1, next & 1 ? "after" : "before");
  else if (view.step === undefined) return;
}

function choose(what, look = false) {
  chosen = what;
  if (what.node !== undefined && look) {
    if (!replay(data, view.count).has(what.node)) {
      const side = what.node < data.initial ? "before" : "after";
      show(undefined, side, false);
      if (!scene.inputs.has(what.node)) show(bornAt(what.node), "after", false);
    } else draw();
    const item = itemOf(what);
    if (item && item !== scene.root) lookAt(item, 1);
  }
  mark();
  tell();
}

const bornAt = (node) => data.steps.findIndex((step) => step.after.includes(node));
const fusedAt = (node) => data.steps.findIndex((step) => step.gone.includes(node));

// --- panning -----------------------------------------------------------------------------------

function move(x, y, k) {
  sight = { x, y, k: Math.min(3, Math.max(0.02, k)) };
  world.setAttribute("transform", `translate(${sight.x} ${sight.y}) scale(${sight.k})`);
  svg.classList.toggle("far", sight.k < 0.22);
}

function lookAt(item, most) {
  const { width, height } = svg.getBoundingClientRect();
  const k = Math.min(most, (width - 60) / item.width, (height - 90) / item.height);
  const near = Math.max(k, 0.35);
  move(width / 2 - near * item.x, k < near ? 30 - near * item.y : height / 2 - near * (item.y + item.height / 2), near);
}

function fit() {
  const { width, height } = svg.getBoundingClientRect(), { root } = scene;
  const k = Math.min(1.2, (width - 40) / root.width, (height - 60) / root.height);
  move(width / 2, Math.max(10, (height - k * root.height) / 2 - 10), k);
}

function zoom(by, x, y) {
  const box = svg.getBoundingClientRect();
  const px = x ?? box.width / 2, py = y ?? box.height / 2, before = sight.k;
  const k = Math.min(3, Math.max(0.02, before * by));
  move(px - ((px - sight.x) * k) / before, py - ((py - sight.y) * k) / before, k);
}

svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = svg.getBoundingClientRect();
  if (event.ctrlKey || event.deltaMode || Math.abs(event.deltaY) >= 50) {
    zoom(Math.exp(-event.deltaY / (event.ctrlKey ? 100 : 400)), event.clientX - box.left, event.clientY - box.top);
  } else move(sight.x - event.deltaX, sight.y - event.deltaY, sight.k);
}, { passive: false });

let grip = null;
svg.addEventListener("pointerdown", (event) => {
  if (event.button === 0) grip = { x: event.clientX, y: event.clientY, from: sight, moved: false };
});
svg.addEventListener("pointermove", (event) => {
  if (!grip) return;
  const dx = event.clientX - grip.x, dy = event.clientY - grip.y;
  if (!grip.moved && Math.hypot(dx, dy) < 4) return;
  if (!grip.moved) svg.setPointerCapture(event.pointerId);
  grip.moved = true;
  svg.classList.add("moving");
  move(grip.from.x + dx, grip.from.y + dy, sight.k);
});
svg.addEventListener("pointerup", () => {
  shownAt = grip?.moved ? performance.now() : undefined;
  grip = null;
  svg.classList.remove("moving");
});

svg.addEventListener("click", (event) => {
  if (shownAt !== undefined && performance.now() - shownAt < 50) return;
  const hit = event.target.closest("[data-node], [data-group]");
  if (!hit) return;
  if (hit.dataset.node !== undefined) return choose({ node: Number(hit.dataset.node) });
  const key = hit.dataset.group;
  if (!hit.classList.contains("open")) return patiently(() => toggle(key));
  if (key[0] === "s") patiently(() => { chosen = null; show(Number(key.slice(1)), view.side, false); });
});
svg.addEventListener("dblclick", (event) => {
  const hit = event.target.closest(".group.open");
  if (hit) patiently(() => toggle(hit.dataset.group));
});

/** Open or close a group; it stays where it is on the screen. */
function toggle(key) {
  const group = scene.groups.get(key);
  const [x, y] = [group.x, group.y];
  toggled.set(key, !group.isOpen);
  if (key[0] === "s" && !group.isOpen) { chosen = null; show(Number(key.slice(1)), view.side, false); } else draw();
  const now = scene.groups.get(key);
  if (now) move(sight.x + sight.k * (x - now.x), sight.y + sight.k * (y - now.y), sight.k);
}

function toggleAll(open) {
  toggled.clear();
  for (const key of scene.groups.keys()) if (key) toggled.set(key, open);
  draw();
  fit();
}

// --- the list ----------------------------------------------------------------------------------

const idleWords = (count) => `${plural(count, "rule")} rewrote nothing`;

/** The rules that rewrote something, or those that did not. */
function ruleRows(rewrote) {
  return [...data.rules.entries()].filter(([, rule]) => rule.rewrites > 0 === rewrote).map(([r, rule]) => {
    const head = el("span", { class: "row" }, swatch(r), el("span", { class: "grow" }, rule.name), el("span", { class: "more", title: rule.law?.said }, `${rule.law ? `${rule.law.word} · ` : ""}${rule.exactness} · ${rule.rewrites} × · ${rule.ms.toFixed(1)} ms`));
    const steps = [...data.steps.entries()].filter(([, step]) => step.rule === r);
    const rows = steps.map(([s, step]) => row(data.nodes[step.root].name, shortPlace(step.root), () => { chosen = null; show(s, view.side); }, { "data-step": s }));
    return el("details", { open: data.rules.length === 1 ? "" : undefined, "data-rule": r },
      el("summary", { onclick: () => choose({ rule: r }) }, head), el("div", {}, rows));
  });
}

const FEW = 8; // rows of one kind that are shown before the others are folded

const foldedRows = (rows, words) => rows.length ? [el("details", { class: "folded" }, el("summary", { class: "faint" }, words), el("div", {}, rows))] : [];

function contents() {
  const nav = $("contents"), idle = ruleRows(false);
  nav.append(el("h3", {}, "Rules"), ...ruleRows(true), ...foldedRows(idle, idleWords(idle.length)));
  listed("Chosen by cost", data.decisions, decisionWords, (i) => ({ decision: i, node: undefined, sites: data.decisions[i].candidates[0].region }));
  listed("Near misses", data.misses, (miss) => [`${miss.rule}: ${miss.words}`, `${plural(miss.sites.length, "site")}`], (i) => ({ miss: i, sites: data.misses[i].sites }));
  listed("Refused", data.refusals, (refusal) => [`${refusal.rule}: ${refusal.reason}`, `${refusal.count} ×`], (i) => ({ refusal: i, node: undefined, sites: data.refusals[i].sites }));
}

function listed(title, items, said, chosenOf) {
  if (!items.length) return;
  const rows = items.map((item, i) => {
    const [main, more] = said(item);
    return row(main, more, () => {
      const what = chosenOf(i);
      if (view.step !== undefined || view.side !== (what.miss !== undefined ? "after" : "before")) show(undefined, what.miss !== undefined ? "after" : "before", false);
      reveal(what.sites);
      choose(what);
    }, { "data-kind": title, class: "row sentence" });
  });
  const rest = rows.splice(FEW);
  $("contents").append(el("h3", {}, title), ...rows, ...foldedRows(rest, `${rest.length} more`));
}

/** Open what hides the first of some nodes, and look there. */
function reveal(sites) {
  const first = sites.find((node) => scene.inputs.has(node));
  if (first === undefined) return;
  chosen = { node: first };
  draw();
  const item = itemOf(chosen);
  if (item && item !== scene.root) lookAt(item, 0.9);
}

function row(main, more, onclick, attributes = {}) {
  return el("button", { class: "row", onclick, title: `${main}  ${more}`, ...attributes },
    el("span", { class: "grow" }, broken(main)), el("span", { class: "more" }, more));
}
const shortPlace = (node) => placeOf(node).split(".").slice(-3).join(".");
const placeOf = (node) => data.modules[data.nodes[node].module]?.path || "";

function search() {
  const wanted = $("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = $("found");
  found.hidden = !wanted.length;
  found.replaceChildren();
  if (!wanted.length) return;
  const rank = (text) => (text === wanted[0] ? 0 : text.startsWith(wanted[0]) ? 1 : 2);
  const hits = data.nodes.map((node, i) => [node, i, `${node.name} ${node.operator} ${placeOf(i)} ${data.sources[node.source] || ""}`.toLowerCase()])
    .filter(([, , text]) => wanted.every((word) => text.includes(word)))
    .sort(([a, i], [b, j]) => rank(a.name.toLowerCase()) - rank(b.name.toLowerCase()) || i - j);
  found.append(...hits.slice(0, 60).map(([node, i]) => {
    const step = fusedAt(i);
    const button = row(node.name, shortPlace(i) || node.operator, () => choose({ node: i }, true), { role: "option", "data-hit": i });
    if (step >= 0) button.prepend(swatch(data.steps[step].rule));
    return button;
  }));
  found.append(el("p", { class: "faint", style: "padding: 2px 8px" }, plural(hits.length, "node")));
}

/** A decision in a row of the list: the place, what was made, and how fast the best candidate is. */
function decisionWords({ made, candidates }) {
  const [first] = candidates;
  return [`${first.at}: ${made.join(", ") || "left as it is"}`, first.worth.comparison];
}

// --- headroom ----------------------------------------------------------------------------------

function drawLegend() {
  const sample = (band) => {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    shape.setAttribute("class", band);
    shape.setAttribute("aria-hidden", "true");
    shape.innerHTML = '<rect x="1" y="1" width="24" height="12" rx="3"/>';
    return shape;
  };
  const rows = [...BANDS.map(([, text], i) => [`h${i}`, text]), ["hn", UNKNOWN]];
  $("legend").replaceChildren(...rows.map(([band, text]) => el("li", {}, sample(band), text)));
  $("legend").parentElement.hidden = !knowsHeadroom(data);
}

// --- keys and buttons --------------------------------------------------------------------------

const actions = {
  before: () => show(view.step, "before"),
  after: () => show(view.step, "after"),
  back: () => stepBy(-1),
  forward: () => stepBy(1),
  expand: () => toggleAll(true),
  collapse: () => toggleAll(false),
};
const sights = { fit, closer: () => zoom(1.3), farther: () => zoom(1 / 1.3) };
for (const [id, action] of Object.entries(actions)) $(id).addEventListener("click", () => patiently(action));
for (const [id, sight] of Object.entries(sights)) $(id).addEventListener("click", sight);
$("headroom").addEventListener("change", (event) => {
  view.headroom = event.target.checked;
  $("legend").hidden = !view.headroom;
  patiently(draw);
});
$("weights").addEventListener("change", (event) => { view.weights = event.target.checked; patiently(draw); });
$("search").addEventListener("input", search);
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") $("found").querySelector("[data-hit]")?.click();
  if (event.key === "Escape") { $("search").value = ""; search(); svg.focus(); }
});
document.addEventListener("keydown", (event) => {
  if (event.target === $("search") || event.ctrlKey || event.metaKey || event.altKey) return;
  const draws = {
    ArrowRight: actions.forward, ArrowLeft: actions.back,
    " ": () => show(view.step, view.side === "before" ? "after" : "before"),
    Escape: () => { chosen = null; show(undefined, view.side); },
  }[event.key];
  const moves = { f: fit, "/": () => $("search").focus(), "+": sights.closer, "-": sights.farther }[event.key];
  if (!(draws || moves) || (event.key === " " && event.target.matches("button, summary, input"))) return;
  event.preventDefault();
  if (draws) patiently(draws);
  else moves();
});

$("summary").textContent = `${plural(total, "rewrite")} on ${data.initial} nodes`;
contents();
drawLegend();
show(undefined, "before");
document.body.dataset.ready = "true";
