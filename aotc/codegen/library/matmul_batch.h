// Contractions of a batch, C[s][m][n] = sum over k of A[s][m][k] * B[s], with the orders of
// accumulation of matmul.h, after which this text is pasted for the same pairs of element types.
//
// Where A has few rows, and the matrices B lie interleaved, as the heads of one token do before those
// of the next, B is read once, in the order of memory: groups of its rows outermost, the batch
// inside. While a group is at work the next one is fetched, also in that order.

// nt: `rows` rows of A, as floats and `a_row` apart, against four rows of B, of which the first
// `count` are there. The sums of a row of A have four lanes for each row of B, see aotc_sum4.
AOTC_INLINE void aotc_batch_dots_LEFT_RIGHT(int rows, int count, int64_t k, const float *a,
                                            int64_t a_row, const RIGHT_TYPE *b, int64_t b_row,
                                            const RIGHT_TYPE *next, aotc_v16 *sums) {
    aotc_v16 sum[AOTC_DOT_ROWS][4];
    const int width = AOTC_PART_COLUMNS(rows);
    for (int g = 0; g < 4; g += width) {
        const RIGHT_TYPE *row[4];
        for (int j = 0; j < width; ++j) row[j] = b + (g + j < count ? g + j : 0) * b_row;
        for (int half = 0; half < 16; half += AOTC_PART) {
            aotc_part part[AOTC_DOT_ROWS][4];
            for (int i = 0; i < rows; ++i)
                for (int j = 0; j < width; ++j) part[i][j] = (aotc_part){0};
            int64_t p = 0;
            for (; p + 16 <= k; p += 16) {
                aotc_part w[4];
                for (int j = 0; j < width; ++j) {
                    w[j] = aotc_load_part_RIGHT(row[j] + p + half);
                    if (half == 0 && p * sizeof(RIGHT_TYPE) % 64 == 0)
                        __builtin_prefetch(next + (g + j) * k + p);
                }
                for (int i = 0; i < rows; ++i) {
                    aotc_part x = *(const aotc_part *)(a + i * a_row + p + half);
                    for (int j = 0; j < width; ++j)
                        part[i][j] = __builtin_elementwise_fma(x, w[j], part[i][j]);
                }
            }
            for (int j = 0; j < width && p < k; ++j) {
                const aotc_v16 last = aotc_load_some_RIGHT(k - p, row[j] + p);
                const aotc_part w = *(const aotc_part *)((const float *)&last + half);
                // The rows of A end in zeros.
                for (int i = 0; i < rows; ++i)
                    part[i][j] = __builtin_elementwise_fma(
                        *(const aotc_part *)(a + i * a_row + p + half), w, part[i][j]);
            }
            for (int i = 0; i < rows; ++i)
                for (int j = 0; j < width; ++j)
                    *(aotc_part *)((float *)&sum[i][g + j] + half) = part[i][j];
        }
    }
    for (int i = 0; i < rows; ++i)
        sums[4 * i] = aotc_sum4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
}

AOTC_INLINE void aotc_batch_nt_rows_LEFT_RIGHT(int rows, int64_t batch, int64_t n, int64_t k,
                                               const float *a, int64_t a_row, const RIGHT_TYPE *b,
                                               int64_t b_batch, int64_t b_row, float *c,
                                               int64_t c_batch, int64_t c_row, aotc_v16 *sums) {
    for (int64_t j = 0; j < n; j += 16) {
        const int width = n - j < 16 ? (int)(n - j) : 16;
        for (int g = 0; g < width; g += 4) {
            const RIGHT_TYPE *group = b + (j + g) * b_row;
            for (int64_t s = 0; s < batch; ++s) {
                // The last group has none after it: then what is fetched is there already.
                const RIGHT_TYPE *next = group;
                if (j + g + 4 < n) next = group + 4 * b_row + s * (4 * b_row / batch);
                aotc_batch_dots_LEFT_RIGHT(rows, width - g, k, a + s * rows * a_row, a_row,
                                           group + s * b_batch, b_row, next,
                                           sums + 4 * s * rows + g / 4);
            }
        }
        for (int64_t s = 0; s < batch; ++s)
            for (int i = 0; i < rows; ++i) {
                aotc_v16 total = aotc_sum4x4(sums + 4 * (s * rows + i));
                float *to = c + s * c_batch + i * c_row + j;
                if (width == 16) *(aotc_v16u *)to = total;
                for (int l = 0; width < 16 && l < width; ++l) to[l] = total[l];
            }
    }
}

