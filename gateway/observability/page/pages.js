// Page maps: every page of a pool as a cell in the colour of its state. Large pools share cells among pages.

import { colour, isStill } from "./theme.js";

const LETTERS = "fculq";
export const STATES = ["free", "cached", "in_use", "landing", "quarantined"];
const FLASH_MS = 350;
const UNKNOWN = 5;

/** "1:f120c3" → { perCell, cells }: one state number for each cell. */
export function decodeMap(text) {
  const [perCell, body] = text.split(":");
  const runs = [...body.matchAll(/([^\d])(\d+)/g)].map(([, letter, length]) => [LETTERS.indexOf(letter), Number(length)]);
  const cells = new Uint8Array(runs.reduce((sum, [, length]) => sum + length, 0));
  let at = 0;
  for (const [state, length] of runs) {
    cells.fill(state < 0 ? UNKNOWN : state, at, at + length);
    at += length;
  }
  return { perCell: Number(perCell), cells };
}

/** How many cells are in each state. */
export function countStates(cells) {
  const counts = [0, 0, 0, 0, 0, 0];
  for (const state of cells) counts[state] += 1;
  return counts;
}

/** The largest square that lets all cells stand in the box; below 3 pixels several cells share one. */
export function layout(cells, width, height) {
  for (let pitch = 13; pitch >= 3; pitch--) {
    const columns = Math.floor((width + 1) / pitch);
    if (columns > 0 && Math.ceil(cells / columns) * pitch <= height) return { pitch, columns, group: 1 };
  }
  const columns = Math.floor(width / 3);
  const rows = Math.max(1, Math.floor(height / 3));
  return { pitch: 3, columns, group: Math.max(1, Math.ceil(cells / (columns * rows))) };
}

export class PageMap {
  constructor(canvas, tier) {
    this.canvas = canvas;
    this.tier = tier;
    this.cells = null;
    this.flashing = null;
  }

  set(text) {
    if (text === this.text) return;
    const before = this.cells;
    this.text = text;
    const { cells, perCell } = decodeMap(text);
    this.cells = cells;
    this.perCell = perCell;
    this.counts = countStates(cells);
    this.fresh = before && before.length === cells.length && !isStill() ? before : null;
    this.draw();
    clearTimeout(this.flashing);
    if (this.fresh) {
      this.flashing = setTimeout(() => {
        this.fresh = null;
        this.draw();
      }, FLASH_MS);
    }
  }

  draw() {
    const { canvas, cells } = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (!cells || !width) return;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const colours = [colour("page-free"), colour("page-cached"), colour(this.tier), colour("handoff"), colour("bad"), colour("queue")];
    const glow = colour("glow");
    const { pitch, columns, group } = layout(cells.length, width, height);
    const side = pitch > 4 ? pitch - (pitch > 8 ? 2 : 1) : pitch - 1;
    for (let first = 0, at = 0; first < cells.length; first += group, at++) {
      const x = (at % columns) * pitch;
      const y = Math.floor(at / columns) * pitch;
      const state = group === 1 ? cells[first] : strongest(cells, first, group);
      pen.fillStyle = colours[state];
      if (side > 6) {
        pen.beginPath();
        pen.roundRect(x, y, side, side, 2);
        pen.fill();
      } else pen.fillRect(x, y, side, side);
      if (this.fresh && group === 1 && this.fresh[first] !== state && state > 0) {
        pen.strokeStyle = glow;
        pen.globalAlpha = 0.5;
        pen.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
        pen.globalAlpha = 1;
      }
      if (state === 4 && side > 5) cross(pen, x, y, side);
    }
  }
}

/** Several cells in one: a quarantined page is always seen, then landing ones; else what most of them are. */
function strongest(cells, first, group) {
  const counts = countStates(cells.subarray(first, first + group));
  if (counts[4]) return 4;
  if (counts[3]) return 3;
  return counts.indexOf(Math.max(...counts));
}

/** Quarantine is marked by a shape, too: colours alone do not reach everyone. */
function cross(pen, x, y, side) {
  pen.strokeStyle = colour("panel");
  pen.beginPath();
  pen.moveTo(x + 2, y + 2);
  pen.lineTo(x + side - 2, y + side - 2);
  pen.moveTo(x + side - 2, y + 2);
  pen.lineTo(x + 2, y + side - 2);
  pen.stroke();
}
