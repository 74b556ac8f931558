// Vercel AI SDK (node): text, streams, tools in several steps, objects, embeddings, over chat and Responses.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const url = process.env.OPENAI_BASE_URL, name = process.env.MESH_MODEL;
const compatible = createOpenAICompatible({
  name: "baton", baseURL: url, includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: url, apiKey: "none" });
const ANSWER = "20 + 22 = 42.", degrees = 10 + Math.floor(Math.random() * 20);
const tiers = z.object({ tier: z.enum(["prefill", "decode"]), workers: z.number().int() });
const tools = {
  get_weather: tool({
    description: "Get the weather in a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `{"city": "${city}", "degrees": ${degrees}, "sky": "sunny"}`,
  }),
};

async function tried(model) {
  const text = await generateText({ model, prompt: "What is 20 + 22?", maxOutputTokens: 64 });
  assert.equal(text.text, ANSWER);
  assert.equal(text.finishReason, "stop");
  assert.ok(text.usage.outputTokens > 2);

  const stream = streamText({ model, prompt: "What is 20 + 22?", maxOutputTokens: 64 });
  let joined = "";
  for await (const part of stream.textStream) joined += part;
  assert.equal(joined, ANSWER);
  assert.ok((await stream.usage).outputTokens > 2);

  const asked = { model, tools, stopWhen: stepCountIs(4), prompt: "What is the weather in Paris?", maxOutputTokens: 64 };
  const helped = await generateText(asked);
  assert.deepEqual(helped.steps[0].toolCalls.map((call) => [call.toolName, call.input]), [["get_weather", { city: "Paris" }]]);
  assert.ok(helped.text.includes(String(degrees)), helped.text);
  const streamed = streamText(asked);
  assert.ok((await streamed.text).includes(String(degrees)));
  const forced = await generateText({ ...asked, stopWhen: stepCountIs(1), toolChoice: "required" });
  assert.equal(forced.toolCalls.length, 1);

  const object = { model, output: Output.object({ schema: tiers }), prompt: "How many decode workers run?", maxOutputTokens: 64 };
  tiers.parse((await generateText(object)).output);
  const parts = streamText(object);
  let last;
  for await (const part of parts.partialOutputStream) last = part;
  tiers.parse(last);
}

await tried(compatible(name));
const vectors = await embedMany({ model: compatible.embeddingModel(name), values: ["Once", "upon a time"] });
assert.equal(vectors.embeddings.length, 2);
assert.ok(Math.abs(vectors.embeddings[0].reduce((sum, value) => sum + value * value, 0) - 1) < 1e-3);
await tried(openai.chat(name));
await tried(openai(name));
