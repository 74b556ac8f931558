// Ollama (node): list, chats, streams, tools with results, structured output, embeddings, errors.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const ollama = new Ollama({ host: process.env.MESH_URL }), model = process.env.MESH_MODEL;
const ANSWER = "20 + 22 = 42.", options = { temperature: 0, num_predict: 64 };
const messages = [{ role: "user", content: "What is 20 + 22?" }];
const tools = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];

assert.deepEqual((await ollama.list()).models.map((each) => each.name), [model]);
assert.ok((await ollama.show({ model })).capabilities.includes("completion"));

const whole = await ollama.chat({ model, messages, options });
assert.equal(whole.message.content, ANSWER);
assert.equal(whole.done_reason, "stop");

let joined = "";
for await (const part of await ollama.chat({ model, messages, options, stream: true })) joined += part.message.content;
assert.equal(joined, ANSWER);

const question = [{ role: "user", content: "What is the weather in Paris?" }];
const called = await ollama.chat({ model, messages: question, tools, options });
assert.deepEqual(called.message.tool_calls[0].function, { name: "get_weather", arguments: { city: "Paris" } });
const degrees = 10 + Math.floor(Math.random() * 20);
const result = { role: "tool", tool_name: "get_weather", content: `{"city": "Paris", "degrees": ${degrees}, "sky": "sunny"}` };
const answer = await ollama.chat({ model, messages: [...question, called.message, result], tools, options });
assert.ok(answer.message.content.includes(String(degrees)), answer.message.content);

const form = await ollama.chat({ model, messages, options, format: "json" });
assert.ok(form.message.content.startsWith("{"), form.message.content); // a small model may not find the end of it

const { embeddings } = await ollama.embed({ model, input: ["a cat", "the weather"] });
assert.equal(embeddings.length, 2);

await assert.rejects(ollama.chat({ model: "other", messages }), /other/);
