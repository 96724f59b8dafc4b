// Talks to the server: the key, errors as sentences, and streams of events. Touches no element. Addresses are relative, so that a proxy may
// serve the page below a path.
const KEY = "ridgeline.key";
let key = read();

function read() {
  try { return sessionStorage.getItem(KEY) ?? ""; } catch { return ""; }
}

export const hasKey = () => key !== "";

// The key is kept for this tab only.
export function useKey(value) {
  key = value.trim();
  try { sessionStorage.setItem(KEY, key); } catch { /* kept until the page is left */ }
}

const address = (path) => new URL(path, document.baseURI);
export const base = () => address("v1").href;

// A failed request. status: of HTTP, 0 without an answer; retryAfter: seconds that the server asks to wait.
export class ServerError extends Error {
  constructor(message, status = 0, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function toError(response) {
  let said = "";
  try { said = (await response.json()).error.message; } catch { /* a proxy's answer: the status must do */ }
  const { status } = response;
  const wait = Math.min(600, Math.max(0, Number(response.headers.get("Retry-After")) || 0));
  if (status === 429) return new ServerError(`The server is busy: ${said || "too many requests"} (429).`, status, wait || 1);
  if (status === 503) return new ServerError(`The model is not ready: ${said || "it is starting"} (503).`, status, wait || 2);
  return new ServerError(said ? `${said} (${status})` : `${status} ${response.statusText}`, status, wait);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(address(path), { ...options, headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer: the connection was lost, or it has been stopped.");
  }
  if (!response.ok) throw await toError(response);
  return response;
}

// The card of the served model.
export async function card() {
  const models = await (await request("v1/models")).json();
  return models.data[0];
}

// What the server does now.
export const live = async () => (await request("live")).json();

// Where the time of an answer went. Throws ServerError.
export const explanation = async (id) => (await request(`v1/requests/${encodeURIComponent(id)}/explain`)).json();

// The events of a streamed answer. Throws ServerError, or AbortError after a stop.
export async function* events(path, body, signal) {
  const response = await request(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The connection was lost in the middle of the answer.");
    });
    if (done) throw new ServerError("The connection ended in the middle of the answer.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (!part.startsWith("data: ")) continue; // a comment that keeps the connection
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new ServerError(`${event.error.message} (in the middle of the answer)`);
      yield event;
    }
  }
}
