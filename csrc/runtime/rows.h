// Ops of one row at a time and recurrences, declared for the ISA level that includes this file; see runtime/ops.def for what each of them computes.
#pragma once

#include "runtime/ops.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name)
#define STRUCT(Name, fields)
#define OP(kind, name, Params, fields) DECLARE_##kind(name, Params)
#define DECLARE_rows(name, Params) void name(const Params& op, const Step& step, size_t row);
#define DECLARE_runs(name, Params) void name(const Params& op, const Step& step, size_t first, size_t count);
#define DECLARE_products(name, Params)
#define DECLARE_experts(name, Params)
#define DECLARE_attention(name, Params)
#define DECLARE_recurrences(name, Params) void name(const Params& op, const Step& step, size_t row, size_t part);
#include "runtime/ops.def"
#undef DECLARE_rows
#undef DECLARE_runs
#undef DECLARE_products
#undef DECLARE_experts
#undef DECLARE_attention
#undef DECLARE_recurrences

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
