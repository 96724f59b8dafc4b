"use strict";
// The sampling controls: one table of fields; empty ones are not sent. Also requests log-probabilities.
const sampling = (() => {
  const fields = [
    { name: "temperature", label: "Temperature", min: 0, max: 10, step: 0.1, value: 0.7, hint: "0 is greedy" },
    { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, value: 0.95, hint: "1 is off" },
    { name: "top_k", label: "Top k", min: 0, step: 1, hint: "0 is off" },
    { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "0 is off" },
    { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "-2 to 2" },
    { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "-2 to 2" },
    { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.01, hint: "1 is off" },
    { name: "seed", label: "Seed", step: 1, hint: "random" },
    { name: "max_tokens", label: "Max tokens", min: 1, step: 1, value: 256, hint: "default" },
  ];
  const id = (field) => field.name.replaceAll("_", "-");
  const inputs = new Map();

  function control(field, tag) {
    const input = document.createElement(tag);
    input.id = id(field);
    input.placeholder = field.hint;
    const label = document.createElement("label");
    label.append(field.label, input);
    document.getElementById("controls").append(label);
    inputs.set(field.name, input);
    return [input, label];
  }

  for (const field of fields) {
    const [input] = control(field, "input");
    input.type = "number";
    for (const name of ["min", "max", "step"]) if (field[name] !== undefined) input[name] = field[name];
    input.value = field.value ?? "";
  }
  const [stops, stopLabel] = control({ name: "stop_strings", label: "Stop strings, one per line", hint: "none" }, "textarea");
  stops.rows = 2;
  stopLabel.className = "wide";

  const logprobsEnabled = () => document.getElementById("show-logprobs").checked;

  // The fields of a body. A seed beyond 2^53 would be rounded by JavaScript, and the server would answer for another one.
  function body() {
    const values = {};
    for (const field of fields) {
      const input = inputs.get(field.name);
      if (input.validity.badInput) throw new Error(`${field.label} is not a number.`);
      if (input.value === "") continue;
      const value = Number(input.value);
      if (field.step === 1 && !Number.isSafeInteger(value)) throw new Error(`${field.label} must be a whole number below 2^53.`);
      values[field.name] = value;
    }
    const lines = stops.value.split("\n").filter((line) => line !== "");
    if (lines.length) values.stop = lines;
    return values;
  }

  return {
    body,
    chatLogprobs: () => (logprobsEnabled() ? { logprobs: true, top_logprobs: 5 } : {}),
    textLogprobs: () => (logprobsEnabled() ? { logprobs: 5 } : {}),
  };
})();
