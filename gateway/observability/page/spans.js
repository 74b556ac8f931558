// Arithmetic on the spans of one request: the tree, each span's own time, and where the whole time went.

const STAGES = {
  queue: ["queue", "admission", "dispatch"],
  prefill: ["prefill", "compute"],
  handoff: ["kv.send", "kv.reserve", "kv.receive"],
  decode: ["decode", "generate"],
  bad: ["loop.blocked"],
};
export const STAGE_WORDS = { gateway: "gateway", queue: "queues", prefill: "prefill", handoff: "exposed hand-off", decode: "decode", bad: "blocked loops" };
const HIDES = ["compute", "generate"]; // while one of these runs, the hand-off costs nothing

export function stageOf(name) {
  for (const [stage, names] of Object.entries(STAGES)) if (names.includes(name)) return stage;
  return "gateway";
}

/** Roots with `children`, `depth`, `end_ms` and `own_ms`; a span without a known parent hangs below the first root. */
export function treeOf(spans) {
  const nodes = spans.map((span) => ({ ...span, end_ms: span.start_ms + span.duration_ms, children: [] }));
  const byId = new Map(nodes.map((node) => [node.span_id, node]));
  const roots = nodes.filter((node) => !byId.has(node.parent_id));
  for (const node of nodes) byId.get(node.parent_id)?.children.push(node);
  for (const lost of roots.splice(1)) roots[0].children.push(lost);
  const walk = (node, depth) => {
    node.depth = depth;
    node.children.sort((a, b) => a.start_ms - b.start_ms || b.duration_ms - a.duration_ms);
    node.own_ms = node.duration_ms - covered(node.children, node.start_ms, node.end_ms);
    for (const child of node.children) walk(child, depth + 1);
  };
  for (const root of roots) walk(root, 0);
  return roots;
}

/** Length of the union of these spans inside a window. */
export function covered(spans, from, to) {
  let sum = 0;
  let reached = from;
  for (const span of [...spans].sort((a, b) => a.start_ms - b.start_ms)) {
    const begin = Math.max(reached, span.start_ms);
    const end = Math.min(to, span.end_ms);
    if (end > begin) {
      sum += end - begin;
      reached = end;
    }
  }
  return sum;
}

/** Milliseconds of each stage. They add up to the request's time: each moment belongs to one of the spans that run. Work
 * goes first, so a hand-off beside computing is hidden and gets none; a span with parts goes last. */
export function shares(root) {
  const all = [];
  const collect = (node) => {
    all.push(node);
    node.children.forEach(collect);
  };
  collect(root);
  const marks = [...new Set(all.flatMap((node) => [node.start_ms, node.end_ms]))]
    .filter((at) => at >= root.start_ms && at <= root.end_ms)
    .sort((a, b) => a - b);
  const sums = { gateway: 0, queue: 0, prefill: 0, handoff: 0, decode: 0, bad: 0 };
  for (let i = 0; i + 1 < marks.length; i++) {
    const middle = (marks[i] + marks[i + 1]) / 2;
    const active = all.filter((node) => node.start_ms <= middle && node.end_ms >= middle);
    const owner = active.reduce((a, b) => (rank(b) >= rank(a) ? b : a), root);
    sums[stageOf(owner.name)] += marks[i + 1] - marks[i];
  }
  return sums;
}

function rank(node) {
  if (HIDES.includes(node.name)) return 400;
  if (node.name === "loop.blocked") return 300;
  if (node.children.some((child) => child.name !== "loop.blocked")) return node.depth;
  return stageOf(node.name) === "handoff" ? 100 : 200;
}

/** Share of the hand-off that ran beside computing, or null without a hand-off. */
export function hiddenShare(root) {
  const sends = [];
  const busy = [];
  const collect = (node) => {
    if (node.name === "kv.send") sends.push(node);
    if (HIDES.includes(node.name)) busy.push(node);
    node.children.forEach(collect);
  };
  collect(root);
  const total = sends.reduce((sum, node) => sum + node.duration_ms, 0);
  if (!total) return null;
  return sends.reduce((sum, node) => sum + covered(busy, node.start_ms, node.end_ms), 0) / total;
}

/** One sentence on what took the time. */
export function verdict(request, root, format) {
  const sums = shares(root);
  const total = Object.values(sums).reduce((a, b) => a + b, 0) || 1;
  const [stage, most] = Object.entries(sums).sort((a, b) => b[1] - a[1])[0];
  const part = format.percent(most / total);
  const whole = format.duration(total / 1000);
  const sentences = {
    decode: () => `Decode took ${part} of ${whole}: ${format.plural(request.completion_tokens, "token")}${request.completion_tokens > 1 ? `, ${format.duration(most / request.completion_tokens / 1000)} each` : ""}.`,
    prefill: () => `Prefill took ${part} of ${whole}: it read ${format.plural(request.prompt_tokens, "prompt token")}, ${format.count((request.prompt_tokens / most) * 1000)} per second.`,
    queue: () => `The request waited ${part} of ${whole} for its turn: the mesh has more work than workers.`,
    handoff: () => `The hand-off took ${part} of ${whole} that no computing hid.`,
    gateway: () => `${part} of ${whole} passed at the gateway or between services.`,
    bad: () => `A blocked event loop took ${part} of ${whole}.`,
  };
  const hidden = hiddenShare(root);
  const handoff = hidden === null ? "" : ` ${format.percent(hidden)} of the hand-off was hidden behind computing.`;
  return sentences[stage]() + handoff;
}
