// The panel: the overview, and what is known of a rewrite, a rule, a node, a near miss, a refusal, a
// decision.
"use strict";

function tell() {
  const panel = $("detail");
  let parts;
  if (chosen?.node !== undefined) parts = aboutNode(chosen.node);
  else if (chosen?.rule !== undefined) parts = aboutRule(chosen.rule);
  else if (chosen?.miss !== undefined) parts = aboutMiss(data.misses[chosen.miss]);
  else if (chosen?.refusal !== undefined) parts = aboutRefusal(data.refusals[chosen.refusal]);
  else if (chosen?.decision !== undefined) parts = aboutDecision(data.decisions[chosen.decision]);
  else parts = view.step === undefined ? overview() : aboutStep(view.step);
  panel.replaceChildren(...parts);
  panel.scrollTop = 0;
  document.querySelectorAll("[data-step]").forEach((e) => {
    const current = Number(e.dataset.step) === view.step;
    e.setAttribute("aria-current", current);
    if (current) { e.closest("details").open = true; if (scrolls($("list"))) e.scrollIntoView({ block: "nearest" }); }
  });
}

function overview() {
  const head = () => ["rule", "exactness", "tried", "matched", "rewritten", "ms"].map((t, i) => el("th", { class: i > 1 ? "n" : undefined }, t));
  const table = (rules) => el("table", {}, el("tr", {}, head()), rules.map((rule) => el("tr", {}, el("td", {}, broken(rule.name)), el("td", {}, rule.exactness),
    ...[rule.attempts, rule.matches, rule.rewrites, rule.ms.toFixed(1)].map((n) => el("td", { class: "n" }, String(n))))));
  const busy = data.rules.filter((rule) => rule.rewrites), rest = data.rules.filter((rule) => !rule.rewrites);
  const left = replay(data, total).size;
  return [
    el("h2", {}, plural(total, "rewrite")),
    el("p", { class: "faint" }, `${data.initial} nodes before, ${left} after; ${data.seconds.toFixed(3)} s`),
    data.note ? el("p", {}, data.note) : null,
    el("h3", {}, "Timing"), busy.length ? table(busy) : null,
    ...foldedRows(rest.length ? [table(rest)] : [], idleWords(rest.length)),
    el("p", { class: "faint", style: "margin-top: 14px" }, "Coloured regions are what rules replace. Click a box to open it, a region for its rewrite, a node for what became of it."),
  ].filter(Boolean);
}

const scrolls = (panel) => panel.scrollHeight > panel.clientHeight;
const code = (lines, kind) => el("pre", { class: kind }, lines.join("\n"));

