"use strict";
// The sliders, what they mean as a deployment, and what is shown of its report.
const state = { ...DATA.opened };
const byId = (name) => document.getElementById(name);
const model = () => DATA.models[state.model];
const device = () => DATA.devices[state.device];
const gigabytes = (bytes) => `${Number((bytes / 1e9).toPrecision(bytes >= 1e11 ? 4 : 3)).toLocaleString("en")} GB`;
const whole = (value) => value.toLocaleString("en");
const bits = (form) => `${Number(form.layer_bits.toFixed(2))} bits`;

// From `low` to `high` in steps of about a twelfth, whole numbers of `unit`, with every value of `and`.
function steps(low, high, unit, ...and) {
  const found = new Set([...and, low, high]);
  for (let value = low; value < high; value = Math.max(value + unit, Math.round((value * 13) / 12 / unit) * unit)) found.add(value);
  return [...found].filter((value) => value >= low && value <= high).sort((a, b) => a - b);
}

function widths() {
  const able = (width) => model().heads % width === 0 && state.count % (width * state.pipeline * state.expert) === 0;
  return [null, ...Array.from({ length: Math.min(64, state.count) }, (_, i) => i + 1).filter(able)];
}

function formats() {
  const names = Object.keys(WEIGHT_FORMATS);
  return [null, ...names.sort((a, b) => WEIGHT_FORMATS[b].layer_bits - WEIGHT_FORMATS[a].layer_bits)];
}

const SLIDERS = [
  { name: "dtype", label: "Weight precision", values: formats,
    show: (value) => (value === null ? `as stored (${model().format_name})` : `${value}, ${bits(WEIGHT_FORMATS[value])}`) },
  { name: "kv_dtype", label: "KV precision", values: () => Object.keys(KV_BITS), show: (value) => `${value}, ${KV_BITS[value]} bits` },
  { name: "memory_bytes", label: "Memory of a device", values: () => steps(1e9, 1024e9, 1e9, device().memory_bytes, state.memory_bytes), show: gigabytes },
  { name: "bytes_per_second", label: "Memory bandwidth", show: (value) => `${gigabytes(value)}/s`,
    values: () => steps(10e9, 20e12, 1e9, device().bytes_per_second, state.bytes_per_second) },
  { name: "context", label: "Context, tokens", values: () => steps(2, model().context, 1, state.context, 4096), show: whole },
  { name: "prompt", label: "Prompt, tokens", values: () => steps(1, model().context - 1, 1, state.prompt), show: whole },
  { name: "output", label: "Answer, tokens", values: () => steps(1, model().context - 1, 1, state.output), show: whole },
  { name: "users", label: "Users at once", values: () => steps(1, 1e5, 1, state.users), show: whole },
  { name: "count", label: "Devices", values: () => [...new Set([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 128, state.count])].sort((a, b) => a - b), show: whole },
  { name: "tensor", label: "Tensor parallel", values: widths, show: (value) => (value === null ? `automatic (${layout().tensor})` : whole(value)) },
];

function layout() {
  if (state.tensor === null) return automatic_layout(model(), state.count);
  const { tensor, pipeline, expert } = state;
  return { tensor, pipeline, expert, replicas: state.count / (tensor * pipeline * expert) };
}

function deployment() {
  return {
    model: model(),
    device: { ...device(), memory_bytes: state.memory_bytes, bytes_per_second: state.bytes_per_second },
    layout: layout(),
    workload: { prompt: state.prompt, output: state.output, reused: state.reused },
    dtype: state.dtype, kv_dtype: state.kv_dtype, context: state.context, users: state.users,
    utilisation: state.utilisation, chunk: state.chunk, block_tokens: state.block_tokens,
  };
}

// Brings the rest of the state in line with what was changed: an eighth of a new context is answer, as in `ridgeline plan`.
function follow(changed) {
  if (changed === "device") Object.assign(state, { memory_bytes: device().memory_bytes, bytes_per_second: device().bytes_per_second });
  if (changed === "users") state.users_given = true;
  if (changed === "prompt") state.output = Math.min(state.output, model().context - state.prompt);
  if (changed === "output") state.prompt = Math.min(state.prompt, model().context - state.output);
  if (changed === "prompt" || changed === "output") state.context = Math.max(state.context, state.prompt + state.output);
  const fits = state.context <= model().context;
  state.context = Math.min(state.context, model().context);
  if (changed === "context" || !fits) {
    state.output = Math.max(1, Math.floor(state.context / 8));
    state.prompt = state.context - state.output;
  }
  if ((model().experts?.routed ?? 1) % state.expert || state.count % state.expert) state.expert = 1;
  if (state.pipeline > model().layers || state.count % (state.pipeline * state.expert)) state.pipeline = 1;
  if (!widths().includes(state.tensor)) state.tensor = null;
}

