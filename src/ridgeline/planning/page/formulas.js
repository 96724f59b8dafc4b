"use strict";
// What `ridgeline.planning` computes, under the names that the Python functions have; tests compare the two number by number.
// Bytes, seconds, dollars. The page shares no prefix, as `ridgeline plan` does not, so that term is left out.
const DATA = JSON.parse(document.getElementById("data").textContent);
const { WEIGHT_FORMATS, KV_BITS, INT8_SCALE_BITS, ACTIVATION_BYTES, MAX_SEQUENCES, SCREENED_BITS, SCREEN_BITS, STATE_FLOPS, MLA_EXPANSION_TOKENS, MAX_BATCH, MAX_DEVICES } = DATA.constants;
const IDEAL = { compute: 1, bandwidth: 1, attention: 1, overlap: 1 };

// Python's round: halves go to the even neighbour.
function round(value) {
  const low = Math.floor(value), rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? low + 1 : low;
}
const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const kind_layers = (model, kind) => model.layer_kinds.filter((each) => each === kind).length;
const ranks = ({ tensor, pipeline, expert }) => tensor * pipeline * expert;

// facts.model, planning.formats, facts.hardware.devices
const kv_layers = (model) => model.layers - kind_layers(model, "none");
const state_bytes = ({ state }) => (state ? 4 * state.layers * (state.recurrent + state.convolution) : 0);
function class_bytes(model, dtype, native) {
  if (dtype === null && Object.keys(model.stored).length) return native && Object.keys(model.packed).length ? model.packed : model.stored;
  const form = WEIGHT_FORMATS[dtype ?? model.dtype];
  const bits = (name) => {
    if (native && form.native_bits !== null) return form.native_bits;
    if (name === "embedding" || name === "head") return form.embedding_bits;
    return name === "experts" || form.other_bits === null ? form.layer_bits : form.other_bits;
  };
  return Object.fromEntries(Object.entries(model.parameters).map(([name, count]) => [name, (count * bits(name)) / 8]));
}
function compute_dtype(d) {
  const form = WEIGHT_FORMATS[d.dtype ?? d.model.dtype];
  return !d.device.is_gpu && form.layer_bits < 16 && "int8" in d.device.flops_per_second ? "int8" : form.compute;
}
const flops = (device, kind) => device.flops_per_second[kind] || device.flops_per_second.f16 || device.flops_per_second.f32;

// planning.memory
function groups_of(model) {
  const kinds = [...new Set(model.layer_kinds)].filter((kind) => kind !== "none").sort();
  const size = kinds.map((kind) => kind_layers(model, kind)).reduce(gcd, 0);
  const cut = (kind) => Array(kind_layers(model, kind) / size).fill({ layers: size, window: kind === "window" ? model.window : 0 });
  return kinds.flatMap(cut);
}
const kv_bytes = (layers, tokens, elements, element_bits) => Math.ceil((layers * tokens * elements * element_bits) / 8);
const token_kv_bits = ({ widths, kv_heads }, kv_dtype) =>
  widths.cached * KV_BITS[kv_dtype] + (kv_dtype === "int8" ? (widths.latent ? 1 : 2 * kv_heads) * INT8_SCALE_BITS : 0);

function sequence_blocks(groups, block_tokens, tokens, chunk) {
  const full = Math.ceil(tokens / block_tokens);
  const needed = (group) => Math.ceil((group.window + Math.min(chunk, tokens)) / block_tokens) + 1;
  return groups.reduce((blocks, group) => blocks + (group.window === 0 ? full : Math.min(full, needed(group))), 0);
}

function longest_sequence(groups, block_tokens, blocks, chunk, limit) {
  let low = 0, high = limit;
  while (low < high) {
    const middle = Math.floor((low + high + 1) / 2);
    if (sequence_blocks(groups, block_tokens, middle, chunk) <= blocks) low = middle;
    else high = middle - 1;
  }
  return low;
}

