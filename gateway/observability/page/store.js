// What the page knows: the last snapshot, what became of the ones before, and what happened in between as events.

const HISTORY_SECONDS = 60;
const GHOST_MS = 12000; // a worker that has left stays visible so long
const RATE_SECONDS = 2; // tokens per second are a mean over this time
// What the page knows of a silent worker that it has never seen attached.
const NOTHING = {
  class: "", fingerprint: "", model: "", page_tokens: 0, draining: false, waiting: 0, running: 0, queued_tokens: 0,
  tokens_per_second: 0, pages: 0, page_dtype: "", available: 0, states: null,
};

export class Store {
  constructor() {
    this.state = null;
    this.maps = {};
    this.clockOffset = 0; // this browser's clock minus the gateway's, in seconds
    this.samples = []; // [{ at, tokens }]
    this.ghosts = new Map(); // id → { worker, at }
    this.listeners = [];
    this.seenEnded = 0;
  }

  /** Calls back with (state, news): news are { text, kind } of what happened since the last snapshot. */
  onChange(callback) {
    this.listeners.push(callback);
  }

  /** A new connection: nothing is compared with what was before, since the gateway may be another process. */
  open(state) {
    this.clockOffset = now() - state.now;
    this.maps = state.maps;
    const again = this.state !== null;
    this.samples = [];
    this.ghosts.clear();
    this.state = null;
    this.seenEnded = newest(state);
    this.next(state, again ? [{ kind: "ok", text: "Connected to the gateway again" }] : []);
  }

  next(state, news = []) {
    const before = this.state;
    this.state = state;
    if (before) news.push(...this.compare(before, state));
    this.samples.push({ at: now(), tokens: state.totals.tokens });
    while (this.samples.length > 2 && this.samples[0].at < now() - HISTORY_SECONDS) this.samples.shift();
    const ended = state.ended.filter((request) => request.number > this.seenEnded);
    this.seenEnded = newest(state);
    for (const callback of this.listeners) callback(state, news, ended);
  }

  setMaps(maps) {
    this.maps = maps;
  }

  /** Seconds since the gateway accepted a request. */
  age(request) {
    return Math.max(0, now() - this.clockOffset - request.accepted_seconds);
  }

  /** When the last message of a silent worker came. */
  since(silent) {
    return new Date(Date.now() - 1000 * (now() - this.clockOffset - silent.since_seconds));
  }

  /** Tokens per second over the last moments. */
  tokenRate() {
    const last = this.samples.at(-1);
    const first = this.samples.find((sample) => sample.at >= now() - RATE_SECONDS);
    const before = this.samples[this.samples.indexOf(first) - 1] ?? first;
    if (!last || !before || last === before) return 0;
    return (last.tokens - before.tokens) / Math.max(0.25, now() - Math.max(before.at, now() - 2 * RATE_SECONDS));
  }

  /** Tokens per second in each second of the last minute, the newest last. */
  rates() {
    const end = now();
    const buckets = new Array(HISTORY_SECONDS).fill(0);
    for (let i = 1; i < this.samples.length; i++) {
      const bucket = HISTORY_SECONDS - 1 - Math.floor(end - this.samples[i].at);
      if (bucket >= 0) buckets[bucket] += Math.max(0, this.samples[i].tokens - this.samples[i - 1].tokens);
    }
    return buckets;
  }

  /** Workers of a tier in a steady order, those included that just left, or that fell silent and are not back. */
  workers(tier) {
    const silent = new Map(this.state.silent.map((each) => [each.id, each]));
    for (const [id, ghost] of this.ghosts) if (Date.now() - ghost.at > GHOST_MS && !silent.has(id)) this.ghosts.delete(id);
    const known = new Set([...this.state.workers.map((worker) => worker.id), ...this.ghosts.keys()]);
    const strange = this.state.silent.filter((each) => !known.has(each.id)).map((each) => ({ ...NOTHING, ...each }));
    const gone = [...[...this.ghosts.values()].map((ghost) => ghost.worker), ...strange].map((worker) => ({ ...worker, lost: true }));
    return [...this.state.workers, ...gone]
      .map((worker) => ({ ...worker, silent: silent.has(worker.id) ? this.since(silent.get(worker.id)) : null }))
      .filter((worker) => worker.tier === tier)
      .sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }) || a.id.localeCompare(b.id));
  }

  nameOf(id) {
    const worker = this.state.workers.find((one) => one.id === id) ?? this.ghosts.get(id)?.worker;
    return worker ? worker.name : null;
  }

  compare(before, state) {
    const news = [];
    const has = new Set(state.workers.map((worker) => worker.id));
    const had = new Map(before.workers.map((worker) => [worker.id, worker]));
    for (const worker of before.workers) {
      if (has.has(worker.id)) continue;
      this.ghosts.set(worker.id, { worker, at: Date.now() });
      const held = before.requests.filter((r) => r.decode === worker.id || r.prefill === worker.id).length;
      const what = worker.draining ? "has drained and left" : "is lost";
      news.push({ kind: worker.draining ? "info" : "bad", text: `${worker.name} ${what}${held ? ` with ${held} in flight` : ""}` });
    }
    for (const worker of state.workers) {
      if (!had.has(worker.id)) {
        for (const [id, ghost] of this.ghosts) if (ghost.worker.name === worker.name) this.ghosts.delete(id);
        news.push({ kind: "ok", text: `${worker.name} is up` });
      } else if (worker.draining && !had.get(worker.id).draining) {
        news.push({ kind: "info", text: `${worker.name} drains: it takes no new requests` });
      }
    }
    const still = new Set(before.silent.map((each) => each.id));
    for (const each of state.silent) {
      if (each.attached && !still.has(each.id)) news.push({ kind: "bad", text: `${each.name} stands still: nothing comes from it` });
    }
    const attempts = new Map(before.requests.map((request) => [request.id, request.attempt]));
    const resumed = state.requests.filter((r) => attempts.has(r.id) && r.attempt > attempts.get(r.id));
    if (resumed.length) {
      const where = [...new Set(resumed.map((r) => this.nameOf(r.decode)).filter(Boolean))].join(", ");
      news.push({ kind: "warn", text: `${resumed.length} resumed${where ? ` on ${where}` : ""}: no token lost, none twice` });
    }
    for (const request of state.ended) {
      if (request.number > this.seenEnded && request.status === "error") {
        news.push({ kind: "bad", text: `${request.request_id.slice(0, 12)} failed: ${request.error}` });
      }
    }
    return news;
  }
}

const now = () => performance.now() / 1000;
const newest = (state) => state.ended.reduce((most, request) => Math.max(most, request.number), 0);