// nn: `depth` rows of B against as many columns of A.
AOTC_INLINE void aotc_batch_strip_LEFT_RIGHT(int rows, int depth, int64_t n, const LEFT_TYPE *a,
                                             int64_t a_row, int64_t a_column, const RIGHT_TYPE *b,
                                             int64_t b_row, const RIGHT_TYPE *next, float *c,
                                             int64_t c_row, int first) {
    float x[AOTC_DOT_ROWS][AOTC_BATCH_DEPTH];
    for (int i = 0; i < rows; ++i)
        for (int r = 0; r < depth; ++r) x[i][r] = AOTC_TO_FLOAT_LEFT(a[i * a_row + r * a_column]);
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) {
        aotc_v16 sum[AOTC_DOT_ROWS];
        for (int i = 0; i < rows; ++i)
            sum[i] = first ? (aotc_v16){0} : *(const aotc_v16u *)(c + i * c_row + j);
        for (int p = 0; p < 16 * depth; p += 64 / (int)sizeof(RIGHT_TYPE))
            __builtin_prefetch(next + depth * j + p);
#pragma clang loop unroll(full)
        for (int r = 0; r < depth; ++r) {
            aotc_v16 w = aotc_load16_RIGHT(b + r * b_row + j);
            for (int i = 0; i < rows; ++i)
                sum[i] = __builtin_elementwise_fma(aotc_splat(x[i][r]), w, sum[i]);
        }
        for (int i = 0; i < rows; ++i) *(aotc_v16u *)(c + i * c_row + j) = sum[i];
    }
    if (j < n)
        aotc_nn_edge_LEFT_RIGHT(rows, depth, n - j, a, a_row, a_column, b + j, b_row, c + j, c_row,
                                first);
}

AOTC_INLINE void aotc_batch_nn_rows_LEFT_RIGHT(int rows, int64_t batch, int64_t n, int64_t k,
                                               const LEFT_TYPE *a, int64_t a_batch, int64_t a_row,
                                               int64_t a_column, const RIGHT_TYPE *b,
                                               int64_t b_batch, int64_t b_row, float *c,
                                               int64_t c_batch, int64_t c_row) {
    for (int64_t p = 0; p < k; p += AOTC_BATCH_DEPTH)
        for (int64_t s = 0; s < batch; ++s) {
            const LEFT_TYPE *x = a + s * a_batch + p * a_column;
            const RIGHT_TYPE *w = b + p * b_row + s * b_batch, *next = w;
            if (p + AOTC_BATCH_DEPTH < k)
                next = b + (p + AOTC_BATCH_DEPTH) * b_row + s * (AOTC_BATCH_DEPTH * b_row / batch);
            float *y = c + s * c_batch;
            if (k - p >= AOTC_BATCH_DEPTH)
                aotc_batch_strip_LEFT_RIGHT(rows, AOTC_BATCH_DEPTH, n, x, a_row, a_column, w, b_row,
                                            next, y, c_row, p == 0);
            else
                aotc_batch_strip_LEFT_RIGHT(rows, (int)(k - p), n, x, a_row, a_column, w, b_row,
                                            next, y, c_row, p == 0);
        }
}

// One function for each number of rows: so the sums stand in registers.
#define AOTC_ROWS(NAME, ROWS, ...) case ROWS: NAME(ROWS, __VA_ARGS__); break;
#define AOTC_SIX_ROWS(NAME, ...) \
    AOTC_ROWS(NAME, 1, __VA_ARGS__) AOTC_ROWS(NAME, 2, __VA_ARGS__) AOTC_ROWS(NAME, 3, __VA_ARGS__) \
    AOTC_ROWS(NAME, 4, __VA_ARGS__) AOTC_ROWS(NAME, 5, __VA_ARGS__) AOTC_ROWS(NAME, 6, __VA_ARGS__)
