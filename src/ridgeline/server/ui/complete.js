// Completion: one text that the model continues, and may continue again.
import { describe, stream } from "./answer.js";
import { $, copy } from "./dom.js";
import { setField } from "./message.js";
import * as sampling from "./sampling.js";
import * as store from "./store.js";
import * as tokens from "./tokens.js";

let running = null;

function parse(choice) {
  return { text: choice.text, tokens: choice.logprobs && choice.text !== "" ? tokens.ofCompletion(choice.text, choice.logprobs) : [] };
}

function setBusy(on) {
  $("go").hidden = on;
  $("stop").hidden = !on;
  $("more").disabled = on;
  $("output").classList.toggle("busy", on);
  $("result").ariaBusy = String(on);
}

function onPart(part) {
  const box = $("text-mode");
  const stay = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  if (part.tokens.length) tokens.append($("output"), part.tokens);
  else $("output").append(part.text);
  if (stay) box.scrollTop = box.scrollHeight;
}

async function run(host) {
  const prompt = $("prompt").value;
  $("text-error").hidden = true;
  $("input-text").textContent = prompt;
  $("output").replaceChildren();
  $("stats").textContent = "";
  $("result").hidden = false;
  $("examples").hidden = true;
  running = new AbortController();
  setBusy(true);
  try {
    const body = { model: host.model(), prompt, ...sampling.forCompletion() };
    $("stats").textContent = describe(await stream({ path: "v1/completions", body, parse, signal: running.signal, onPart }));
  } catch (error) {
    $("text-error").textContent = error.message;
    $("text-error").hidden = false;
    host.onError(error);
  } finally {
    running = null;
    setBusy(false);
  }
}

const whole = () => $("input-text").textContent + $("output").textContent;

export const stop = () => running?.abort();

// Begins. host: { model() → its name, onError(error) }.
export function start(host) {
  setField($("prompt"), store.setting("prompt", $("prompt").value));
  $("prompt").addEventListener("input", () => store.set("prompt", $("prompt").value));
  $("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit(); });
  $("form").addEventListener("submit", (event) => { event.preventDefault(); if (!running) run(host); });
  $("stop").addEventListener("click", stop);
  $("more").addEventListener("click", () => {
    setField($("prompt"), whole());
    store.set("prompt", $("prompt").value);
    if (!running) run(host);
  });
  $("copy-text").addEventListener("click", () => copy(whole(), $("copy-text")));
  for (const example of document.querySelectorAll("#examples button")) {
    example.addEventListener("click", () => { setField($("prompt"), example.dataset.text ?? example.textContent); if (!running) run(host); });
  }
}
