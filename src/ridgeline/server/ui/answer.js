// Streams one answer and measures it. Chat and completion differ in how a choice is parsed.
import { events } from "./api.js";

// The measures of an answer as a line.
export function describe(stats) {
  const parts = [];
  if (stats.rate) parts.push(`${stats.rate.toFixed(stats.rate < 100 ? 1 : 0)} tok/s`);
  if (stats.tokens) parts.push(`${stats.tokens} tokens`);
  if (stats.first) parts.push(`first token ${stats.first < 1000 ? `${Math.round(stats.first)} ms` : `${(stats.first / 1000).toFixed(1)} s`}`);
  if (stats.prompt) parts.push(`${stats.cached} of ${stats.prompt} prompt tokens cached`);
  if (stats.reason === "length") parts.push("ended by max tokens");
  if (stats.reason === "you") parts.push("stopped by you");
  return parts.join(" · ");
}

function measure(id, usage, reason, start, first, last) {
  const tokens = usage?.completion_tokens ?? 0;
  return {
    id, tokens, reason,
    rate: tokens > 1 && last > first ? ((tokens - 1) * 1000) / (last - first) : 0,
    first: first ? first - start : 0,
    prompt: usage?.prompt_tokens ?? 0,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
  };
}

// parse(choice) → { text, tokens }, tokens empty without log-probabilities; onPart gets it. Returns the measures once the answer has ended or
// was stopped by the signal. Throws the server's errors.
export async function stream({ path, body, parse, signal, onPart }) {
  const start = performance.now();
  let [id, first, last, reason, usage] = ["", 0, 0, "", null];
  try {
    for await (const event of events(path, { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }, signal)) {
      if (event.usage) usage = event.usage;
      id ||= event.id;
      for (const choice of event.choices) {
        const part = parse(choice);
        if (part.text !== "" || part.tokens.length) {
          last = performance.now();
          first ||= last;
          onPart(part);
        }
        if (choice.finish_reason) reason = choice.finish_reason;
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    reason = "you";
  }
  return measure(id, usage, reason, start, first, last);
}
