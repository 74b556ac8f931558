// The stations of the mesh: the gateway, and a card for each worker with its pool of pages and its queue.

import { byId, h, keyed, roving, setText } from "./dom.js";
import { clock, count, percent, plural, rate } from "./format.js";
import { PageMap, STATES } from "./pages.js";
import { onLook } from "./theme.js";

const WORDS = { free: "free", cached: "cached", in_use: "in use", landing: "landing", quarantined: "quarantined" };

export class Mesh {
  constructor(store, onLayout) {
    this.store = store;
    this.onLayout = onLayout;
    this.root = byId("mesh");
    this.cards = new Map(); // worker id → parts of its card
    this.shape = "";
    this.tiers = ["prefill", "decode"].map((tier) => ({ tier, list: byId(tier), tally: byId(`${tier}-tally`) }));
    for (const each of this.tiers) each.settle = roving(each.list, "button.worker");
    this.gateway = gatewayCard(byId("gateway"));
    new ResizeObserver(() => this.relayout()).observe(this.root);
    onLook(() => this.redraw());
  }

  update(state) {
    this.gateway(state);
    for (const { tier, list, tally, settle } of this.tiers) {
      const workers = this.store.workers(tier);
      keyed(list, workers, (worker) => worker.id, (worker) => this.makeCard(worker), (item, worker) => this.fillCard(worker));
      list.dataset.density = workers.length > 16 ? "dense" : workers.length > 4 ? "compact" : "roomy";
      this.sayNone(list, tier, workers);
      setText(tally, summary(workers));
      settle();
    }
    const ids = this.tiers.flatMap(({ tier }) => this.store.workers(tier).map((worker) => worker.id)).join();
    for (const id of this.cards.keys()) if (!ids.includes(id)) this.cards.delete(id);
    if (ids !== this.shape) {
      this.shape = ids;
      requestAnimationFrame(() => this.relayout());
    }
  }

  setMaps(maps) {
    for (const [id, text] of Object.entries(maps)) {
      const card = this.cards.get(id);
      if (!card) continue;
      card.map.set(text);
      this.describePages(card);
    }
  }

  redraw() {
    for (const card of this.cards.values()) card.map.draw();
  }

  relayout() {
    this.redraw();
    this.onLayout();
  }

  makeCard(worker) {
    const parts = {
      name: h("span", { class: "worker-name" }),
      busy: h("span", { class: "busy" }),
      canvas: h("canvas", { class: "pages", role: "img" }),
      note: h("span", { class: "pool-note" }),
      rail: h("span", { class: "rail", "aria-hidden": "true" }),
      details: h("dl", { class: "details", hidden: true }),
    };
    parts.button = h("button", { type: "button", class: "worker", "aria-expanded": "false", tabindex: "-1" }, parts.name, parts.busy);
    parts.root = h("li", { class: "card", "data-tier": worker.tier, "data-id": worker.id }, parts.button, parts.canvas, h("div", { class: "foot" }, parts.rail, parts.note), parts.details);
    parts.map = new PageMap(parts.canvas, worker.tier);
    parts.button.addEventListener("click", () => {
      const open = parts.details.hidden;
      parts.details.hidden = !open;
      parts.button.setAttribute("aria-expanded", String(open));
      this.relayout();
    });
    this.cards.set(worker.id, parts);
    if (this.store.maps[worker.id]) {
      requestAnimationFrame(() => {
        parts.map.set(this.store.maps[worker.id]);
        this.describePages(parts);
      });
    }
    return parts.root;
  }

  fillCard(worker) {
    const card = this.cards.get(worker.id);
    card.worker = worker;
    card.root.dataset.state = worker.silent ? "silent" : worker.lost ? (worker.draining ? "left" : "lost") : worker.draining ? "draining" : worker.running ? "busy" : "idle";
    setText(card.name, worker.name);
    const queue = worker.waiting ? ` · ${count(worker.waiting)} queued` : "";
    const words = worker.silent ? `silent since ${clock(worker.silent)}` : worker.lost ? (worker.draining ? "left" : "lost") : worker.draining ? "draining" : worker.running ? `${count(worker.running)} running${queue}` : worker.waiting ? `${count(worker.waiting)} queued` : "idle";
    setText(card.busy, words);
    card.button.setAttribute("aria-label", `${worker.name}, ${words}. Details`);
    this.describePages(card);
    if (!card.details.hidden || !card.details.childElementCount) fillDetails(card);
  }

