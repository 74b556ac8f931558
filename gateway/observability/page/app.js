// Puts the page together: the stream of snapshots feeds every part, the address bar names the open request.

import { Chat } from "./chat.js";
import { byId, h, setText } from "./dom.js";
import { Figures } from "./figures.js";
import { Flows } from "./flows.js";
import { clock } from "./format.js";
import { Lanes } from "./lanes.js";
import { Mesh } from "./mesh.js";
import { Requests } from "./requests.js";
import { Store } from "./store.js";
import { connect } from "./stream.js";
import { startTheme } from "./theme.js";
import { Waterfall } from "./waterfall.js";

const MOST_EVENTS = 40;

startTheme(byId("theme"), byId("motion"));

const store = new Store();
const lanes = new Lanes();
const flows = new Flows(lanes);
const mesh = new Mesh(store, () => {
  lanes.layout();
  flows.layout();
});
const figures = new Figures(store);
const waterfall = new Waterfall();
const requests = new Requests(store, (id, trace) => (location.hash = new URLSearchParams({ request: id, trace })));
const chat = new Chat((id) => {
  if (!location.hash) location.hash = `request=${encodeURIComponent(id)}`;
});

store.onChange((state, news, ended) => {
  chat.serve(state.models);
  setText(byId("model"), state.models.map((each) => each.name).join(", "));
  mesh.update(state);
  mesh.setMaps(store.maps);
  figures.update(state);
  requests.update(state);
  flows.update(state, ended);
  const newest = state.ended.findLast((request) => request.status === "ok");
  if (newest && !chosenRequest()) waterfall.follow(newest.request_id, newest.trace_id);
  news.forEach(tell);
  status();
});

let connection = "wait";
connect({
  onOpen: (state) => store.open(state),
  onState: (state) => store.next(state),
  onMaps: (maps) => {
    store.setMaps(maps);
    mesh.setMaps(maps);
  },
  onStatus: (kind, why) => {
    if (kind === "lost" && connection === "live") tell({ kind: "bad", text: why });
    connection = kind;
    status(why);
  },
});

/** What the pill at the top says: the connection first, then the mesh. */
function status(why = "") {
  const pill = byId("status");
  const state = store.state;
  const [kind, text] =
    connection === "lost"
      ? ["lost", "reconnecting"]
      : connection !== "live" || !state
        ? ["wait", "connecting"]
        : !state.workers.length
          ? ["lost", "no workers"]
          : state.healthy
            ? ["live", "live"]
            : ["wait", "cannot serve yet"];
  pill.dataset.kind = kind;
  pill.title = why;
  setText(pill, text);
  document.body.dataset.connection = connection;
}

/** Adds an event to the feed, the newest first. */
function tell({ kind, text }) {
  const feed = byId("feed");
  feed.prepend(h("li", { class: kind }, h("time", { text: clock() }), text));
  while (feed.childElementCount > MOST_EVENTS) feed.lastElementChild.remove();
}

const address = () => new URLSearchParams(location.hash.slice(1));
const chosenRequest = () => address().get("request");

function openFromAddress() {
  const id = chosenRequest();
  const trace = address().get("trace");
  requests.choose(id, trace);
  if (!id) return;
  waterfall.show(id, trace);
  if (matchMedia("(max-width: 900px)").matches) byId("trace").scrollIntoView();
}

addEventListener("hashchange", openFromAddress);
openFromAddress();
requests.loadEarlier();
setInterval(() => {
  if (!store.state || document.hidden) return;
  figures.tick();
  if (store.state.requests.length) requests.draw(store.state);
  if (store.ghosts.size) mesh.update(store.state);
}, 1000);
