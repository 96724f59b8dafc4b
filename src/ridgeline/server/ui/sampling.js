// The sampling settings: one table of fields. What is typed is kept in this browser; an empty field is the model's default.
import { $, make } from "./dom.js";
import * as store from "./store.js";

const fields = [
  { name: "temperature", label: "Temperature", min: 0, max: 10, step: 0.1, hint: "0 is greedy" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, hint: "1 is off" },
  { name: "top_k", label: "Top k", min: 0, step: 1, hint: "0 is off" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "0 is off" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "-2 to 2" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "-2 to 2" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.01, hint: "1 is off" },
  { name: "seed", label: "Seed", step: 1, hint: "random" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "until it ends" },
];
const UNADVISED = { temperature: 0.7, top_p: 0.95 }; // for models whose authors recommend nothing
const COMPLETION_TOKENS = 256; // a base model does not end by itself
const inputs = new Map();
let recommended = UNADVISED;

const wantsTokens = () => $("probabilities").checked;

function control(field, tag) {
  const input = make(tag, { id: field.name.replaceAll("_", "-"), placeholder: field.hint, value: store.setting(field.name, "") });
  input.addEventListener("input", () => store.set(field.name, input.value));
  $("controls").append(make("label", { className: tag === "textarea" ? "across" : "" }, field.label, input));
  inputs.set(field.name, input);
  return input;
}

function bindCheck(id, onChange) {
  const box = $(id);
  box.checked = store.setting(id, false);
  const apply = () => { store.set(id, box.checked); onChange(box.checked); };
  box.addEventListener("change", apply);
  onChange(box.checked);
}

// Builds the controls.
export function start() {
  for (const field of fields) {
    const input = control(field, "input");
    input.type = "number";
    input.inputMode = "decimal";
    for (const name of ["min", "max", "step"]) if (field[name] !== undefined) input[name] = field[name];
    input.value = store.setting(field.name, "");
  }
  control({ name: "stop_strings", label: "Stop strings, one per line", hint: "none" }, "textarea").rows = 2;
  bindCheck("probabilities", (on) => { $("colour").disabled = !on; });
  bindCheck("colour", (on) => document.body.classList.toggle("coloured", on));
  $("reset").addEventListener("click", () => {
    for (const [name, input] of inputs) { input.value = ""; store.set(name, ""); }
  });
}

// Shows what the model's authors recommend in empty fields.
export function recommend(values) {
  recommended = values && Object.keys(values).length ? values : UNADVISED;
  for (const field of fields) inputs.get(field.name).placeholder = String(recommended[field.name] ?? field.hint);
}

// The fields of a request. A seed beyond 2^53 would be rounded by JavaScript, and the server would answer for another one.
function body() {
  const values = recommended === UNADVISED ? { ...UNADVISED } : {};
  for (const field of fields) {
    const input = inputs.get(field.name);
    if (input.validity.badInput) throw new Error(`${field.label} is not a number.`);
    if (input.value === "") continue;
    const value = Number(input.value);
    if (field.step === 1 && !Number.isSafeInteger(value)) throw new Error(`${field.label} must be a whole number below 2^53.`);
    values[field.name] = value;
  }
  const lines = inputs.get("stop_strings").value.split("\n").filter((line) => line !== "");
  if (lines.length) values.stop = lines;
  return values;
}

export const forChat = () => ({ ...body(), ...(wantsTokens() && { logprobs: true, top_logprobs: 5 }) });
export const forCompletion = () => ({ max_tokens: COMPLETION_TOKENS, ...body(), ...(wantsTokens() && { logprobs: 5 }) });
