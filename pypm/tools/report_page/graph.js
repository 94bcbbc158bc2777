// From a recording to a drawing: replay, grouping, layout (by dagre), SVG. It knows no document.
"use strict";

const LIMIT = 120; // items of one group that are laid out side by side
const RUN = 50; // operators that are folded together where there are more
const LOOSE = 6; // operators in a row, beside modules, that are folded together
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

// An edge into an open group goes through a port on the group's border, and on within the group.
// What one item feeds shares lanes: between two rows of items, where there is nothing else, a line
// goes aside, and past a row it goes straight down, beside the items. So it crosses no item.

const layouts = new Map(); // by sizes, edges and ports, since equal layers look equal

/** Places of vertices, and routes of edges; entries lie above all other vertices, exits below. */
function arranged(sizes, edges, entries, exits) {
  const key = JSON.stringify([sizes, edges, entries, exits]);
  if (layouts.has(key)) return layouts.get(key);
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 16, edgesep: 8, ranksep: 24 });
  sizes.forEach(([width, height], i) => graph.setNode(String(i), { width, height }));
  for (const [from, to] of edges) graph.setEdge(String(from), String(to), { weight: 4 });
  pinned(graph, "roof", entries, graph.sources(), (outside, i) => [outside, i]);
  pinned(graph, "floor", exits, graph.sinks().filter((i) => i !== "roof"), (outside, i) => [i, outside]);
  dagre.layout(graph);
  const vertices = sizes.map((_, i) => graph.node(String(i)));
  const lines = edges.map(([from, to]) => graph.edge(String(from), String(to)).points.slice(1, -1));
  const ports = new Set([...entries, ...exits]);
  const inner = vertices.filter((_, i) => !ports.has(i));
  const xs = lines.flat().concat(vertices.map(({ x }) => ({ x })));
  const left = least([...xs, ...inner.map(({ x, width }) => ({ x: x - width / 2 }))].map(({ x }) => x));
  const right = -least([...xs, ...inner.map(({ x, width }) => ({ x: x + width / 2 }))].map(({ x }) => -x));
  const top = least(inner.map(({ y, height }) => y - height / 2));
  const bottom = -least(inner.map(({ y, height }) => -y - height / 2));
  for (const vertex of vertices) { vertex.x -= left; vertex.y -= top; }
  for (const i of entries) vertices[i].y = -HEAD;
  for (const i of exits) vertices[i].y = bottom - top + PAD;
  const rows = new Map();
  for (const { y, height } of vertices) rows.set(round(y), Math.max(height / 2, rows.get(round(y)) || 0));
  const row = (y) => [y - rows.get(round(y)), y + rows.get(round(y))];
  const found = {
    width: right - left || 0,
    height: bottom - top || 0,
    places: vertices.map(({ x, y }) => [x, y]),
    routes: edges.map(([from, to], i) => {
      const a = vertices[from], b = vertices[to];
      const past = lines[i].map(({ x, y }) => [x - left, y - top]).filter(([, y]) => rows.get(round(y)));
      return [[a.x, a.y + a.height / 2, row(a.y)[1]], ...past.map(([x, y]) => [x, ...row(y)]), [b.x, row(b.y)[0], b.y - b.height / 2]];
    }),
  };
  layouts.set(key, found);
  return found;
}

const least = (numbers) => numbers.reduce((a, b) => Math.min(a, b), Infinity);

/** Hold ports beyond all others, by a vertex that pulls them and keeps the `ends` away. */
function pinned(graph, outside, ports, ends, edge) {
  if (!ports.length) return;
  const held = new Set(ports.map(String));
  graph.setNode(outside, { width: 0, height: 0 });
  for (const i of ends) graph.setEdge(...edge(outside, i), held.has(i) ? { weight: 64 } : { minlen: 2 });
}

/** The shown graph: what is drawn of each group, and the legs of each edge, one for each group. */
function laidOut(data, view, open) {
  const { inputs, root, groups, items } = grouped(data, view);
  const isOpen = (item) => item.items !== undefined && open(item.key, root);
  const standIn = new Map();
  const visit = (item, inside) => {
    item.reads = new Map();
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
      if (!edges.has(key)) edges.set(key, { a, b, legs: legs(a, b) });
    }
  }
  measure(data, root, view);
  settle(root, 0, 0);
  return { inputs, root, groups, items, edges: [...edges.values()] };
}

