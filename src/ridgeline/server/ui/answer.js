"use strict";
// One answer under way: streams it into an element, measures it, and can be stopped. Chat and text differ in how an event is read.
const answers = (() => {
  const speed = (count, milliseconds) => (count > 1 && milliseconds > 0 ? ((count - 1) * 1000) / milliseconds : null);

  function line(usage, reason, began, first, last) {
    const parts = [];
    if (usage) parts.push(`${usage.completion_tokens} tokens`);
    const pace = usage && speed(usage.completion_tokens, last - first);
    if (pace) parts.push(`${pace.toFixed(1)} tok/s`);
    if (first) parts.push(`first token ${Math.round(first - began)} ms`);
    if (usage) parts.push(`${usage.prompt_tokens_details?.cached_tokens ?? 0} of ${usage.prompt_tokens} prompt tokens cached`);
    parts.push(`ended by ${reason}`);
    return parts.join(" · ");
  }

  // read(choice) → { text, tokens }, tokens empty where no log-probabilities came. Returns the text; throws what the server says, except a stop.
  async function run({ path, body, read, into, figures, signal, onText }) {
    const began = performance.now();
    let [first, last, reason, usage, text] = [0, 0, "you", null, ""];
    const asked = { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    into.classList.add("busy");
    into.ariaBusy = "true"; // screen readers wait for the whole answer
    try {
      for await (const event of api.events(path, asked, signal)) {
        if (event.usage) usage = event.usage;
        for (const choice of event.choices) {
          const piece = read(choice);
          if (piece.text !== "" || piece.tokens.length) {
            last = performance.now();
            first ||= last;
          }
          text += piece.text;
          if (piece.tokens.length) tokens.append(into, piece.tokens);
          else into.append(piece.text);
          if (choice.finish_reason) reason = choice.finish_reason;
        }
        onText?.();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      into.classList.remove("busy");
      into.ariaBusy = "false";
      if (first || reason !== "you") figures.textContent = line(usage, reason, began, first, last);
    }
    return text;
  }

  return { run };
})();
