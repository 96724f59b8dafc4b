#include "runtime/ops.h"

#include <type_traits>

namespace ridgeline {

namespace {

template <typename T>
struct StructName;

#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name)
#define STRUCT(Name, fields) template <> struct StructName<Name> { static constexpr const char* value = #Name; };
#define OP(kind, name, Params, fields)
#include "runtime/ops.def"

template <typename T>
std::string type_of() {
    if constexpr (std::is_class_v<T>) return StructName<T>::value;
    else if constexpr (std::is_pointer_v<T>) return "u" + std::to_string(sizeof(T));
    else return (std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u") + std::to_string(sizeof(T));
}

}  // namespace

const std::vector<EnumInfo>& enums() {
    static const std::vector<EnumInfo> found = {
#define VALUE(enumerator, name) #name,
#define ENUM(Name, values) {#Name, {values}},
#define FIELD(type, name)
#define STRUCT(Name, fields)
#define OP(kind, name, Params, fields)
#include "runtime/ops.def"
    };
    return found;
}

const std::vector<StructInfo>& structs() {
    static const std::vector<StructInfo> found = [] {
        std::vector<StructInfo> made;
#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name) {#name, type_of<type>(), offsetof(Struct, name)},
#define STRUCT(Name, fields) { using Struct = Name; made.push_back({#Name, sizeof(Struct), {fields}}); }
#define OP(kind, name, Params, fields)
#include "runtime/ops.def"
        return made;
    }();
    return found;
}

const std::vector<OpInfo>& ops() {
    static const std::vector<OpInfo> found = [] {
        std::vector<OpInfo> made;
#define VALUE(enumerator, name)
#define ENUM(Name, values)
#define FIELD(type, name) {#name, type_of<type>(), offsetof(Struct, name)},
#define STRUCT(Name, fields)
#define OP(kind, name, Params, fields) { using Struct = Params; made.push_back({#name, OpKind::kind, {#Params, sizeof(Struct), {fields}}}); }
#include "runtime/ops.def"
        return made;
    }();
    return found;
}

}  // namespace ridgeline
