// The only file that knows nanobind. Pointers arrive as integers, a step's inputs as arrays, sizes as numbers; Python owns all memory and
// has checked shapes and strides; outputs are passed in. The GIL is released while a kernel runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/isa.h"
#include "runtime/plan.h"
#include "sample/sampler.h"

namespace nb = nanobind;
using namespace ridgeline;

namespace {

using Address = std::uintptr_t;

template <typename T>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

const Kernels& kernels(int level) {
    if (level < 0 || level >= kLevelCount || !kLevels[level].supported())
        throw nb::value_error("this machine cannot run the requested ISA level");
    return *kLevels[level].kernels;
}

Matrix matrix(int format, std::size_t n, std::size_t k, std::size_t group, Address data) {
    return {format, n, k, group, pointer<const std::uint8_t>(data)};
}

KVLayer kv_layer(int type, Address keys, Address values, std::size_t kv_heads, std::size_t head_dim, std::size_t block_tokens) {
    const std::size_t record = type == kKVInt8 ? head_dim + 4 : head_dim * (type == kKVBF16 ? 2 : 4), head = record * block_tokens;
    return {type, pointer<std::uint8_t>(keys), pointer<std::uint8_t>(values), head * kv_heads, head, record, kv_heads, head_dim, block_tokens};
}

// Row functions of one level, on `rows` rows: what the tests hold against the references.
void bind_elements(nb::module_& m) {
    m.def("quantise", [](int level, Address x, Address codes, Address scales, Address sums, std::size_t rows, std::size_t k,
                       std::size_t group) {
        const ElementKernels& table = *kernels(level).elements;
        nb::gil_scoped_release unlocked;
        for (std::size_t row = 0; row < rows; ++row)
            table.quantise(pointer<const float>(x) + row * k, k, group, pointer<std::int8_t>(codes) + row * k,
                           pointer<float>(scales) + row * (k / kCodeGroup), pointer<std::int32_t>(sums) + row * (k / 16));
    });
}

// Packed matrices: layout, products of some blocks, rows.
void bind_linear(nb::module_& m) {
    m.def("packed_bytes", [](int level, int format, std::size_t n, std::size_t k, std::size_t group) {
        return kernels(level).linear->packed_bytes(format, n, k, group);
    });
    m.def("pack", [](int level, int format, std::size_t n, std::size_t k, std::size_t group, Address rows, std::size_t row_bytes, Address packed,
                     std::size_t first, std::size_t count) {
        const LinearKernels& table = *kernels(level).linear;
        nb::gil_scoped_release unlocked;
        table.pack(matrix(format, n, k, group, packed), pointer<const std::uint8_t>(rows), row_bytes, pointer<std::uint8_t>(packed), first, count);
    });
    m.def("unpack", [](int level, int format, std::size_t n, std::size_t k, std::size_t group, Address packed, Address rows, std::size_t row_bytes,
                       std::size_t first, std::size_t count) {
        const LinearKernels& table = *kernels(level).linear;
        nb::gil_scoped_release unlocked;
        table.unpack(matrix(format, n, k, group, packed), pointer<std::uint8_t>(rows), row_bytes, first, count);
    });
    m.def("linear_codes", [](int level, int format, std::size_t n, std::size_t k, std::size_t group, Address packed, Address codes, Address scales,
                             Address sums, std::size_t tokens, Address out, std::size_t out_stride, std::size_t first, std::size_t count, Address scratch) {
        const LinearKernels& table = *kernels(level).linear;
        nb::gil_scoped_release unlocked;
        table.multiply(matrix(format, n, k, group, packed),
                       {pointer<const std::int8_t>(codes), pointer<const float>(scales), pointer<const std::int32_t>(sums), k}, tokens,
                       {pointer<float>(out), out_stride}, first, count, pointer<std::uint8_t>(scratch));
    });
    m.def("linear_floats", [](int level, int format, std::size_t n, std::size_t k, std::size_t group, Address packed, Address x, std::size_t tokens,
                              Address out, std::size_t out_stride, std::size_t first, std::size_t count, Address scratch) {
        const LinearKernels& table = *kernels(level).linear;
        nb::gil_scoped_release unlocked;
        table.multiply_floats(matrix(format, n, k, group, packed), pointer<const float>(x), k, tokens, {pointer<float>(out), out_stride}, first,
                              count, pointer<std::uint8_t>(scratch));
    });
    m.def("packed_row", [](int level, int format, std::size_t n, std::size_t k, std::size_t group, Address packed, std::size_t row, Address out) {
        const LinearKernels& table = *kernels(level).linear;
        nb::gil_scoped_release unlocked;
        table.row(matrix(format, n, k, group, packed), row, pointer<float>(out));
    });
}

// A layer as (type, address of K, address of V, KV heads, head dimension, tokens of a block).
KVLayer kv_layer(nb::tuple from) {
    const auto number = [&](int i) { return nb::cast<Address>(from[i]); };
    return kv_layer(static_cast<int>(number(0)), number(1), number(2), number(3), number(4), number(5));
}

Attention attention(nb::tuple from) {
    return {kv_layer(nb::cast<nb::tuple>(from[0])), nb::cast<std::size_t>(from[1]), 0, nb::cast<float>(from[2]), nb::cast<int>(from[3]),
            nb::cast<float>(from[4])};
}

// Tokens, rows, blocks of a row, then the addresses of cu_q, kv_len and the tables of the only KV group.
Step attention_step(nb::tuple from) {
    const auto number = [&](int i) { return nb::cast<Address>(from[i]); };
    Step made{};
    made.tokens = number(0), made.rows = number(1), made.table_width = number(2);
    made.cu_q = pointer<const std::int32_t>(number(3));
    made.kv_len = pointer<const std::int32_t>(number(4));
    made.tables[0] = pointer<const std::int32_t>(number(5));
    return made;
}

// Attention by itself, for tests and benchmarks.
void bind_attention(nb::module_& m) {
    m.attr("ATTENTION_SCRATCH") = kAttentionScratch;
    m.attr("KV_SPLIT") = kSplit;
    m.def("kv_write", [](int level, nb::tuple layer, Address k, Address v, Address slots, std::size_t tokens) {
        const AttentionKernels& table = *kernels(level).attention;
        const KVLayer cache = kv_layer(layer);
        nb::gil_scoped_release unlocked;
        table.kv_write(cache, pointer<const float>(k), pointer<const float>(v), pointer<const std::int64_t>(slots), 0, tokens);
    });
    m.def("attention_items", [](int level, nb::tuple op, nb::tuple sizes, std::size_t threads, Address items, std::size_t capacity) {
        std::size_t partial_floats = 0;
        const std::size_t count = kernels(level).attention->items(attention(op), attention_step(sizes), threads, pointer<AttentionItem>(items),
                                                                  capacity, &partial_floats);
        return nb::make_tuple(count, partial_floats);
    });
    m.def("attend", [](int level, nb::tuple op, nb::tuple sizes, Address items, std::size_t count, Address q, Address partials, Address out,
                       Address scratch) {
        const AttentionKernels& table = *kernels(level).attention;
        const Attention shape = attention(op);
        const Step now = attention_step(sizes);
        const AttentionItem* first = pointer<const AttentionItem>(items);
        nb::gil_scoped_release unlocked;
        for (std::size_t i = 0; i < count; ++i)
            table.attend(shape, now, first[i], pointer<const float>(q), pointer<float>(partials), pointer<float>(out), pointer<std::uint8_t>(scratch));
        table.merge(shape, now, first, count, pointer<const float>(partials), pointer<float>(out));
    });
}

// Where a step input begins: a contiguous array of such integers. It lives while the step runs.
template <typename T>
const T* column(nb::handle array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) throw nb::python_error();
    const bool fits = view.itemsize == sizeof(T) && std::strchr("ilq", view.format[0]) != nullptr;
    const T* begin = static_cast<const T*>(view.buf);
    PyBuffer_Release(&view);
    if (!fits) throw nb::value_error("a step input has another type of number");
    return begin;
}

