// The only file that knows nanobind. Pointers arrive as integers, a step's inputs as arrays, sizes as numbers; Python owns all memory and
// has checked shapes and strides; outputs are passed in. The GIL is released while a kernel runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "elements/lora_pack.h"
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
    if (level < 0 || level >= kLevelCount || !supported(kLevels[level]))
        throw nb::value_error("this machine cannot run the requested ISA level");
    return *kLevels[level].kernels;
}

Matrix matrix(int format, std::size_t n, std::size_t k, std::size_t group, Address data) {
    return {format, n, k, group, pointer<const std::uint8_t>(data)};
}

// The parameters of an op, or another struct of runtime/ops.def, from a record of numpy.
template <typename Params>
Params params_of(nb::bytes record) {
    if (record.size() != sizeof(Params)) throw nb::value_error("a record has another size than its struct");
    Params made;
    memcpy(&made, record.c_str(), sizeof made);
    return made;
}

OpNumber op_of(const std::string& name, const nb::bytes& record) {
    for (std::size_t i = 0; i < kOps; ++i)
        if (name == ops()[i].name) {
            if (record.size() != ops()[i].params.size) throw nb::value_error("a record has another size than the op's parameters");
            return static_cast<OpNumber>(i);
        }
    throw nb::value_error("no such op");
}

OpKind kind_of(const std::string& name) {
    if (name == "rows") return OpKind::rows;
    if (name == "products") return OpKind::products;
    if (name == "experts") return OpKind::experts;
    if (name == "recurrences") return OpKind::recurrences;
    return OpKind::attention;
}

nb::tuple described(const StructInfo& info) {
    nb::list fields;
    for (const FieldInfo& field : info.fields) fields.append(nb::make_tuple(field.name, field.type, field.offset));
    return nb::make_tuple(info.size, nb::tuple(fields));
}

