// One message of a conversation on the page: its text, measures, actions and, for a user's, the field in which it is edited.
import { describe } from "./answer.js";
import { button, copy, make } from "./dom.js";
import { render } from "./markdown.js";
import * as tokens from "./tokens.js";
import { toggle } from "./waterfall.js";

const THINKING = /^\s*<think>([\s\S]*?)(?:<\/think>\s*([\s\S]*))?$/;

// What a reasoning model thinks before it answers, and the answer.
function divide(text) {
  const found = THINKING.exec(text);
  return found ? { thought: found[1].trim(), answer: found[2] ?? "" } : { thought: "", answer: text };
}

const GROWS = CSS.supports("field-sizing", "content"); // then the style sheet does it

function grow(field) {
  if (GROWS || field.offsetParent === null) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

// A field that grows with its text. Enter calls `send`, Shift+Enter begins a line.
export function prepareField(field, send) {
  field.addEventListener("input", () => grow(field));
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return; // 229: an input method is at work
    event.preventDefault();
    send();
  });
}

export function setField(field, text) {
  field.value = text;
  grow(field);
}

class UserView {
  constructor(turn, { onEdit }) {
    this.turn = turn;
    this.onEdit = onEdit;
    this.body = make("div", { className: "body plain" }, turn.content);
    this.actions = make("div", { className: "actions" },
      button("Copy this message", "copy", (element) => copy(turn.content, element)),
      button("Edit this message and send it again", "edit", () => this.edit()));
    this.element = make("li", { className: "user" }, make("span", { className: "unseen" }, "You: "), this.body, this.actions);
  }

  edit() {
    const field = make("textarea", { value: this.turn.content, "aria-label": "Edited message" });
    const send = () => { if (field.value.trim()) this.onEdit(this.turn, field.value); };
    const cancel = () => form.replaceWith(this.body, this.actions);
    const form = make("form", { className: "edit" }, field, make("div", { className: "row" },
      make("span", { className: "soft fill" }, "What follows is answered anew"),
      make("button", { type: "button", className: "quiet", onclick: cancel }, "Cancel"), make("button", { type: "submit" }, "Send")));
    form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
    prepareField(field, send);
    field.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); cancel(); } });
    this.actions.remove();
    this.body.replaceWith(form);
    grow(field);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

class AnswerView {
  constructor(turn, { onRetry }) {
    this.turn = turn;
    this.timer = 0;
    this.cost = 0; // milliseconds of the last drawing
    this.thought = make("div", { className: "plain" });
    this.thinking = make("details", { className: "thinking", hidden: true }, make("summary", {}, "Thoughts"), this.thought);
    this.body = make("div", { className: "body markdown" });
    this.note = make("p", { className: "note", hidden: true });
    this.stats = make("p", { className: "stats" });
    const actions = make("div", { className: "actions" },
      button("Copy this answer", "copy", (element) => copy(divide(turn.content).answer, element)),
      button("Answer again", "retry", () => onRetry(turn)),
      button("Where the time went", "time", () => { if (turn.stats?.id) toggle(this.element, turn.stats.id); }), this.stats);
    this.element = make("li", { className: "assistant" }, make("span", { className: "unseen" }, "Answer: "), this.thinking, this.body, this.note, actions);
    if (turn.content) this.finish();
  }

  // Adds a part: as tokens with their probabilities where it has them, else as Markdown, which takes a fifth of the time at most.
  add(part) {
    this.turn.content += part.text;
    if (part.tokens.length) {
      this.body.className = "body plain tokens";
      tokens.append(this.body, part.tokens);
    } else this.timer ||= setTimeout(() => { this.timer = 0; this.draw(); }, Math.max(16, 4 * this.cost));
  }

  begin() {
    this.element.classList.add("busy");
    this.element.ariaBusy = "true"; // screen readers wait for the whole answer
  }

  draw() {
    const start = performance.now();
    const { thought, answer } = divide(this.turn.content);
    this.thinking.hidden = thought === "";
    if (this.thought.textContent !== thought) this.thought.textContent = thought;
    render(this.body, answer);
    this.cost = performance.now() - start;
  }

  finish() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.element.classList.remove("busy");
    this.element.ariaBusy = "false";
    if (!this.body.classList.contains("tokens")) this.draw();
    this.stats.textContent = this.turn.stats ? describe(this.turn.stats) : "";
    this.note.textContent = this.turn.note ?? "";
    this.note.hidden = !this.turn.note;
  }
}

export const viewOf = (turn, actions) => (turn.role === "user" ? new UserView(turn, actions) : new AnswerView(turn, actions));
