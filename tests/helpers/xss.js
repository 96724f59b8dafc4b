// Watches a page for harm: what runs, which elements and attributes appear among the messages, which links lead elsewhere than the web.
window.harm = [];
for (const name of ["alert", "confirm", "prompt", "eval", "open", "pwn"]) window[name] = (...words) => harm.push([name, ...words]);
addEventListener("securitypolicyviolation", (event) => harm.push(["policy", event.violatedDirective, event.blockedURI]));
const ELEMENTS = new Set(("SCRIPT IMG IFRAME OBJECT EMBED VIDEO AUDIO SOURCE LINK STYLE META BASE FORM INPUT MATH TEMPLATE FRAME PICTURE IMAGE "
  + "FOREIGNOBJECT ANIMATE SET MARQUEE").split(" "));

function inspect(element) {
  if (ELEMENTS.has(element.tagName.toUpperCase())) harm.push(["element", element.tagName]);
  for (const { name, value } of element.attributes) if (/^on|^style$|^src|^formaction$|^background$/i.test(name)) harm.push(["attribute", name, value]);
  if (element.tagName === "A" && !/^(https?|mailto):/.test(element.href)) harm.push(["link", element.href]);
}

new MutationObserver((records) => {
  for (const { addedNodes } of records) {
    for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) [node, ...node.querySelectorAll("*")].forEach(inspect);
  }
}).observe(document.getElementById("turns"), { childList: true, subtree: true, attributes: true });

// Renders each answer as it streams, by the page's own function; then sends every element the events that handlers wait for.
async function renderAll(answers) {
  const { render } = await import(new URL("ui/markdown.js", document.baseURI));
  const list = document.getElementById("turns");
  for (const answer of answers) {
    const body = list.appendChild(document.createElement("li")).appendChild(document.createElement("div"));
    const step = Math.max(1, Math.ceil(answer.length / 12));
    for (let end = step; end < answer.length + step; end += step) {
      render(body, answer.slice(0, end));
      await 0;
    }
  }
  const kinds = ["click", "mouseover", "pointerrawupdate", "focus", "error", "load", "toggle", "animationstart", "begin", "start"];
  for (const element of list.querySelectorAll(":not(button)")) for (const kind of kinds) element.dispatchEvent(new Event(kind));
  await new Promise((resolve) => setTimeout(resolve, 500));
  return harm;
}
