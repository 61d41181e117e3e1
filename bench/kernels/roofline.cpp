// What the machine can do at most: reading memory, and multiplying: vectors out of registers alone,
// tiles out of the first-level cache, because a tile is used only a few times.
//
// The operands are random numbers. Zeros, or one number in all lanes, would take less power: with
// tiles the clock is then higher than with any real product.
//
// Every loop is compiled for its own instruction set; `roofline_has` says which may be called.
// All take as many steps as they are told and return something that depends on all their work.

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kRequestTileData = 0x1023;  // arch_prctl's ARCH_REQ_XCOMP_PERM
constexpr int kTileData = 18;

struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    Leaf(unsigned leaf, unsigned subleaf) {
        __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
    }
};

bool bit(unsigned word, int index) { return (word >> index) & 1; }

__attribute__((target("xsave"))) uint64_t enabled_state() { return _xgetbv(0); }

struct Features {
    bool avx2 = false, avx512 = false, avx512_bf16 = false, avx512_vnni = false;
    bool amx_bf16 = false, amx_int8 = false;

    Features() {
        const Leaf basic(1, 0), extended(7, 0), extended1(7, 1);
        if (!bit(basic.ecx, 27)) return;  // the system does not save vector registers
        const uint64_t state = enabled_state();
        const bool ymm = (state & 0x6) == 0x6;
        const bool zmm = (state & 0xe6) == 0xe6;
        const bool tiles = (state & 0x60000) == 0x60000;
        avx2 = ymm && bit(extended.ebx, 5) && bit(basic.ecx, 12);
        avx512 = zmm && bit(extended.ebx, 16) && bit(extended.ebx, 30);
        avx512_vnni = avx512 && bit(extended.ecx, 11);
        avx512_bf16 = avx512 && bit(extended1.eax, 5);
        const bool amx = tiles && bit(extended.edx, 24) &&
                         syscall(SYS_arch_prctl, kRequestTileData, kTileData) == 0;
        amx_bf16 = amx && bit(extended.edx, 22);
        amx_int8 = amx && bit(extended.edx, 25);
    }
};

const Features& features() {
    static const Features found;
    return found;
}

struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
    TileConfig() {
        for (int tile = 0; tile < 8; ++tile) {
            row_bytes[tile] = 64;
            rows[tile] = 16;
        }
    }
};

// GCC takes the intrinsic to read a pointer's worth of the configuration only.
__attribute__((target("amx-tile"))) inline void load_config(const TileConfig& config) {
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

// Steps of the tile loops that the first-level cache holds.
constexpr int64_t kSteps = 4;

struct Numbers {
    alignas(64) float fp32[32];
    alignas(64) uint16_t bf16[kSteps * 2048];
    alignas(64) int8_t int8[kSteps * 4096];

    Numbers() {
        for (float& x : fp32) x = next();
        for (uint16_t& x : bf16) {
            const float number = next();
            uint32_t bits;
            std::memcpy(&bits, &number, sizeof bits);
            x = static_cast<uint16_t>(bits >> 16);
        }
        for (int8_t& x : int8) x = static_cast<int8_t>(127 * next());
    }

private:
    // From -1 to 1 (xorshift, Marsaglia 2003).
    float next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 17;
        state_ ^= state_ << 5;
        return static_cast<float>(static_cast<int32_t>(state_)) / 2147483648.0f;
    }
    uint32_t state_ = 2463534242u;
};

const Numbers& numbers() {
    static const Numbers made;
    return made;
}

// Keeps a value in a register, so that the compiler neither folds nor drops the loop around it.
#define KEEP(value) asm volatile("" : "+v"(value))

// Independent sums, twelve or fourteen of them, hide the latency of an instruction on every machine
// at hand: on Zen 5 a product of bf16 takes six cycles, and two begin in each. The sixteen
// registers of AVX2 hold no more than twelve. SUMS declares s0 and so on; STEPS applies `update` to
// the number of each sum, `steps` times. The suffix is their number.
#define SUMS_12(type, zero)                                                                      \
    type s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero, s6 = zero, s7 = zero, \
         s8 = zero, s9 = zero, s10 = zero, s11 = zero
#define SUMS_14(type, zero) \
    SUMS_12(type, zero);    \
    type s12 = zero, s13 = zero
#define UPDATE_12(update)                                                                     \
    update(0) update(1) update(2) update(3) update(4) update(5) update(6) update(7) update(8) \
        update(9) update(10) update(11)
#define STEPS_12(update)                           \
    for (int64_t step = 0; step < steps; ++step) { \
        UPDATE_12(update)                          \
    }
#define STEPS_14(update)                           \
    for (int64_t step = 0; step < steps; ++step) { \
        UPDATE_12(update) update(12) update(13)    \
    }

}  // namespace

