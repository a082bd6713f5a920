// `phases` times: the threads share `steps` of a cycle or two, and wait for each other.

void aotc_run(const aotc_call *call, int32_t thread) {
    const int64_t phases = *(const int64_t *)call->arguments[0];
    const int64_t steps = *(const int64_t *)call->arguments[1];
    const int64_t begin = steps * thread / call->threads, end = steps * (thread + 1) / call->threads;
    for (int64_t phase = 0; phase < phases; phase++) {
        for (int64_t step = begin; step < end; step++) __asm__ volatile("" ::: "memory");
        aotc_barrier(call, thread);
    }
}

int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}
