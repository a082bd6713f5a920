// Integer contraction, exact in int32; see matmul.h for the arguments.
static void aotc_matmul_LEFT_RIGHT(int64_t m, int64_t n_first, int64_t n_last, int64_t k,
                                const LEFT_TYPE *a, int64_t a_row, int64_t a_column,
                                const RIGHT_TYPE *b, int64_t b_row, int64_t b_column, int32_t *c,
                                int64_t c_row, int accumulate, void *scratch) {
    (void)scratch;
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = n_first; j < n_last && !accumulate; ++j) c[i * c_row + j] = 0;
        for (int64_t p = 0; p < k; ++p) {
            const int32_t x = a[i * a_row + p * a_column];
            for (int64_t j = n_first; j < n_last; ++j)
                c[i * c_row + j] += x * b[p * b_row + j * b_column];
        }
    }
}
