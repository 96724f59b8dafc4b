"use strict";
// Streams one answer into an element, measures it, and can be stopped. Chat and text differ in how an event is parsed.
const answers = (() => {
  const tokensPerSecond = (count, milliseconds) => (count > 1 && milliseconds > 0 ? ((count - 1) * 1000) / milliseconds : null);

  function summary(usage, reason, start, first, last) {
    const parts = [];
    if (usage) parts.push(`${usage.completion_tokens} tokens`);
    const speed = usage && tokensPerSecond(usage.completion_tokens, last - first);
    if (speed) parts.push(`${speed.toFixed(1)} tok/s`);
    if (first) parts.push(`first token ${Math.round(first - start)} ms`);
    if (usage) parts.push(`${usage.prompt_tokens_details?.cached_tokens ?? 0} of ${usage.prompt_tokens} prompt tokens cached`);
    parts.push(`ended by ${reason}`);
    return parts.join(" · ");
  }

  // parse(choice) → { text, tokens }, tokens empty without log-probabilities. Returns the text; throws the server's errors, except for a stop.
  async function run({ path, body, parse, output, stats, signal, onText }) {
    const start = performance.now();
    let [first, last, reason, usage, text] = [0, 0, "you", null, ""];
    const request = { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    output.classList.add("busy");
    output.ariaBusy = "true"; // screen readers wait for the whole answer
    try {
      for await (const event of api.events(path, request, signal)) {
        if (event.usage) usage = event.usage;
        for (const choice of event.choices) {
          const piece = parse(choice);
          if (piece.text !== "" || piece.tokens.length) {
            last = performance.now();
            first ||= last;
          }
          text += piece.text;
          if (piece.tokens.length) tokens.append(output, piece.tokens);
          else output.append(piece.text);
          if (choice.finish_reason) reason = choice.finish_reason;
        }
        onText?.();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      output.classList.remove("busy");
      output.ariaBusy = "false";
      if (first || reason !== "you") stats.textContent = summary(usage, reason, start, first, last);
    }
    return text;
  }

  return { run };
})();
