// Markdown as elements. markdown-it parses; the elements are made here one by one from a list of tags, and texts are text nodes, so what a
// model writes cannot become HTML. Images are shown as links. Links are absolute, of three schemes, and open elsewhere without a referrer.
import { button, copy, make } from "./dom.js";

const TAGS = new Set([
  "blockquote", "em", "h1", "h2", "h3", "h4", "h5", "h6", "li", "ol", "p", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
]);
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const MAX_CHARACTERS = 400_000; // longer answers are shown as they were written

const parser = globalThis.markdownit({ html: false, linkify: true, breaks: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false }); // "main.py" is no address

// The address of a link, or null where it is not to be followed.
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch { return null; }
}

function link(address) {
  const href = safeAddress(address);
  return href === null ? make("span") : make("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" });
}

function code(token) {
  const language = token.info?.trim().split(/\s+/)[0].slice(0, 30) ?? "";
  const text = token.content.replace(/\n$/, "");
  const head = make("div", { className: "code-head" }, make("span", {}, language), button("Copy this code", "copy", (element) => copy(text, element)));
  return make("div", { className: "code" }, head, make("pre", { tabIndex: 0 }, make("code", {}, text)));
}

function open(token) {
  if (token.type === "link_open") return link(token.attrGet("href") ?? "");
  const element = make(TAGS.has(token.tag) ? token.tag : "span");
  const start = token.tag === "ol" ? Number(token.attrGet("start") ?? 1) : 1;
  if (start !== 1 && Number.isSafeInteger(start)) element.start = start;
  const side = token.attrGet("style")?.match(/^text-align:(center|right)$/)?.[1];
  if (side) element.className = side;
  return element;
}

function leaf(token) {
  switch (token.type) {
    case "softbreak": case "hardbreak": return make("br");
    case "hr": return make("hr");
    case "code_inline": return make("code", {}, token.content);
    case "fence": case "code_block": return code(token);
    case "image": {
      const address = token.attrGet("src") ?? "";
      const element = link(address);
      element.append(token.content || address);
      return element;
    }
    default: return token.content;
  }
}

// Appends the elements of a flat list of tokens.
function build(tokens, parent) {
  const stack = [parent];
  for (const token of tokens) {
    const top = stack.at(-1);
    if (token.type === "inline") build(token.children, top);
    else if (token.nesting === 1) {
      const element = token.hidden ? top : open(token);
      if (element.tagName === "TABLE") top.append(make("div", { className: "wide", tabIndex: 0 }, element));
      else if (element !== top) top.append(element);
      stack.push(element);
    } else if (token.nesting === -1) stack.pop();
    else if (!token.hidden) top.append(leaf(token));
  }
}

// The blocks of the outermost level: { key, tokens }. The key is the block's source, and how many definitions of links there are.
function blocks(text) {
  const environment = {};
  const tokens = parser.parse(text, environment);
  const lines = text.split("\n");
  const defined = Object.keys(environment.references ?? {}).length;
  const found = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting !== -1) {
      const source = lines.slice(...(token.map ?? [0, 0])).join("\n");
      found.push({ key: `${defined} ${token.type} ${source}`, tokens: [] });
    }
    found.at(-1).tokens.push(token);
  }
  return found;
}

const shown = new WeakMap(); // element → keys of the blocks that its children show

// Shows the text in the element. Blocks that have not changed since the last call stay, so a selection outlives the stream.
export function render(element, text) {
  if (text.length > MAX_CHARACTERS) {
    element.replaceChildren(make("div", { className: "plain" }, text));
    shown.delete(element);
    return;
  }
  const before = shown.get(element) ?? [];
  const now = blocks(text);
  let same = 0;
  while (same < now.length && same < before.length && now[same].key === before[same]) same += 1;
  while (element.childNodes.length > same) element.lastChild.remove();
  for (const block of now.slice(same)) {
    const part = document.createElement("div");
    build(block.tokens, part);
    element.append(part.childNodes.length === 1 && part.firstChild.nodeType === Node.ELEMENT_NODE ? part.firstChild : part);
  }
  shown.set(element, now.map((block) => block.key));
}
