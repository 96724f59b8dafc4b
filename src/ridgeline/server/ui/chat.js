// Chat: the conversation that is open, its answers, and what a person does with its messages. An answer goes on, and is kept, while another
// conversation is looked at.
import { stream } from "./answer.js";
import { $ } from "./dom.js";
import { prepareField, setField, viewOf } from "./message.js";
import * as sampling from "./sampling.js";
import * as store from "./store.js";
import * as tokens from "./tokens.js";

const SAVE_EVERY = 1000; // milliseconds between two savings of an answer that is being written
const views = new WeakMap(); // turn → its view
const running = new Map(); // id → { conversation, controller }
const failures = new Map(); // id → error of the last request
let current = null;
let host = null; // see `start`

export const titleOf = (text) => text.trim().split("\n")[0].slice(0, 60) || "Untitled";

export function create(turns = []) {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random().toString(36).slice(2)}`, title: "New chat", named: false, created: now, updated: now,
    model: "", system: current?.system ?? store.setting("system", ""), turns };
}

export const open = () => current;

function viewFor(turn) {
  if (!views.has(turn)) views.set(turn, viewOf(turn, { onEdit: resend, onRetry: retry }));
  return views.get(turn);
}

// Shows a conversation: the one of this id, or a new one.
export async function show(id) {
  const loaded = id ? running.get(id)?.conversation ?? await store.load(id) : undefined;
  current = loaded ?? create();
  $("turns").replaceChildren(...current.turns.map((turn) => viewFor(turn).element));
  $("system").value = current.system;
  setField($("message"), "");
  history.replaceState(null, "", loaded ? `#${current.id}` : location.pathname + location.search);
  refresh();
  $("scroll").scrollTop = $("scroll").scrollHeight;
  host.onChange(current.id);
  if (loaded) host.onOpen();
}

function refresh() {
  const busy = running.has(current.id);
  $("send").hidden = busy;
  $("halt").hidden = !busy;
  document.body.classList.toggle("running", busy);
  $("empty").hidden = current.turns.length > 0;
  $("chat").classList.toggle("fresh", current.turns.length === 0);
  const error = failures.get(current.id);
  $("error").hidden = !error;
  if (error) showError(error);
}

// The error, and a button that tries again, after the time that the server asks for.
function showError(error) {
  $("error-text").textContent = error.message;
  const retry = $("try-again");
  const until = error.until ??= Date.now() + (error.retryAfter ?? 0) * 1000;
  const tick = () => {
    if (failures.get(current.id) !== error) return;
    const left = Math.ceil((until - Date.now()) / 1000);
    retry.disabled = left > 0;
    retry.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0) setTimeout(tick, 250);
  };
  tick();
}

function atEnd() {
  const box = $("scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function follow() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

async function keep(conversation) {
  conversation.updated = Date.now();
  try { await store.save(conversation); } catch (error) { host.onError(`This conversation could not be kept: ${error.message}.`); }
  host.onChange(conversation.id);
}

function parse(choice) {
  const text = choice.delta.content ?? "";
  return { text, tokens: choice.logprobs ? tokens.ofChat(text, choice.logprobs.content) : [] };
}

function messages({ system, turns }) {
  const head = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  return [...head, ...turns.map(({ role, content }) => ({ role, content }))];
}

// Requests an answer to the conversation, whose last message is a user's. Without any text the message stays, to be tried again.
async function answer(conversation) {
  const { id } = conversation;
  const turn = { role: "assistant", content: "" };
  const controller = new AbortController();
  failures.delete(id);
  running.set(id, { conversation, controller });
  let view = null;
  try {
    const body = { model: host.model(), messages: messages(conversation), ...sampling.forChat() };
    conversation.turns.push(turn);
    view = viewFor(turn);
    view.begin();
    $("turns").append(view.element);
    refresh();
    follow();
    let saved = performance.now();
    await keep(conversation);
    const onPart = (part) => {
      const stay = current === conversation && atEnd();
      view.add(part);
      if (stay) requestAnimationFrame(follow);
      if (performance.now() - saved > SAVE_EVERY) { saved = performance.now(); keep(conversation); }
    };
    turn.stats = await stream({ path: "v1/chat/completions", body, parse, signal: controller.signal, onPart });
    conversation.model = body.model;
  } catch (error) {
    failures.set(id, error);
    if (turn.content) turn.note = "This answer is not complete.";
    if (error.status === 401) host.onError(error);
  } finally {
    running.delete(id);
    if (turn.content === "" && (!turn.stats || turn.stats.reason === "you") && conversation.turns.at(-1) === turn) {
      conversation.turns.pop();
      view?.element.remove();
    } else view?.finish();
    if (current === conversation) {
      const stay = atEnd();
      refresh();
      if (stay) follow();
    }
    await keep(conversation);
  }
}

function cut(index) {
  for (const turn of current.turns.splice(index)) viewFor(turn).element.remove();
}

function retry(turn) {
  if (running.has(current.id)) return;
  const at = current.turns.indexOf(turn);
  cut(at);
  if (current.turns.at(-1)?.role === "user") answer(current);
}

// Sends `text` in the place of a message of the user: what follows it goes.
function resend(turn, text) {
  if (running.has(current.id)) return;
  cut(current.turns.indexOf(turn));
  ask(text);
}

function ask(text) {
  const turn = { role: "user", content: text };
  current.turns.push(turn);
  if (current.turns.length === 1 && !current.named) current.title = titleOf(text);
  history.replaceState(null, "", `#${current.id}`);
  $("turns").append(viewFor(turn).element);
  answer(current);
}

// Sends what is in the field; an empty one tries the last message again.
export function send() {
  const text = $("message").value;
  const unanswered = current.turns.at(-1)?.role === "user";
  if (running.has(current.id)) return;
  if (text.trim() === "") {
    if (unanswered) answer(current);
    return;
  }
  if (unanswered) cut(current.turns.length - 1); // it has no answer: this message replaces it
  setField($("message"), "");
  ask(text);
}

export function stop() {
  running.get(current?.id)?.controller.abort();
}

export const isRunning = (id) => running.has(id);

// Tries the last message again after an error, in the place of a part of an answer.
function tryAgain() {
  if (running.has(current.id)) return;
  if (current.turns.at(-1)?.role === "assistant") cut(current.turns.length - 1);
  if (current.turns.at(-1)?.role === "user") answer(current);
}

function editLast() {
  const last = current.turns.findLast((turn) => turn.role === "user");
  if (last && !running.has(current.id)) viewFor(last).edit();
}

// Begins. host: { model() → its name, onOpen(), onChange(id), onError(error or text) }: a kept conversation was opened, one has changed.
export function start(callbacks) {
  host = callbacks;
  prepareField($("message"), send);
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("message").addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" && $("message").value === "") { event.preventDefault(); editLast(); }
  });
  $("halt").addEventListener("click", () => { stop(); $("message").focus(); });
  $("try-again").addEventListener("click", tryAgain);
  $("system").addEventListener("input", () => {
    current.system = $("system").value;
    store.set("system", current.system);
    if (current.turns.length) keep(current);
  });
  $("scroll").addEventListener("scroll", () => { $("to-end").hidden = atEnd(); });
  $("to-end").addEventListener("click", follow);
  for (const example of document.querySelectorAll("#empty button")) {
    example.addEventListener("click", () => { setField($("message"), example.textContent); send(); });
  }
  store.onChange((id) => { if (current?.id === id && !running.has(id)) reload(id); });
}

// Another tab has changed the conversation that is open here.
async function reload(id) {
  const found = await store.load(id);
  if (found && current.id === id && found.updated > current.updated) await show(id);
}
