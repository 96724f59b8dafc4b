// The tables of one ISA level, side by side.
#include "runtime/kernels.h"
#include "runtime/rows.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

extern const AttentionKernels kAttention;
extern const LinearKernels kLinear;
extern const RooflineKernels kRoofline;
extern const SampleKernels kSample;

namespace {

#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name)
#define STRUCT(Name, fields)
#define OP(kind, name, Params, fields) ENTRY_##kind(name, Params)
#define ENTRY_rows(name, Params) \
    [](const void* params, const Step& step, size_t first, size_t count) { \
        for (size_t row = first; row < first + count; ++row) name(*static_cast<const Params*>(params), step, row); \
    },
#define ENTRY_runs(name, Params) \
    [](const void* params, const Step& step, size_t first, size_t count) { name(*static_cast<const Params*>(params), step, first, count); },
#define ENTRY_products(name, Params) nullptr,
#define ENTRY_experts(name, Params) nullptr,
#define ENTRY_attention(name, Params) nullptr,
#define ENTRY_recurrences(name, Params) nullptr,
const RowKernel kRows[kOps] = {
#include "runtime/ops.def"
};

#undef ENTRY_rows
#undef ENTRY_runs
#undef ENTRY_recurrences
#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name)
#define STRUCT(Name, fields)
#define OP(kind, name, Params, fields) ENTRY_##kind(name, Params)
#define ENTRY_rows(name, Params) nullptr,
#define ENTRY_runs(name, Params) nullptr,
#define ENTRY_recurrences(name, Params) \
    [](const void* params, const Step& step, size_t row, size_t part) { name(*static_cast<const Params*>(params), step, row, part); },
const RecurrenceKernel kRecurrences[kOps] = {
#include "runtime/ops.def"
};

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {kRows, kRecurrences, &kLinear, &kAttention, &kRoofline, &kSample};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
