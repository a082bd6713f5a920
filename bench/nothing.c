// An empty program: what a call costs by itself.

void aotc_run(const aotc_call *call, int32_t thread) { (void)call, (void)thread; }

int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}
