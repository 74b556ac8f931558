// The waterfall of one request: its spans as a tree on a time axis, the share of each stage, and a sentence.

import { byId, h, roving } from "./dom.js";
import { bytes, count, duration, percent, plural, spansOf } from "./format.js";
import { STAGE_WORDS, shares, stageOf, treeOf, verdict } from "./spans.js";

const AGAIN_MS = [300, 700, 1500, 3000]; // the last spans of a request arrive a moment after its end
const FOLLOW_MS = 5000;
const FORMAT = { bytes, count, duration, percent, plural };

export class Waterfall {
  constructor() {
    this.root = byId("waterfall");
    this.open = 0; // counts openings: answers to an older one are dropped
    this.followed = -FOLLOW_MS;
    this.say("Choose a request to see where its time went.");
  }

  /** Shows the newest request while the reader has chosen none; not more often than one can read. */
  follow(requestId, traceId) {
    if ((requestId === this.shown && traceId === this.shownTrace) || performance.now() - this.followed < FOLLOW_MS || this.root.contains(document.activeElement)) return;
    this.followed = performance.now();
    this.show(requestId, traceId, { quietly: true });
  }

  say(text) {
    if (this.quietly) return;
    this.root.replaceChildren(h("p", { class: "hint", text }));
  }

  async show(requestId, traceId = null, { quietly = false } = {}) {
    this.quietly = quietly;
    this.shown = requestId;
    this.shownTrace = traceId;
    const mine = ++this.open;
    this.root.setAttribute("aria-busy", "true");
    for (const wait of [0, ...AGAIN_MS]) {
      if (wait) await new Promise((done) => setTimeout(done, wait));
      if (mine !== this.open) return;
      const found = await this.load(requestId, traceId, mine);
      if (found === "stop" || mine !== this.open) break;
    }
    if (mine === this.open) this.root.removeAttribute("aria-busy");
  }

  /** Loads and draws; "stop" when nothing more is to come. */
  async load(requestId, traceId, mine) {
    let answer;
    try {
      answer = await fetch(spansOf(requestId, traceId), { cache: "no-store" });
    } catch {
      this.say("The gateway does not answer.");
      return "again";
    }
    if (mine !== this.open) return "stop";
    const body = await answer.json().catch(() => null);
    if (!answer.ok || !body) {
      this.say(`No spans of ${requestId}: ${body?.error?.message ?? body?.error ?? `the gateway answered ${answer.status}`}`);
      return answer.status === 404 ? "again" : "stop";
    }
    if (!body.spans?.length) {
      this.say(body.status === "running" ? "The request runs; its spans come when it ends." : `The gateway recorded no span of ${requestId}.`);
      return "again";
    }
    this.draw(body);
    return body.complete ? "stop" : "again";
  }

  draw(request) {
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.span : null;
    const [root] = treeOf(request.spans);
    const sums = shares(root);
    const total = Math.max(root.duration_ms, 0.001);
    const facts = [
      ["request", request.request_id],
      ["path", request.path],
      ["status", request.error ? `${request.status}: ${request.error}` : request.status],
      ["prompt", plural(request.prompt_tokens ?? 0, "token")],
      ["answer", plural(request.completion_tokens ?? 0, "token")],
      ["first token", duration(request.ttft_seconds)],
      ["total", duration(total / 1000)],
    ];
    const parts = Object.entries(sums).filter(([, ms]) => ms > 0);
    const strip = h("div", { class: "bar big", role: "img", "aria-label": parts.map(([stage, ms]) => `${STAGE_WORDS[stage]} ${percent(ms / total)}`).join(", ") });
    for (const [stage, ms] of parts) {
      const piece = h("i", { class: stage, title: `${STAGE_WORDS[stage]}: ${duration(ms / 1000)}, ${percent(ms / total)}` });
      piece.style.flexGrow = 1000 * ms;
      strip.append(piece);
    }
    const words = h("ul", { class: "shares" }, parts.sort((a, b) => b[1] - a[1]).map(([stage, ms]) => h("li", {}, h("i", { class: stage }), `${STAGE_WORDS[stage]} `, h("b", { text: percent(ms / total) }), ` ${duration(ms / 1000)}`)));
    this.detail = h("dl", { class: "details" });
    const tree = h("div", { class: "tree", role: "tree", "aria-label": "Spans" });
    this.rows(root, tree, root, total);
    const follow = this.quietly ? "The newest request. Choose another in the list." : h("a", { href: "#", text: "Follow the newest request" });
    this.root.replaceChildren(
      h("p", { class: "note", "data-follows": String(this.quietly) }, follow),
      h("p", { class: "verdict", text: verdict(request, root, FORMAT) }),
      strip,
      words,
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", { text: value })))),
      axis(total),
      tree,
      this.detail,
    );
    roving(tree, "[role=treeitem]")();
    if (focused) tree.querySelector(`[data-span="${focused}"]`)?.focus();
  }

