"use strict";
// Talks to the server: the key, errors in the server's words, and streams of events. Touches no element.
const api = (() => {
  let key = "";

  const headers = () => ({ "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) });

  async function toError(response) {
    let text = `${response.status} ${response.statusText}`;
    try { text = `${(await response.json()).error.message} (${response.status})`; } catch { /* not an error body of this server: the status must do */ }
    return Object.assign(new Error(text), { status: response.status });
  }

  async function card() {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw await toError(response);
    return (await response.json()).data[0];
  }

  async function* events(path, body, signal) {
    const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
    if (!response.ok) throw await toError(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part === "data: [DONE]") return;
        if (!part.startsWith("data: ")) continue; // a comment that keeps the connection
        const event = JSON.parse(part.slice(6));
        if (event.error) throw new Error(event.error.message);
        yield event;
      }
    }
  }

  return { card, events, hasKey: () => key !== "", useKey: (value) => { key = value; } };
})();
