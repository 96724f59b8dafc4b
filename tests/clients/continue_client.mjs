// Continue's own reader of its settings on those of docs/guide/connect.md: `node continue_client.mjs DEMO_URL SCRIPTED_URL`.
// Throws, or prints what it used. The request that they lead to is the editor's, and not made here but for its route.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { parseConfigYaml } from "@continuedev/config-yaml";

const guide = readFileSync(new URL("../../docs/guide/connect.md", import.meta.url), "utf8");
const [, text] = guide.match(/^```yaml continue\.yaml\n(.*?)^```$/ms);
const settings = parseConfigYaml(text);
assert.equal(settings.models.length, 1);
const { apiBase, model, provider } = settings.models[0];
assert.equal(provider, "openai");
const base = apiBase.replace("http://127.0.0.1:8000/v1", process.argv[2]);
assert.notEqual(base, apiBase);
const body = { model, messages: [{ role: "user", content: "Name a colour." }], max_tokens: 8, stream: true };
const answer = await fetch(`${base}/chat/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
assert.ok(answer.ok && (await answer.text()).endsWith("data: [DONE]\n\n"));
const { version } = JSON.parse(readFileSync(new URL("node_modules/@continuedev/config-yaml/package.json", import.meta.url)));
console.log(`@continuedev/config-yaml ${version}: the guide's settings are read, pass`);