function makeControls() {
  for (const [name, table] of [["model", DATA.models], ["device", DATA.devices]]) {
    for (const each of Object.keys(table)) plot.html(byId(name), "option", "", each).value = each;
    byId(name).value = state[name];
    byId(name).addEventListener("change", (event) => {
      state[name] = event.target.value;
      follow(name);
      draw();
    });
  }
  for (const slider of SLIDERS) {
    const label = plot.html(byId("sliders"), "label", "slider", slider.label);
    label.htmlFor = slider.name;
    plot.html(label, "output", "").id = `${slider.name}-shown`;
    const input = plot.html(label, "input", "");
    Object.assign(input, { type: "range", id: slider.name, min: 0, step: 1 });
    input.addEventListener("input", () => {
      state[slider.name] = slider.values()[input.valueAsNumber];
      follow(slider.name);
      draw();
    });
  }
}

function showControls() {
  for (const { name, values, show } of SLIDERS) {
    const input = byId(name), all = values(), text = show(state[name]);
    input.max = all.length - 1;
    input.value = all.indexOf(state[name]);
    input.setAttribute("aria-valuetext", text);
    input.disabled = all.length < 2;
    byId(`${name}-shown`).textContent = text;
  }
}

function showFigures(report) {
  const dollars = (value) => (value === null ? (report.run ? "no price known" : "nothing runs") : `$${Number(value.toPrecision(3))}`);
  const flop = (value) => `${whole(Number(value.toPrecision(3)))} FLOP/B`;
  const rows = [
    ["Weights", "weights_bytes", gigabytes], ["KV of a token", "kv_bytes_per_token", (v) => plot.amount(v, "B")],
    ["KV of a sequence", "kv_bytes_per_sequence", (v) => plot.amount(v, "B")],
    ["State of a sequence", "state_bytes_per_sequence", (v) => plot.amount(v, "B")], ["Most sequences", "max_sequences", whole],
    ["Longest context for these users", "max_context_tokens", whole], ["Fewest devices", "min_devices", (v) => (v === null ? "over 1,024" : whole(v))],
    ["ITL floor, one user", "decode_floor_seconds", plot.seconds], ["Prefill floor", "prefill_floor_seconds", plot.seconds],
    ["Decode intensity", "decode_intensity", flop], ["Prefill intensity", "prefill_intensity", flop], ["Ridge", "ridge_intensity", flop],
    ["Bound by", "bound_by", String], ["Knee, as memory allows", "knee_batch", whole], ["Batch to run", "recommended_batch", whole],
    ["Output at that batch", "tokens_per_second", (v) => `${whole(Math.round(v))} tok/s`], ["A million output tokens", "cost_per_million_tokens", dollars],
  ];
  byId("figures").replaceChildren();
  for (const [label, name, show] of rows) {
    const pair = plot.html(byId("figures"), "div", "");
    plot.html(pair, "dt", "", label);
    Object.assign(plot.html(pair, "dd", "", show(report[name])).dataset, { name, value: report[name] });
  }
  const users = `${whole(state.users)} ${state.users === 1 ? "user" : "users"} of ${whole(state.context)} tokens`;
  byId("verdict").textContent = report.fits ? `It fits: ${users}.` : `It does not fit: ${gigabytes(report.shortfall_bytes)} are missing for ${users}.`;
  byId("verdict").className = report.fits ? "" : "bad";
}

function drawMemory(report) {
  const parts = [
    { name: "Weights", value: report.weights_bytes, colour: 2 }, { name: "Activations", value: report.activation_bytes, colour: 4 },
    { name: "Driver and framework", value: report.overhead_bytes, colour: 7 }, { name: "KV of the users", value: report.kv_users_bytes, colour: 0 },
    { name: "Free for KV", value: Math.max(0, report.kv_budget_bytes - report.kv_users_bytes) }, { name: "Reserve", value: report.reserve_bytes, colour: 3 },
  ];
  const label = `Memory: ${parts.map((each) => `${each.name} ${gigabytes(each.value)}`).join(", ")}; there are ${gigabytes(report.memory_bytes)}`;
  plot.stack(byId("memory"), { label, parts, limit: report.memory_bytes, limitLabel: `memory ${gigabytes(report.memory_bytes)}`, format: gigabytes });
}

