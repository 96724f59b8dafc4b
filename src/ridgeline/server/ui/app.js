"use strict";
const $ = (id) => document.getElementById(id);
let key = "";
let model = "";
let running = null;

const headers = () => ({ "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) });

async function failure(response) {
  let text = `${response.status} ${response.statusText}`;
  try { text = `${(await response.json()).error.message} (${response.status})`; } catch { /* the body is not ours: the status must do */ }
  return Object.assign(new Error(text), { status: response.status });
}

function askForKey(error) {
  $("key-form").hidden = false;
  $("key-error").textContent = key ? error.message : "";
  $("model").textContent = "locked";
  $("key").focus();
}

function showError(error) {
  $("error").textContent = error.message;
  $("error").hidden = false;
}

async function connect() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw await failure(response);
    const card = (await response.json()).data[0];
    model = card.id;
    $("model").textContent = `${card.id} · context ${card.max_model_len.toLocaleString("en")} tokens`;
    $("max-tokens").max = card.max_model_len - 1;
    $("key-form").hidden = true;
    $("snippet").textContent = [
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url="${location.origin}/v1", api_key="${key ? "YOUR KEY" : "none"}")`,
      `print(client.completions.create(model="${model}", prompt="Once upon a time", max_tokens=32).choices[0].text)`,
    ].join("\n");
  } catch (error) {
    if (error.status === 401) return askForKey(error);
    $("model").textContent = error.status ? error.message : "no connection, trying again…";
    setTimeout(connect, 1000);
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

function body() {
  const asked = {
    model,
    prompt: $("prompt").value,
    temperature: Number($("temperature").value),
    max_tokens: Number($("max-tokens").value),
    stream: true,
    stream_options: { include_usage: true },
  };
  if ($("seed").value !== "") asked.seed = Number($("seed").value);
  return JSON.stringify(asked);
}

function showUsage(usage) {
  $("prompt-tokens").textContent = usage.prompt_tokens;
  $("cached-tokens").textContent = usage.prompt_tokens_details.cached_tokens;
  $("completion-tokens").textContent = usage.completion_tokens;
}

function clear() {
  $("error").hidden = true;
  $("given").textContent = $("prompt").value;
  $("made").textContent = "";
  for (const figure of document.querySelectorAll("#figures dd")) figure.textContent = "–";
}

async function complete() {
  clear();
  running = new AbortController();
  document.body.classList.add("busy");
  $("go").disabled = true;
  $("stop").disabled = false;
  const began = performance.now();
  let first = 0;
  try {
    const response = await fetch("/v1/completions", { method: "POST", headers: headers(), body: body(), signal: running.signal });
    if (!response.ok) throw await failure(response);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const now = performance.now();
      if (event.usage) {
        showUsage(event.usage);
        if (first && event.usage.completion_tokens > 1) $("speed").textContent = (((event.usage.completion_tokens - 1) * 1000) / (now - first)).toFixed(1);
      }
      for (const choice of event.choices) {
        if (!first) { first = now; $("first").textContent = `${Math.round(first - began)} ms`; }
        $("made").append(choice.text);
        if (choice.finish_reason) $("reason").textContent = choice.finish_reason;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") $("reason").textContent = "you";
    else if (error.status === 401) askForKey(error);
    else showError(error);
  } finally {
    running = null;
    document.body.classList.remove("busy");
    $("go").disabled = false;
    $("stop").disabled = true;
  }
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); if (!running) complete(); });
$("stop").addEventListener("click", () => running?.abort());
$("temperature").addEventListener("input", () => { $("temperature-value").textContent = Number($("temperature").value).toFixed(1); });
$("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit(); });
$("key-form").addEventListener("submit", (event) => { event.preventDefault(); key = $("key").value; connect(); });
connect();
