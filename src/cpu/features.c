/* features.c: asks the processor and the operating system (which must save the wide registers). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "features.h"
#include <stdlib.h>
#include <string.h>

#if defined __x86_64__
#include <cpuid.h>
#if defined __linux__
#include <sys/syscall.h>
#include <unistd.h>
#elif defined __APPLE__
#include <sys/sysctl.h>
#endif

enum { SAVES_YMM = 0x06, SAVES_ZMM = 0xe6 }; /* bits of XCR0: SSE, AVX; opmask and both halves of ZMM */

/* macOS begins to save the registers of AVX-512 when a thread first uses one: XCR0 shows them only then. */
static unsigned saved_on_use(void) {
#ifdef __APPLE__
    int offered = 0;
    size_t size = sizeof offered;
    if (sysctlbyname("hw.optional.avx512f", &offered, &size, NULL, 0) == 0 && offered) return SAVES_ZMM;
#endif
    return 0;
}

static unsigned saved_state(void) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low | saved_on_use();
}

static unsigned registers_saved(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    return saved_state();
}

static bool has_avx2(void) {
    unsigned a, b, c, d, leaf7b;
    if ((registers_saved() & SAVES_YMM) != SAVES_YMM || !__get_cpuid_count(7, 0, &a, &leaf7b, &c, &d)) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    return (leaf7b & bit_AVX2) && (c & bit_FMA) && (c & bit_F16C);
}

static bool has_avx512(void) {
    unsigned a, b, c, d;
    const unsigned needed = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (!has_avx2() || (registers_saved() & SAVES_ZMM) != SAVES_ZMM || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (b & needed) == needed;
}

static bool has_avx512bf16(void) {
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVX512BF16);
}
#elif defined __AARCH64EL__
#if defined __linux__
#include <sys/auxv.h>
#elif defined __APPLE__
#include <sys/sysctl.h>
#endif

/* Every 64-bit ARM processor that has an operating system like these has it; Linux can still say otherwise. */
static bool has_neon(void) {
#if defined __linux__
    enum { ASIMD = 1 << 1 }; /* HWCAP_ASIMD */
    return getauxval(AT_HWCAP) & ASIMD;
#else
    return true;
#endif
}

static bool has_neonbf16(void) {
#if defined __linux__
    enum { BF16 = 1 << 14 }; /* HWCAP2_BF16, which older headers lack */
    return has_neon() && (getauxval(AT_HWCAP2) & BF16);
#elif defined __APPLE__
    int offered = 0;
    size_t size = sizeof offered;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &offered, &size, NULL, 0) == 0 && offered;
#else
    return false;
#endif
}
#endif

#if defined ATTN_EMULATE_TILES
static bool has_amx(void) { return true; }
#elif defined __x86_64__ && defined __linux__
/* The system saves tiles for those processes alone that ask. */
static bool granted_tiles(void) {
    enum { GET_XCOMP_PERM = 0x1022, REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned long granted = 0;
    if (syscall(SYS_arch_prctl, GET_XCOMP_PERM, &granted) != 0) return false;
    return (granted >> XTILEDATA & 1) || syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}

static bool has_amx(void) {
    enum { SAVES_TILES = 0x60000, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;
    if (!has_avx512bf16() || (registers_saved() & SAVES_TILES) != SAVES_TILES || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d & AMX_BF16) && (d & AMX_TILE) && granted_tiles();
}
#endif

static bool has_scalar(void) { return true; }

bool attn_usable_kernels(const attn_kernels *usable[ATTN_ISAS_MOST]) {
    static const struct {
        const attn_kernels *kernels;
        bool (*present)(void);
    } isas[] = {
#define ISA_ENTRY(isa) { &attn_kernels_##isa, has_##isa },
        ATTN_ISA_LIST(ISA_ENTRY)
#undef ISA_ENTRY
    };
    const char *cap = getenv("ATTN_ISA");
    bool found = !cap || !*cap;
    int count = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        bool last = cap && strcmp(isas[i].kernels->name, cap) == 0;
        found |= last;
        if (isas[i].present()) usable[count++] = isas[i].kernels;
        if (last) break;
    }
    usable[count] = NULL;
    return found;
}
