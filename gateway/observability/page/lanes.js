// The lanes between the stations: prompts go out, pages are handed over, tokens come back. A circuit, clockwise.

import { byId, s } from "./dom.js";

const CORNER = 16;
const SAMPLES = 64;
const NARROW = 760; // below this width the stations stand below each other
const MOST_DRAWN = 36; // of the lanes between the tiers; with more, only lanes in use are seen

export class Lanes {
  constructor() {
    this.root = byId("mesh");
    this.svg = byId("lanes");
    this.lanes = new Map(); // "from>to" → { element, points, length }
    this.rails = new Map(); // station → box where batons rest
  }

  /** Measures all stations and lays the lanes anew. */
  layout() {
    const frame = this.root.getBoundingClientRect();
    const box = (element) => {
      const r = element.getBoundingClientRect();
      return { left: r.left - frame.left, right: r.right - frame.left, top: r.top - frame.top, bottom: r.bottom - frame.top, cx: (r.left + r.right) / 2 - frame.left, cy: (r.top + r.bottom) / 2 - frame.top };
    };
    this.width = frame.width;
    this.height = frame.height;
    this.svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    const gateway = box(byId("gateway"));
    const cards = (tier) => [...byId(tier).children].map((card) => ({ id: card.dataset.id, card, ...box(card) }));
    const prefills = cards("prefill");
    const decodes = cards("decode");
    this.rails = new Map([["gateway", box(byId("gateway").querySelector(".rail"))]]);
    for (const one of [...prefills, ...decodes]) this.rails.set(one.id, box(one.card.querySelector(".rail")));
    const old = this.lanes;
    this.lanes = new Map();
    this.litNames = null;
    const place = frame.width < NARROW ? narrow(gateway, decodes, frame.width) : wide(gateway, prefills, decodes);
    for (const one of prefills) this.lay(old, `gateway>${one.id}`, "prompt", place.out(one));
    for (const one of decodes) this.lay(old, `${one.id}>gateway`, "tokens", place.back(one));
    const many = prefills.length * decodes.length > MOST_DRAWN;
    for (const from of prefills) {
      for (const to of decodes) this.lay(old, `${from.id}>${to.id}`, many ? "pages rare" : "pages", over(from, to));
    }
    for (const lane of old.values()) lane.element.remove();
  }

  lay(old, key, kind, path) {
    const lane = old.get(key) ?? { element: s("path") };
    old.delete(key);
    lane.element.setAttribute("class", `lane ${kind}`);
    if (lane.path !== path) {
      lane.element.setAttribute("d", path);
      lane.path = path;
      lane.points = lane.reversed = null;
    }
    if (!lane.element.isConnected) this.svg.append(lane.element);
    this.lanes.set(key, lane);
  }

  /** A way from one station to another: { points, length }, or null if there is none. */
  way(from, to) {
    const lane = this.lanes.get(`${from}>${to}`);
    if (lane) return sampled(lane);
    const back = this.lanes.get(`${to}>${from}`);
    if (!back) return null;
    const { points, length } = sampled(back);
    back.reversed ??= { points: [...points].reverse(), length };
    return back.reversed;
  }

  /** Marks the lanes that carry something now. */
  light(keys) {
    const names = [...keys].sort().join();
    if (names === this.litNames) return;
    this.litNames = names;
    for (const [key, lane] of this.lanes) lane.element.classList.toggle("lit", keys.has(key));
  }
}

/** The lane's way as it is now: who travels on it keeps it when the lane is laid anew. */
function sampled(lane) {
  if (!lane.points) {
    lane.length = lane.element.getTotalLength();
    lane.reversed = null;
    lane.points = Array.from({ length: SAMPLES + 1 }, (_, i) => {
      const point = lane.element.getPointAtLength((lane.length * i) / SAMPLES);
      return [point.x, point.y];
    });
  }
  return { points: lane.points, length: lane.length };
}

/** The gateway on the left, prefill above, decode below. */
function wide(gateway, prefills, decodes) {
  const edge = Math.min(...[...prefills, ...decodes].map((one) => one.left), gateway.right + 60);
  const turn = (gateway.right + edge) / 2;
  const above = Math.min(...prefills.map((one) => one.top)) - 14;
  const below = Math.max(...decodes.map((one) => one.bottom)) + 16;
  const leave = gateway.top + (gateway.bottom - gateway.top) * 0.3;
  const enter = gateway.top + (gateway.bottom - gateway.top) * 0.7;
  return {
    out: (to) => rounded([[gateway.right - 2, leave], [turn, leave], [turn, above], [to.cx, above], [to.cx, to.top]]),
    back: (from) => rounded([[from.cx, from.bottom], [from.cx, below], [turn, below], [turn, enter], [gateway.right - 2, enter]]),
  };
}

/** All stations below each other, tokens come back along the right edge. */
function narrow(gateway, decodes, width) {
  const below = Math.max(...decodes.map((one) => one.bottom)) + 12;
  return {
    out: (to) => over(gateway, to),
    back: (from) => rounded([[from.cx, from.bottom], [from.cx, below], [width - 6, below], [width - 6, gateway.cy], [gateway.right, gateway.cy]]),
  };
}

function over(from, to) {
  const bend = Math.max(18, (to.top - from.bottom) / 2);
  return `M${from.cx} ${from.bottom}C${from.cx} ${from.bottom + bend} ${to.cx} ${to.top - bend} ${to.cx} ${to.top}`;
}

/** Straight pieces with round corners. */
function rounded(points) {
  let path = `M${points[0].join(" ")}`;
  for (let i = 1; i < points.length - 1; i++) {
    const [before, here, after] = [points[i - 1], points[i], points[i + 1]];
    const reach = (one) => Math.hypot(one[0] - here[0], one[1] - here[1]);
    const radius = Math.min(CORNER, reach(before) / 2, reach(after) / 2);
    const toward = (one) => {
      const far = reach(one) || 1;
      return [here[0] + ((one[0] - here[0]) * radius) / far, here[1] + ((one[1] - here[1]) * radius) / far];
    };
    path += `L${toward(before).join(" ")}Q${here.join(" ")} ${toward(after).join(" ")}`;
  }
  return `${path}L${points.at(-1).join(" ")}`;
}