// planning.deployment
const head_class = (model) => (model.parameters.head ? "head" : "embedding");
function screen_bytes(d) {
  const count = d.model.parameters[head_class(d.model)], stored = class_bytes(d.model, d.dtype, !d.device.is_gpu)[head_class(d.model)];
  return d.device.is_gpu || 8 * stored !== SCREENED_BITS * count ? 0 : (count * SCREEN_BITS) / 8 + 4 * d.model.vocab;
}

function rank_weights(d) {
  const classes = class_bytes(d.model, d.dtype, !d.device.is_gpu), { tensor, pipeline, expert } = d.layout;
  const rest = Object.values(classes).reduce((sum, bytes) => sum + bytes, 0) - classes.experts + screen_bytes(d);
  return (rest + classes.experts / expert) / tensor / pipeline;
}

function kv_share(d) {
  const heads = d.model.widths.latent ? 1 : kv_heads_per_device(d.model.kv_heads, d.layout.tensor) / d.model.kv_heads;
  return heads / d.layout.pipeline;
}

function rank_activations(d, tiled = true) {
  const { model } = d, tokens = Math.min(d.chunk, d.context);
  const layer = tokens * (2 * model.hidden + 2 * model.heads * model.head_dim + 2 * model.ffn) * ACTIVATION_BYTES;
  const scores = tiled ? 2 * model.heads * tokens * 4 : model.heads * d.context * d.context * ACTIVATION_BYTES;
  return (layer + scores + Math.min(d.users, tokens) * model.vocab * 4) / d.layout.tensor;
}

function rank_kv_budget(d) {
  return d.device.memory_bytes * d.utilisation - (rank_weights(d) + rank_activations(d) + d.device.overhead_bytes);
}

const rank_state = (d) => state_bytes(d.model) / d.layout.tensor / d.layout.pipeline;

function block_bytes_of(d) {
  const groups = groups_of(d.model);
  return groups.length ? kv_bytes(groups[0].layers, d.block_tokens, 1, token_kv_bits(d.model, d.kv_dtype)) : 0;
}

function kv_blocks(d, sequences) {
  const block = block_bytes_of(d), left = rank_kv_budget(d) - sequences * rank_state(d);
  return block ? Math.floor(Math.max(0, left) / (block * kv_share(d))) : 0;
}

function memory_of(d) {
  const { model, device, layout } = d, groups = groups_of(model), copies = layout.expert * layout.replicas, all = ranks(layout);
  const block = block_bytes_of(d), held = block * kv_share(d), state = rank_state(d), budget = rank_kv_budget(d);
  const each = sequence_blocks(groups, d.block_tokens, d.context, d.chunk), per_copy = Math.ceil(d.users / copies);
  const longest = per_copy * state <= budget ? model.context : 0;
  return {
    total: device.memory_bytes * all,
    weights: round(rank_weights(d) * all),
    activations: round(rank_activations(d) * all),
    untiled_activations: round(rank_activations(d, false) * all),
    overhead: device.overhead_bytes * all,
    reserve: round((device.memory_bytes - device.memory_bytes * d.utilisation) * all),
    kv_token: kv_bytes(kv_layers(model), 1, 1, token_kv_bits(model, d.kv_dtype)),
    kv_sequence: each * block,
    state: state_bytes(model),
    kv_users: (each * held + state) * per_copy * all,
    kv_budget: round(budget * all),
    max_sequences: Math.min(MAX_SEQUENCES, Math.floor(Math.max(0, budget) / (each * held + state)) * copies),
    max_context: longest_sequence(groups, d.block_tokens, Math.floor(kv_blocks(d, per_copy) / per_copy), d.chunk, longest),
    shortfall: Math.max(0, round((each * per_copy * held + per_copy * state - budget) * all)),
  };
}

function automatic_layout(model, count) {
  const greatest = (most, fits) => { for (let n = most; n > 1; n--) if (fits(n)) return n; return 1; };
  const tensor = greatest(Math.min(count, 8), (width) => count % width === 0 && model.heads % width === 0);
  const rest = count / tensor;
  const pipeline = greatest(Math.min(rest, model.layers), (stages) => rest % stages === 0);
  return { tensor, pipeline, expert: 1, replicas: rest / pipeline };
}

