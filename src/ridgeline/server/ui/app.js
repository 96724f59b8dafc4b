"use strict";
// The page as a whole: the model, the mode, the API key, light and dark.
const app = (() => {
  const $ = (id) => document.getElementById(id);
  let card = null;

  function askForKey(error) {
    $("key-form").hidden = false;
    $("key-error").textContent = api.hasKey() ? error.message : "";
    $("model").textContent = "locked";
    $("key").focus();
  }

  function showError(id, error) {
    $(id).textContent = error.message;
    $(id).hidden = false;
  }

  function selectMode(mode) {
    const isChat = mode === "chat";
    $("chat").hidden = !isChat;
    $("text-mode").hidden = isChat;
    $("mode-chat").setAttribute("aria-pressed", String(isChat));
    $("mode-text").setAttribute("aria-pressed", String(!isChat));
    const call = isChat
      ? `print(client.chat.completions.create(model="${card.id}", messages=[{"role": "user", "content": "Hello"}]).choices[0].message.content)`
      : `print(client.completions.create(model="${card.id}", prompt="Once upon a time", max_tokens=32).choices[0].text)`;
    $("snippet").textContent = [
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url="${location.origin}/v1", api_key="${api.hasKey() ? "YOUR KEY" : "none"}")`,
      call,
    ].join("\n");
    (isChat ? $("message") : $("prompt")).focus({ preventScroll: true });
  }

  async function connect() {
    try {
      card = await api.card();
      $("model").textContent = `${card.id} · context ${card.max_model_len.toLocaleString("en")} tokens`;
      $("key-form").hidden = true;
      $("modes").hidden = !card.chat;
      $("base-note").hidden = card.chat;
      selectMode(card.chat ? "chat" : "text");
    } catch (error) {
      if (error.status === 401) return askForKey(error);
      $("model").textContent = error.status ? error.message : "no connection, trying again…";
      setTimeout(connect, 1000);
    }
  }

  function switchTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }

  $("mode-chat").addEventListener("click", () => selectMode("chat"));
  $("mode-text").addEventListener("click", () => selectMode("text"));
  $("theme").addEventListener("click", switchTheme);
  $("colour").addEventListener("change", () => document.body.classList.toggle("coloured", $("colour").checked));
  $("key-form").addEventListener("submit", (event) => { event.preventDefault(); api.useKey($("key").value); connect(); });
  if (matchMedia("(max-width: 60rem)").matches) $("sampling").open = false;
  connect();

  return { askForKey, model: () => card.id, showError };
})();
