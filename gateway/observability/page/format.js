// Numbers as people read them, and the address of a request's spans.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => plain.format(value);

/** Two or three digits and a unit that fits. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const ms = seconds * 1000;
  if (ms < 0.95) return `${Math.round(ms * 1000)} µs`;
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

export const rate = (value) => (value < 100 ? fine : plain).format(value);

export const percent = (share) => (share > 0 && share < 0.01 ? "<1%" : `${Math.round(share * 100)}%`);

export function bytes(value) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${fine.format(value / size)} ${unit}`;
  }
  return `${value} B`;
}

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export const shortId = (id) => (id.length > 18 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id);

export function median(values) {
  const sorted = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

export function clock(date = new Date()) {
  return date.toLocaleTimeString("en-GB");
}

/** The address of a request's spans; the trace picks one of several with this id. */
export function spansOf(requestId, traceId) {
  return `/debug/requests/${encodeURIComponent(requestId)}${traceId ? `?trace_id=${encodeURIComponent(traceId)}` : ""}`;
}
