// What moves: each request is a baton on its way through the mesh; pages follow it as squares, tokens come back as dots.
//
// A snapshot says where requests are; this file lets them travel there. Nothing is drawn while nothing moves.

import { byId } from "./dom.js";
import { colour, isStill, onLook } from "./theme.js";

const SPEED = 0.75; // pixels per millisecond
const MOST_BATONS = 60; // a busier mesh shows a sample
const MOST_SPARKS = 240;
const MOST_NEW = 6; // batons of requests that began and ended between two snapshots
const SLOT = 20; // pixels between resting batons
const LIT_MS = 900;

export class Flows {
  constructor(lanes) {
    this.lanes = lanes;
    this.canvas = byId("flows");
    this.batons = new Map(); // request id → baton
    this.sparks = [];
    this.lit = new Map(); // lane → when it was used last
    this.running = false;
    onLook(() => this.wake());
    document.addEventListener("visibilitychange", () => this.wake());
  }

  /** The stations have moved. */
  layout() {
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.lanes.width * scale);
    this.canvas.height = Math.round(this.lanes.height * scale);
    this.scale = scale;
    this.wake();
  }

  /** A new snapshot: every request travels to where it is now, and those that ended leave. */
  update(state, ended) {
    const alive = new Set();
    for (const request of state.requests) {
      alive.add(request.id);
      this.follow(request);
    }
    let fresh = 0;
    for (const request of ended) {
      if (!this.batons.has(request.id) && !document.hidden && fresh++ < MOST_NEW) this.add(request.id);
      const baton = this.batons.get(request.id);
      if (!baton || baton.leaving) continue;
      alive.add(request.id);
      this.follow({ ...request, phase: request.decode ? "decode" : "waiting", attempt: request.attempts });
      baton.leaving = true;
      baton.bad = request.status === "error";
    }
    for (const [id, baton] of this.batons) if (!alive.has(id)) baton.leaving = true;
    this.wake();
  }

  add(id) {
    if (this.batons.size >= MOST_BATONS) return null;
    const baton = { id, at: "gateway", trip: null, next: [], tokens: 0, attempt: 1, alpha: 0, x: null, y: null, tone: "gateway" };
    this.batons.set(id, baton);
    return baton;
  }

  follow(request) {
    const baton = this.batons.get(request.id) ?? this.add(request.id);
    if (!baton) return;
    if (request.attempt > baton.attempt) {
      baton.attempt = request.attempt;
      baton.resumed = true;
      baton.next = [];
      this.go(baton, "gateway");
    }
    const { prefill, decode, phase } = request;
    const goal = { waiting: "gateway", prefill, handoff: prefill, local: decode, decode }[phase] ?? "gateway";
    if (goal === decode && prefill && this.goalOf(baton) === "gateway" && !baton.resumed) this.go(baton, prefill);
    this.go(baton, goal);
    if (prefill && (phase === "prefill" || phase === "handoff")) this.emit(prefill, decode, "handoff", 3, true);
    const fresh = Math.min(10, request.tokens - baton.tokens);
    if (fresh > 0) this.emit(phase === "handoff" ? prefill : decode, "gateway", "decode", fresh, false);
    baton.tokens = Math.max(baton.tokens, request.tokens);
  }

  goalOf(baton) {
    return baton.next.at(-1) ?? baton.trip?.to ?? baton.at;
  }

  go(baton, station) {
    if (station && this.goalOf(baton) !== station) baton.next.push(station);
  }

  /** Small things that travel from one station to another during the next quarter of a second. */
  emit(from, to, tone, number, square) {
    this.lit.set(`${from}>${to}`, performance.now());
    if (isStill() || document.hidden || this.sparks.length > MOST_SPARKS) return;
    for (let i = 0; i < number; i++) {
      this.sparks.push({ from, to, tone, square, begin: performance.now() + (i * 250) / number });
    }
  }

  wake() {
    if (this.running || document.hidden) return;
    this.running = true;
    requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.running = false;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.clearRect(0, 0, this.lanes.width, this.lanes.height);
    this.step = Math.min(200, now - (this.drawn ?? now)); // milliseconds since the last frame
    this.drawn = now;
    let moving = this.drawSparks(pen, now);
    const slots = new Map();
    for (const baton of this.batons.values()) moving = this.drawBaton(pen, baton, now, slots) || moving;
    for (const [lane, at] of this.lit) if (now - at > LIT_MS) this.lit.delete(lane);
    this.lanes.light(new Set(this.lit.keys()));
    if (moving || this.lit.size) this.wake();
    else this.drawn = null;
  }

  drawSparks(pen, now) {
    this.sparks = this.sparks.filter((spark) => {
      const way = this.lanes.way(spark.from, spark.to);
      if (!way) return false;
      const share = ((now - spark.begin) * SPEED) / way.length;
      if (share < 0) return true;
      if (share >= 1) return false;
      const [x, y] = pointAt(way.points, share);
      pen.globalAlpha = Math.min(1, 6 * share, 6 * (1 - share));
      pen.fillStyle = colour(spark.tone);
      if (spark.square) pen.fillRect(x - 2.5, y - 2.5, 5, 5);
      else {
        pen.beginPath();
        pen.arc(x, y, 2.6, 0, 7);
        pen.fill();
      }
      return true;
    });
    pen.globalAlpha = 1;
    return this.sparks.length > 0;
  }

  /** Draws one baton where it is; true if it still moves. */
  drawBaton(pen, baton, now, slots) {
    let moving = false;
    if (!baton.trip && baton.next.length) baton.trip = this.depart(baton, baton.next.shift(), now);
    let angle = 0;
    let target;
    if (baton.trip) {
      const { way, begin, to } = baton.trip;
      const share = isStill() ? 1 : ((now - begin) * SPEED * (1 + baton.next.length)) / Math.max(60, way.length);
      this.lit.set(baton.trip.key, now);
      if (share >= 1) {
        baton.at = to;
        baton.trip = null;
        moving = true;
      } else {
        target = pointAt(way.points, ease(share));
        const ahead = pointAt(way.points, ease(Math.min(1, share + 0.02)));
        angle = Math.atan2(ahead[1] - target[1], ahead[0] - target[0]);
        [baton.x, baton.y] = target;
        moving = true;
      }
    }
    if (!target) {
      target = this.rest(baton, slots);
      if (!target) return this.forget(baton);
      const near = isStill() ? 1 : soft(this.step, 60);
      baton.x = baton.x === null ? target[0] : baton.x + (target[0] - baton.x) * near;
      baton.y = baton.y === null ? target[1] : baton.y + (target[1] - baton.y) * near;
      moving = Math.hypot(target[0] - baton.x, target[1] - baton.y) > 0.5;
    }
    const gone = baton.leaving && !baton.trip && !baton.next.length;
    const alpha = gone ? 0 : 1;
    baton.alpha = isStill() ? alpha : baton.alpha + (alpha - baton.alpha) * soft(this.step, 130);
    if (gone && baton.alpha < 0.03) return this.forget(baton);
    moving ||= Math.abs(alpha - baton.alpha) > 0.02;
    this.capsule(pen, baton, angle);
    return moving;
  }

  depart(baton, to, now) {
    let way = this.lanes.way(baton.at, to);
    if (!way && this.lanes.rails.has(baton.at) && baton.at !== "gateway" && to !== "gateway") {
      baton.next.unshift(to);
      to = "gateway";
      way = this.lanes.way(baton.at, to);
    }
    const key = `${baton.at}>${to}`;
    if (!way) {
      // Its worker is lost: the baton flies straight to where it goes on.
      const rail = this.lanes.rails.get(to) ?? this.lanes.rails.get("gateway");
      const from = [baton.x ?? rail.left, baton.y ?? rail.cy];
      const goal = [rail.left + 8, rail.cy];
      way = { points: [from, goal], length: Math.hypot(goal[0] - from[0], goal[1] - from[1]) };
    }
    const tier = to === "gateway" ? "gateway" : document.querySelector(`[data-id="${to}"]`)?.dataset.tier ?? "gateway";
    baton.tone = tier;
    return { way, to, begin: now, key };
  }

  /** Where a baton rests at its station; several stand side by side. */
  rest(baton, slots) {
    const rail = this.lanes.rails.get(baton.at);
    if (!rail) return baton.leaving ? null : [baton.x ?? 0, baton.y ?? 0];
    const slot = slots.get(baton.at) ?? 0;
    slots.set(baton.at, slot + 1);
    const room = Math.max(1, Math.floor((rail.right - rail.left) / SLOT));
    const shift = slot < room ? slot * SLOT : (room - 1) * SLOT + ((slot - room + 1) % 4) * 2;
    return [rail.left + 8 + shift, rail.cy];
  }

  forget(baton) {
    this.batons.delete(baton.id);
    return true;
  }

  capsule(pen, baton, angle) {
    pen.save();
    pen.globalAlpha = baton.alpha;
    pen.translate(baton.x, baton.y);
    pen.rotate(angle);
    pen.fillStyle = colour(baton.bad ? "bad" : baton.tone);
    if (baton.trip) this.halo(pen);
    pen.beginPath();
    pen.roundRect(-8, -3.5, 16, 7, 3.5);
    pen.fill();
    if (baton.resumed) {
      pen.strokeStyle = colour("bad");
      pen.lineWidth = 1.5;
      pen.stroke();
    }
    pen.restore();
  }

  /** A soft glow around a baton on its way; cheaper than a shadow. */
  halo(pen) {
    const alpha = pen.globalAlpha;
    for (const [grow, share] of [[5, 0.12], [2.5, 0.2]]) {
      pen.globalAlpha = alpha * share;
      pen.beginPath();
      pen.roundRect(-8 - grow, -3.5 - grow, 16 + 2 * grow, 7 + 2 * grow, 3.5 + grow);
      pen.fill();
    }
    pen.globalAlpha = alpha;
  }
}

/** The part of the way that something covers in a step, when it nears its goal with this time constant. */
const soft = (step, constant) => 1 - Math.exp(-step / constant);

const ease = (share) => (share < 0.5 ? 2 * share * share : 1 - (2 - 2 * share) ** 2 / 2);

function pointAt(points, share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (points.length - 1);
  const i = Math.floor(place);
  const [a, b] = [points[i], points[i + 1] ?? points[i]];
  return [a[0] + (b[0] - a[0]) * (place - i), a[1] + (b[1] - a[1]) * (place - i)];
}
