// The list of conversations: open, search, rename, delete with a way back, export and import.
import * as chat from "./chat.js";
import { $, button, download, make, toast } from "./dom.js";
import * as store from "./store.js";

const MAX_IMPORT = 64 << 20;
const ROLES = new Set(["user", "assistant", "system"]);
let chosen = null; // the title whose menu is open

const fileName = (title) => title.normalize("NFKD").replace(/[^\w]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 50).toLowerCase() || "conversation";
const day = (time) => new Date(time).toISOString().slice(0, 10);

// A conversation as `ridgeline run` saves and loads it, with its title and dates.
function asJson({ title, created, updated, model, system, turns }) {
  const head = system ? [{ role: "system", content: system }] : [];
  const iso = (time) => new Date(time).toISOString();
  return { title, created: iso(created), updated: iso(updated), model, messages: [...head, ...turns.map(({ role, content }) => ({ role, content }))] };
}

function asMarkdown({ title, model, system, turns }) {
  const names = { user: "You", assistant: model || "Answer" };
  const parts = [`# ${title}`, ...(system ? [`> ${system.replaceAll("\n", "\n> ")}`] : [])];
  for (const { role, content } of turns) parts.push(`## ${names[role]}`, content);
  return `${parts.join("\n\n")}\n`;
}

// A conversation of a file. Throws an Error that says what is wrong with it.
function fromJson(value) {
  const list = value?.messages;
  const valid = Array.isArray(list) && list.length > 0 && list.every((each) => ROLES.has(each?.role) && typeof each.content === "string");
  if (!valid) throw new Error("it holds no conversation: messages must be a list of objects with role (system, user, assistant) and content");
  const system = list[0].role === "system" ? list[0].content : "";
  const turns = list.slice(system || list[0].role === "system" ? 1 : 0).map(({ role, content }) => ({ role, content }));
  if (turns.some((turn) => turn.role === "system")) throw new Error("a system message stands in the middle of a conversation");
  const time = (text) => { const found = Date.parse(text); return Number.isFinite(found) ? found : Date.now(); };
  const title = typeof value.title === "string" ? value.title.slice(0, 200) : chat.titleOf(turns[0]?.content ?? "");
  return { ...chat.create(turns), title, named: true, system, created: time(value.created), updated: time(value.updated),
    model: typeof value.model === "string" ? value.model.slice(0, 200) : "" };
}

async function importFile(file) {
  try {
    if (file.size > MAX_IMPORT) throw new Error(`it has ${Math.round(file.size / 1e6)} MB, at most ${MAX_IMPORT >> 20} MiB are read`);
    const value = JSON.parse(await file.text());
    const all = (Array.isArray(value) ? value : [value]).map(fromJson);
    for (const each of all) await store.save(each);
    toast(all.length === 1 ? `“${all[0].title}” was imported.` : `${all.length} conversations were imported.`);
    await refresh();
    if (all.length === 1) await chat.show(all[0].id);
  } catch (error) {
    toast(`${file.name} was not imported: ${error instanceof SyntaxError ? "it is no JSON" : error.message}.`);
  }
}

async function exportAll() {
  const all = [];
  for (const { id } of await store.list()) all.push(asJson(await store.load(id)));
  download(`ridgeline-conversations-${day(Date.now())}.json`, "application/json", `${JSON.stringify(all, null, 1)}\n`);
}

async function exportOne(id, form) {
  const conversation = await store.load(id);
  const name = fileName(conversation.title);
  if (form === "json") download(`${name}.json`, "application/json", `${JSON.stringify(asJson(conversation), null, 1)}\n`);
  else download(`${name}.md`, "text/markdown", asMarkdown(conversation));
}

async function remove(id) {
  const conversation = await store.load(id);
  await chat.forget(id);
  await refresh();
  toast(`“${conversation.title}” was deleted.`, "Undo", async () => { await chat.recall(conversation); await refresh(); });
}

async function rename(id, title) {
  const conversation = chat.open()?.id === id ? chat.open() : await store.load(id);
  if (!conversation) return;
  Object.assign(conversation, { title: title.trim().slice(0, 200) || conversation.title, named: true });
  await store.save(conversation);
  await refresh();
}