function aboutStep(s) {
  const step = data.steps[s], c = `c${step.rule % 8}`;
  const bound = Object.entries(step.bindings).map(([key, value]) => el("tr", {}, el("td", {}, key), el("td", {}, broken(value))));
  return [
    el("h2", {}, swatch(step.rule), " ", broken(ruleOf(s).name)),
    el("p", { class: "faint" }, `rewrite ${s + 1} of ${total}, at ${data.nodes[step.root].name}${step.checked ? "" : "; shapes unchecked"}`),
    ...costs(step.worth),
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
    el("h2", {}, swatch(r), " ", broken(rule.name)),
    el("p", { class: "faint" }, `${rule.exactness}; tried at ${plural(rule.attempts, "node")}, ${plural(rule.matches, "time")} matched, ${rule.rewrites} rewritten, ${rule.ms.toFixed(1)} ms`),
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
  const left = fused < 0 ? leftNodes(data).get(i) : undefined;
  return [
    el("h2", {}, broken(node.name)),
    node.value ? el("p", { class: "faint" }, node.value) : null,
    fused >= 0 ? fate(fused, "Fused", "before") : null,
    born >= 0 ? fate(born, "Made", "after") : null,
    fused < 0 && born < 0 ? el("p", {}, "No rule changed this node.") : null,
    left ? el("button", { class: "fate", onclick: () => choose({ decision: left.decision, sites: [i] }) }, "Left as it is: what was compared") : null,
    code([node.call], ""),
    ...misses.flatMap((miss) => [el("h3", {}, "Near miss"), ...missText(miss)]),
    placeOf(i) ? el("h3", {}, "Module") : null,
    placeOf(i) ? el("p", {}, `${placeOf(i)} (${data.modules[node.module].kind})`) : null,
    node.source >= 0 ? el("h3", {}, "Model") : null, node.source >= 0 ? el("p", {}, data.sources[node.source]) : null,
    reads.length ? el("h3", {}, "Reads") : null, reads.length ? links(reads) : null,
    feeds.length ? el("h3", {}, "Read by") : null, feeds.length ? links(feeds) : null,
  ].filter(Boolean);
}

const siteLinks = (sites) => el("div", { class: "links" }, sites.map((n) => el("button", { onclick: () => choose({ node: n }, true) }, data.nodes[n].name)));

const missText = (miss) => [el("p", { class: "said" }, miss.said), miss.frame ? code([miss.frame], "source") : null,
  ...miss.notes.map((note) => el("p", { class: "faint" }, note))].filter(Boolean);

function aboutMiss(miss) {
  return [el("h2", {}, broken(miss.rule), " nearly matches"), el("p", { class: "faint" }, "in the graph after all rewrites"),
    ...missText(miss), el("h3", {}, plural(miss.sites.length, "site")), siteLinks(miss.sites)];
}

function aboutRefusal(refusal) {
  return [el("h2", {}, broken(refusal.rule), " refused"), el("p", {}, refusal.reason),
    el("p", { class: "faint" }, `${refusal.kind}, ${plural(refusal.count, "time")}`), siteLinks(refusal.sites)];
}

const share = (time) => (time && time.share !== null ? percent(time.share) : "");
const seconds = (time) => (time ? time.seconds : "");

/** The times of a rewrite: a row each for the region as it is and replaced, and one for the bound. */
function costs(worth) {
  if (!worth || !(worth.before || worth.after || worth.bound)) return [];
  const rows = [["as it is", worth.before], ["replaced", worth.after], ["at best", worth.bound && { seconds: worth.bound, share: 1 }]];
  return [
    el("h3", {}, "Cost"),
    el("table", { class: "costs" }, heads(["", "time", "bound / time"]),
      rows.filter(([, time]) => time).map(([name, time]) => el("tr", {}, el("td", {}, name), el("td", { class: "n" }, seconds(time)), el("td", { class: "n" }, share(time))))),
    el("p", { class: "faint" }, [worth.comparison, worth.why].filter(Boolean).join(", ")),
  ];
}

const heads = (names) => el("tr", {}, names.map((name, i) => el("th", { class: i > 1 ? "n" : undefined, scope: "col" }, name)));

function aboutDecision({ made, candidates }) {
  const cell = (time) => el("td", { class: "n" }, seconds(time), time && time.share !== null ? el("div", { class: "faint" }, share(time)) : null);
  const rows = candidates.map(({ rule, worth, fate }) => [
    el("tr", {}, el("td", {}, broken(rule), el("div", { class: "faint" }, fate)), cell(worth.before), cell(worth.after)),
    el("tr", {}, el("td", { colspan: 3, class: "faint" }, [worth.comparison, worth.bound && `at best ${worth.bound}`, worth.why].filter(Boolean).join(", "))),
  ]);
  return [
    el("h2", {}, made.length ? `Chosen: ${made.join(", ")}` : "Left as it is"),
    el("p", { class: "faint" }, "Rewrites that overlap, and leaving the nodes. A share is the bound over the time."),
    el("table", { class: "costs" }, heads(["rule", "as it is", "replaced"]), rows.flat()),
    el("h3", {}, "Nodes"), siteLinks([...new Set(candidates.flatMap(({ region }) => region))]),
  ];
}
