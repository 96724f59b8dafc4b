// The AI SDK, through which OpenCode speaks: `node aisdk_client.mjs DEMO_URL SCRIPTED_URL`. Throws, or prints what it used.
// A loop of tools whole and streamed, an object of a schema, reasoning, in OpenAI's dialect; a loop of tools by responses, and in Anthropic's.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [demoUrl, scriptedUrl] = process.argv.slice(2);
const person = z.object({ name: z.string(), age: z.number().int() });
const called = [];
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    called.push(city);
    return { Bern: "21 degrees", Oslo: "9 degrees" }[city];
  },
});

async function useTools(model) {
  const asked = { model, tools: { weather }, stopWhen: stepCountIs(4), maxRetries: 0 };
  const whole = await generateText({ ...asked, prompt: "What is the weather in Bern?" });
  assert.equal(whole.text, "It is 21 degrees in Bern.");
  const streamed = streamText({ ...asked, prompt: "Compare the weather in Bern and in Oslo." });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.equal(text, "Bern is 12 degrees warmer than Oslo.");
  assert.equal((await streamed.steps).length, 2);
  assert.ok((await streamed.totalUsage).outputTokens > 50);
  assert.deepEqual(called.splice(0).sort(), ["Bern", "Bern", "Oslo"]);
}

const settings = { name: "ridgeline", apiKey: "none", includeUsage: true, supportsStructuredOutputs: true };
const scripted = createOpenAICompatible({ ...settings, baseURL: scriptedUrl })("scripted");
await useTools(scripted);
const thought = await generateText({ model: scripted, prompt: "What is two and two?", maxRetries: 0 });
assert.deepEqual([thought.text, thought.reasoningText.trim()], ["Four.", "One, two; three, four."]);
const found = await generateText({ model: scripted, prompt: "Anna Keller is 30 years old.", output: Output.object({ schema: person }), maxRetries: 0 });
assert.deepEqual(found.output, { name: "Anna Keller", age: 30 });

const demo = createOpenAICompatible({ ...settings, baseURL: demoUrl })("demo");
const kinds = z.object({ kind: z.enum(["animal", "plant", "stone"]) });
const dog = await generateText({ model: demo, prompt: "A dog, as JSON.", output: Output.object({ schema: kinds }), temperature: 0, maxRetries: 0 });
assert.ok(kinds.parse(dog.output));

await useTools(createOpenAI({ baseURL: scriptedUrl, apiKey: "none" }).responses("scripted"));
await useTools(createAnthropic({ baseURL: scriptedUrl, apiKey: "none" })("scripted"));

const version = (name) => JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
console.log(["ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic"].map((name) => `${name} ${version(name)}`).join(", ") + ": pass");