// What Python shares of runtime/ops.def: values of enumerations by name; structs and ops by name, with the size and the fields (name, type,
// offset) of what they hold.
void bind_ops(nb::module_& m) {
    nb::dict by_name, of_structs, of_ops;
    for (const EnumInfo& each : enums()) {
        nb::list values;
        for (const char* value : each.values) values.append(value);
        by_name[each.name] = nb::tuple(values);
    }
    for (const StructInfo& each : structs()) of_structs[each.name] = described(each);
    for (const OpInfo& each : ops()) of_ops[each.name] = described(each.params);
    m.attr("ENUMS") = by_name;
    m.attr("STRUCTS") = of_structs;
    m.attr("OPS") = of_ops;
    // Rows 0 … rows - 1 of one op that reads nothing of a step: what tests hold against the references.
    m.def("run_rows", [](int level, const std::string& name, nb::bytes record, std::size_t rows) {
        const RowKernel run = kernels(level).rows[op_of(name, record)];
        if (run == nullptr) throw nb::value_error("not an op of rows");
        RowParams params;
        memcpy(&params, record.c_str(), record.size());
        nb::gil_scoped_release unlocked;
        run(&params, Step{}, 0, rows);
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
    m.def("splits", [](int level) { return kernels(level).linear->splits(); });
    m.def("packed_row", [](int level, int format, std::size_t n, std::size_t k, std::size_t group, Address packed, std::size_t row, Address out) {
        const LinearKernels& table = *kernels(level).linear;
        nb::gil_scoped_release unlocked;
        table.row(matrix(format, n, k, group, packed), row, pointer<float>(out));
    });
}

// Adapters in codes of 8 bits.
void bind_adapters(nb::module_& m) {
    m.def("packed_codes_bytes", &packed_codes_bytes);
    m.def("pack_codes", [](Address numbers, std::size_t rank, std::size_t width, std::size_t down, std::size_t across, bool is_b, Address packed) {
        nb::gil_scoped_release unlocked;
        pack_codes({pointer<const float>(numbers), rank, width, down, across}, is_b, pointer<std::uint8_t>(packed));
    });
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
    m.def("kv_write", [](int level, nb::bytes record, Address slots, std::size_t tokens) {
        const RowKernel run = kernels(level).rows[op_kv_write];
        const KVWrite op = params_of<KVWrite>(record);
        Step now{};
        now.slots[op.kv_group] = pointer<const std::int64_t>(slots);
        nb::gil_scoped_release unlocked;
        run(&op, now, 0, tokens);
    });
    m.def("attention_items", [](int level, nb::bytes record, nb::tuple sizes, std::size_t threads, Address items, std::size_t capacity) {
        std::size_t partial_floats = 0;
        const std::size_t count = kernels(level).attention->items(params_of<Attention>(record), attention_step(sizes), threads,
                                                                  pointer<AttentionItem>(items), capacity, &partial_floats);
        return nb::make_tuple(count, partial_floats);
    });
    m.def("attend", [](int level, nb::bytes record, nb::tuple sizes, Address items, std::size_t count, Address partials, Address scratch) {
        const AttentionKernels& table = *kernels(level).attention;
        const Attention op = params_of<Attention>(record);
        const Step now = attention_step(sizes);
        const AttentionItem* first = pointer<const AttentionItem>(items);
        nb::gil_scoped_release unlocked;
        for (std::size_t i = 0; i < count; ++i) table.attend(op, now, first[i], pointer<float>(partials), pointer<std::uint8_t>(scratch));
        table.merge(op, now, first, count, pointer<const float>(partials));
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

template <typename T>
const T* column_or_null(nb::handle array) {
    return array.is_none() ? nullptr : column<T>(array);
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
    made.adapter = column_or_null<std::int32_t>(columns[6]);
    made.state_rows = column_or_null<std::int32_t>(columns[7]);
    const int groups = static_cast<int>(nb::len(tables));
    if (groups > kMaxGroups) throw nb::value_error("too many KV groups");
    for (int g = 0; g < groups; ++g) {
        made.tables[g] = column<std::int32_t>(tables[g]);
        made.slots[g] = column<std::int64_t>(slots[g]);
    }
    return made;
}

void bind_plan(nb::module_& m) {
    nb::class_<Team>(m, "Team").def(nb::init<int>()).def_prop_ro("threads", &Team::threads).def("use", &Team::use);
    nb::class_<Plan> plan(m, "Plan");
    plan.def("__init__", [](Plan* self, int level, std::shared_ptr<Team> team) { new (self) Plan(kernels(level), std::move(team)); });
    plan.def_prop_ro("phases", &Plan::phases);
    plan.def_prop_ro("last_product", &Plan::last_product);
    plan.def_prop_ro("beat", &Plan::beat);
    // What follows is added to the phase that was begun last.
    plan.def("begin", [](Plan& p, const std::string& kind, bool selected, std::size_t factor) {
        p.begin(kind_of(kind), selected, factor);
    });
    plan.def("add", [](Plan& p, const std::string& name, nb::bytes record) { p.add(op_of(name, record), record.c_str()); });
    // Where the experts of the op that was added last lie; the store lives as long as the plan.
    plan.def("store", [](Plan& p, ExpertStore& store, std::size_t group, std::size_t place) { p.store_last({&store, group, place}); },
             nb::keep_alive<1, 2>());
    plan.def("foresee", [](Plan& p, std::size_t group, Address ids) { p.foresee_last(group, pointer<const std::int32_t>(ids)); });
    plan.def("screen", &Plan::add_screen);
    plan.def_prop_ro("screened", [](const Plan& p) {
        const Screen::Counts counts = p.screened();
        return nb::make_tuple(counts.steps, counts.skipped, counts.pairs, counts.computed);
    });
    // best … followers: `Wanted`, 0 for what is not asked for.
    plan.def("run", [](Plan& p, nb::tuple sizes, nb::tuple columns, nb::tuple tables, nb::tuple slots, std::size_t first, std::size_t last,
                       Address trace, Address best, Address keep, Address masks, Address maxima, Address calls, Address followers) {
        const Step now = step(sizes, columns, tables, slots);
        const Wanted wanted = {pointer<std::int32_t>(best), pointer<const std::int32_t>(keep), pointer<const Mask>(masks), pointer<float>(maxima),
                               pointer<const GrammarCalls>(calls), pointer<Follower>(followers)};
        nb::gil_scoped_release unlocked;
        p.run(now, first, last, pointer<Trace>(trace), wanted);
    }, nb::arg("sizes"), nb::arg("columns"), nb::arg("tables"), nb::arg("slots"), nb::arg("first"), nb::arg("last"), nb::arg("trace") = 0,
       nb::arg("best") = 0, nb::arg("keep") = 0, nb::arg("masks") = 0, nb::arg("maxima") = 0, nb::arg("calls") = 0,
       nb::arg("followers") = 0);
    m.attr("GRAMMAR_CALLS") = sizeof(GrammarCalls) / sizeof(std::int64_t);
    m.attr("FOLLOWER") = sizeof(Follower) / sizeof(std::int64_t);
}

// Slots are the caller's memory, which lives as long as the store; so does a store as long as plans that read its experts.
void bind_experts(nb::module_& m) {
    m.def("sum_bytes", [](Address bytes, std::size_t count) { return sum_bytes(pointer<const std::uint8_t>(bytes), count); });
    nb::class_<ExpertStore>(m, "ExpertStore")
        .def("__init__", [](ExpertStore* self, const std::string& path, Address slots, std::size_t slot_bytes, std::size_t count, std::size_t readers) {
            new (self) ExpertStore(path, pointer<std::uint8_t>(slots), slot_bytes, count, readers);
        })
        // Pieces as (offset in the file, bytes from one expert to the next, place in a slot, sums of experts).
        .def("add", [](ExpertStore& store, const std::vector<std::tuple<std::uint64_t, std::size_t, std::size_t, std::vector<std::uint64_t>>>& pieces,
                       std::size_t experts) {
            std::vector<ExpertStore::Piece> made;
            for (const auto& [offset, stride, place, sums] : pieces) made.push_back({offset, stride, place, sums});
            return store.add(made, experts);
        })
        // What plans do; `address` is 0 where an expert could not be read.
        .def("require", [](ExpertStore& store, std::size_t group, const std::vector<std::int32_t>& experts) {
            const std::unique_ptr<bool[]> here = std::make_unique<bool[]>(experts.size());
            store.require(group, experts.data(), experts.size(), here.get());
            return std::vector<bool>(here.get(), here.get() + experts.size());
        })
        .def("foresee", [](ExpertStore& store, std::size_t group, const std::vector<std::int32_t>& experts) {
            store.foresee(group, experts.data(), experts.size());
        })
        .def("address", [](ExpertStore& store, std::size_t group, std::int32_t expert) {
            const nb::gil_scoped_release unlocked;
            return reinterpret_cast<Address>(store.address(group, expert));
        })
        .def_prop_ro("direct", &ExpertStore::direct)
        .def_prop_ro("reads_ahead", &ExpertStore::reads_ahead)
        .def_prop_ro("counts", [](const ExpertStore& store) {
            const ExpertStore::Counts counts = store.counts();
            return nb::make_tuple(counts.uses, counts.misses, counts.bytes, counts.waited, counts.guesses, counts.right, counts.useful);
        });
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
    nb::set_leak_warnings(false);  // a thread that looks at an object while the interpreter ends keeps it alive
    m.def("levels", [] {
        nb::list names;
        for (int i = 0; i < kLevelCount; ++i)
            if (supported(kLevels[i])) names.append(nb::make_tuple(i, kLevels[i].name));
        return names;
    });
    bind_attention(m);
    bind_experts(m);
    bind_linear(m);
    bind_adapters(m);
    bind_ops(m);
    bind_plan(m);
    bind_roofline(m);
    bind_sample(m);
}
