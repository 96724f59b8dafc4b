"use strict";
// Continue a text: one prompt, one continuation.
const completion = (() => {
  const $ = (id) => document.getElementById(id);
  let running = null;

  function parse(choice) {
    return { text: choice.text, tokens: choice.logprobs && choice.text !== "" ? tokens.ofCompletion(choice.text, choice.logprobs) : [] };
  }

  function setBusy(on) {
    $("go").disabled = on;
    $("stop").disabled = !on;
  }

  async function run() {
    $("text-error").hidden = true;
    $("input-text").textContent = $("prompt").value;
    $("output").replaceChildren();
    $("stats").textContent = "";
    running = new AbortController();
    setBusy(true);
    try {
      const body = { model: app.model(), prompt: $("prompt").value, ...sampling.body(), ...sampling.textLogprobs() };
      await answers.run({ path: "/v1/completions", body, parse, output: $("output"), stats: $("stats"), signal: running.signal });
    } catch (error) {
      if (error.status === 401) app.askForKey(error);
      else app.showError("text-error", error);
    } finally {
      running = null;
      setBusy(false);
    }
  }

  $("form").addEventListener("submit", (event) => { event.preventDefault(); if (!running) run(); });
  $("stop").addEventListener("click", () => running?.abort());
  $("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit(); });
})();
