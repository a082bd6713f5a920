// Read `data`, fp32 [8 * threads, L]: each thread its 8 rows at once, a cache line of each in turn.

#if defined(__AVX512F__)
#define LANES 16
__attribute__((min_vector_width(512)))
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
void aotc_run(const aotc_call *call, int32_t thread) {
    typedef uint32_t vector __attribute__((vector_size(LANES * 4), aligned(4)));
    const int64_t length = call->symbols[1];
    const uint32_t *data = (const uint32_t *)call->arguments[0] + 8 * length * thread;
    vector sums[8] = {0};
    for (int64_t i = 0; i + 16 <= length; i += 16)
#pragma clang loop unroll(full)
        for (int stream = 0; stream < 8; stream++)
#pragma clang loop unroll(full)
            for (int part = 0; part < 16; part += LANES)
                sums[stream] ^= *(const vector *)(data + stream * length + i + part);
    uint32_t total = 0;
    for (int stream = 0; stream < 8; stream++)
        for (int lane = 0; lane < LANES; lane++) total ^= sums[stream][lane];
    ((uint32_t *)call->arguments[1])[32 * thread] = total;
}

int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}