  describePages(card) {
    const { worker, map } = card;
    const used = worker.pages ? 1 - worker.available / worker.pages : 0;
    setText(card.note, worker.tier === "prefill" && worker.queued_tokens ? `${count(worker.queued_tokens)} tokens to read` : `${percent(used)} of ${count(worker.pages * worker.page_tokens)} tokens in use`);
    card.canvas.setAttribute("aria-label", `Pages of ${worker.name}: ${pageWords(map, worker)}`);
    if (!card.details.hidden) fillDetails(card);
  }

  sayNone(list, tier, workers) {
    let none = list.nextElementSibling;
    if (!none) list.after((none = h("p", { class: "none" })));
    none.hidden = workers.length > 0;
    if (none.hidden) return;
    none.replaceChildren(
      ...(tier === "decode"
        ? ["No decode worker is attached: requests wait. Start one: ", h("code", { text: "baton serve decode" })]
        : ["No prefill worker is attached: decode workers read prompts themselves. Start one: ", h("code", { text: "baton serve prefill" })]),
    );
  }
}

function summary(workers) {
  const up = workers.filter((worker) => !worker.lost);
  if (!up.length) return "none attached";
  const busy = up.filter((worker) => worker.running).length;
  const queued = up.reduce((sum, worker) => sum + worker.waiting, 0);
  return `${plural(up.length, "worker")} · ${busy ? `${busy} busy` : "idle"}${queued ? ` · ${count(queued)} queued` : ""}`;
}

function pageWords(map, worker) {
  if (!map.counts) return `${count(worker.available)} of ${count(worker.pages)} can be handed out`;
  // A cell of several pages shows one state for all: then the worker's own count is exact, though up to a second old.
  const counts = map.perCell > 1 && worker.states ? worker.states : map.counts;
  return STATES.map((state, i) => `${count(counts[i])} ${WORDS[state]}`).join(", ");
}

function fillDetails(card) {
  const { worker, map } = card;
  const rows = [
    ["pages", pageWords(map, worker)],
    ["speed", worker.tokens_per_second ? `${rate(worker.tokens_per_second)} prompt tokens per second` : "not measured yet"],
    ["page", `${worker.page_tokens} tokens${worker.page_dtype ? ` in ${worker.page_dtype}` : ""}${worker.page_dtype === "int4" ? ", an experiment" : ""}`],
    ["pool", `${count(worker.pages * worker.page_tokens)} tokens`],
    ["address", worker.address],
    ["class", worker.class],
    ["model", worker.model],
    ["fingerprint", worker.fingerprint],
    ["incarnation", worker.id],
  ];
  const text = rows.flat().join("\n");
  if (card.detailText === text) return;
  card.detailText = text;
  card.details.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", { text: name }), h("dd", { text: value })]));
}

/** The gateway's own card; returns the function that updates it. */
function gatewayCard(root) {
  const rows = {
    waiting: ["waiting for a worker", h("b")],
    flight: ["in flight", h("b")],
    ok: ["answered", h("b")],
    cancelled: ["cancelled", h("b")],
    error: ["failed", h("b")],
    tokens: ["tokens sent", h("b")],
  };
  const rail = h("span", { class: "rail", "aria-hidden": "true" });
  const key = [
    ["baton", "a request"],
    ["prompt", "prompts go out"],
    ["pages", "pages are handed over"],
    ["tokens", "tokens come back"],
  ].map(([tone, text]) => h("li", {}, h("i", { class: `key ${tone}` }), text));
  root.append(h("dl", { class: "numbers" }, Object.values(rows).flatMap(([name, value]) => [h("dt", { text: name }), h("dd", {}, value)])), h("ul", { class: "keys", "aria-label": "What moves" }, key), rail);
  return (state) => {
    const flight = Object.values(state.phases).reduce((sum, number) => sum + number, 0);
    const values = { waiting: state.phases.waiting, flight, ...state.totals.statuses, tokens: state.totals.tokens };
    values.error += state.totals.refused;
    for (const [key, [, element]] of Object.entries(rows)) setText(element, count(values[key]));
    root.dataset.state = state.healthy ? (flight ? "busy" : "idle") : "lost";
  };
}
