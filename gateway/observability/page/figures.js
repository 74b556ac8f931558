// The key figures above the mesh: in flight, tokens per second, first token, hand-off, paths.

import { byId, h, s, setText } from "./dom.js";
import { bytes, count, duration, median, percent, rate, spansOf } from "./format.js";

const SAMPLE_MS = 3000; // between two requests whose spans are read for the hand-off
const SAMPLES = 16;

const PHASES = [
  ["waiting", "waiting", "queue"],
  ["prefill", "prefill", "prefill"],
  ["local", "local prefill", "prefill"],
  ["handoff", "hand-off", "handoff"],
  ["decode", "decode", "decode"],
];
const PATHS = [
  ["remote", "remote", "handoff"],
  ["local", "local", "decode"],
  ["resumed", "resumed", "bad"],
];

export class Figures {
  constructor(store) {
    this.store = store;
    this.inFlight = tile("In flight", "Requests that the gateway has accepted and not ended");
    this.tokens = tile("Tokens per second", "Tokens that clients got in the last seconds; below, the last minute");
    this.first = tile("First token", "Median time to the first token of the last requests");
    this.handoff = tile("Hand-off exposed", "Median time between the first token and the moment at which decode went on: what of the hand-off was not hidden behind prefill. Below, the hidden share and the size of a hand-off");
    this.sends = []; // of the last requests: { hidden, bytes }
    this.sampled = 0;
    this.paths = tile("Paths", "How requests were served since the gateway started: prefill and decode apart (remote), by decode alone (local), or with a second attempt (resumed)");
    this.spark = s("polyline", { class: "spark-line", points: "" });
    this.tokens.extra.append(s("svg", { class: "spark", viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" }, this.spark));
    this.phaseBar = bar(this.inFlight.extra, PHASES);
    this.pathBar = bar(this.paths.extra, PATHS);
    byId("figures").append(...[this.inFlight, this.tokens, this.first, this.handoff, this.paths].map((one) => one.root));
  }

  update(state) {
    const { phases, totals, ended } = state;
    const inFlight = Object.values(phases).reduce((sum, number) => sum + number, 0);
    setText(this.inFlight.value, count(inFlight));
    this.phaseBar(phases, inFlight ? "" : "idle");
    this.tick();
    const served = ended.filter((request) => request.status === "ok");
    setText(this.first.value, duration(median(served.map((request) => request.first_token_seconds))));
    setText(this.first.note, served.length ? `median of the last ${served.length}` : "no request yet");
    const remote = served.filter((request) => request.path === "remote" && request.exposed_seconds !== null);
    setText(this.handoff.value, duration(median(remote.map((request) => request.exposed_seconds))));
    setText(this.handoff.note, remote.length ? this.handoffNote(remote) : "no hand-off yet");
    if (remote.length && performance.now() - this.sampled > SAMPLE_MS) this.sampleHandoff(remote.at(-1));
    const total = Object.values(totals.paths).reduce((sum, number) => sum + number, 0);
    setText(this.paths.value, count(total));
    this.pathBar(totals.paths, "no request yet");
  }

  handoffNote(remote) {
    const hidden = median(this.sends.map((send) => send.hidden));
    if (hidden !== null) return `${percent(hidden)} hidden · ${bytes(median(this.sends.map((send) => send.bytes)))}`;
    return `${percent(median(remote.map((request) => request.exposed_seconds / request.seconds)))} of a request's time`;
  }

  /** Reads what the hand-off of one request carried from its spans. */
  async sampleHandoff(request) {
    if (this.asked === request.number) return;
    this.asked = request.number;
    this.sampled = performance.now();
    const answer = await fetch(spansOf(request.request_id, request.trace_id), { cache: "no-store" }).catch(() => null);
    if (!answer?.ok) return;
    const sends = (await answer.json()).spans.filter((span) => span.name === "kv.send" && span.attributes["baton.kv.bytes"]);
    this.sends.push(...sends.map(({ attributes }) => ({ hidden: attributes["baton.kv.hidden_share"], bytes: attributes["baton.kv.bytes"] })));
    this.sends = this.sends.slice(-SAMPLES);
  }

  /** Once a second: the minute moves on even when nothing happens. */
  tick() {
    const rates = this.store.rates();
    const most = Math.max(10, ...rates);
    setText(this.tokens.value, rate(this.store.tokenRate()));
    const points = rates.map((value, i) => `${((i / (rates.length - 1)) * 120).toFixed(1)},${(23 - (value / most) * 22).toFixed(1)}`);
    this.spark.setAttribute("points", points.join(" "));
  }
}

function tile(name, why) {
  const value = h("span", { class: "value", text: "–" });
  const note = h("span", { class: "note" });
  const extra = h("div", { class: "extra" });
  const root = h("div", { class: "tile", title: why }, h("span", { class: "name", text: name }), value, extra, note);
  return { root, value, note, extra };
}

/** A bar of shares with its words below; returns the function that updates it. */
function bar(parent, parts) {
  const segments = parts.map(([, , tone]) => h("i", { class: tone }));
  const words = h("span", { class: "note" });
  parent.append(h("div", { class: "bar", "aria-hidden": "true" }, segments), words);
  return (numbers, none) => {
    const total = parts.reduce((sum, [key]) => sum + numbers[key], 0);
    parts.forEach(([key], i) => {
      segments[i].style.flexGrow = numbers[key];
      segments[i].hidden = !numbers[key];
    });
    const present = parts.filter(([key]) => numbers[key]);
    setText(words, total ? present.map(([key, word]) => `${count(numbers[key])} ${word}`).join(" · ") : none);
  };
}