  rows(node, parent, root, total) {
    const left = ((node.start_ms - root.start_ms) / total) * 100;
    const width = Math.max(0.15, (node.duration_ms / total) * 100);
    const bar = h("span", { class: `span-bar ${stageOf(node.name)}` });
    bar.style.left = `${left}%`;
    bar.style.width = `${width}%`;
    const lane = h("span", { class: "span-lane" }, bar);
    for (const event of node.events ?? []) {
      const mark = h("i", { class: "mark", title: `${event.name} at ${duration((event.at_ms - root.start_ms) / 1000)}` });
      mark.style.left = `${((event.at_ms - root.start_ms) / total) * 100}%`;
      lane.append(mark);
    }
    const many = node.children.length > 0;
    const label = h("span", { class: "span-name" }, h("i", { class: "twist", text: many ? "▾" : "" }), node.name, h("small", { text: ` ${node.service}` }));
    label.style.paddingInlineStart = `${node.depth * 12}px`;
    const own = many && node.own_ms > 0.005 ? ` (own ${duration(node.own_ms / 1000)})` : "";
    const row = h(
      "div",
      { role: "treeitem", class: "span-row", tabindex: "-1", "aria-level": node.depth + 1, "aria-expanded": many ? "true" : null, "aria-selected": "false", "data-span": node.span_id, "aria-label": `${node.name} of ${node.service}, ${duration(node.duration_ms / 1000)}${own}` },
      label,
      lane,
      h("span", { class: "span-time", text: duration(node.duration_ms / 1000), title: own.trim() }),
    );
    const group = h("div", { role: "group" });
    parent.append(row);
    if (many) parent.append(group);
    const toggle = (open) => {
      if (!many) return;
      group.hidden = !open;
      row.setAttribute("aria-expanded", String(open));
      label.firstElementChild.textContent = open ? "▾" : "▸";
    };
    row.addEventListener("click", (event) => {
      row.focus();
      if (event.target === label.firstElementChild || event.detail === 2) toggle(group.hidden);
      this.select(row, node, root);
    });
    row.addEventListener("focus", () => this.select(row, node, root));
    row.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") toggle(true);
      else if (event.key === "ArrowLeft") toggle(false);
      else if (event.key === "Enter" || event.key === " ") toggle(group.hidden);
      else return;
      event.preventDefault();
    });
    for (const child of node.children) this.rows(child, group, root, total);
  }

  /** Shows the attributes of one span. */
  select(row, node, root) {
    for (const other of this.root.querySelectorAll('[aria-selected="true"]')) other.setAttribute("aria-selected", "false");
    row.setAttribute("aria-selected", "true");
    const rows = [
      ["span", `${node.name} of ${node.service}`],
      ["time", `${duration(node.duration_ms / 1000)} from ${duration((node.start_ms - root.start_ms) / 1000)}; own time ${duration(Math.max(0, node.own_ms) / 1000)}`],
      ...Object.entries(node.attributes ?? {}).map(([name, value]) => [name, name.endsWith("bytes") ? bytes(Number(value)) : String(value)]),
      ...events(node, root),
    ];
    this.detail.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", { text: name }), h("dd", { text: value })]));
  }
}

/** The span's events; many of one name (a chunk each) share a line. */
function events(node, root) {
  const byName = new Map();
  for (const event of node.events ?? []) byName.set(event.name, [...(byName.get(event.name) ?? []), duration((event.at_ms - root.start_ms) / 1000)]);
  return [...byName].map(([name, times]) => [name, times.length > 6 ? `${times.length} times, from ${times[0]} to ${times.at(-1)}` : `at ${times.join(", ")}`]);
}

function axis(total) {
  const step = [1, 2, 5].flatMap((n) => [-2, -1, 0, 1, 2, 3, 4].map((power) => n * 10 ** power)).sort((a, b) => a - b).find((size) => total / size <= 6) ?? total;
  const lane = h("span", { class: "span-lane" });
  for (let at = 0; at <= total; at += step) {
    const tick = h("span", { class: "tick", text: at ? duration(at / 1000) : "0" });
    tick.style.left = `${(at / total) * 100}%`;
    lane.append(tick);
  }
  return h("div", { class: "span-row axis", "aria-hidden": "true" }, h("span"), lane, h("span"));
}