const name = (item) => (item.items ? item.key : `n${item.node}`);

/** The way from one item to another: out of groups to one that holds both, and into groups. */
function legs(a, b) {
  const above = new Set(), found = [], down = [];
  for (let g = a; g; g = g.parent) above.add(g);
  let right = b, left = a;
  for (; !above.has(right.parent); right = right.parent) down.unshift({ group: right.parent, from: `<${name(a)}`, to: name(right) });
  for (; left.parent !== right.parent; left = left.parent) found.push({ group: left.parent, from: name(left), to: `>${name(a)}` });
  found.push({ group: right.parent, from: name(left), to: name(right) }, ...down);
  for (const { group, from, to } of found) group.reads.set(from, (group.reads.get(from) || new Set()).add(to));
  return found;
}

function measure(data, item, view) {
  const [label, note] = words(data, item, view);
  if (!item.isOpen) {
    const dots = item.items ? 10 * Math.min(item.steps.size, 9) + 6 : 0;
    item.width = Math.max(48, 7 * label.length + 24, 5.8 * note.length + 24 + dots);
    item.height = note || item.items ? 38 : 26;
    return;
  }
  item.items.forEach((child) => measure(data, child, view));
  item.wired = wired(item);
  const { edges, entries, exits, count } = item.wired;
  const sizes = Array.from({ length: count }, (_, i) => (i < item.items.length ? [item.items[i].width, item.items[i].height] : [0, 0]));
  item.layout = arranged(sizes, edges, entries, exits);
  item.width = Math.max(item.layout.width, item.parent ? 7 * (label.length + note.length) + 40 : 0) + 2 * PAD;
  item.height = item.layout.height + HEAD + PAD;
}

/** A group's items, ports and lanes as numbers, and for each leg in it the edges that it takes. */
function wired({ items, reads }) {
  const at = new Map(items.map((item, i) => [name(item), i])), ways = new Map(), edges = [];
  for (const [from, to] of reads) for (const end of [from, ...to]) if (!at.has(end)) at.set(end, at.size);
  const ports = (mark) => [...at].filter(([end]) => end[0] === mark).map(([, i]) => i);
  const entries = ports("<"), exits = ports(">");
  let count = at.size;
  const joined = (from, to, turned) => edges.push([from, to]) && { edge: edges.length - 1, turned };
  const depth = depths([...items.map(name), ...[...at.keys()].filter((end) => end[0] === ">")], reads, at);
  for (const [from, to] of reads) {
    const i = at.get(from), forward = [];
    for (const end of to) {
      const j = at.get(end);
      if (i < items.length && j < i) {
        const [low, high] = [count++, count++];
        ways.set(`${from} ${end}`, [joined(i, low), joined(high, low, true), joined(high, j)]);
      } else forward.push(end);
    }
    let lane = [], last = i, reached = (depth.get(from) || 0) + 1;
    for (const end of forward.sort((a, b) => depth.get(a) - depth.get(b))) {
      if (depth.get(end) > reached) {
        reached = depth.get(end);
        lane = [...lane, joined(last, count)];
        last = count++;
      }
      ways.set(`${from} ${end}`, [...lane, joined(last, at.get(end))]);
    }
  }
  return { edges, entries, exits, ways, count };
}

/** How many edges lead to each vertex at most, of those that lead on in the order of the items. */
function depths(order, reads, at) {
  const depth = new Map([...reads.keys()].filter((end) => end[0] === "<").map((end) => [end, 0]));
  const read = new Map();
  for (const [from, to] of reads) for (const end of to) read.set(end, [...(read.get(end) || []), from]);
  for (const end of order) {
    const above = (read.get(end) || []).filter((from) => from[0] === "<" || at.get(from) < at.get(end));
    depth.set(end, above.reduce((most, from) => Math.max(most, depth.get(from) + 1), 1));
  }
  return depth;
}

