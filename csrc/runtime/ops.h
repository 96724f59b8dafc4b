// The enumerations, structs and parameters of runtime/ops.def as C++ sees them, and a description of them for Python.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

#include "runtime/step.h"

namespace ridgeline {

#define VALUE(enumerator, name) enumerator,
#define ENUM(Name, values) enum Name : int { values };
#define FIELD(type, name) type name;
#define STRUCT(Name, fields) struct Name { fields };
#define OP(kind, name, Params, fields) struct Params { fields };
#include "runtime/ops.def"

enum class OpKind { rows, runs, products, experts, attention, recurrences };

// Ops in the order of the table.
#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name)
#define STRUCT(Name, fields)
#define OP(kind, name, Params, fields) op_##name,
enum OpNumber : size_t {
#include "runtime/ops.def"
    kOps
};

// Room for the parameters of any op of rows, or of a recurrence.
union RowParams {
#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name)
#define STRUCT(Name, fields)
#define OP(kind, name, Params, fields) Params name;
#include "runtime/ops.def"
};

// Rows of an op of rows or runs, as one ISA level computes them; `params` are those of the op.
using RowKernel = void (*)(const void* params, const Step& step, size_t first, size_t count);

// One part of one row of the step, its tokens in order, of a recurrence.
using RecurrenceKernel = void (*)(const void* params, const Step& step, size_t row, size_t part);

// What Python is told.
struct FieldInfo {
    const char* name;
    std::string type;                    // a code of numpy, as "u8" for addresses and sizes, or the name of a struct
    size_t offset;
};

struct StructInfo {
    const char* name;
    size_t size;
    std::vector<FieldInfo> fields;
};

struct OpInfo {
    const char* name;
    OpKind kind;
    StructInfo params;
};

struct EnumInfo {
    const char* name;
    std::vector<const char*> values;
};

const std::vector<EnumInfo>& enums();
const std::vector<StructInfo>& structs();
const std::vector<OpInfo>& ops();        // [kOps]

}  // namespace ridgeline
