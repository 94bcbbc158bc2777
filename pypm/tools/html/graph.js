// From a recording to a drawing: replay, grouping, layout (by dagre), SVG. It knows no document.
"use strict";

const LIMIT = 120; // items of one group that are laid out side by side
const RUN = 50; // operators that are folded together where there are more
const LOOSE = 6; // operators in a row, beside modules, that are folded together
const FAN = 4; // readers of one item of which more are no matter of layout
const ROOM = 70; // items that are shown at first
const PAD = 14, HEAD = 26;

const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

/** The nodes after `count` rewrites, each with what it reads. */
function replay(data, count) {
  const inputs = new Map();
  for (let i = 0; i < data.initial; i++) inputs.set(i, data.nodes[i].inputs);
  for (const step of data.steps.slice(0, count)) {
    for (const i of step.after) inputs.set(i, data.nodes[i].inputs);
    for (const [i, read] of step.rewired) inputs.set(i, read);
    for (const i of step.gone) inputs.delete(i);
  }
  return inputs;
}

/** For each node of a region the rewrite: to come, or done; the given side decides where both. */
function regions(data, alive, { count, side }) {
  const found = new Map();
  const claim = (i, step) => alive.has(i) && !found.has(i) && found.set(i, step);
  const toCome = () => {
    for (let s = count; s < data.steps.length; s++) data.steps[s].before.forEach((i) => claim(i, s));
  };
  const done = () => {
    for (let s = count - 1; s >= 0; s--) data.steps[s].after.forEach((i) => claim(i, s));
  };
  for (const pass of side === "before" ? [toCome, done] : [done, toCome]) pass();
  return found;
}

function inOrder(inputs) {
  const order = [], seen = new Set();
  for (const start of [...inputs.keys()].sort((a, b) => a - b)) {
    const stack = [[start, 0]];
    while (stack.length) {
      const top = stack[stack.length - 1], read = inputs.get(top[0]);
      if (top[1] === 0) {
        if (seen.has(top[0])) { stack.pop(); continue; }
        seen.add(top[0]);
      }
      if (top[1] < read.length) {
        const next = read[top[1]++];
        if (inputs.has(next) && !seen.has(next)) stack.push([next, 0]);
      } else { order.push(top[0]); stack.pop(); }
    }
  }
  return order;
}

/** The groups around a module, the outermost first. */
function chainOf(data, module) {
  const chain = [];
  for (let m = module; m >= 0; m = data.modules[m].parent) chain.unshift(`m${m}`);
  return chain;
}

const newGroup = (key, parent) => ({ key, parent, items: [], steps: new Set(), size: 0 });

/** The graph as nested groups: modules, within them regions, and runs of many operators. */
function grouped(data, view) {
  const inputs = replay(data, view.count);
  const shown = (i) => inputs.has(i) && (view.weights || !data.nodes[i].weight);
  const region = regions(data, inputs, view);
  const chains = new Map();
  for (const [i, step] of region) {
    const own = chainOf(data, data.nodes[i].module), known = chains.get(step);
    let common = 0;
    while (known && common < known.length && known[common] === own[common]) common++;
    chains.set(step, known ? known.slice(0, common) : own);
  }
  const root = newGroup("", null), groups = new Map([["", root]]), items = new Map();
  for (const i of inOrder(inputs)) {
    if (!shown(i)) continue;
    const step = region.get(i);
    const chain = step === undefined ? chainOf(data, data.nodes[i].module) : [...chains.get(step), `s${step}`];
    let group = root;
    for (const key of chain) {
      if (!groups.has(key)) {
        groups.set(key, newGroup(key, group));
        group.items.push(groups.get(key));
      }
      group = groups.get(key);
    }
    const item = { node: i, step, parent: group };
    group.items.push(item);
    items.set(i, item);
    for (let g = group; g; g = g.parent) {
      g.size++;
      if (step !== undefined) g.steps.add(step);
    }
  }
  tidy(root, groups);
  return { inputs, root, groups, items };
}