function startRenaming(id) {
  const item = document.querySelector(`#conversations li[data-id="${CSS.escape(id)}"]`);
  const field = make("input", { value: item.querySelector(".open").textContent, "aria-label": "New name", maxLength: 200 });
  let left = false;
  const leave = (save) => {
    if (left) return;
    left = true;
    item.replaceChildren();
    if (save) rename(id, field.value);
    else refresh();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) leave(true);
    if (event.key === "Escape") { event.stopPropagation(); leave(false); }
  });
  field.addEventListener("blur", () => leave(true));
  item.replaceChildren(field);
  field.focus();
  field.select();
}

function openMenu(title, element) {
  chosen = title;
  const menu = $("item-menu");
  menu.showPopover();
  const place = element.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(place.left, innerWidth - menu.offsetWidth - 8))}px`;
  menu.style.top = `${Math.min(place.bottom + 4, innerHeight - menu.offsetHeight - 8)}px`;
  menu.querySelector("button").focus();
}

function itemOf(title) {
  const isOpen = chat.open()?.id === title.id;
  const name = make("button", { type: "button", className: "open", title: title.title }, title.title);
  if (isOpen) name.setAttribute("aria-current", "page");
  name.addEventListener("click", () => { chat.show(title.id); close(); });
  const more = button(`Actions for ${title.title}`, "more", (element) => openMenu(title, element));
  more.setAttribute("aria-haspopup", "menu");
  return make("li", { "data-id": title.id, className: chat.isRunning(title.id) ? "busy" : "" }, name, more);
}

function ageOf(time) {
  const start = new Date().setHours(0, 0, 0, 0);
  if (time >= start) return "Today";
  if (time >= start - 86_400_000) return "Yesterday";
  return time >= start - 6 * 86_400_000 ? "This week" : "Earlier";
}

// Shows the list anew, unless a name is being typed in it.
export async function refresh() {
  const titles = await store.list();
  const box = $("conversations");
  if (box.querySelector("input")) return;
  const wanted = $("search").value.trim().toLowerCase();
  const items = [];
  let age = "";
  for (const title of titles.filter((each) => each.title.toLowerCase().includes(wanted))) {
    if (ageOf(title.updated) !== age) {
      age = ageOf(title.updated);
      items.push(make("li", { className: "age" }, age));
    }
    items.push(itemOf(title));
  }
  box.replaceChildren(...items);
  $("search").hidden = titles.length < 8 && wanted === "";
  $("no-conversations").hidden = titles.length > 0;
  $("export-all").disabled = titles.length === 0;
}

const narrow = matchMedia("(max-width: 52rem)");

function set(on) {
  document.body.classList.toggle("side", on);
  $("side-toggle").setAttribute("aria-expanded", String(on));
  $("sidebar").inert = !on;
}

// Closes the list where it covers the page.
export function close() {
  if (narrow.matches) set(false);
}

export async function start() {
  set(!narrow.matches && store.setting("side", true));
  document.body.classList.add("ready");
  narrow.addEventListener("change", () => set(!narrow.matches && store.setting("side", true)));
  const toggle = () => {
    const on = !document.body.classList.contains("side");
    if (!narrow.matches) store.set("side", on);
    set(on);
    if (on && narrow.matches) $("new").focus();
  };
  $("side-toggle").addEventListener("click", toggle);
  $("side-close").addEventListener("click", () => { toggle(); $("side-toggle").focus(); });
  $("shade").addEventListener("click", close);
  $("search").addEventListener("input", refresh);
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", () => { const [file] = $("import-file").files; if (file) importFile(file); $("import-file").value = ""; });
  $("export-all").addEventListener("click", exportAll);
  const acts = { "act-rename": (id) => startRenaming(id), "act-markdown": (id) => exportOne(id, "markdown"), "act-json": (id) => exportOne(id, "json"),
    "act-delete": (id) => remove(id) };
  for (const [id, act] of Object.entries(acts)) $(id).addEventListener("click", () => { $("item-menu").hidePopover(); act(chosen.id); });
  store.onChange(refresh);
  await refresh();
}