// planning.parallel
const kv_heads_per_device = (kv_heads, tensor_parallel) => Math.max(1, Math.ceil(kv_heads / tensor_parallel));
const all_reduce_bytes = (message, devices) => (2 * message * (devices - 1)) / devices;
const pipeline_bubble = (stages, micro_batches) => (stages - 1) / (micro_batches + stages - 1);
const experts_touched = (experts, active, tokens) => experts * (1 - (1 - active / experts) ** tokens);

function all_reduce_seconds(message, devices, link, hop) {
  if (devices === 1) return 0;
  return all_reduce_bytes(message, devices) / (link / 2) + 2 * (32 - Math.clz32(devices - 1)) * hop;
}

function link_seconds(d, tokens) {
  const { model, layout } = d, { link_bytes_per_second: link, hop_seconds: hop } = d.device;
  const count = Math.ceil(tokens), wide = model.hidden * ACTIVATION_BYTES;
  const tensor = 2 * model.layers * all_reduce_seconds(Math.ceil(count / layout.expert) * wide, layout.tensor, link, hop);
  const pipeline = (layout.pipeline - 1) * ((count * wide) / (link / 2) + hop);
  return tensor + pipeline + (model.experts ? expert_parallel_seconds(count, model.hidden, model.experts, layout.expert, link, hop) : 0);
}

function expert_parallel_seconds(tokens, hidden, { layers, active }, devices, link, hop) {
  if (devices === 1) return 0;
  const sent = (((tokens / devices) * active * hidden * ACTIVATION_BYTES) * (devices - 1)) / devices;
  return 2 * layers * (sent / (link / 2) + hop);
}

// planning.step
function attended_pairs(start, count, window) {
  if (!window) return count * start + (count * (count + 1)) / 2;
  const rising = Math.max(0, Math.min(count, window - start - 1));
  return rising * start + (rising * (rising + 1)) / 2 + (count - rising) * window;
}

// `sequences` alike rows, each of which computes `count` tokens from position `start` on and samples one.
function step_work(d, { start, count, sequences }) {
  const { model } = d, { experts } = model, classes = class_bytes(model, d.dtype, !d.device.is_gpu), tokens = count * sequences;
  const width = count < MLA_EXPANSION_TOKENS ? model.widths.decode : model.widths.prefill, end = start + count;
  let attention = 0, cached = 0;
  for (const [kind, window] of [["full", 0], ["window", model.window]]) {
    const layers = kind_layers(model, kind);
    attention += layers * sequences * attended_pairs(start, count, window) * width;
    cached += layers * sequences * (window ? Math.min(end, window + count - 1) : end);
  }
  const skipped = skipped_parameters(d) * (tokens - sequences);
  return {
    tokens,
    linear_flops: 2 * (layer_parameters(model) * tokens - skipped + model.vocab * model.hidden * sequences),
    attention_flops: 2 * attention,
    weight_bytes: classes.attention + classes.ffn + classes.norms + (screen_bytes(d) || classes[head_class(model)]),
    expert_bytes: experts ? classes.experts * (experts_touched(experts.routed, experts.active, tokens) / experts.routed) : 0,
    kv_bytes: (cached * token_kv_bits(model, d.kv_dtype)) / 8,
    state_flops: model.state ? STATE_FLOPS * tokens * model.state.layers * model.state.recurrent : 0,
    state_bytes: 2 * sequences * state_bytes(model),
  };
}

function layer_parameters({ parameters, experts }) {
  return parameters.attention + parameters.ffn + parameters.experts * (experts ? experts.active / experts.routed : 0);
}

const skipped_parameters = ({ device, model }) => (device.is_gpu || model.experts ? 0 : model.parameters.ffn / model.layers);
const reached = ({ device }) => ({ compute: device.compute_share, bandwidth: device.bandwidth_share, attention: device.attention_share });
const overlapped = ([compute, memory], overlap) => Math.max(compute, memory) + (1 - overlap) * Math.min(compute, memory);
const moved_bytes = (work) => work.weight_bytes + work.expert_bytes + work.kv_bytes + work.state_bytes;
const intensity = (work) => (work.linear_flops + work.attention_flops + work.state_flops) / moved_bytes(work);

