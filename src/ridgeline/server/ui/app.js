// The page as a whole: the model and the connection, the mode, the API key, light and dark, panels and keys.
import * as api from "./api.js";
import * as chat from "./chat.js";
import * as completion from "./complete.js";
import { $, copy, make } from "./dom.js";
import * as sampling from "./sampling.js";
import * as sidebar from "./sidebar.js";
import * as store from "./store.js";
import * as tokens from "./tokens.js";

const RECONNECT = 1000; // milliseconds
let card = null;
let reconnecting = 0;

// "base": trained to continue texts; "instruct": trained to answer. A server that does not say so has a template or not.
const kindOf = (model) => model.ridgeline?.kind ?? (model.chat ? "instruct" : "base");

function lock(error) {
  $("key-error").textContent = api.hasKey() ? error.message : "";
  document.body.classList.add("locked");
  $("key-form").hidden = false;
  $("key").select();
  $("key").focus();
}

function setStatus(text) {
  $("status").textContent = text;
  $("status").hidden = text === "";
}

function selectMode(mode) {
  const isChat = mode === "chat";
  $("chat").hidden = !isChat;
  $("text-mode").hidden = isChat;
  $("mode-chat").setAttribute("aria-selected", String(isChat));
  $("mode-text").setAttribute("aria-selected", String(!isChat));
  $("mode-chat").tabIndex = isChat ? 0 : -1;
  $("mode-text").tabIndex = isChat ? -1 : 0;
  writeSamples(isChat);
}

function writeSamples(isChat) {
  const name = JSON.stringify(card.id);
  const call = isChat
    ? `answer = client.chat.completions.create(\n    model=${name},\n    messages=[{"role": "user", "content": "Hello"}],\n)\nprint(answer.choices[0].message.content)`
    : `answer = client.completions.create(\n    model=${name},\n    prompt="Once upon a time",\n    max_tokens=64,\n)\nprint(answer.choices[0].text)`;
  const key = api.hasKey() ? "YOUR KEY" : "none";
  $("python").textContent = `# pip install openai\nfrom openai import OpenAI\n\nclient = OpenAI(\n    base_url="${api.base()}",\n    api_key="${key}",\n)\n${call}`;
  const body = isChat
    ? { model: card.id, messages: [{ role: "user", content: "Hello" }] }
    : { model: card.id, prompt: "Once upon a time", max_tokens: 64 };
  const secret = api.hasKey() ? ` \\\n  -H "Authorization: Bearer YOUR KEY"` : "";
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  $("curl").textContent = `curl ${api.base()}/${isChat ? "chat/completions" : "completions"}${secret} \\\n  -H "Content-Type: application/json" \\\n  -d '${json}'`;
}

function showModel() {
  const kind = kindOf(card);
  const isBase = kind === "base";
  $("model").textContent = card.id;
  $("model").title = `${card.id} · context ${card.max_model_len.toLocaleString("en")} tokens`;
  $("kind").textContent = isBase ? "base model" : "chat model";
  $("context").textContent = `${card.max_model_len.toLocaleString("en")} tokens`;
  $("about-model").hidden = false;
  document.title = `${card.id} · Ridgeline`;
  for (const note of document.querySelectorAll(".base-note")) note.hidden = !isBase;
  const { reason } = card.ridgeline ?? {};
  for (const place of document.querySelectorAll(".reason")) place.textContent = reason ? ` (${reason})` : "";
  showFindings(card.ridgeline?.checks ?? []);
  $("hello").textContent = isBase ? "Chat with a base model" : "What would you like to know?";
  $("no-template").hidden = card.chat;
  $("composer").hidden = !card.chat;
  $("suggestions").hidden = !card.chat;
  sampling.recommend(card.ridgeline?.sampling);
  $("modes").hidden = false;
  selectMode(isBase && chat.open().turns.length === 0 ? "text" : "chat");
}

// What the server's checks of the model's files have found.
function showFindings(checks) {
  const found = checks.filter((each) => each.severity !== "note");
  $("findings").hidden = found.length === 0;
  $("findings").firstElementChild.textContent = found.some((each) => each.severity === "error")
    ? "This model seems to be damaged: its answers may make no sense" : "Checks of this model found something";
  $("findings").lastElementChild.replaceChildren(...found.map(({ cause, fix }) => make("li", {}, fix ? `${cause}: ${fix}` : cause)));
}

async function connect() {
  clearTimeout(reconnecting);
  try {
    const found = await api.card();
    const isNew = card === null || JSON.stringify(card) !== JSON.stringify(found);
    card = found;
    setStatus("");
    document.body.classList.remove("locked");
    $("key-form").hidden = true;
    if (isNew) {
      showModel();
      focusField();
    }
  } catch (error) {
    if (error.status === 401) { setStatus(""); return lock(error); }
    setStatus(error.status ? error.message : "No connection to the server; trying again …");
    reconnecting = setTimeout(connect, RECONNECT);
  }
}

function focusField() {
  if (matchMedia("(hover: hover)").matches) ($("chat").hidden ? $("prompt") : $("message")).focus({ preventScroll: true });
}

function setTheme() {
  const theme = $("theme").value;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  store.set("theme", theme);
}

function setPanel(on) {
  document.body.classList.toggle("panel-open", on);
  $("settings").inert = !on;
  $("settings-toggle").setAttribute("aria-expanded", String(on));
  if (on) $("settings-close").focus({ preventScroll: true });
}

function onKey(event) {
  if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) {
    if (document.body.classList.contains("panel-open")) { setPanel(false); $("settings-toggle").focus(); } else { chat.stop(); completion.stop(); sidebar.close(); }
  }
  if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) { event.preventDefault(); newChat(); }
}

async function newChat() {
  await chat.show(null);
  sidebar.close();
  if (card?.chat) selectMode("chat");
  $("message").focus();
}

// After a failed request: a key is needed, the server has another model now, or it is gone.
function onError(error) {
  if (error.status === 401) lock(error);
  else if (error.status === 404 || error.status === 0) connect();
}

function listen() {
  $("mode-chat").addEventListener("click", () => selectMode("chat"));
  $("mode-text").addEventListener("click", () => selectMode("text"));
  $("modes").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const next = $("chat").hidden ? "chat" : "text";
    selectMode(next);
    $(`mode-${next}`).focus();
  });
  $("theme").value = document.documentElement.dataset.theme ?? "";
  $("theme").addEventListener("change", setTheme);
  $("settings-toggle").addEventListener("click", () => setPanel(!document.body.classList.contains("panel-open")));
  $("settings-close").addEventListener("click", () => { setPanel(false); $("settings-toggle").focus(); });
  $("new").addEventListener("click", newChat);
  $("code").addEventListener("click", () => $("code-dialog").showModal());
  for (const id of ["python", "curl"]) $(`copy-${id}`).addEventListener("click", (event) => copy($(id).textContent, event.currentTarget));
  $("key-form").addEventListener("submit", (event) => { event.preventDefault(); api.useKey($("key").value); connect(); });
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => chat.show(location.hash.slice(1)));
}

async function start() {
  const host = { model: () => card.id, onError, onChange: () => sidebar.refresh(), onOpen: () => { if (card) selectMode("chat"); } };
  sampling.start();
  tokens.listen();
  chat.start(host);
  completion.start(host);
  setPanel(false);
  listen();
  await chat.show(location.hash.slice(1));
  await sidebar.start();
  if (!(await store.lasting)) $("not-kept").hidden = false;
  await connect();
}

start();