function drawRoofline(d, report) {
  const peak = flops(d.device, compute_dtype(d)), speed = d.device.bytes_per_second, top = report.ridge_intensity;
  const at = { decode: report.decode_intensity, prefill: report.prefill_intensity };
  const low = Math.min(0.5, at.decode / 2), high = Math.max(top, at.prefill) * 8, roof = (x) => attainable_flops(x, peak, speed);
  const dots = Object.entries(at).map(([label, x], i) => ({ x, y: roof(x), colour: i + 1, label: label === "decode" ? `decode, ${whole(Math.max(1, report.recommended_batch))}` : label }));
  plot.lines(byId("roofline"), {
    label: `Roofline: ridge at ${top.toPrecision(3)} FLOP per byte, decode at ${at.decode.toPrecision(3)}, prefill at ${at.prefill.toPrecision(3)}`,
    x: { label: "FLOP per byte", low, high, log: true, format: plot.amount },
    y: { label: "attainable FLOP/s", low: roof(low) / 2, high: peak * 2, log: true, format: plot.amount },
    curves: [{ name: "roof", colour: 0, points: [low, top, high].map((x) => [x, roof(x)]) }],
    guides: [{ x: top, label: `ridge ${top.toPrecision(3)}` }], dots,
  });
}

function drawBatches(d, report) {
  const most = report.max_sequences, end = Math.min(MAX_BATCH, Math.max(64, 2 * knee(d, MAX_BATCH), 2 * report.recommended_batch));
  const points = batches(end).map((batch) => batch_point(d, batch)), found = knee(d, MAX_BATCH);
  const guides = [{ x: found, label: `knee ${whole(found)}` }, { x: most, label: `memory holds ${whole(most)}` }];
  const x = { label: "sequences at once", low: 1, high: end, log: true, format: (value) => plot.amount(value) };
  const draw = (name, key, title, format) => {
    const values = points.map((point) => point[key]), high = Math.max(...values) * 1.15;
    plot.lines(byId(name), {
      label: `${title} by batch: ${format(values[0])} at 1, ${format(values.at(-1))} at ${whole(end)}; knee at ${whole(found)}`,
      x, y: { label: title, low: 0, high, format }, curves: [{ name: title, colour: 0, points: points.map((point, i) => [point.batch, values[i]]) }], guides,
    });
  };
  draw("rate", "tokens_per_second", "output tokens/s", (value) => plot.amount(value));
  draw("gap", "mixed_itl", "seconds between tokens", plot.seconds);
}

function drawCurve(d) {
  const contexts = steps(Math.min(256, d.model.context), d.model.context, 1, d.context);
  const points = contexts.map((context) => [context, memory_of({ ...d, context }).max_sequences]).filter(([, sequences]) => sequences > 0);
  if (!points.length) return void (byId("curve").textContent = "Not even one sequence fits.");
  plot.lines(byId("curve"), {
    label: `Sequences that fit: ${points.map(([context, sequences]) => `${whole(sequences)} of ${whole(context)} tokens`).filter((_, i) => i % 8 === 0).join(", ")}`,
    x: { label: "context, tokens", low: contexts[0], high: contexts.at(-1), log: true, format: (value) => plot.amount(value) },
    y: { label: "sequences", low: Math.max(0.5, points.at(-1)[1] / 2), high: points[0][1] * 2, log: true, format: (value) => plot.amount(value) },
    curves: [{ name: "sequences", colour: 0, points }], guides: [{ x: d.context, label: `context ${whole(d.context)}` }],
  });
}

function draw() {
  const d = deployment(), report = make_report(d, DATA.objective, state.users_given);
  showControls();
  showFigures(report);
  drawMemory(report);
  drawRoofline(d, report);
  drawBatches(d, report);
  drawCurve(d);
}

Object.assign(state, { memory_bytes: device().memory_bytes, bytes_per_second: device().bytes_per_second });
makeControls();
plot.theme(byId("theme"));
plot.live(draw);
