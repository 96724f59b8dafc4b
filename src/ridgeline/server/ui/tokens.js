"use strict";
// Tokens as spans: colour by probability, and a tooltip with the alternatives. A model's output is inserted as text only.
const tokens = (() => {
  const details = new WeakMap();
  const tip = document.getElementById("tip");
  const percent = (logprob) => 100 * Math.exp(logprob);
  const formatPercent = (probability) => (probability >= 99.95 ? "100 %" : probability >= 0.1 ? `${probability.toFixed(1)} %` : "< 0.1 %");
  const showSpaces = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·") || "(no text)";

  // Each: { text, token, logprob, top: [{ token, logprob }] }.
  function append(parent, list) {
    for (const each of list) {
      const span = document.createElement("span");
      span.className = "token";
      span.textContent = each.text;
      span.dataset.p = String(Math.min(4, Math.floor(percent(each.logprob) / 20)));
      details.set(span, each);
      parent.append(span);
    }
  }

  // From a chunk of a chat: bytes of tokens are matched to the text. A token without text (the end of a turn) is left out.
  function ofChat(text, content) {
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
  function ofCompletion(text, columns) {
    const characters = Array.from(text);
    const first = columns.text_offset[0];
    return columns.tokens.map((token, i) => ({
      text: characters.slice(columns.text_offset[i] - first, (columns.text_offset[i + 1] ?? Infinity) - first).join(""),
      token,
      logprob: columns.token_logprobs[i],
      top: Object.entries(columns.top_logprobs[i] ?? {}).map(([name, logprob]) => ({ token: name, logprob })),
    }));
  }

  function element(tag, text, className = "") {
    const node = document.createElement(tag);
    node.textContent = text;
    node.className = className;
    return node;
  }

  function show(span) {
    const each = details.get(span);
    const table = document.createElement("table");
    for (const other of [...each.top].sort((a, b) => b.logprob - a.logprob)) {
      const row = table.insertRow();
      row.className = other.token === each.token ? "chosen" : "";
      row.append(element("td", showSpaces(other.token)), element("td", formatPercent(percent(other.logprob))));
      const bar = element("span", "", "bar");
      bar.style.width = `${percent(other.logprob) * 0.6}px`;
      row.insertCell().append(bar);
    }
    const head = element("p", `${showSpaces(each.token)}  ${formatPercent(percent(each.logprob))}`, "head");
    tip.replaceChildren(head, element("p", `log-probability ${each.logprob.toFixed(3)}`, "soft"), table);
    tip.hidden = false;
    const place = span.getClientRects()[0];
    const left = Math.max(8, Math.min(place.left, innerWidth - tip.offsetWidth - 8));
    const below = place.bottom + 6;
    const top = below + tip.offsetHeight < innerHeight ? below : Math.max(8, place.top - tip.offsetHeight - 6);
    tip.style.left = `${left}px`;
    tip.style.top = `${top}px`;
  }

  function updateTip(event) {
    const span = event.target.closest?.(".token");
    if (span && details.has(span)) show(span);
    else tip.hidden = true;
  }
  document.addEventListener("pointerover", updateTip);
  document.addEventListener("click", updateTip); // for touch screens
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  return { append, ofChat, ofCompletion };
})();