Step step(nb::handle sizes, nb::handle columns, nb::handle tables, nb::handle slots) {
    const auto number = [&](int i) { return nb::cast<std::size_t>(sizes[i]); };
    Step made{};
    made.tokens = number(0);
    made.rows = number(1);
    made.selected = number(2);
    made.table_width = number(3);
    made.ids = column<std::int32_t>(columns[0]);
    made.positions = column<std::int32_t>(columns[1]);
    made.row_of_token = column<std::int32_t>(columns[2]);
    made.cu_q = column<std::int32_t>(columns[3]);
    made.kv_len = column<std::int32_t>(columns[4]);
    made.select = column<std::int32_t>(columns[5]);
    const int groups = static_cast<int>(nb::len(tables));
    if (groups > kMaxGroups) throw nb::value_error("too many KV groups");
    for (int g = 0; g < groups; ++g) {
        made.tables[g] = column<std::int32_t>(tables[g]);
        made.slots[g] = column<std::int64_t>(slots[g]);
    }
    return made;
}

void bind_row_ops(nb::class_<Plan>& plan) {
    plan.def("embed", [](Plan& p, Address out, bool positions, int format, std::size_t n, std::size_t k, std::size_t group, Address data) {
        RowOp op{embed};
        op.out = pointer<float>(out), op.width = k, op.choice = positions, op.table = matrix(format, n, k, group, data);
        p.add_row(op);
    });
    plan.def("select", [](Plan& p, Address x, Address out, std::size_t width) {
        RowOp op{select};
        op.x = pointer<const float>(x), op.out = pointer<float>(out), op.width = width;
        p.add_row(op);
    });
    plan.def("reorder", [](Plan& p, Address x, Address out, std::size_t width, Address order) {
        RowOp op{reorder};
        op.x = pointer<const float>(x), op.out = pointer<float>(out), op.width = width, op.order = pointer<const std::int32_t>(order);
        p.add_row(op);
    });
    plan.def("quantise", [](Plan& p, Address x, std::size_t k, std::size_t group, Address codes, Address scales, Address sums) {
        RowOp op{quantise};
        op.x = pointer<const float>(x), op.width = k, op.piece = group, op.codes = pointer<std::int8_t>(codes);
        op.scales = pointer<float>(scales), op.sums = pointer<std::int32_t>(sums);
        p.add_row(op);
    });
    plan.def("rms_norm", [](Plan& p, Address x, Address out, std::size_t width, Address weight, std::size_t piece, float eps) {
        RowOp op{rms_norm};
        op.x = pointer<const float>(x), op.out = pointer<float>(out), op.width = width, op.weight = pointer<const float>(weight);
        op.piece = piece, op.number = eps;
        p.add_row(op);
    });
    plan.def("layer_norm", [](Plan& p, Address x, Address out, std::size_t width, Address weight, Address bias, float eps) {
        RowOp op{layer_norm};
        op.x = pointer<const float>(x), op.out = pointer<float>(out), op.width = width, op.weight = pointer<const float>(weight);
        op.bias = pointer<const float>(bias), op.number = eps;
        p.add_row(op);
    });
    plan.def("add", [](Plan& p, Address x, Address y, Address out, std::size_t width) {
        RowOp op{add};
        op.x = pointer<const float>(x), op.y = pointer<const float>(y), op.out = pointer<float>(out), op.width = width;
        p.add_row(op);
    });
    plan.def("add_bias", [](Plan& p, Address x, Address out, std::size_t width, Address bias) {
        RowOp op{add_bias};
        op.x = pointer<const float>(x), op.out = pointer<float>(out), op.width = width, op.bias = pointer<const float>(bias);
        p.add_row(op);
    });
    plan.def("scale", [](Plan& p, Address x, Address out, std::size_t width, float factor) {
        RowOp op{scale};
        op.x = pointer<const float>(x), op.out = pointer<float>(out), op.width = width, op.number = factor;
        p.add_row(op);
    });
    plan.def("softcap", [](Plan& p, Address x, Address out, std::size_t width, float cap) {
        RowOp op{softcap};
        op.x = pointer<const float>(x), op.out = pointer<float>(out), op.width = width, op.number = cap;
        p.add_row(op);
    });
    // y 0: the activation alone.
    plan.def("activate", [](Plan& p, Address x, Address y, Address out, std::size_t width, int activation) {
        RowOp op{activate};
        op.x = pointer<const float>(x), op.y = pointer<const float>(y), op.out = pointer<float>(out), op.width = width;
        op.choice = activation;
        p.add_row(op);
    });
    plan.def("rotation", [](Plan& p, Address out, Address frequencies, std::size_t half, float factor) {
        RowOp op{rotation};
        op.out = pointer<float>(out), op.frequencies = pointer<const double>(frequencies), op.half = half, op.number = factor;
        p.add_row(op);
    });
    plan.def("rope", [](Plan& p, Address x, Address turn, Address out, std::size_t width, std::size_t head_dim, std::size_t half) {
        RowOp op{rope};
        op.x = pointer<const float>(x), op.y = pointer<const float>(turn), op.out = pointer<float>(out), op.width = width;
        op.piece = head_dim, op.half = half;
        p.add_row(op);
    });
    plan.def("kv_write", [](Plan& p, Address k, Address v, int group, int type, Address keys, Address values, std::size_t kv_heads,
                            std::size_t head_dim, std::size_t block_tokens) {
        RowOp op{kv_write};
        op.x = pointer<const float>(k), op.y = pointer<const float>(v), op.choice = group;
        op.cache = kv_layer(type, keys, values, kv_heads, head_dim, block_tokens);
        p.add_row(op);
    });
}

