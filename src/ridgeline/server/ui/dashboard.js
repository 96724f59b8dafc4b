// The dashboard: asks `live` every second and draws what it says. Texts become text nodes, plots are the reports' (plot.js).
import * as api from "./api.js";
import { $, make } from "./dom.js";
import { show } from "./waterfall.js";

const SECOND = 1000;
let found = null;
let failures = 0;

const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);
const milliseconds = (latency) => (latency === null ? "–" : [latency.p50, latency.p90, latency.p99].map((value) => plot.seconds(value)).join(" · "));
const whole = (value) => Math.round(value).toLocaleString("en");

function figures({ running, rows, waiting, rates, ttft, itl, verdict, kv }) {
  return {
    "running": `${running} of ${rows}`,
    "waiting": whole(waiting),
    "decode": `${whole(rates.decode_tokens)} tok/s`,
    "prefill": `${whole(rates.prefill_tokens)} tok/s`,
    "TTFT p50 · p90 · p99": milliseconds(ttft),
    "ITL p50 · p90 · p99": milliseconds(itl),
    "batch, knee": `${Number(verdict.batch.toPrecision(3))} of ${verdict.knee === null ? "–" : Number(verdict.knee.toPrecision(3))}`,
    "KV held": percent(kv.blocks ? kv.held / kv.blocks : null),
    "compute ceiling": percent(verdict.compute),
    "bandwidth ceiling": percent(verdict.memory),
    "host": percent(verdict.host),
  };
}

function draw() {
  const { verdict, kv, history, tenants } = found;
  $("model").textContent = found.model;
  document.title = `${found.model} · Dashboard`;
  $("verdict").textContent = verdict.text;
  $("verdict").dataset.bottleneck = verdict.bottleneck;
  $("figures").replaceChildren(...Object.entries(figures(found)).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  lines("tokens", "Tokens per second", [["decode", history.decode_tokens], ["prefill", history.prefill_tokens]]);
  lines("rows", "Requests", [["running", history.running], ["waiting", history.waiting]]);
  lines("kv", "Share of blocks held", [["held", history.kv]], percent, 1);
  lines("busy", "Share of the time", [["busy", history.busy]], percent, 1);
  const parts = [{ name: "held", value: kv.held, colour: 0 }, { name: "cached", value: kv.cached, colour: 2 }, { name: "free", value: kv.free }];
  plot.stack($("kv-map"), { label: "Blocks of the KV cache", parts, limit: kv.blocks, limitLabel: `${whole(kv.blocks)} blocks`, format: whole });
  table("levers", ["lever", "better", "predicted", "why"], verdict.levers.map((each) => [each.name, each.figure, `× ${each.gain.toFixed(2)}`, each.why]));
  table("tenants", ["tenant", "open", "in", "out", "seconds", "dollars", "joules"], tenants.map((each) => [
    each.name || "(no key)", each.open_choices, whole(each.prompt_tokens), whole(each.generation_tokens), each.seconds.toFixed(1),
    each.dollars === null ? "–" : each.dollars.toFixed(4), each.joules === null ? "–" : whole(each.joules),
  ]));
  table("slowest", ["request", "time", "first token", "in", "out"], found.slowest.map((each) => [
    link(each.id), plot.seconds(each.seconds), each.first_token_seconds === null ? "–" : plot.seconds(each.first_token_seconds),
    whole(each.prompt_tokens), whole(each.output_tokens),
  ]), !$("request").firstChild);
}

function lines(name, label, curves, format = (value) => plot.amount(value), least = 1) {
  const length = curves[0][1].length;
  const high = Math.max(least, ...curves.flatMap(([, values]) => values)) * (least === 1 && format === percent ? 1 : 1.1);
  plot.lines($(name), {
    label,
    x: { label: "seconds ago", low: -length, high: -1, log: false, format: (value) => String(-Math.round(value)), at: [-120, -90, -60, -30].filter((at) => at >= -length) },
    y: { label, low: 0, high, log: false, format },
    curves: curves.map(([curve, values], i) => ({ name: curve, colour: 2 * i, points: values.map((value, at) => [at - length, value]) })),
  });
}

// A request's id, which shows where its time went.
function link(id) {
  const made = make("button", { type: "button", className: "link" }, id.slice(0, 8));
  made.addEventListener("click", () => show($("request"), id));
  return made;
}

function table(name, heads, rows, hides = true) {
  $(`${name}-panel`).hidden = hides && rows.length === 0;
  const cell = (value) => make("td", { className: String(value).length > 40 ? "words" : "" }, value instanceof Node ? value : String(value));
  $(name).replaceChildren(
    make("thead", {}, make("tr", {}, ...heads.map((each) => make("th", {}, each)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))),
  );
}

function say(text, isBad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", isBad);
}

async function look() {
  try {
    if (!document.hidden) {
      found = await api.live();
      failures = 0;
      $("key-form").hidden = true;
      $("board").hidden = false;
      draw();
      say(found.ready ? "The last two minutes, drawn anew every second" : "The server takes no requests now", !found.ready);
    }
  } catch (error) {
    failures += 1;
    if (error.status === 401) {
      $("key-form").hidden = false;
      $("board").hidden = true;
      return say(api.hasKey() ? error.message : "", true);
    }
    say(error.message, true);
  }
  setTimeout(look, SECOND * Math.min(10, 1 + failures));
}

$("key-form").addEventListener("submit", (event) => { event.preventDefault(); api.useKey($("key").value); look(); });
addEventListener("resize", () => { if (found) draw(); });
look();