/** Show the only item of a group in its place, and fold what is too much for one group. */
function tidy(group, groups) {
  for (const item of [...group.items]) if (item.items) tidy(item, groups);
  group.items = group.items.map((item) => {
    if (!item.items || item.items.length !== 1) return item;
    groups.delete(item.key);
    item.items[0].parent = group;
    return item.items[0];
  });
  const kept = group.items;
  if (kept.some((item) => item.items && item.key[0] === "m")) {
    const runs = [];
    for (const item of kept) {
      const loose = item.node !== undefined && item.step === undefined;
      if (loose && runs.length && runs[runs.length - 1].loose) runs[runs.length - 1].items.push(item);
      else runs.push({ loose, items: [item] });
    }
    group.items = runs.flatMap(({ loose, items }) => loose && items.length >= LOOSE ? [folded(group, items, groups)] : items);
  }
  if (group.items.length <= LIMIT) return;
  const all = group.items, runs = [];
  for (let at = 0; at < all.length; at += RUN) runs.push(folded(group, all.slice(at, at + RUN), groups));
  group.items = runs;
}

/** Some items of a group as a group in it, named by the first node of them. */
function folded(group, items, groups) {
  const run = newGroup(`r${anyNode(items[0])}`, group);
  run.items = items;
  for (const item of items) {
    item.parent = run;
    run.size += item.items ? item.size : 1;
    for (const step of item.items ? item.steps : item.step === undefined ? [] : [item.step]) run.steps.add(step);
  }
  groups.set(run.key, run);
  return run;
}

const anyNode = (item) => (item.items ? anyNode(item.items[0]) : item.node);

/** The groups that are open at first: whole levels while there is room, then one way down. */
function openAtFirst(root, step) {
  const open = new Set([""]);
  let level = [root], room = ROOM;
  while (level.length) {
    const items = level.flatMap((group) => group.items);
    const inner = items.filter((item) => item.items && item.items.length);
    room -= items.length;
    if (inner.reduce((sum, group) => sum + group.items.length, 0) > room) {
      const first = step === undefined && inner.find((group) => group.steps.size);
      if (!first) break;
      room = Math.max(room, first.items.length + 1);
      level = [first];
    } else level = inner;
    for (const group of level) open.add(group.key);
  }
  return open;
}

// --- layout ------------------------------------------------------------------------------------

const layouts = new Map(); // by sizes and edges, since equal layers look equal

function arranged(sizes, edges) {
  const key = JSON.stringify([sizes, edges]);
  if (layouts.has(key)) return layouts.get(key);
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 16, edgesep: 8, ranksep: 24 });
  sizes.forEach(([width, height], i) => graph.setNode(String(i), { width, height }));
  for (const [from, to] of edges) graph.setEdge(String(from), String(to), {});
  dagre.layout(graph);
  const { width, height } = graph.graph();
  const found = {
    width: Math.max(width, 0) || 0,
    height: Math.max(height, 0) || 0,
    places: sizes.map((_, i) => { const { x, y } = graph.node(String(i)); return [x, y]; }),
    routes: edges.map(([from, to]) => graph.edge(String(from), String(to)).points),
  };
  layouts.set(key, found);
  return found;
}

