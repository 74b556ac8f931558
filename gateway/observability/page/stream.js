// The connection to the gateway: one stream of snapshots that opens itself again after any end, later each time.

const RETRY_MS = 1500;
const MOST_RETRY_MS = 60000;
const DROPPED_MS = 30000; // the gateway ended the stream on purpose: to ask again at once would drop another page
const STEADY_MS = 10000; // a stream that lived so long was a good one

/** Calls `onStatus` with live | lost, `onState` and `onMaps` with each snapshot, `onOpen` with the first of each connection. */
export function connect({ onOpen, onState, onMaps, onStatus }) {
  let source = null;
  let failures = 0; // since the last good stream

  async function open() {
    try {
      const answer = await fetch("/ui/state", { cache: "no-store" });
      const body = await answer.json().catch(() => null);
      if (!answer.ok || !body) {
        retry(`The gateway refuses this page: ${body?.error?.message ?? `it answered ${answer.status}`}.`);
        return;
      }
      onOpen(body);
    } catch {
      retry("The gateway does not answer.");
      return;
    }
    let opened = null;
    let dropped = null; // why the gateway ends the stream
    source = new EventSource("/ui/events");
    source.addEventListener("open", () => {
      opened = performance.now();
      onStatus("live");
    });
    source.addEventListener("state", (event) => onState(JSON.parse(event.data)));
    source.addEventListener("maps", (event) => onMaps(JSON.parse(event.data)));
    source.addEventListener("end", (event) => (dropped = event.data));
    source.addEventListener("error", () => {
      source.close();
      if (opened !== null && performance.now() - opened > STEADY_MS) failures = 0;
      if (dropped) retry(`The gateway ended this page's stream: ${dropped}.`, DROPPED_MS);
      else retry(opened === null ? "The gateway refused the stream." : "The connection to the gateway broke.");
    });
  }

  function retry(why, least = RETRY_MS) {
    const wait = Math.min(MOST_RETRY_MS, Math.max(least, RETRY_MS * 2 ** failures++));
    onStatus("lost", `${why} This page connects again in ${Math.round(wait / 1000)} s.`);
    setTimeout(open, wait);
  }

  open();
}
