// Chat: the conversation that is open, its answers, and what a person does with its messages. An answer goes on, and is kept, while another
// conversation is looked at.
import { stream } from "./answer.js";
import { $, toast } from "./dom.js";
import { prepareField, setField, viewOf } from "./message.js";
import * as sampling from "./sampling.js";
import * as store from "./store.js";
import * as tokens from "./tokens.js";

const SAVE_EVERY = 1000; // milliseconds between two savings of an answer that is being written
const views = new WeakMap(); // turn → its view
const running = new Map(); // id → { conversation, controller }
const failures = new Map(); // id → error of the last request
const forgotten = new Set(); // ids of deleted conversations, whose answers may still end
const drafts = new Map(); // id → what was typed and not sent
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
  if (current) drafts.set(current.id, $("message").value);
  display(loaded ?? create());
  setField($("message"), drafts.get(current.id) ?? "");
  history.replaceState(null, "", loaded ? `#${current.id}` : location.pathname + location.search);
  follow();
  host.onChange(current.id);
  if (loaded) host.onOpen();
}

function display(conversation) {
  current = conversation;
  $("turns").replaceChildren(...current.turns.map((turn) => viewFor(turn).element));
  $("system").value = current.system;
  refresh();
}

// Deletes a conversation, in the middle of an answer too.
export async function forget(id) {
  forgotten.add(id);
  running.get(id)?.controller.abort();
  if (current.id === id) await show(null);
  await store.remove(id);
}

// Brings a deleted conversation back.
export async function recall(conversation) {
  forgotten.delete(conversation.id);
  await store.save(conversation);
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
  if (forgotten.has(conversation.id)) return;
  conversation.updated = Date.now();
  try { await store.save(conversation); } catch (error) { toast(`This conversation could not be kept: ${error.message}.`); }
  host.onChange(conversation.id);
}

// Reads the parts of one answer. Thoughts, which come apart from the answer, are kept in front of it between their marks.
function reader() {
  let thinking = false;
  return ({ delta, logprobs }) => {
    const content = delta.content ?? "", thought = delta.reasoning_content ?? "";
    const opened = thought && !thinking ? "<think>" : "", closed = content && (thinking || thought) ? "</think>\n" : "";
    thinking = (thinking || thought !== "") && content === "";
    return { text: opened + thought + closed + content, tokens: logprobs ? tokens.ofChat(content, logprobs.content) : [] };
  };
}

function messages({ system, turns }) {
  const head = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  return [...head, ...turns.map(({ role, content }) => ({ role, content }))];
}

// Requests an answer to the conversation, whose last message is a user's. Without any text the message stays, to be tried again, and the turns
// that the answer was to replace come back.
async function answer(conversation, replaced = []) {
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
    turn.stats = await stream({ path: "v1/chat/completions", body, parse: reader(), signal: controller.signal, onPart });
    conversation.model = body.model;
  } catch (error) {
    failures.set(id, error);
    if (turn.content) turn.note = "This answer is not complete.";
    host.onError(error);
  } finally {
    running.delete(id);
    if (turn.content === "" && (!turn.stats || turn.stats.reason === "you")) {
      if (conversation.turns.at(-1) === turn) conversation.turns.pop();
      conversation.turns.push(...replaced);
      if (current === conversation) display(conversation);
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
  const turns = current.turns.splice(index);
  for (const turn of turns) viewFor(turn).element.remove();
  return turns;
}

function retry(turn) {
  if (running.has(current.id)) return;
  const replaced = cut(current.turns.indexOf(turn));
  if (current.turns.at(-1)?.role === "user") answer(current, replaced);
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
  const last = current.turns.at(-1);
  if (last?.role === "assistant") retry(last);
  else if (last && !running.has(current.id)) answer(current);
}

function editLast() {
  const last = current.turns.findLast((turn) => turn.role === "user");
  if (last && !running.has(current.id)) viewFor(last).edit();
}

// Begins. host: { model() → its name, onOpen(), onChange(id), onError(error) }: a kept conversation was opened, one has changed.
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
  if (found && current.id === id && found.updated > current.updated) display(found);
}