function add_prefill(decode, prompt, share) {
  return {
    tokens: decode.tokens + share * prompt.tokens,
    linear_flops: decode.linear_flops + share * prompt.linear_flops,
    attention_flops: decode.attention_flops + share * prompt.attention_flops,
    weight_bytes: decode.weight_bytes,
    expert_bytes: Math.max(decode.expert_bytes, Math.min(1, share) * prompt.expert_bytes),
    kv_bytes: decode.kv_bytes + share * prompt.kv_bytes,
    state_flops: decode.state_flops + share * prompt.state_flops,
    state_bytes: decode.state_bytes + share * prompt.state_bytes,
  };
}

// [[compute, memory] of the matrix products, [compute, memory] of attention]
function part_seconds(d, work, efficiency) {
  const { tensor, pipeline, expert } = d.layout, kind = compute_dtype(d), bandwidth = d.device.bytes_per_second * efficiency.bandwidth;
  const cut = tensor * expert, cache = (work.kv_bytes * kv_share(d) * pipeline) / expert + work.state_bytes / cut;
  const products = work.linear_flops / cut / flops(d.device, kind) / efficiency.compute;
  const scores = (work.attention_flops + work.state_flops) / cut / flops(d.device, kind === "f32" ? "f32" : "f16") / efficiency.attention;
  const weights = work.weight_bytes / tensor + work.expert_bytes / cut;
  return [[products, weights / bandwidth], [scores, cache / bandwidth]];
}

function resource_seconds(d, work, efficiency) {
  const [products, attention] = part_seconds(d, work, efficiency);
  return [products[0] + attention[0], products[1] + attention[1]];
}

function pass_seconds(d, work) {
  const [products, attention] = part_seconds(d, work, reached(d));
  return overlapped(products, d.device.overlap) + overlapped(attention, d.device.overlap) + link_seconds(d, work.tokens);
}

// planning.speed
const mean_context = (d) => d.workload.prompt + Math.floor(d.workload.output / 2);
const decode_work = (d, sequences, start = mean_context(d)) => step_work(d, { start, count: 1, sequences });

function prefill_work(d) {
  const { prompt, reused } = d.workload, start = Math.min(prompt - 1, round(prompt * reused));
  return step_work(d, { start, count: prompt - start, sequences: 1 });
}

const mixed_work = (d, sequences) => add_prefill(decode_work(d, sequences), prefill_work(d), sequences / d.workload.output);
const decode_floor = (d) => Math.max(...resource_seconds(d, decode_work(d, 1, d.context - 1), IDEAL));
const prefill_floor = (d) => Math.max(...resource_seconds(d, prefill_work(d), IDEAL)) / d.layout.pipeline;

function prefill_seconds(d) {
  const work = prefill_work(d), stages = d.layout.pipeline, chunks = Math.max(1, Math.ceil(work.tokens / d.chunk));
  const read = { ...work, weight_bytes: work.weight_bytes * chunks, expert_bytes: work.expert_bytes * chunks };
  return pass_seconds(d, read) / stages / (1 - pipeline_bubble(stages, chunks));
}

const in_flight = (d, batch) => Math.ceil(batch / d.layout.replicas / d.layout.pipeline);
const decode_itl = (d, batch) => pass_seconds(d, decode_work(d, in_flight(d, batch)));
const mixed_itl = (d, batch) => pass_seconds(d, mixed_work(d, in_flight(d, batch)));
const million_token_cost = (price_per_hour, tokens_per_second) => (price_per_hour / 3600 / tokens_per_second) * 1e6;