/** The shown graph: what is drawn of each group, and the edges at the level where they part. */
function laidOut(data, view, open) {
  const { inputs, root, groups, items } = grouped(data, view);
  const isOpen = (item) => item.items !== undefined && open(item.key, root);
  const standIn = new Map();
  const visit = (item, inside) => {
    item.edges = new Map();
    item.isOpen = !inside && isOpen(item);
    for (const child of item.items || []) {
      child.shownAs = item.isOpen ? child : item.shownAs;
      if (child.items) visit(child, !item.isOpen);
      else standIn.set(child.node, child.shownAs);
    }
  };
  root.shownAs = root;
  visit(root, false);
  const edges = new Map();
  for (const [to, read] of inputs) {
    for (const from of read) {
      const a = standIn.get(from), b = standIn.get(to);
      if (!a || !b || a === b) continue;
      const key = `${name(a)} ${name(b)}`;
      if (edges.has(key)) continue;
      const edge = { a, b };
      edges.set(key, edge);
      const above = new Set();
      for (let g = a; g; g = g.parent) above.add(g);
      let right = b;
      while (!above.has(right.parent)) right = right.parent;
      let left = a;
      while (left.parent !== right.parent) left = left.parent;
      Object.assign(edge, { left, right, home: right.parent });
      edge.home.edges.set(`${name(left)} ${name(right)}`, [left, right]);
    }
  }
  measure(data, root);
  settle(root, 0, 0);
  return { inputs, root, groups, items, edges: [...edges.values()] };
}

const name = (item) => (item.items ? item.key : `n${item.node}`);

function measure(data, item) {
  const [label, note] = words(data, item);
  if (!item.isOpen) {
    const dots = item.items ? 10 * Math.min(item.steps.size, 9) + 6 : 0;
    item.width = Math.max(48, 7 * label.length + 24, 5.8 * note.length + 24 + dots);
    item.height = note || item.items ? 38 : 26;
    return;
  }
  item.items.forEach((child) => measure(data, child));
  const index = new Map(item.items.map((child, i) => [child, i]));
  const readers = new Map();
  for (const [, [a, b]] of item.edges) readers.set(a, [...(readers.get(a) || []), index.get(b)]);
  const inLayout = ([a, b]) => readers.get(a).length <= FAN || index.get(b) === Math.min(...readers.get(a));
  item.routed = [...item.edges].filter(([, edge]) => inLayout(edge));
  const pairs = item.routed.map(([, [a, b]]) => [index.get(a), index.get(b)]);
  item.layout = arranged(item.items.map((child) => [child.width, child.height]), pairs);
  item.width = Math.max(item.layout.width, item.parent ? 7 * (label.length + note.length) + 40 : 0) + 2 * PAD;
  item.height = item.layout.height + HEAD + PAD;
}

/** Absolute places; x is of the middle, y of the top. */
function settle(item, x, y) {
  item.x = x;
  item.y = y;
  if (!item.isOpen) return;
  const left = x - item.layout.width / 2, top = y + HEAD;
  item.items.forEach((child, i) => {
    const [cx, cy] = item.layout.places[i];
    settle(child, left + cx, top + cy - child.height / 2);
  });
  item.routes = new Map(item.routed.map(([key], i) => {
    return [key, item.layout.routes[i].map((p) => [left + p.x, top + p.y])];
  }));
}

// --- drawing -----------------------------------------------------------------------------------

const last = (path) => path.split(".").pop();

/** What is written on an item: its name, and a smaller note. */
function words(data, item) {
  if (!item.items) {
    const { name, operator, value, kind } = data.nodes[item.node];
    return [kind.startsWith("call_") ? operator : name, value];
  }
  const many = `${item.size} operator${item.size === 1 ? "" : "s"}`;
  const kind = item.key.match(/([msr])\d+$/);
  if (!kind || kind[1] === "r") return ["…", many];
  const at = Number(item.key.match(/\d+$/)[0]);
  if (kind[1] === "s") return [data.rules[data.steps[at].rule].name, `rewrite ${at + 1} · ${many}`];
  const { path, kind: type } = data.modules[at];
  const short = /^\d+$/.test(last(path)) ? path.split(".").slice(-2).join(".") : last(path);
  return [short, item.isOpen ? type : `${type} · ${item.size}`];
}

const colour = (data, step) => `c${data.steps[step].rule % 8}`;
const round = (x) => Math.round(x * 10) / 10;

