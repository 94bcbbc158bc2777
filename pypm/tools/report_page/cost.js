// Costs of regions: times, shares of the bound, and their bands of headroom. It knows no document.
"use strict";

const BANDS = [
  [0.8, "80 % of the bound or more"],
  [0.5, "50 to 80 %"],
  [0.25, "25 to 50 %"],
  [0, "less than 25 %: most headroom"],
];
const UNKNOWN = "no bound is known";

const percent = (share) => `${Math.round(100 * share)} %`;

/** The class of a share of the bound: `h0` is at the bound, `h3` farthest from it. */
function bandOf(share) {
  return share === null ? "hn" : `h${BANDS.findIndex(([least]) => share >= least)}`;
}

/** What a time says: seconds, and how much of them the bound is. */
function timed(time) {
  if (!time) return "";
  return [time.seconds, time.share === null ? "" : `${percent(time.share)} of the bound`].filter(Boolean).join(", ");
}

/** The time of a rewrite's region as it is in a view; null where it is not known. */
function timeOf(data, step, view) {
  const { worth } = data.steps[step];
  return worth && (step < view.count ? worth.after : worth.before);
}

/** For each node of a place that was left as it is: the decision, and its time at the root. */
function leftNodes(data) {
  data.left ??= new Map(data.decisions.flatMap(({ made, candidates }, decision) =>
    made.length ? [] : candidates.flatMap(({ region, root, worth }) => region.map((node) => [node, { decision, time: worth.before, isRoot: node === root }]))));
  return data.left;
}

/** Whether any region has a time beside a bound, so that headroom can be shown. */
function knowsHeadroom(data) {
  const worths = [...data.steps.map((step) => step.worth), ...data.decisions.flatMap(({ candidates }) => candidates.map((one) => one.worth))];
  return worths.some((worth) => worth && [worth.before, worth.after].some((time) => time && time.share !== null));
}
