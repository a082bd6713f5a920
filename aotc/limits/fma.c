// `loops` times 12 independent fused multiply-adds of vectors that stay in registers.

#if defined(__AVX512F__)
#define LANES 16
__attribute__((min_vector_width(512)))
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
void aotc_run(const aotc_call *call, int32_t thread) {
    typedef float vector __attribute__((vector_size(LANES * 4)));
    const int64_t loops = *(const int64_t *)call->arguments[0];
    float *out = (float *)call->arguments[1] + 32 * thread;
    vector sums[12], scale, term;
    for (int lane = 0; lane < LANES; lane++) {
        scale[lane] = 0.5f + out[0] * 0x1p-20f; // not known to the compiler
        term[lane] = 0.5f;
    }
    for (int i = 0; i < 12; i++) sums[i] = term + (float)i;
    for (int64_t loop = 0; loop < loops; loop++)
#pragma clang loop unroll(full)
        for (int i = 0; i < 12; i++) sums[i] = __builtin_elementwise_fma(sums[i], scale, term);
    for (int i = 1; i < 12; i++) sums[0] += sums[i];
    out[0] = sums[0][0];
    out[1] = LANES;
}

int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}