extern "C" {

int roofline_has(const char* set) {
    const Features& f = features();
    if (!std::strcmp(set, "avx2_fp32") || !std::strcmp(set, "avx2_int8")) return f.avx2;
    if (!std::strcmp(set, "avx512_fp32")) return f.avx512;
    if (!std::strcmp(set, "avx512_bf16")) return f.avx512_bf16;
    if (!std::strcmp(set, "avx512_vnni")) return f.avx512_vnni;
    if (!std::strcmp(set, "amx_bf16")) return f.amx_bf16;
    if (!std::strcmp(set, "amx_int8")) return f.amx_int8;
    return 0;
}

// Reads `streams` runs of `bytes` bytes that follow each other, 256 bytes of each in turn. `bytes`
// is a multiple of 256; the data is 64-byte aligned. Each read prefetches the memory `ahead` bytes
// later into the second-level cache; with 0 only the hardware prefetches.
__attribute__((target("avx2"))) int64_t roofline_read(const char* data, size_t bytes,
                                                      size_t streams, size_t ahead) {
    __m256i sums[8] = {};
    for (size_t at = 0; at < bytes; at += 256) {
        for (size_t stream = 0; stream < streams; ++stream) {
            const char* block = data + stream * bytes + at;
            for (int i = 0; i < 4; ++i) _mm_prefetch(block + 64 * i + ahead, _MM_HINT_T1);
            for (int i = 0; i < 8; ++i) {
                const auto* from = reinterpret_cast<const __m256i*>(block + 32 * i);
                sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(from));
            }
        }
    }
    for (int i = 1; i < 8; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
    return _mm256_extract_epi64(sums[0], 0);
}

// 12 x 8 multiply-adds a step.
__attribute__((target("avx2,fma"))) void roofline_avx2_fp32(int64_t steps) {
    __m256 a = _mm256_load_ps(numbers().fp32), b = _mm256_load_ps(numbers().fp32 + 8);
    SUMS_12(__m256, _mm256_setzero_ps());
#define UPDATE(i)                       \
    s##i = _mm256_fmadd_ps(a, b, s##i); \
    KEEP(s##i);
    STEPS_12(UPDATE)
#undef UPDATE
}

// 12 x 32 multiply-adds a step, in three instructions for each sum.
__attribute__((target("avx2"))) void roofline_avx2_int8(int64_t steps) {
    const auto* operands = reinterpret_cast<const __m256i*>(numbers().int8);
    __m256i a = _mm256_load_si256(operands), b = _mm256_load_si256(operands + 1);
    __m256i ones = _mm256_set1_epi16(1);
    SUMS_12(__m256i, _mm256_setzero_si256());
#define UPDATE(i)                                                      \
    {                                                                  \
        __m256i pairs = _mm256_maddubs_epi16(a, b);                    \
        KEEP(pairs);                                                   \
        s##i = _mm256_add_epi32(s##i, _mm256_madd_epi16(pairs, ones)); \
        KEEP(s##i);                                                    \
    }
    STEPS_12(UPDATE)
#undef UPDATE
}

// 14 x 16 multiply-adds a step.
__attribute__((target("avx512f"))) void roofline_avx512_fp32(int64_t steps) {
    __m512 a = _mm512_load_ps(numbers().fp32), b = _mm512_load_ps(numbers().fp32 + 16);
    SUMS_14(__m512, _mm512_setzero_ps());
#define UPDATE(i)                       \
    s##i = _mm512_fmadd_ps(a, b, s##i); \
    KEEP(s##i);
    STEPS_14(UPDATE)
#undef UPDATE
}

// 14 x 32 multiply-adds a step.
__attribute__((target("avx512f,avx512bf16"))) void roofline_avx512_bf16(int64_t steps) {
    __m512bh a, b;
    std::memcpy(&a, numbers().bf16, sizeof a);
    std::memcpy(&b, numbers().bf16 + 32, sizeof b);
    SUMS_14(__m512, _mm512_setzero_ps());
#define UPDATE(i)                        \
    s##i = _mm512_dpbf16_ps(s##i, a, b); \
    KEEP(s##i);
    STEPS_14(UPDATE)
#undef UPDATE
}

// 14 x 64 multiply-adds a step.
__attribute__((target("avx512f,avx512vnni"))) void roofline_avx512_vnni(int64_t steps) {
    __m512i a = _mm512_load_si512(numbers().int8), b = _mm512_load_si512(numbers().int8 + 64);
    SUMS_14(__m512i, _mm512_setzero_si512());
#define UPDATE(i)                           \
    s##i = _mm512_dpbusd_epi32(s##i, a, b); \
    KEEP(s##i);
    STEPS_14(UPDATE)
#undef UPDATE
}

// 4 x 16 x 16 x 32 multiply-adds a step: two tiles of each side, loaded from the first-level cache,
// and their four products.
__attribute__((target("amx-tile,amx-bf16"))) void roofline_amx_bf16(int64_t steps) {
    const TileConfig config;
    load_config(config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; ++step) {
        const char* tiles = reinterpret_cast<const char*>(numbers().bf16) + step % kSteps * 4096;
        _tile_loadd(6, tiles, 64);
        _tile_loadd(4, tiles + 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, tiles + 2048, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, tiles + 3072, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

// 4 x 16 x 16 x 64 multiply-adds a step.
__attribute__((target("amx-tile,amx-int8"))) void roofline_amx_int8(int64_t steps) {
    const TileConfig config;
    load_config(config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; ++step) {
        const char* tiles = reinterpret_cast<const char*>(numbers().int8) + step % kSteps * 4096;
        _tile_loadd(6, tiles, 64);
        _tile_loadd(4, tiles + 1024, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, tiles + 2048, 64);
        _tile_dpbssd(1, 4, 7);
        _tile_loadd(5, tiles + 3072, 64);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}

}  // extern "C"
