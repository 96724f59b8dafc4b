// What this browser keeps: conversations in IndexedDB, settings in localStorage. Without storage both last until the page is left.
//
// A conversation is { id, title, named, created, updated, model, system, turns: [{ role, content, stats, note }] }; `named` says that a person
// chose the title. Its title and dates are also kept apart, so that the list is read without the messages.
const SETTINGS = "ridgeline.settings";
const kept = new Map(); // conversations, where there is no database
const channel = new BroadcastChannel("ridgeline");
const database = open();
export const lasting = database.then((opened) => opened !== null);

function open() {
  return new Promise((resolve) => {
    let opening;
    try { opening = indexedDB.open("ridgeline", 1); } catch { resolve(null); return; }
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("titles", { keyPath: "id" });
      opening.result.createObjectStore("conversations", { keyPath: "id" });
    };
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => resolve(null);
    opening.onblocked = () => resolve(null);
  });
}

// One transaction over both stores: its result, after it is on disk.
async function transact(mode, work) {
  const base = await database;
  return new Promise((resolve, reject) => {
    const transaction = base.transaction(["titles", "conversations"], mode);
    const asked = work(transaction.objectStore("titles"), transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(asked?.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("the browser's storage is full"));
  });
}

const titleOf = ({ id, title, updated }) => ({ id, title, updated });

// Titles, newest first.
export async function list() {
  const titles = (await database) ? await transact("readonly", (store) => store.getAll()) : [...kept.values()].map(titleOf);
  return titles.sort((a, b) => b.updated - a.updated);
}

// A conversation, or undefined.
export async function load(id) {
  if (await database) return transact("readonly", (_, store) => store.get(id));
  return structuredClone(kept.get(id));
}

export async function save(conversation) {
  if (await database) {
    await transact("readwrite", (titles, store) => { titles.put(titleOf(conversation)); store.put(conversation); });
  } else kept.set(conversation.id, structuredClone(conversation));
  channel.postMessage(conversation.id);
}

export async function remove(id) {
  if (await database) await transact("readwrite", (titles, store) => { titles.delete(id); store.delete(id); });
  else kept.delete(id);
  channel.postMessage(id);
}

// Calls back with the id of a conversation that another tab has changed.
export function onChange(callback) {
  channel.addEventListener("message", (event) => callback(event.data));
}

function readSettings() {
  try {
    const found = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch { return {}; }
}

const settings = readSettings();
export const setting = (name, fallback) => settings[name] ?? fallback;

export function set(name, value) {
  settings[name] = value;
  try { localStorage.setItem(SETTINGS, JSON.stringify(settings)); } catch { /* lasts until the page is left */ }
}