function path(edge) {
  const { a, b } = edge, route = edge.home.routes.get(`${name(edge.left)} ${name(edge.right)}`);
  const start = [a.x, a.y + a.height], end = [b.x, b.y];
  const trunk = route ? route.slice() : [start, [a.x, start[1] + 30], [b.x, end[1] - 30], end];
  if (route && a !== edge.left) trunk.unshift(start);
  if (route && b !== edge.right) trunk.push(end);
  const points = trunk.map(([x, y]) => `${round(x)} ${round(y)}`);
  let d = `M${points[0]}`;
  for (let i = 1; i < trunk.length - 1; i++) {
    const middle = i === trunk.length - 2 ? points[i + 1]
      : `${round((trunk[i][0] + trunk[i + 1][0]) / 2)} ${round((trunk[i][1] + trunk[i + 1][1]) / 2)}`;
    d += `Q${points[i]} ${middle}`;
  }
  return trunk.length < 3 ? `${d}L${points[points.length - 1]}` : d;
}

function drawnItem(data, item, view, out) {
  const [label, note] = words(data, item);
  const { x, y, width, height } = item, left = round(x - width / 2);
  const step = item.items ? (/^s\d+$/.test(item.key) ? Number(item.key.slice(1)) : undefined) : item.step;
  const classes = [item.items ? "group" : "node"];
  if (step !== undefined) classes.push("region", colour(data, step), step < view.count ? "done" : "to-come");
  if (step !== undefined && step === view.step) classes.push("current");
  if (item.isOpen) classes.push("open");
  if (!item.items) classes.push(data.nodes[item.node].kind);
  const at = item.items ? `data-group="${item.key}"` : `data-node="${item.node}"`;
  out.push(`<g class="${classes.join(" ")}" ${at}>`);
  out.push(`<rect x="${left}" y="${round(y)}" width="${round(width)}" height="${round(height)}" rx="${item.isOpen ? 10 : 6}"/>`);
  if (item.isOpen) {
    out.push(`<text class="title" x="${left + 12}" y="${round(y + 17)}">${escaped(label)} <tspan class="note">${escaped(note)}</tspan></text>`);
  } else {
    const middle = round(x);
    out.push(`<text x="${middle}" y="${round(y + (height > 30 ? 16 : 17))}">${escaped(label)}</text>`);
    const steps = item.items && !/^s\d+$/.test(item.key) ? [...item.steps].slice(0, 9) : [];
    const start = middle - 5 * steps.length;
    if (height > 30) out.push(`<text class="note" x="${round(start)}" y="${round(y + 30)}">${escaped(note)}</text>`);
    steps.forEach((s, i) => {
      const dot = start + 2.9 * note.length + 10 + 10 * i;
      out.push(`<circle class="${colour(data, s)}" cx="${round(dot)}" cy="${round(y + 27)}" r="3.5"/>`);
    });
  }
  out.push("</g>");
}

/** A view of the data as SVG, without the outermost element: its text and its size. */
function drawing(data, view, open) {
  const scene = laidOut(data, view, open);
  const boxes = [], nodes = [], lines = [];
  const visit = (item) => {
    if (item !== scene.root) drawnItem(data, item, view, item.isOpen ? boxes : nodes);
    if (item.isOpen) item.items.forEach(visit);
  };
  visit(scene.root);
  for (const edge of scene.edges) {
    const ends = `data-from="${name(edge.a)}" data-to="${name(edge.b)}"`;
    const routed = edge.home.routes.has(`${name(edge.left)} ${name(edge.right)}`);
    lines.push(`<path class="edge${routed ? "" : " wide"}" ${ends} d="${path(edge)}"/>`);
  }
  const { width, height } = scene.root;
  return { scene, box: [-width / 2, 0, width, height], text: [...boxes, ...lines, ...nodes].join("") };
}

/** The graph before the rewrites, as a picture of its own. */
function picture(data, style) {
  const view = { count: 0, side: "before", weights: false };
  let first;
  const { box, text } = drawing(data, view, (key, root) => (first ??= openAtFirst(root)).has(key));
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${box.map(round).join(" ")}" width="${round(box[2])}" height="${round(box[3])}"><style>${escaped(style)}</style>${text}</svg>`;
}
