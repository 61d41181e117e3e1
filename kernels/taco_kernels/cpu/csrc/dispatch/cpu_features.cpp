#include "dispatch/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace {

struct Registers {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers r;
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
    return r;
}

bool bit(uint32_t word, int index) { return (word >> index) & 1; }

// Register sets that the operating system saves on a context switch (Intel SDM, volume 1, 13.3).
uint64_t enabled_state() {
    constexpr int OSXSAVE = 27;
    if (!bit(cpuid(1, 0).ecx, OSXSAVE)) return 0;
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

bool saves(uint64_t mask) { return (enabled_state() & mask) == mask; }
constexpr uint64_t YMM_STATE = 0x6, ZMM_STATE = 0xe6, TILE_STATE = 0x60000;

const char* missing_for_avx2() {
    const Registers basic = cpuid(1, 0), extended = cpuid(7, 0);
    if (!saves(YMM_STATE) || !bit(extended.ebx, 5)) return "AVX2";
    if (!bit(basic.ecx, 12)) return "FMA";
    if (!bit(basic.ecx, 29)) return "F16C";
    return nullptr;
}

const char* missing_for_avx512() {
    const Registers extended = cpuid(7, 0);
    if (!saves(ZMM_STATE) || !bit(extended.ebx, 16)) return "AVX-512";
    if (!bit(extended.ebx, 17)) return "AVX-512 DQ";
    if (!bit(extended.ebx, 30)) return "AVX-512 BW";
    if (!bit(extended.ebx, 31)) return "AVX-512 VL";
    if (!bit(extended.ecx, 11)) return "AVX-512 VNNI";
    return nullptr;
}

const char* missing_for_bf16() { return bit(cpuid(7, 1).eax, 5) ? nullptr : "AVX-512 BF16"; }

// Linux lets processes use tiles that ask for them (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
    constexpr long REQUEST_STATE = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
}

const char* missing_for_amx() {
    const Registers extended = cpuid(7, 0);
    if (!bit(extended.edx, 24)) return "AMX";
    if (!bit(extended.edx, 22)) return "AMX bf16";
    if (!bit(extended.edx, 25)) return "AMX int8";
    if (!saves(TILE_STATE) || !may_use_tiles()) return "AMX in the operating system (Linux 5.16)";
    return nullptr;
}

}  // namespace

const char* missing_for(const char* isa_name) {
    const auto is = [&](const char* name) { return std::strcmp(isa_name, name) == 0; };
    if (std::strncmp(isa_name, "emulated_", 9) == 0) return nullptr;
    if (const char* missing = missing_for_avx2()) return missing;
    if (is("avx2")) return nullptr;
    if (const char* missing = missing_for_avx512()) return missing;
    if (is("avx512")) return nullptr;
    if (const char* missing = missing_for_bf16()) return missing;
    if (is("avx512_bf16")) return nullptr;
    return missing_for_amx();
}