/** Absolute places; x is of the middle, y of the top. */
function settle(item, x, y) {
  item.x = x;
  item.y = y;
  if (!item.isOpen) return;
  item.corner = [x - item.layout.width / 2, y + HEAD];
  item.items.forEach((child, i) => {
    const [cx, cy] = item.layout.places[i];
    settle(child, item.corner[0] + cx, item.corner[1] + cy - child.height / 2);
  });
}

// --- drawing -----------------------------------------------------------------------------------

const last = (path) => path.split(".").pop();

/** What is known of a node that a choice left as it was, where headroom is shown. */
function keptAs(data, item, view) {
  return view.headroom && !item.items && item.step === undefined ? leftNodes(data).get(item.node) : undefined;
}

/** The time that is written on a node: that of a region whose only node it is, or whose root. */
function timeAt(data, item, view) {
  if (item.step !== undefined) return item.parent.key === `s${item.step}` ? null : timeOf(data, item.step, view);
  const kept = keptAs(data, item, view);
  return kept?.isRoot ? kept.time : null;
}

/** What is written on an item: its name, and a smaller note. */
function words(data, item, view) {
  if (!item.items) {
    const { name, operator, value, kind } = data.nodes[item.node];
    return [kind.startsWith("call_") ? operator : name, [value, timed(timeAt(data, item, view))].filter(Boolean).join(" · ")];
  }
  const many = `${item.size} operator${item.size === 1 ? "" : "s"}`;
  const kind = item.key.match(/([msr])\d+$/);
  if (!kind || kind[1] === "r") return ["…", many];
  const at = Number(item.key.match(/\d+$/)[0]);
  if (kind[1] === "s") {
    const note = [`rewrite ${at + 1}`, many, timed(timeOf(data, at, view))].filter(Boolean).join(" · ");
    return [data.rules[data.steps[at].rule].name, note];
  }
  const { path, kind: type } = data.modules[at];
  const short = /^\d+$/.test(last(path)) ? path.split(".").slice(-2).join(".") : last(path);
  return [short, item.isOpen ? type : `${type} · ${item.size}`];
}

/** The class of a rewrite's colour: that of its rule, or of its headroom. */
function colour(data, step, view) {
  if (!view.headroom) return `c${data.steps[step].rule % 8}`;
  return bandOf(timeOf(data, step, view)?.share ?? null);
}
const round = (x) => Math.round(x * 10) / 10;

/** An edge as straight pieces downwards past rows of items, and curves between them. */
function path(edge) {
  const pieces = [];
  for (const { group, from, to } of edge.legs) {
    const [left, top] = group.corner;
    group.wired.ways.get(`${from} ${to}`).forEach(({ edge, turned }, hop) => {
      const route = group.layout.routes[edge].map(([x, y, end]) => [left + x, top + y, top + end]);
      if (turned) route.reverse().forEach((piece) => piece.splice(1, 2, piece[2], piece[1]));
      const before = pieces.pop();
      if (before) route[0] = [hop === 0 && from[0] === "<" ? route[0][0] : before[0], before[1], route[0][2]];
      pieces.push(...route);
    });
  }
  let [x, y] = pieces[0], d = `M${round(x)} ${round(y)}`;
  for (const [next, start, end] of pieces) {
    const middle = round((y + start) / 2);
    if (round(next) !== round(x)) d += `C${round(x)} ${middle} ${round(next)} ${middle} ${round(next)} ${round(start)}`;
    d += `V${round(end)}`;
    [x, y] = [next, end];
  }
  return d;
}

function drawnItem(data, item, view, out) {
  const [label, note] = words(data, item, view);
  const { x, y, width, height } = item, left = round(x - width / 2);
  const step = item.items ? (/^s\d+$/.test(item.key) ? Number(item.key.slice(1)) : undefined) : item.step;
  const classes = [item.items ? "group" : "node"];
  if (step !== undefined) classes.push("region", colour(data, step, view), step < view.count ? "done" : "to-come");
  if (step !== undefined && step === view.step) classes.push("current");
  const kept = keptAs(data, item, view);
  if (kept) classes.push("region", "left", bandOf(kept.time?.share ?? null));
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
      out.push(`<circle class="${colour(data, s, view)}" cx="${round(dot)}" cy="${round(y + 27)}" r="3.5"/>`);
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
    lines.push(`<path class="edge" ${ends} d="${path(edge)}"/>`);
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