void bind_plan(nb::module_& m) {
    nb::class_<Team>(m, "Team").def(nb::init<int>()).def_prop_ro("threads", &Team::threads);
    nb::class_<Plan> plan(m, "Plan");
    plan.def("__init__", [](Plan* self, int level, std::shared_ptr<Team> team) { new (self) Plan(kernels(level), std::move(team)); });
    plan.def_prop_ro("phases", &Plan::phases);
    // What follows is added to the phase that was begun last.
    plan.def("begin_rows", [](Plan& p, bool selected, std::size_t factor) { p.phase(PhaseKind::rows, selected, factor); });
    plan.def("begin_products", [](Plan& p, bool selected, std::size_t factor) { p.phase(PhaseKind::products, selected, factor); });
    bind_row_ops(plan);
    plan.def("product", [](Plan& p, int format, std::size_t n, std::size_t k, std::size_t group, Address data, Address codes, Address scales,
                           Address sums, Address residual, Address out) {
        p.add_product({matrix(format, n, k, group, data),
                       {pointer<const std::int8_t>(codes), pointer<const float>(scales), pointer<const std::int32_t>(sums), k},
                       nullptr,
                       pointer<const float>(residual),
                       {pointer<float>(out), n}});
    });
    plan.def("product_of_floats", [](Plan& p, int format, std::size_t n, std::size_t k, std::size_t group, Address data, Address x,
                                     Address residual, Address out) {
        p.add_product({matrix(format, n, k, group, data), {}, pointer<const float>(x), pointer<const float>(residual), {pointer<float>(out), n}});
    });
    plan.def("screen", &Plan::add_screen);
    plan.def_prop_ro("screened", [](const Plan& p) {
        const Screen::Counts counts = p.screened();
        return nb::make_tuple(counts.steps, counts.passed, counts.pairs, counts.computed);
    });
    plan.def("attention", [](Plan& p, Address q, Address out, int group, int type, Address keys, Address values, std::size_t kv_heads,
                             std::size_t head_dim, std::size_t block_tokens, std::size_t heads, float scale, int window, float softcap) {
        const KVLayer cache = kv_layer(type, keys, values, kv_heads, head_dim, block_tokens);
        p.add_attention({cache, heads, group, scale, window, softcap}, pointer<const float>(q), pointer<float>(out));
    });
    // best, keep, maxima: `Wanted`, 0 for what is not asked for.
    plan.def("run", [](Plan& p, nb::tuple sizes, nb::tuple columns, nb::tuple tables, nb::tuple slots, std::size_t first, std::size_t last,
                       Address trace, Address best, Address keep, Address maxima) {
        const Step now = step(sizes, columns, tables, slots);
        const Wanted wanted = {pointer<std::int32_t>(best), pointer<const std::int32_t>(keep), pointer<float>(maxima)};
        nb::gil_scoped_release unlocked;
        p.run(now, first, last, pointer<Trace>(trace), wanted);
    }, nb::arg("sizes"), nb::arg("columns"), nb::arg("tables"), nb::arg("slots"), nb::arg("first"), nb::arg("last"), nb::arg("trace") = 0,
       nb::arg("best") = 0, nb::arg("keep") = 0, nb::arg("maxima") = 0);
}

