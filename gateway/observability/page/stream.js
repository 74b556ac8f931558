// The connection to the gateway: one stream of snapshots that opens itself again after any end.

const RETRY_MS = 1500;

/** Calls `onStatus` with live | lost, `onState` and `onMaps` with each snapshot, `onOpen` with the first of each connection. */
export function connect({ onOpen, onState, onMaps, onStatus }) {
  let source = null;

  async function open() {
    try {
      const answer = await fetch("/ui/state", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      onOpen(await answer.json());
    } catch {
      retry("The gateway does not answer. This page connects again by itself.");
      return;
    }
    source = new EventSource("/ui/events");
    source.addEventListener("open", () => onStatus("live"));
    source.addEventListener("state", (event) => onState(JSON.parse(event.data)));
    source.addEventListener("maps", (event) => onMaps(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      source.close();
      retry("The stream from the gateway ended. This page connects again by itself.");
    });
  }

  function retry(why) {
    onStatus("lost", why);
    setTimeout(open, RETRY_MS);
  }

  open();
}