function batch_point(d, batch) {
  const [compute, memory] = resource_seconds(d, decode_work(d, in_flight(d, batch)), reached(d));
  const itl = decode_itl(d, batch), mixed = mixed_itl(d, batch), { price } = d.device, devices = ranks(d.layout) * d.layout.replicas;
  return {
    batch,
    itl,
    mixed_itl: mixed,
    tokens_per_second: batch / mixed,
    decode_tokens_per_second: batch / itl,
    utilisation: resource_seconds(d, decode_work(d, in_flight(d, batch)), IDEAL)[0] / itl,
    kv_bytes: decode_work(d, batch).kv_bytes,
    bound_by: compute > memory ? "compute" : "bandwidth",
    cost: price ? million_token_cost(price.dollars_per_hour * devices, batch / mixed) : null,
  };
}

function batches(most) {
  const end = Math.min(most, MAX_BATCH), found = [];
  for (let batch = 1; batch < end; batch += batch >= 16 ? Math.floor(batch / 8) : 1) found.push(batch);
  return end ? [...found, end] : [];
}

function knee(d, most) {
  const power = (batch) => batch / mixed_itl(d, batch) ** 2;
  return batches(most).reduce((best, batch) => (best && power(best) >= power(batch) ? best : batch), 0);
}

function meets(d, batch, { ttft, itl }) {
  const gap = mixed_itl(d, batch);
  return (ttft === null || gap + prefill_seconds(d) <= ttft) && (itl === null || gap <= itl);
}

function best_batch(d, memory, objective) {
  const free = objective.ttft === null && objective.itl === null, most = memory.max_sequences;
  const able = free ? [] : batches(MAX_BATCH).filter((batch) => meets(d, batch, objective));
  const found = free ? knee(d, MAX_BATCH) : Math.max(0, ...able);
  return most < found ? [most, "memory"] : [found, free ? "knee" : "objective"];
}

const ridge = (d) => flops(d.device, compute_dtype(d)) / d.device.bytes_per_second;
const attainable_flops = (at, flops_per_second, bytes_per_second) => Math.min(flops_per_second, bytes_per_second * at);

function bottleneck(d, memory, batch) {
  if (memory.shortfall || memory.max_sequences < knee(d, MAX_BATCH)) return "capacity";
  return batch_point(d, Math.max(1, batch)).bound_by;
}

// planning.report
function min_devices_that_fit(d) {
  for (let count = 1; count <= MAX_DEVICES; count++) {
    if (memory_of({ ...d, layout: automatic_layout(d.model, count) }).shortfall === 0) return count;
  }
  return null;
}

function make_report(d, objective, users_given) {
  const memory = memory_of(d), free = objective.ttft === null && objective.itl === null;
  let [batch, limited_by] = best_batch(d, memory, objective);
  if (users_given && free) {
    [batch, limited_by] = [Math.min(d.users, memory.max_sequences), d.users <= memory.max_sequences ? "users" : "memory"];
  }
  const run = batch ? batch_point(d, batch) : null;
  return {
    fits: memory.shortfall === 0,
    memory_bytes: memory.total,
    weights_bytes: memory.weights,
    kv_bytes_per_token: memory.kv_token,
    kv_bytes_per_sequence: memory.kv_sequence,
    state_bytes_per_sequence: memory.state,
    kv_users_bytes: memory.kv_users,
    activation_bytes: memory.activations,
    untiled_activation_bytes: memory.untiled_activations,
    overhead_bytes: memory.overhead,
    reserve_bytes: memory.reserve,
    kv_budget_bytes: Math.max(0, memory.kv_budget),
    shortfall_bytes: memory.shortfall,
    max_sequences: memory.max_sequences,
    max_context_tokens: memory.max_context,
    prefill_intensity: intensity(prefill_work(d)),
    decode_intensity: intensity(decode_work(d, Math.max(1, batch))),
    ridge_intensity: ridge(d),
    bound_by: bottleneck(d, memory, batch),
    decode_floor_seconds: decode_floor(d),
    prefill_floor_seconds: prefill_floor(d),
    prefill_seconds: prefill_seconds(d),
    knee_batch: knee(d, memory.max_sequences),
    recommended_batch: batch,
    limited_by,
    objective_met: free ? null : batch >= d.users,
    run,
    tokens_per_second: run ? run.tokens_per_second : 0,
    cost_per_million_tokens: run ? run.cost : null,
    min_devices: min_devices_that_fit(d),
  };
}
