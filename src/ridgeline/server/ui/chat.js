"use strict";
// Chat: the conversation, actions on its messages, and the current answer.
const chat = (() => {
  const $ = (id) => document.getElementById(id);
  const turns = []; // { role, content, item }
  let running = null;
  let editing = null;

  function button(text, action, label) {
    const element = document.createElement("button");
    element.type = "button";
    element.className = "link";
    element.textContent = text;
    element.setAttribute("aria-label", label);
    element.addEventListener("click", () => action(element));
    return element;
  }

  async function copy(text, element) {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else { // only pages from this machine or over https have a clipboard
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    element.textContent = "Copied";
    setTimeout(() => { element.textContent = "Copy"; }, 1500);
  }

  function add(role, content) {
    const turn = { role, content, item: document.createElement("li") };
    turn.item.className = role;
    const name = document.createElement("p");
    name.className = "role";
    name.textContent = role === "user" ? "You" : "Assistant";
    turn.body = document.createElement("div");
    turn.body.className = "body tokens";
    turn.body.textContent = content;
    turn.stats = document.createElement("p");
    turn.stats.className = "stats";
    const actions = document.createElement("p");
    actions.className = "actions";
    actions.append(button("Copy", (element) => copy(turn.content, element), "Copy this message"));
    if (role === "user") actions.append(button("Edit", () => edit(turn), "Edit this message and send it again"));
    else actions.append(button("Retry", () => retry(turn), "Answer again"));
    turn.item.append(name, turn.body, turn.stats, actions);
    turns.push(turn);
    $("turns").append(turn.item);
    $("empty").hidden = true;
    return turn;
  }

  function removeFrom(index) {
    for (const turn of turns.splice(index)) turn.item.remove();
    $("empty").hidden = turns.length > 0;
  }

  function edit(turn) {
    if (running) return;
    editing = turn;
    $("editing").hidden = false;
    $("message").value = turn.content;
    $("message").focus();
  }

  function stopEditing() {
    editing = null;
    $("editing").hidden = true;
    $("message").value = "";
  }

  function retry(turn) {
    if (running) return;
    removeFrom(turns.indexOf(turn));
    answer();
  }

  function parse(choice) {
    const text = choice.delta.content ?? "";
    return { text, tokens: choice.logprobs ? tokens.ofChat(text, choice.logprobs.content) : [] };
  }

  function messages() {
    const system = $("system").value.trim();
    return [...(system ? [{ role: "system", content: system }] : []), ...turns.map(({ role, content }) => ({ role, content }))];
  }

  function scrollToEnd() {
    const page = document.documentElement;
    if (page.scrollHeight - page.scrollTop - page.clientHeight < 240) page.scrollTop = page.scrollHeight;
  }

  function setBusy(on) {
    $("send").disabled = on;
    $("new").disabled = on;
    $("halt").disabled = !on;
    document.body.classList.toggle("running", on);
  }

  // Requests an answer to the conversation. Without any answer, or after an error, the message stays to be retried.
  async function answer() {
    $("error").hidden = true;
    let turn = null;
    running = new AbortController();
    setBusy(true);
    try {
      const body = { model: app.model(), messages: messages(), ...sampling.body(), ...sampling.chatLogprobs() };
      turn = add("assistant", "");
      scrollToEnd();
      await answers.run({
        path: "/v1/chat/completions", body, parse, output: turn.body, stats: turn.stats, signal: running.signal, onText: scrollToEnd,
      });
    } catch (error) {
      if (error.status === 401) app.askForKey(error);
      else app.showError("error", error);
    } finally {
      if (turn) turn.content = turn.body.textContent;
      if (turn && turn.content === "" && turn.stats.textContent === "") removeFrom(turns.indexOf(turn));
      running = null;
      setBusy(false);
    }
  }

  function send() {
    const text = $("message").value;
    if (running || (text.trim() === "" && !(turns.at(-1)?.role === "user"))) return;
    if (editing) removeFrom(turns.indexOf(editing));
    stopEditing();
    if (text.trim() !== "") {
      if (turns.at(-1)?.role === "user") removeFrom(turns.length - 1); // it has no answer: this message replaces it
      add("user", text);
    }
    answer();
  }

  $("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "Escape" && editing) stopEditing();
  });
  $("halt").addEventListener("click", () => running?.abort());
  $("cancel-edit").addEventListener("click", stopEditing);
  $("new").addEventListener("click", () => { removeFrom(0); stopEditing(); $("error").hidden = true; $("message").focus(); });
  $("system").addEventListener("input", () => {
    const text = $("system").value.trim();
    $("system-shown").textContent = text ? `· ${text.slice(0, 40)}` : "";
  });
})();
