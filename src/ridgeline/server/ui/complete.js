"use strict";
// Continue a text: one prompt, one continuation.
const completion = (() => {
  const $ = (id) => document.getElementById(id);
  let running = null;

  function read(choice) {
    return { text: choice.text, tokens: choice.logprobs && choice.text !== "" ? tokens.ofCompletion(choice.text, choice.logprobs) : [] };
  }

  function busy(on) {
    $("go").disabled = on;
    $("stop").disabled = !on;
  }

  async function run() {
    $("text-error").hidden = true;
    $("given").textContent = $("prompt").value;
    $("made").replaceChildren();
    $("figures").textContent = "";
    running = new AbortController();
    busy(true);
    try {
      const body = { model: app.model(), prompt: $("prompt").value, ...sampling.body(), ...sampling.textLogprobs() };
      await answers.run({ path: "/v1/completions", body, read, into: $("made"), figures: $("figures"), signal: running.signal });
    } catch (error) {
      if (error.status === 401) app.askForKey(error);
      else app.showError("text-error", error);
    } finally {
      running = null;
      busy(false);
    }
  }

  $("form").addEventListener("submit", (event) => { event.preventDefault(); if (!running) run(); });
  $("stop").addEventListener("click", () => running?.abort());
  $("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit(); });
})();
