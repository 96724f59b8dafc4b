// What one ISA level answers: bytes of all results, in order, so that those of two levels can be compared.
#pragma once

#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

struct Answers {
    std::vector<std::string> names;      // of each part
    std::vector<std::string> parts;

    void name(const std::string& what) { names.push_back(what), parts.emplace_back(); }
    template <class T>
    void put(const T& x) { parts.back().append(reinterpret_cast<const char*>(&x), sizeof x); }
    // Any NaN is one: which of two operands' an instruction keeps is its own affair.
    void put_floats(const float* x, size_t count) {
        for (size_t i = 0; i < count; ++i) put(x[i] == x[i] ? x[i] : 0x1p-149f);
    }
};

// Numbers that look random (xorshift64*).
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint32_t next() {
        state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
        return static_cast<uint32_t>((state * 0x2545f4914f6cdd1du) >> 32);
    }
    void fill(void* to, size_t bytes, uint8_t mask = 0xff) {
        for (size_t i = 0; i < bytes; ++i) static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(next()) & mask;
    }
    float between(float low, float high) { return low + (high - low) * static_cast<float>(next() >> 8) * 0x1p-24f; }
};
