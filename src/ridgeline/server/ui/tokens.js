// Tokens as spans: colour by probability, and a tooltip with the alternatives. A model's output is inserted as text only.
import { $, make } from "./dom.js";

const details = new WeakMap();
const percent = (logprob) => 100 * Math.exp(logprob);
const formatPercent = (probability) => (probability >= 99.95 ? "100 %" : probability >= 0.1 ? `${probability.toFixed(1)} %` : "< 0.1 %");
const showSpaces = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·") || "(no text)";

// Each: { text, token, logprob, top: [{ token, logprob }] }.
export function append(parent, list) {
  for (const each of list) {
    const span = make("span", { className: "token", "data-p": String(Math.min(4, Math.floor(percent(each.logprob) / 20))) }, each.text);
    details.set(span, each);
    parent.append(span);
  }
}

// From a chunk of a chat: bytes of tokens are matched to the text. A token without text (the end of a turn) is left out.
export function ofChat(text, content) {
  const decoder = new TextDecoder();
  let at = 0;
  const list = content.map((each) => {
    const part = decoder.decode(new Uint8Array(each.bytes), { stream: true });
    const matches = part !== "" && text.startsWith(part, at);
    if (matches) at += part.length;
    return { text: matches ? part : "", token: each.token, logprob: each.logprob, top: each.top_logprobs };
  });
  if (at < text.length && list.length) list[list.length - 1].text += text.slice(at);
  return list.filter((each) => each.text !== "");
}

// From an event of a completion: columns, with offsets in code points.
export function ofCompletion(text, columns) {
  const characters = Array.from(text);
  const first = columns.text_offset[0];
  return columns.tokens.map((token, i) => ({
    text: characters.slice(columns.text_offset[i] - first, (columns.text_offset[i + 1] ?? Infinity) - first).join(""),
    token,
    logprob: columns.token_logprobs[i],
    top: Object.entries(columns.top_logprobs[i] ?? {}).map(([name, logprob]) => ({ token: name, logprob })),
  }));
}

function show(span, tip) {
  const each = details.get(span);
  const table = make("table");
  for (const other of [...each.top].sort((a, b) => b.logprob - a.logprob)) {
    const row = table.insertRow();
    row.className = other.token === each.token ? "chosen" : "";
    const bar = make("span", { className: "bar" });
    bar.style.width = `${percent(other.logprob) * 0.6}px`;
    row.append(make("td", {}, showSpaces(other.token)), make("td", {}, formatPercent(percent(other.logprob))), make("td", {}, bar));
  }
  const head = make("p", { className: "head" }, `${showSpaces(each.token)}  ${formatPercent(percent(each.logprob))}`);
  tip.replaceChildren(head, make("p", { className: "soft" }, `log-probability ${each.logprob.toFixed(3)}`), table);
  tip.hidden = false;
  const place = span.getClientRects()[0];
  const left = Math.max(8, Math.min(place.left, innerWidth - tip.offsetWidth - 8));
  const below = place.bottom + 6;
  const top = below + tip.offsetHeight < innerHeight ? below : Math.max(8, place.top - tip.offsetHeight - 6);
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

// Shows the tooltip over tokens from now on.
export function listen() {
  const tip = $("tip");
  const update = (event) => {
    const span = event.target.closest?.(".token");
    if (span && details.has(span)) show(span, tip);
    else tip.hidden = true;
  };
  document.addEventListener("pointerover", update);
  document.addEventListener("click", update); // for touch screens
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
}
