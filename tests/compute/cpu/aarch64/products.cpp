// Products of every packed format at the level this is compiled for, with rows of random bytes, for few tokens and many.
#include "answers.h"
#include "runtime/kernels.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

extern const Kernels kKernels;
void products(Answers& out);

namespace {

constexpr size_t kMost = 40, kRows = 40, kInputs = 768, kRowBytes = kInputs * 4;
constexpr size_t kTokens[] = {1, 2, 3, 5, 6, 7, 17, kMost};

struct Activations {
    std::vector<int8_t> codes = std::vector<int8_t>(kMost * kInputs);
    std::vector<float> scales = std::vector<float>(kMost * kInputs / 32), floats = std::vector<float>(kMost * kInputs);
    std::vector<int32_t> sums = std::vector<int32_t>(kMost * kInputs / 16);

    // `stepped`: scales of the groups of a span are powers of two apart, and sums count in the smallest, as spans of 256 may have them.
    explicit Activations(bool stepped) {
        Random random(7);
        for (float& x : floats) x = random.between(-2.0f, 2.0f);
        for (int8_t& code : codes) code = static_cast<int8_t>(static_cast<int>(random.next() % 255) - 127);
        float scale = 0.0f;
        for (size_t group = 0; group < scales.size(); ++group) {
            if (group % 8 == 0) scale = random.between(0.001f, 0.02f);
            const int step = stepped && group % 8 > 0 ? static_cast<int>(random.next() % 3) : 0;
            scales[group] = scale * static_cast<float>(1 << step);
            for (size_t half = 0; half < 2; ++half) {
                int32_t sum = 0;
                for (size_t i = 0; i < 16; ++i) sum += codes[group * 32 + half * 16 + i];
                sums[2 * group + half] = sum * (1 << step);
            }
        }
    }
    Codes of() const { return {codes.data(), scales.data(), sums.data(), kInputs}; }
};

void multiply(Answers& out, const Matrix& matrix, const Activations& x, uint8_t* scratch) {
    std::vector<float> y(kMost * kRows);
    const bool floats = matrix.format <= kNVFP4 || matrix.format == kF32Split;
    for (size_t m : kTokens) {
        const Product to = {y.data(), kRows};
        if (floats) kKernels.linear->multiply_floats(matrix, x.floats.data(), kInputs, m, to, 0, (matrix.n + 15) / 16, scratch);
        else kKernels.linear->multiply(matrix, x.of(), m, to, 0, (matrix.n + 15) / 16, scratch);
        for (size_t token = 0; token < m; ++token) out.put_floats(y.data() + token * kRows, matrix.n);
    }
}

// Bounds of a screened matrix.
void screen(Answers& out, const Matrix& matrix, const Activations& x, uint8_t* scratch) {
    constexpr size_t kBlocks = (kRows + 15) / 16;
    std::vector<float> rows(kBlocks * 16), sizes(kMost), bounds(kBlocks * kMost), best(kMost), inverses(kInputs), steps(kInputs / 32, 0.0625f);
    std::vector<int8_t> codes(kInputs);
    std::vector<int32_t> offsets(kMost * kInputs / 16);
    std::vector<double> energies(kInputs);
    for (size_t i = 0; i < kInputs; ++i) codes[i] = static_cast<int8_t>(1 + i * 37 % 127), inverses[i] = 16.0001f / codes[i];
    const ChannelScales channels = {codes.data(), steps.data(), inverses.data(), 2.82f};
    kKernels.linear->left_out(matrix, energies.data());
    kKernels.linear->fit(matrix, channels, 0, kBlocks, rows.data(), scratch);
    for (const double each : energies) out.put(each);
    out.put_floats(rows.data(), rows.size());
    const Screening of = {kMost, channels, rows.data(), sizes.data(), offsets.data(), bounds.data(), best.data()};
    for (size_t token = 0; token < kMost; ++token) kKernels.linear->measure(x.of(), matrix.k, token, of);
    out.put(kKernels.linear->screen(matrix, x.of(), of, 0, kBlocks, scratch));
    out.put_floats(sizes.data(), sizes.size()), out.put_floats(bounds.data(), bounds.size()), out.put_floats(best.data(), best.size());
}

// `mask` of each byte of the rows: without the second highest bit, floats are small.
void format(Answers& out, int format, size_t group, uint8_t mask) {
    constexpr size_t kColumns = 37;
    std::vector<uint8_t> rows(kColumns * kRowBytes), scratch_of(kLinearScratch + 64);
    Random(static_cast<uint64_t>(format) + 1).fill(rows.data(), rows.size(), mask);
    const size_t bytes = kKernels.linear->packed_bytes(format, kColumns, kInputs, group);
    std::vector<uint8_t> packed(bytes + 64 + (8 << 10));             // aligned; what is fetched ahead may lie behind
    const auto aligned = [](std::vector<uint8_t>& of) { return of.data() + (64 - reinterpret_cast<uintptr_t>(of.data()) % 64) % 64; };
    uint8_t *data = aligned(packed), *scratch = aligned(scratch_of);
    const Matrix matrix = {format, kColumns, kInputs, group, data};
    kKernels.linear->pack(matrix, rows.data(), kRowBytes, data, 0, (kColumns + 15) / 16);
    out.parts.back().append(reinterpret_cast<const char*>(data), bytes);
    std::vector<float> row(kInputs);
    for (size_t r = 0; r < kColumns; r += 9) {
        kKernels.linear->row(matrix, r, row.data());
        out.put_floats(row.data(), kInputs);
    }
    const Activations x(false);
    multiply(out, matrix, x, scratch);
    if (format == kQ8_0Screened) screen(out, matrix, x, scratch);
    if ((format >= kQ2_K && format <= kQ6_K) || (format >= kTQ1_0 && format <= kIQ3_S)) multiply(out, matrix, Activations(true), scratch);
}

}  // namespace

void products(Answers& out) {
    const bool whole[] = {true, false};
    for (int each = 0; each <= kF32Split; ++each)
        for (size_t group : {size_t{0}, size_t{16}, size_t{32}, size_t{128}}) {
            const bool grouped = each == kInt8 || each == kInt4 || each == kFP8;
            if (each == kNVFP4 ? group > 16 : grouped ? group < 32 : group > 0) continue;
            for (bool any : whole) {
                out.name("format " + std::to_string(each) + ", groups of " + std::to_string(group));
                format(out, each, group, any ? 0xff : 0xbf);
            }
        }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
