// The only file that knows nanobind. Pointers arrive as integers, sizes as numbers; Python owns all memory and has
// checked shapes and strides; outputs are passed in. The GIL is released while a kernel runs.
#include <nanobind/nanobind.h>

#include "isa.h"

namespace nb = nanobind;
using namespace ridgeline;

namespace {

template <typename T>
T* pointer(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

const Kernels& kernels(int level) {
    if (level < 0 || level >= kLevelCount || !kLevels[level].supported())
        throw nb::value_error("this machine cannot run the requested ISA level");
    return *kLevels[level].kernels;
}

}  // namespace

NB_MODULE(_C, m) {
    m.def("levels", [] {
        nb::list names;
        for (int i = 0; i < kLevelCount; ++i)
            if (kLevels[i].supported()) names.append(nb::make_tuple(i, kLevels[i].name));
        return names;
    });
    m.def("quantise", [](int level, std::uintptr_t x, std::uintptr_t codes, std::uintptr_t scales, std::size_t rows,
                         std::size_t k) {
        const Kernels& table = kernels(level);
        nb::gil_scoped_release unlocked;
        table.quantise(pointer<const float>(x), pointer<std::int8_t>(codes), pointer<float>(scales), rows, k);
    });
    m.def("q8_0_linear", [](int level, std::uintptr_t weights, std::size_t weight_stride, std::uintptr_t codes,
                            std::uintptr_t scales, std::uintptr_t out, std::size_t m, std::size_t n, std::size_t k) {
        const Kernels& table = kernels(level);
        nb::gil_scoped_release unlocked;
        table.q8_0_linear(pointer<const std::uint8_t>(weights), weight_stride, pointer<const std::int8_t>(codes),
                          pointer<const float>(scales), pointer<float>(out), m, n, k);
    });
}
