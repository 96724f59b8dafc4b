// Elements without HTML: nothing on this page makes elements of a text. The Content-Security-Policy forbids it too (trusted types).
export const $ = (id) => document.getElementById(id);

// make("a", { className: "link", href }, child, "text"): properties, then children. Names with a hyphen are attributes.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// An icon of index.html's sheet.
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function button(label, glyph, action, className = "icon") {
  const element = make("button", { type: "button", className, title: label, "aria-label": label }, icon(glyph));
  element.addEventListener("click", () => action(element));
  return element;
}

async function writeClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // only pages from this machine or over https have a clipboard
    const field = make("textarea", { value: text });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

// Copies, and shows on the button for a moment that it has.
export async function copy(text, element) {
  await writeClipboard(text);
  const use = element.querySelector("use");
  use.setAttribute("href", "#i-check");
  element.title = "Copied";
  setTimeout(() => { use.setAttribute("href", "#i-copy"); element.title = element.ariaLabel; }, 1500);
}

// Saves a file on the reader's machine.
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

let toastTimer = 0;

// A line at the foot of the page for some seconds, with one action at most.
export function toast(text, label = "", action = () => {}) {
  const box = $("toast");
  box.replaceChildren(make("span", {}, text));
  if (label) {
    const act = make("button", { type: "button", className: "link" }, label);
    act.addEventListener("click", () => { box.hidden = true; action(); });
    box.append(act);
  }
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { box.hidden = true; }, 8000);
}
