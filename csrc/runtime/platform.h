// What depends on the processor and the operating system: the only place that asks for them. (Which instructions a kernel is compiled for is asked
// in simd/simd.h.)
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace ridgeline {

// A moment in a loop that waits for another thread.
inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

#if defined(__linux__)

// The system waits on 32 bits: the low half, which holds the count.
inline const uint32_t* low_half(const std::atomic<uint64_t>& word) {
    static_assert(sizeof(std::atomic<uint64_t>) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    return reinterpret_cast<const uint32_t*>(&word);
}
// Sleeps until somebody wakes who sleeps on `word`; not at all if its low half is no longer that of `value`.
inline void sleep_on(const std::atomic<uint64_t>& word, uint64_t value) {
    syscall(SYS_futex, low_half(word), FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(value), nullptr, nullptr, 0);
}
inline void wake_all(const std::atomic<uint64_t>& word) { syscall(SYS_futex, low_half(word), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }

#else

inline void sleep_on(const std::atomic<uint64_t>&, uint64_t) { std::this_thread::yield(); }
inline void wake_all(const std::atomic<uint64_t>&) {}

#endif

#if defined(__x86_64__)

// The compiler's builtin reads cpuid and xgetbv: a level counts only where the system saves its registers.
inline bool runs(const char* level) {
    const bool avx2 = __builtin_cpu_supports("avx2");
    if (strcmp(level, "avx2") == 0) return avx2;
    if (strcmp(level, "avx512vnni") == 0)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return true;
}
inline bool has_bf16() { return __builtin_cpu_supports("avx512bf16"); }
// Whether one token reads two streams of weights faster than four: with two, cores of AMD come nearer to what reads reach; Intel's want four.
inline bool reads_two_streams() {
    static const bool amd = __builtin_cpu_is("amd");
    return amd;
}
// Whether the streams of several tokens should come into the second-level cache first. Cores of Zen 4 stop where too many lines are on their way
// to the first one; those of Zen 5 and of Intel do not. Zen 3, of the same family, lacks AVX-512.
inline bool fetches_in_two_steps() {
    static const bool zen4 = __builtin_cpu_is("amdfam19h") && __builtin_cpu_supports("avx512vnni");
    return zen4;
}

// AMX with bf16 and int8. The system lends the registers to a process that asks: 8 KB more to save for a thread that uses them.
inline bool ask_for_tiles() {
#if defined(__linux__)
    constexpr long kAsk = 0x1023, kTileData = 18;        // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return has_bf16() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") &&
           syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
#else
    return false;
#endif
}
inline bool has_tiles() {
    static const bool granted = ask_for_tiles();
    return granted;
}

#else

#if defined(__aarch64__) && defined(__linux__)
// Dot products of bytes, which processors older than Armv8.2 lack.
inline bool runs(const char* level) {
    constexpr unsigned long kDotProducts = 1ul << 20;        // HWCAP_ASIMDDP
    return strcmp(level, "neon") != 0 || (getauxval(AT_HWCAP) & kDotProducts) != 0;
}
#else
inline bool runs(const char*) { return true; }
#endif
inline bool has_bf16() { return false; }
inline bool reads_two_streams() { return false; }
inline bool fetches_in_two_steps() { return false; }
inline bool has_tiles() { return false; }

#endif

}  // namespace ridgeline
