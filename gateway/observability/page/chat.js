// The chat box: a client of the OpenAI API like any other. Answers enter the page as text, never as markup.
// A gateway that asks for a key answers 401; then the box shows a field for it. The key stays in this page's memory.

import { byId, h } from "./dom.js";
import { duration, plural, rate } from "./format.js";

const IDEAS = ["What is the hand-off?", "Tell me a story about a relay race.", "What is a page?"];

class KeyNeeded extends Error {}

export class Chat {
  constructor(onDone) {
    this.onDone = onDone;
    this.messages = [];
    this.running = null;
    this.contexts = {}; // tokens by model; 0: unknown
    this.shown = ""; // names of the models, one a line
    this.model = h("select", { "aria-label": "Model", hidden: true, onchange: () => this.reset() });
    this.log = h("div", { class: "talk", role: "log", "aria-live": "polite", "aria-label": "Conversation", tabindex: "0" });
    this.input = h("textarea", { rows: "2", placeholder: "Ask the mesh something", "aria-label": "Message" });
    this.most = h("input", { type: "number", min: "1", max: "100000", value: "200", "aria-label": "Most tokens of an answer" });
    this.key = h("input", { type: "password", autocomplete: "off", spellcheck: "false", maxlength: "512" });
    this.keyRow = h("label", { class: "api-key", hidden: true }, "API key ", this.key);
    this.send = h("button", { type: "submit", class: "main", text: "Send" });
    this.stop = h("button", { type: "button", text: "Stop", hidden: true, onclick: () => this.running?.abort() });
    this.clear = h("button", { type: "button", class: "quiet", text: "Clear", onclick: () => this.reset() });
    const form = h("form", { class: "ask", onsubmit: (event) => this.submit(event) }, this.input, h("div", { class: "tools" }, this.model, this.send, this.stop, this.clear, h("label", { class: "most" }, "at most ", this.most, " tokens")), this.keyRow);
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.submit(event);
    });
    byId("chat").append(this.log, form);
    this.reset();
  }

  /** What the gateway serves; no answer is longer than its model's context. */
  serve(models) {
    const names = models.map((each) => each.name);
    if (names.join("\n") !== this.shown) {
      this.shown = names.join("\n");
      this.model.replaceChildren(...names.map((name) => h("option", { value: name, text: name })));
      this.model.hidden = names.length < 2;
    }
    this.contexts = Object.fromEntries(models.map((each) => [each.name, each.context_tokens]));
    this.most.max = String(this.context || 100000);
  }

  get context() {
    return this.contexts[this.model.value] ?? 0;
  }

  reset() {
    this.running?.abort();
    this.messages = [];
    const ideas = IDEAS.map((text) => h("button", { type: "button", class: "idea", text, onclick: () => this.ask(text) }));
    this.log.replaceChildren(h("p", { class: "hint", text: "What you write here goes to the mesh like any client's request. Watch it travel above." }), h("div", { class: "ideas" }, ideas));
  }

  submit(event) {
    event.preventDefault();
    const text = this.input.value.trim();
    if (!text || this.running) return;
    this.input.value = "";
    this.ask(text);
  }

  async ask(text) {
    if (this.running) return;
    if (!this.messages.length) this.log.replaceChildren();
    const talk = this.messages; // Clear begins another one
    talk.push({ role: "user", content: text });
    const question = h("p", { class: "said you", text });
    const answer = h("p", { class: "said model" });
    const note = h("p", { class: "measured", text: "waiting for the first token" });
    this.log.append(question, answer, note);
    this.scroll();
    this.running = new AbortController();
    this.send.disabled = true;
    this.stop.hidden = false;
    const measured = { begin: performance.now(), first: null, last: null, tokens: 0, id: null };
    try {
      await this.stream(answer, note, measured);
    } catch (error) {
      const stopped = error.name === "AbortError";
      if (talk === this.messages) note.append(h("span", { class: stopped ? "" : "bad", text: stopped ? " · stopped" : ` · ${error.message}` }));
      if (error instanceof KeyNeeded) this.askForKey(text, question, answer, note, error.message);
    }
    if (answer.textContent) talk.push({ role: "assistant", content: answer.textContent });
    else talk.pop();
    this.running = null;
    this.send.disabled = false;
    this.stop.hidden = true;
    if (measured.id) this.onDone(measured.id);
  }

  /** The question goes back into its field, from where the key's Enter sends it again. */
  askForKey(text, question, answer, note, why) {
    question.remove();
    answer.remove();
    note.replaceChildren(h("span", { class: "bad", text: why }));
    this.input.value ||= text;
    this.keyRow.hidden = false;
    this.key.focus();
    this.key.select();
  }

  async stream(answer, note, measured) {
    const body = { model: this.model.value, messages: this.messages, stream: true, stream_options: { include_usage: true }, max_tokens: Number(this.most.value) || 200 };
    if (this.context && body.max_tokens >= this.context) delete body.max_tokens; // the gateway gives what fits
    const headers = { "content-type": "application/json" };
    const key = this.key.value.trim();
    if (/[^\x21-\x7e]/.test(key)) throw new KeyNeeded("A key has no spaces and only ASCII characters.");
    if (key) headers.authorization = `Bearer ${key}`;
    const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), credentials: "omit", signal: this.running.signal });
    measured.id = response.headers.get("x-request-id");
    if (!response.ok) {
      const problem = await response.json().catch(() => null);
      const why = problem?.error?.message ?? `the gateway answered ${response.status}`;
      if (response.status === 401) throw new KeyNeeded(key ? why : "This gateway asks for a key: enter yours below.");
      throw new Error(why);
    }
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) measured.tokens = event.usage.completion_tokens;
      const delta = event.choices?.[0]?.delta ?? {};
      const piece = delta.content || (delta.tool_calls ?? []).map((call) => `${call.function?.name ?? ""}${call.function?.arguments ?? ""}`).join("");
      if (piece) {
        measured.last = performance.now();
        measured.first ??= measured.last;
        if (!event.usage) measured.tokens += 1;
        answer.append(piece);
        this.scroll();
      }
      this.measure(note, measured);
    }
  }

  measure(note, { begin, first, last, tokens, id }) {
    if (first === null) return;
    const parts = [`first token ${duration((first - begin) / 1000)}`, plural(tokens, "token")];
    if (last > first && tokens > 1) parts.push(`${rate(((tokens - 1) / (last - first)) * 1000)} per second`);
    note.replaceChildren(parts.join(" · "));
    if (id) note.append(" · ", h("a", { href: `#request=${encodeURIComponent(id)}`, text: "where the time went" }));
  }

  scroll() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}

/** The JSON of each server-sent event, up to [DONE]. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const lines = buffer.split("\n");
    buffer = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}
