// Every operation of simd/simd.h at the level this is compiled for, on random and on special numbers.
#include <math.h>

#include <limits>

#include "answers.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

void vocabulary(Answers& out);

namespace {

constexpr size_t kRounds = 200;
const float kSpecial[] = {0.0f, -0.0f, 0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 1e-40f, -1e-40f, 1e38f, -1e38f, INFINITY, -INFINITY, NAN, 88.8f, -87.4f};

// Floats of any bits, of a common range, special ones.
struct Inputs {
    Random random;
    float x[3][kLanes];
    uint8_t bytes[4][kQuadBytes];

    explicit Inputs(size_t round) : random(round) {
        for (auto& row : x)
            for (float& each : row) {
                const uint32_t kind = random.next() % 4;
                each = kind == 0 ? kSpecial[random.next() % 16] : random.between(-90.0f, 90.0f);
                if (kind == 1) random.fill(&each, sizeof each);
            }
        random.fill(bytes, sizeof bytes);
    }
};

void put(Answers& out, Vec x) {
    float each[kLanes];
    store(each, x);
    out.put_floats(each, kLanes);
}
void put(Answers& out, float x) { out.put_floats(&x, 1); }

template <class Each>
void with_inputs(Answers& out, const char* name, const Each& each) {
    out.name(name);
    for (size_t round = 0; round < kRounds; ++round) {
        Inputs in(round);
        each(in, load(in.x[0]), load(in.x[1]), load(in.x[2]));
    }
}

void arithmetic(Answers& out) {
    with_inputs(out, "+", [&](Inputs&, Vec a, Vec b, Vec) { put(out, a + b); });
    with_inputs(out, "-", [&](Inputs&, Vec a, Vec b, Vec) { put(out, a - b); });
    with_inputs(out, "*", [&](Inputs&, Vec a, Vec b, Vec) { put(out, a * b); });
    with_inputs(out, "/", [&](Inputs&, Vec a, Vec b, Vec) { put(out, a / b); });
    with_inputs(out, "fma", [&](Inputs&, Vec a, Vec b, Vec c) { put(out, fma(a, b, c)); });
    with_inputs(out, "larger", [&](Inputs&, Vec a, Vec b, Vec) { put(out, larger(a, b)); });
    with_inputs(out, "smaller", [&](Inputs&, Vec a, Vec b, Vec) { put(out, smaller(a, b)); });
    with_inputs(out, "magnitude", [&](Inputs&, Vec a, Vec, Vec) { put(out, magnitude(a)); });
    with_inputs(out, "nearest", [&](Inputs&, Vec a, Vec, Vec) { put(out, nearest(a)); });
    with_inputs(out, "where_nan", [&](Inputs&, Vec a, Vec b, Vec c) { put(out, where_nan(a, b, c)); });
    with_inputs(out, "where_below", [&](Inputs&, Vec a, Vec b, Vec c) { put(out, where_below(a, b, c, a)); });
    with_inputs(out, "where_bits", [&](Inputs& in, Vec a, Vec b, Vec) { put(out, where_bits(in.random.next(), a, b)); });
    with_inputs(out, "sum_of", [&](Inputs&, Vec a, Vec, Vec) { put(out, sum_of(a)); });
    with_inputs(out, "largest_of", [&](Inputs&, Vec a, Vec, Vec) { put(out, largest_of(a)); });
    with_inputs(out, "exponential", [&](Inputs&, Vec a, Vec, Vec) { put(out, exponential(a)); });
    with_inputs(out, "hyperbolic_tangent", [&](Inputs&, Vec a, Vec, Vec) { put(out, hyperbolic_tangent(a)); });
    with_inputs(out, "power_of_two", [&](Inputs& in, Vec, Vec, Vec) {
        for (float& each : in.x[0]) each = static_cast<float>(static_cast<int32_t>(in.random.next() % 254) - 126);
        put(out, power_of_two(load(in.x[0])));
    });
    with_inputs(out, "load_first, store_first", [&](Inputs& in, Vec, Vec, Vec) {
        const size_t n = in.random.next() % kLanes;
        store_first(in.x[1], load_first(in.x[0], n, 3.0f) + all(1.0f), n);
        out.put_floats(in.x[1], kLanes);
    });
}

void narrow_numbers(Answers& out) {
    with_inputs(out, "load_bf16", [&](Inputs& in, Vec, Vec, Vec) { put(out, load_bf16(reinterpret_cast<const uint16_t*>(in.bytes[0]))); });
    with_inputs(out, "load_half", [&](Inputs& in, Vec, Vec, Vec) { put(out, load_half(in.bytes[0])); });
    with_inputs(out, "load_int8", [&](Inputs& in, Vec, Vec, Vec) { put(out, load_int8(reinterpret_cast<const int8_t*>(in.bytes[0]))); });
    with_inputs(out, "load_e8m0_halved", [&](Inputs& in, Vec, Vec, Vec) {
        in.bytes[0][3] = 0, in.bytes[0][4] = 1, in.bytes[0][5] = 255;
        put(out, load_e8m0_halved(in.bytes[0]));
    });
    with_inputs(out, "store_int8", [&](Inputs& in, Vec, Vec, Vec) {
        for (float& each : in.x[0]) each = in.random.next() % 2 ? in.random.between(-127.0f, 127.0f) : static_cast<float>(in.random.next() % 254) - 126.5f;
        int8_t codes[kLanes];
        out.put(store_int8(codes, load(in.x[0])));
        out.put(codes);
    });
    with_inputs(out, "bf16 shuffled and back", [&](Inputs& in, Vec, Vec, Vec) {
        put(out, unshuffled_bf16(load_bf16_shuffled(in.bytes[0])));
        put(out, unshuffled_bf16(shuffled_bf16(load_bf16(reinterpret_cast<const uint16_t*>(in.bytes[0])))));
    });
}

constexpr size_t kPartLanes = sizeof(Part) / sizeof(float);

template <int R, int K>
void scores(Answers& out) {
    with_inputs(out, "store_sums", [&](Inputs& in, Vec, Vec, Vec) {
        Part x[6][kLanes / kPartLanes];
        for (auto& sum : x)
            for (Part& part : sum) {
                float each[kPartLanes];
                for (float& one : each) one = in.random.between(-4.0f, 4.0f);
                part = load_part(each);
            }
        float to[R * 16] = {};
        store_sums<R, K>(x, to, 16);
        for (size_t r = 0; r < R; ++r) out.put_floats(to + 16 * r, K);
    });
}

void parts(Answers& out) {
    const auto each = [&](const char* name, const auto& part) {
        with_inputs(out, name, [&](Inputs& in, Vec, Vec, Vec) {
            float to[kLanes];
            for (size_t at = 0; at < kLanes; at += kPartLanes) store_part(to + at, part(in, at));
            out.put_floats(to, kLanes);
        });
    };
    each("fma_part", [](Inputs& in, size_t at) { return fma_part(load_part(in.x[0] + at), load_once(in.x[1] + at), load_part(in.x[2] + at)); });
    each("all_part", [](Inputs& in, size_t) { return all_part(in.x[0][0]); });
    each("load_part_bf16", [](Inputs& in, size_t at) { return load_part_bf16(reinterpret_cast<const uint16_t*>(in.bytes[0]) + at); });
    each("load_part_int8", [](Inputs& in, size_t at) { return load_part_int8(reinterpret_cast<const int8_t*>(in.bytes[0]) + at); });
    scores<2, 3>(out);
    scores<1, 6>(out);
}

// Codes below 2^kBits; activations as a quantiser makes them.
template <int kBits>
void one_product(Answers& out) {
    with_inputs(out, "products", [&](Inputs& in, Vec, Vec, Vec) {
        Pairs sum = no_pairs();
        int32_t total = 0;
        for (size_t t = 0; t < kRun<kBits>; ++t) {
            int8_t x[4];
            for (int8_t& each : x) each = static_cast<int8_t>(static_cast<int>(in.random.next() % 255) - 127), total += each;
            in.random.fill(in.bytes[0], kQuadBytes, static_cast<uint8_t>((1u << kBits) - 1));
            sum = products<kBits>(sum, load_quad(in.bytes[0]), x);
        }
        out.put(widen<kBits>(sum) + ints(kSigned<kBits> ? 128 * total : 0));
    });
}

template <Field kField>
void one_field(Answers& out) {
    with_inputs(out, "factors, twins, totals", [&](Inputs& in, Vec, Vec, Vec) {
        Ints sum = ints(static_cast<int32_t>(in.random.next()) >> 12);
        out.put(widened(sum, factors<kField>(in.bytes[0])));
        int32_t sums[16];
        for (int32_t& each : sums) each = static_cast<int32_t>(in.random.next() % 4065) - 2032;
        Totals<1> single;
        Totals<2> twice;
        single.gather(sums), twice.gather(sums);
        for (size_t pair = 0; pair < 4; ++pair) {
            const Twins by = twins<kField>(in.bytes[1], in.bytes[2]);
            out.put(single.onto(ints(0), by, pair)), out.put(twice.onto(ints(0), by, 2 * pair + 1));
        }
    });
}

void integers_of(Answers& out) {
    with_inputs(out, "or_, look_up", [&](Inputs& in, Vec, Vec, Vec) {
        out.put(or_(load_quad(in.bytes[0]), load_quad(in.bytes[1])));
        for (uint8_t& code : in.bytes[2]) code &= 15;
        out.put(look_up(load_quad(in.bytes[2]), in.bytes[3]));
    });
    for (unsigned bits = 0; bits < 8; ++bits)
        with_inputs(out, "shifts", [&](Inputs& in, Vec, Vec, Vec) {
            const uint8_t mask = static_cast<uint8_t>(in.random.next());
            const Quad w = load_quad(in.bytes[0]);
            out.put(shift_right(w, bits, static_cast<char>(mask & 0xffu >> bits)));
            out.put(shift_left(w, bits, static_cast<char>(mask & 0xffu << bits)));
        });
    with_inputs(out, "ints", [&](Inputs& in, Vec, Vec, Vec) {
        const Ints a = integers(in.bytes[0]), b = integers(in.bytes[1]);
        out.put(a + b), out.put(a - b), out.put(a * b), out.put(lifted(a, in.random.next() % 3));
        put(out, floats(a * b * b));
        Quad x = load_quad(in.bytes[3]);
        for (uint8_t& code : in.bytes[2]) code &= 15;
        int32_t lanes[kLanes], total = 0;                // of what only a roofline asks for, lanes may hold different ones
        const Ints sum = dots<4>(a, load_quad(in.bytes[2]), x);
        memcpy(lanes, &sum, sizeof lanes);
        for (int32_t lane : lanes) total += lane;
        out.put(total);
    });
    one_product<4>(out), one_product<5>(out), one_product<6>(out), one_product<7>(out), one_product<8>(out);
    one_field<Field::kByte>(out), one_field<Field::kSigned>(out), one_field<Field::kLow>(out), one_field<Field::kHigh>(out);
}

void words(Answers& out) {
    constexpr size_t kWords = sizeof(Lanes) / sizeof(uint64_t), kMost = 8;
    with_inputs(out, "product of words", [&](Inputs& in, Vec, Vec, Vec) {
        for (size_t at = 0; at < kMost; at += kWords) {
            Lanes a, b;
            memcpy(&a, in.bytes[0] + 8 * at, sizeof a);
            memcpy(&b, in.bytes[1] + 8 * at, sizeof b);
            out.put(product(a, b));
        }
    });
}

}  // namespace

void vocabulary(Answers& out) { arithmetic(out), narrow_numbers(out), parts(out), integers_of(out), words(out); }

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
