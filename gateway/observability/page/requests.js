// The list of requests: those in flight first, then those that ended last. Enter or a click opens one's waterfall.

import { byId, h, keyed, roving, setText } from "./dom.js";
import { count, duration, shortId } from "./format.js";

const MOST = 60;
const DRAW_MS = 400; // between two drawings of the list
const WHERE = { waiting: "waits for a worker", prefill: "prefill", local: "prefill at decode", handoff: "hand-off", decode: "decode" };

export class Requests {
  constructor(store, onOpen) {
    this.store = store;
    this.onOpen = onOpen;
    this.ended = new Map(); // number or id → row
    this.chosen = null;
    this.trace = null; // of the chosen one: several requests may share an id
    this.drawn = 0;
    this.later = null;
    this.rows = h("ol", { class: "rows", "aria-label": "Requests, the newest first" });
    this.none = h("p", { class: "hint", text: "No request yet. Ask something in the chat and watch it travel." });
    const head = ["", "request", "path", "time", "tokens", "first", "total"].map((text) => h("span", { text }));
    byId("requests").append(h("div", { class: "row head", "aria-hidden": "true" }, head), this.rows, this.none);
    this.settle = roving(this.rows, "button.row");
  }

  /** Requests that ended before this page was opened. */
  async loadEarlier() {
    try {
      const answer = await fetch("/debug/requests?limit=40", { cache: "no-store" });
      if (!answer.ok) return;
      for (const request of (await answer.json()).requests.reverse()) {
        if (request.status === "running" || this.has(request)) continue;
        this.keep({
          key: `earlier ${request.trace_id} ${request.request_id}`,
          request_id: request.request_id,
          trace_id: request.trace_id,
          path: request.path,
          status: request.status,
          prompt_tokens: request.prompt_tokens,
          tokens: request.completion_tokens,
          seconds: request.seconds,
          first_token_seconds: request.ttft_seconds,
        });
      }
      if (this.store.state) this.draw(this.store.state);
    } catch {
      // Without earlier requests the list begins now.
    }
  }

  has(request) {
    return [...this.ended.values()].some((row) => isSame(row, request));
  }

  keep(row) {
    this.ended.set(row.key, row);
    while (this.ended.size > MOST) this.ended.delete(this.ended.keys().next().value);
  }

  update(state) {
    for (const request of state.ended) {
      for (const [key, row] of this.ended) if (isSame(row, request) && key.startsWith("earlier")) this.ended.delete(key);
      const key = `ended ${request.number}`;
      if (!this.ended.has(key)) this.keep({ ...request, key });
    }
    if (performance.now() - this.drawn > DRAW_MS) this.draw(state);
    else this.later ??= setTimeout(() => this.draw(this.store.state), DRAW_MS);
  }

  draw(state) {
    clearTimeout(this.later);
    this.later = null;
    this.drawn = performance.now();
    const running = state.requests.slice(-20).reverse().map((request) => ({ ...request, key: `running ${request.id}`, running: true }));
    const rows = [...running, ...[...this.ended.values()].reverse()];
    this.none.hidden = rows.length > 0;
    keyed(this.rows, rows, (row) => row.key, (row) => this.make(row), (item, row) => this.fill(item, row));
    this.settle();
  }

  choose(requestId, traceId) {
    this.chosen = requestId;
    this.trace = traceId;
    if (this.store.state) this.draw(this.store.state);
  }

  make(row) {
    const cells = Array.from({ length: 7 }, () => h("span"));
    const button = h("button", { type: "button", class: "row", tabindex: "-1" }, cells);
    button.addEventListener("click", () => this.onOpen(button.dataset.request, button.dataset.trace));
    cells[0].className = "dot";
    cells[3].className = "mini";
    cells[3].append(h("i", { class: "prefill" }), h("i", { class: "handoff" }), h("i", { class: "decode" }));
    return h("li", {}, button);
  }

  fill(item, row) {
    const button = item.firstElementChild;
    const [dot, name, path, mini, tokens, first, total] = button.children;
    button.dataset.request = row.request_id;
    button.dataset.trace = row.trace_id;
    button.setAttribute("aria-current", String(row.request_id === this.chosen && (!this.trace || row.trace_id === this.trace)));
    dot.dataset.status = row.running ? "running" : row.status;
    setText(name, shortId(row.request_id));
    setText(path, row.running ? (WHERE[row.phase] ?? row.phase) : row.path);
    path.className = `chip ${row.running ? row.phase : row.path}`;
    const age = row.running ? this.store.age(row) : row.seconds;
    setText(tokens, count(row.tokens ?? 0));
    setText(first, row.running ? "" : duration(row.first_token_seconds));
    setText(total, duration(age));
    if (!row.running) {
      const lead = row.first_token_seconds ?? row.seconds ?? 0;
      const exposed = Math.max(0, row.exposed_seconds ?? 0);
      const shares = [lead, exposed, Math.max(0, (row.seconds ?? 0) - lead - exposed)];
      [...mini.children].forEach((part, i) => (part.style.flexGrow = 1000 * shares[i]));
    }
    const place = WHERE[row.phase] ?? row.phase;
    const state = row.running ? (row.phase === "waiting" ? place : `in ${place}`) : `${row.status}, ${row.path}`;
    button.setAttribute("aria-label", `Request ${row.request_id}: ${state}, ${count(row.tokens ?? 0)} tokens, ${duration(age)}. Open its waterfall`);
  }
}

/** Whether both are one request: an id may come again, and one trace may have several requests. */
function isSame(a, b) {
  return a.request_id === b.request_id && a.trace_id === b.trace_id;
}