// Rows are an array of `SampleRow`, whose fields Python is told: (name, type, offset) of each.
void bind_sample(nb::module_& m) {
    nb::list fields;
    for (const SampleField& each : kSampleFields) fields.append(nb::make_tuple(each.name, each.kind, each.offset));
    m.attr("SAMPLE_ROW") = nb::make_tuple(sizeof(SampleRow), fields);
    m.attr("SAMPLE_BLOCK") = kSampleBlock;
    m.attr("MOST_SAMPLES") = kMostSamples;
    nb::class_<Sampler>(m, "Sampler")
        .def("__init__", [](Sampler* self, int level, std::shared_ptr<Team> team, std::size_t vocab) {
            new (self) Sampler(*kernels(level).sample, std::move(team), vocab);
        })
        // The arrays of `SampleStep`, in its order; 0 for those that it lets be null.
        .def("run", [](Sampler& sampler, Address rows, std::size_t count, Address logits, std::size_t logits_stride, Address maxima,
                       std::size_t maxima_stride, Address finite, Address drafts, Address ids, Address log_sum_exp, Address best_ids,
                       std::size_t best_stride, Address returned) {
            const SampleStep step = {pointer<const float>(logits), logits_stride, pointer<const float>(maxima), maxima_stride,
                                     pointer<const std::uint8_t>(finite), pointer<const std::int32_t>(drafts), pointer<std::int32_t>(ids),
                                     pointer<double>(log_sum_exp), pointer<std::int32_t>(best_ids), best_stride, pointer<std::int32_t>(returned)};
            nb::gil_scoped_release unlocked;
            sampler.run(step, pointer<const SampleRow>(rows), count);
        });
    m.def("argmax", [](int level, Address logits, std::size_t count, std::size_t slice) {
        const SampleKernels& table = *kernels(level).sample;
        if (count == 0 || slice == 0) throw nb::value_error("there is nothing to take the largest of");
        std::vector<float> best;
        std::vector<std::int32_t> ids;
        for (std::size_t first = 0; first < count; first += slice) {
            best.emplace_back();
            ids.emplace_back();
            table.argmax_slice(pointer<const float>(logits) + first, first, std::min(slice, count - first), &best.back(), &ids.back());
        }
        return table.argmax_merge(best.data(), ids.data(), ids.size());
    });
}

