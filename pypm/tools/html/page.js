// The page: what is shown and chosen, stepping, search, panning. All text enters as text nodes.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const svg = $("graph"), world = $("world");
const total = data.steps.length;
const READABLE = 0.5; // below this scale, the whole graph is not what is looked at first
const view = { count: 0, side: "before", step: undefined, weights: false };
const toggled = new Map(); // groups that the reader has opened or closed
let chosen = null; // what the panel tells of: { node }, { rule }, { miss } or { refusal }
let scene, sight = { x: 0, y: 0, k: 1 }, shownAt;

/** An element; children that are strings become text. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
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
  if (!hit.classList.contains("open")) return toggle(key);
  if (key[0] === "s") { chosen = null; show(Number(key.slice(1)), view.side, false); }
});
svg.addEventListener("dblclick", (event) => {
  const hit = event.target.closest(".group.open");
  if (hit) toggle(hit.dataset.group);
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

function contents() {
  const nav = $("contents");
  const ms = (rule) => `${rule.ms.toFixed(1)} ms`;
  nav.append(el("h3", {}, "Rules"));
  data.rules.forEach((rule, r) => {
    const steps = data.steps.map((step, s) => [step, s]).filter(([step]) => step.rule === r);
    const head = el("span", { class: "row" }, swatch(r), el("span", { class: "grow" }, rule.name), el("span", { class: "more" }, `${rule.rewrites} × · ${ms(rule)}`));
    const rows = steps.map(([step, s]) => row(data.nodes[step.root].name, shortPlace(step.root), () => { chosen = null; show(s, view.side); }, { "data-step": s }));
    nav.append(el("details", { open: data.rules.length === 1 ? "" : undefined, "data-rule": r },
      el("summary", { onclick: () => choose({ rule: r }) }, head), el("div", {}, rows)));
  });
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
    }, { "data-kind": title });
  });
  $("contents").append(el("h3", {}, title), ...rows);
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
    el("span", { class: "grow" }, main), el("span", { class: "more" }, more));
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

// --- the panel ---------------------------------------------------------------------------------

function tell() {
  const panel = $("detail");
  let parts;
  if (chosen?.node !== undefined) parts = aboutNode(chosen.node);
  else if (chosen?.rule !== undefined) parts = aboutRule(chosen.rule);
  else if (chosen?.miss !== undefined) parts = aboutMiss(data.misses[chosen.miss]);
  else if (chosen?.refusal !== undefined) parts = aboutRefusal(data.refusals[chosen.refusal]);
  else parts = view.step === undefined ? overview() : aboutStep(view.step);
  panel.replaceChildren(...parts);
  panel.scrollTop = 0;
  document.querySelectorAll("[data-step]").forEach((e) => {
    const current = Number(e.dataset.step) === view.step;
    e.setAttribute("aria-current", current);
    if (current) { e.closest("details").open = true; e.scrollIntoView({ block: "nearest" }); }
  });
}

function overview() {
  const head = ["rule", "tried", "matched", "rewritten", "ms"].map((t, i) => el("th", { class: i ? "n" : undefined }, t));
  const rows = data.rules.map((rule) => el("tr", {}, el("td", {}, rule.name),
    ...[rule.attempts, rule.matches, rule.rewrites, rule.ms.toFixed(1)].map((n) => el("td", { class: "n" }, String(n)))));
  const left = replay(data, total).size;
  return [
    el("h2", {}, plural(total, "rewrite")),
    el("p", { class: "faint" }, `${data.initial} nodes before, ${left} after; ${data.seconds.toFixed(3)} s`),
    data.note ? el("p", {}, data.note) : null,
    el("h3", {}, "Timing"), el("table", {}, el("tr", {}, head), rows),
    el("p", { class: "faint", style: "margin-top: 14px" }, "Coloured regions are what rules replace. Click a box to open it, a region for its rewrite, a node for what became of it."),
  ].filter(Boolean);
}

const code = (lines, kind) => el("pre", { class: kind }, lines.join("\n"));

function aboutStep(s) {
  const step = data.steps[s], c = `c${step.rule % 8}`;
  const bound = Object.entries(step.bindings).map(([key, value]) => el("tr", {}, el("td", {}, key), el("td", {}, value)));
  return [
    el("h2", {}, swatch(step.rule), ` ${ruleOf(s).name}`),
    el("p", { class: "faint" }, `rewrite ${s + 1} of ${total}, at ${data.nodes[step.root].name}${step.checked ? "" : "; shapes unchecked"}`),
    el("h3", {}, "Before"), code(step.region, `before ${c}`),
    el("h3", {}, "After"), code(step.result, `after ${c}`),
    step.source ? el("h3", {}, "Model") : null, step.source ? el("p", {}, step.source) : null,
    bound.length ? el("h3", {}, "Bindings") : null, bound.length ? el("table", {}, bound) : null,
    ...sources(step.rule),
  ].filter(Boolean);
}

function sources(rule) {
  return [el("h3", {}, "Rule and patterns"), ...data.rules[rule].definitions.map(({ place, text }, i) => {
    return el("details", { open: i < 2 ? "" : undefined }, el("summary", { class: "faint" }, place), code([text], "source"));
  })];
}

function aboutRule(r) {
  const rule = data.rules[r];
  return [
    el("h2", {}, swatch(r), ` ${rule.name}`),
    el("p", { class: "faint" }, `tried at ${plural(rule.attempts, "node")}, ${plural(rule.matches, "time")} matched, ${rule.rewrites} rewritten, ${rule.ms.toFixed(1)} ms`),
    ...data.refusals.filter((refusal) => refusal.rule === rule.name).map((refusal) => el("p", {}, `${refusal.count} × refused: ${refusal.reason}`)),
    ...sources(r),
  ];
}

function aboutNode(i) {
  const node = data.nodes[i], fused = fusedAt(i), born = bornAt(i);
  const reads = scene.inputs.get(i) || node.inputs;
  const feeds = [...scene.inputs].filter(([, read]) => read.includes(i)).map(([to]) => to);
  const links = (nodes) => el("div", { class: "links" }, nodes.map((n) => el("button", { onclick: () => choose({ node: n }, true) }, data.nodes[n].name)));
  const fate = (step, word, side) => el("button", { class: `fate c${data.steps[step].rule % 8}`, onclick: () => { chosen = null; show(step, side); } },
    swatch(data.steps[step].rule), `${word} by ${ruleOf(step).name}, rewrite ${step + 1} of ${total}`);
  const misses = data.misses.filter((miss) => miss.sites.includes(i));
  return [
    el("h2", {}, node.name),
    node.value ? el("p", { class: "faint" }, node.value) : null,
    fused >= 0 ? fate(fused, "Fused", "before") : null,
    born >= 0 ? fate(born, "Made", "after") : null,
    fused < 0 && born < 0 ? el("p", {}, "No rule changed this node.") : null,
    code([node.call], ""),
    ...misses.flatMap((miss) => [el("h3", {}, "Near miss"), code([miss.text], "source")]),
    placeOf(i) ? el("h3", {}, "Module") : null,
    placeOf(i) ? el("p", {}, `${placeOf(i)} (${data.modules[node.module].kind})`) : null,
    node.source >= 0 ? el("h3", {}, "Model") : null, node.source >= 0 ? el("p", {}, data.sources[node.source]) : null,
    reads.length ? el("h3", {}, "Reads") : null, reads.length ? links(reads) : null,
    feeds.length ? el("h3", {}, "Read by") : null, feeds.length ? links(feeds) : null,
  ].filter(Boolean);
}

const siteLinks = (sites) => el("div", { class: "links" }, sites.map((n) => el("button", { onclick: () => choose({ node: n }, true) }, data.nodes[n].name)));

function aboutMiss(miss) {
  return [el("h2", {}, `${miss.rule} nearly matches`), el("p", { class: "faint" }, "in the graph after all rewrites"),
    code([miss.text], "source"), el("h3", {}, plural(miss.sites.length, "site")), siteLinks(miss.sites)];
}

function aboutRefusal(refusal) {
  return [el("h2", {}, `${refusal.rule} refused`), el("p", {}, refusal.reason),
    el("p", { class: "faint" }, `${refusal.kind}, ${plural(refusal.count, "time")}`), siteLinks(refusal.sites)];
}

// --- keys and buttons --------------------------------------------------------------------------

const actions = {
  before: () => show(view.step, "before"),
  after: () => show(view.step, "after"),
  back: () => stepBy(-1),
  forward: () => stepBy(1),
  expand: () => toggleAll(true),
  collapse: () => toggleAll(false),
  fit,
  closer: () => zoom(1.3),
  farther: () => zoom(1 / 1.3),
};
for (const [id, action] of Object.entries(actions)) $(id).addEventListener("click", action);
$("weights").addEventListener("change", (event) => { view.weights = event.target.checked; draw(); });
$("search").addEventListener("input", search);
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") $("found").querySelector("[data-hit]")?.click();
  if (event.key === "Escape") { $("search").value = ""; search(); svg.focus(); }
});
document.addEventListener("keydown", (event) => {
  if (event.target === $("search") || event.ctrlKey || event.metaKey || event.altKey) return;
  const press = {
    ArrowRight: actions.forward, ArrowLeft: actions.back, f: fit,
    " ": () => show(view.step, view.side === "before" ? "after" : "before"),
    "/": () => $("search").focus(),
    Escape: () => { chosen = null; show(undefined, view.side); },
    "+": actions.closer, "-": actions.farther,
  }[event.key];
  if (!press || (event.key === " " && event.target.matches("button, summary, input"))) return;
  event.preventDefault();
  press();
});

$("summary").textContent = `${plural(total, "rewrite")} on ${data.initial} nodes`;
contents();
show(undefined, "before");
document.body.dataset.ready = "true";