#if AOTC_DOT_ROWS > 6
#define AOTC_EACH_ROWS(NAME, ...) \
    AOTC_SIX_ROWS(NAME, __VA_ARGS__) \
    AOTC_ROWS(NAME, 7, __VA_ARGS__) AOTC_ROWS(NAME, 8, __VA_ARGS__)
#else
#define AOTC_EACH_ROWS(NAME, ...) AOTC_SIX_ROWS(NAME, __VA_ARGS__)
#endif

AOTC_OUTLINE void aotc_batch_nt_LEFT_RIGHT(int64_t batch, int64_t m, int64_t n, int64_t k,
                                           const LEFT_TYPE *a, int64_t a_batch, int64_t a_row,
                                           const RIGHT_TYPE *b, int64_t b_batch, int64_t b_row,
                                           float *c, int64_t c_batch, int64_t c_row, void *scratch) {
    const int64_t wide = (k + 15) / 16 * 16;
    aotc_v16 *sums = scratch;
    float *rows = (float *)(sums + 4 * batch * m);
    for (int64_t s = 0; s < batch; ++s)
        for (int64_t i = 0; i < m; ++i) {
            float *row = rows + (s * m + i) * wide;
            aotc_row_LEFT_RIGHT(k, a + s * a_batch + i * a_row, 1, row);
            for (int64_t l = k; l < wide; ++l) row[l] = 0.0f;
        }
    switch (m) {
        AOTC_EACH_ROWS(aotc_batch_nt_rows_LEFT_RIGHT, batch, n, k, rows, wide, b, b_batch, b_row, c,
                       c_batch, c_row, sums)
    }
}

AOTC_OUTLINE void aotc_batch_nn_LEFT_RIGHT(int64_t batch, int64_t m, int64_t n, int64_t k,
                                           const LEFT_TYPE *a, int64_t a_batch, int64_t a_row,
                                           int64_t a_column, const RIGHT_TYPE *b, int64_t b_batch,
                                           int64_t b_row, float *c, int64_t c_batch,
                                           int64_t c_row) {
    switch (m) {
        AOTC_EACH_ROWS(aotc_batch_nn_rows_LEFT_RIGHT, batch, n, k, a, a_batch, a_row, a_column, b,
                       b_batch, b_row, c, c_batch, c_row)
    }
}
#undef AOTC_EACH_ROWS
#undef AOTC_SIX_ROWS
#undef AOTC_ROWS

// C[:, :, n_first:n_last]; strides and `scratch` as for aotc_matmul.
static void aotc_batch_LEFT_RIGHT(int64_t batch, int64_t m, int64_t n_first, int64_t n_last,
                                  int64_t k, const LEFT_TYPE *a, int64_t a_batch, int64_t a_row,
                                  int64_t a_column, const RIGHT_TYPE *b, int64_t b_batch,
                                  int64_t b_row, int64_t b_column, float *c, int64_t c_batch,
                                  int64_t c_row, void *scratch) {
    const int64_t n = n_last - n_first;
    const int few = m > 0 && m <= AOTC_DOT_ROWS && n > 0 && k > 0 && batch > 1;
    const int64_t floats = batch * m * (64 + (k + 15) / 16 * 16);
    if (few && b_row == 1 && a_column == 1 && b_batch >= k && b_column >= batch * b_batch &&
        floats <= AOTC_BLOCK)
        aotc_batch_nt_LEFT_RIGHT(batch, m, n, k, a, a_batch, a_row, b + n_first * b_column, b_batch,
                                 b_column, c + n_first, c_batch, c_row, scratch);
    else if (few && b_column == 1 && b_batch >= n && b_row >= batch * b_batch)
        aotc_batch_nn_LEFT_RIGHT(batch, m, n, k, a, a_batch, a_row, a_column, b + n_first, b_batch,
                                 b_row, c + n_first, c_batch, c_row);
    else
        for (int64_t s = 0; s < batch; ++s)
            aotc_matmul_LEFT_RIGHT(m, n_first, n_last, k, a + s * a_batch, a_row, a_column,
                                   b + s * b_batch, b_row, b_column, c + s * c_batch, c_row, 0,
                                   scratch);
}