// Seconds, and what was done in them; `ceiling` as runtime/roofline.h numbers them.
void bind_roofline(nb::module_& m) {
    m.def("measure", [](int level, Team& team, int ceiling, Address data, std::size_t bytes, std::size_t rounds) {
        const RooflineKernels& table = *kernels(level).roofline;
        Effort effort;
        {
            nb::gil_scoped_release unlocked;
            effort = measure(table, team, static_cast<Ceiling>(ceiling), pointer<const std::uint8_t>(data), bytes, rounds);
        }
        return nb::make_tuple(effort.seconds, effort.work);
    });
    m.def("measure_phases", [](Team& team, std::size_t count) {
        nb::gil_scoped_release unlocked;
        return measure_phases(team, count).seconds;
    });
    m.def("measure_entries", [](Team& team, std::size_t count) {
        nb::gil_scoped_release unlocked;
        return measure_entries(team, count).seconds;
    });
}

}  // namespace

NB_MODULE(_C, m) {
    m.def("levels", [] {
        nb::list names;
        for (int i = 0; i < kLevelCount; ++i)
            if (kLevels[i].supported()) names.append(nb::make_tuple(i, kLevels[i].name));
        return names;
    });
    bind_attention(m);
    bind_elements(m);
    bind_linear(m);
    bind_plan(m);
    bind_roofline(m);
    bind_sample(m);
}
