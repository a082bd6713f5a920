// Contractions C[m][n] (+)= sum over k of A[m][k] * B. This text is pasted once for each pair of
// element types that a program uses, with LEFT and RIGHT replaced by their names, and LEFT_TYPE and
// RIGHT_TYPE by their C types.
//
// Every element of C is accumulated in one fixed order, whatever the number of rows, columns or
// threads, so a row alone and the same row within a batch give the same bits:
//   nn: B[k][n], columns contiguous: one fused multiply-add per k, k ascending.
//   nt: B[n][k], k contiguous: sixteen partial sums, lane k % 16, added as a tree at the end.

// Convert n elements of a row of A, `step` apart.
AOTC_INLINE void aotc_row_LEFT_RIGHT(int64_t n, const LEFT_TYPE *a, int64_t step, float *row) {
    if (step == 1)
        for (int64_t p = 0; p < n; ++p) row[p] = AOTC_TO_FLOAT_LEFT(a[p]);
    else
        for (int64_t p = 0; p < n; ++p) row[p] = AOTC_TO_FLOAT_LEFT(a[p * step]);
}

// nn: the last columns, fewer than a vector has.
AOTC_OUTLINE void aotc_nn_edge_LEFT_RIGHT(int rows, int depth, int64_t n, const LEFT_TYPE *a,
                                          int64_t a_row, int64_t a_column, const RIGHT_TYPE *b,
                                          int64_t b_row, float *c, int64_t c_row, int first) {
    for (int i = 0; i < rows; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float sum = first ? 0.0f : c[i * c_row + j];
            for (int r = 0; r < depth; ++r)
                sum = __builtin_fmaf(AOTC_TO_FLOAT_LEFT(a[i * a_row + r * a_column]),
                                     AOTC_TO_FLOAT_RIGHT(b[r * b_row + j]), sum);
            c[i * c_row + j] = sum;
        }
}

// nn, few rows: B is read in place, eight of its rows at a time, and C stays in cache. What comes
// AOTC_AHEAD columns later is fetched: of these rows, or of those at `next`.
AOTC_INLINE void aotc_nn_strip_LEFT_RIGHT(int rows, int depth, int64_t n, const LEFT_TYPE *a,
                                       int64_t a_row, int64_t a_column, const RIGHT_TYPE *b,
                                       int64_t b_row, const RIGHT_TYPE *next, float *c,
                                       int64_t c_row, int first) {
    float x[AOTC_STRIP_ROWS][8];
    for (int i = 0; i < rows; ++i)
        for (int r = 0; r < depth; ++r)
            x[i][r] = AOTC_TO_FLOAT_LEFT(a[i * a_row + r * a_column]);
    const int64_t ahead = n < AOTC_AHEAD ? n : AOTC_AHEAD;
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) {
        aotc_v16 sum[AOTC_STRIP_ROWS];
        for (int i = 0; i < rows; ++i)
            sum[i] = first ? (aotc_v16){0} : *(const aotc_v16u *)(c + i * c_row + j);
        if (next && j % (64 / (int64_t)sizeof(RIGHT_TYPE)) == 0) {
            const RIGHT_TYPE *later = j + ahead < n ? b + j + ahead : next + (j + ahead - n);
            for (int r = 0; r < 8; ++r) __builtin_prefetch(later + r * b_row);
        }
        for (int r = 0; r < depth; ++r) {
            aotc_v16 w = aotc_load16_RIGHT(b + r * b_row + j);
            for (int i = 0; i < rows; ++i)
                sum[i] = __builtin_elementwise_fma(aotc_splat(x[i][r]), w, sum[i]);
        }
        for (int i = 0; i < rows; ++i)
            *(aotc_v16u *)(c + i * c_row + j) = sum[i];
    }
    if (j < n)
        aotc_nn_edge_LEFT_RIGHT(rows, depth, n - j, a, a_row, a_column, b + j, b_row, c + j, c_row,
                                first);
}

AOTC_OUTLINE void aotc_nn_few_LEFT_RIGHT(int64_t m, int64_t n, int64_t k, const LEFT_TYPE *a,
                                         int64_t a_row, int64_t a_column, const RIGHT_TYPE *b,
                                         int64_t b_row, float *c, int64_t c_row, int accumulate) {
    for (int64_t p = 0; p < k; p += 8) {
        int depth = k - p < 8 ? (int)(k - p) : 8;
        int first = p == 0 && !accumulate;
        for (int64_t i = 0; i < m; i += AOTC_STRIP_ROWS) {
            int rows = m - i < AOTC_STRIP_ROWS ? (int)(m - i) : AOTC_STRIP_ROWS;
            const LEFT_TYPE *x = a + i * a_row + p * a_column;
            const RIGHT_TYPE *w = b + p * b_row;
            // Only the first rows of A find B not in cache.
            const RIGHT_TYPE *next = i > 0 ? 0 : p + 16 <= k ? w + 8 * b_row : w;
            float *y = c + i * c_row;
#define AOTC_STRIP(ROWS, DEPTH) \
    aotc_nn_strip_LEFT_RIGHT(ROWS, DEPTH, n, x, a_row, a_column, w, b_row, next, y, c_row, first)
            if (depth < 8) AOTC_STRIP(rows, depth);
            else if (rows == 1) AOTC_STRIP(1, 8);
            else if (rows == 2) AOTC_STRIP(2, 8);
            else if (rows == 3) AOTC_STRIP(3, 8);
            else if (rows == 4) AOTC_STRIP(4, 8);
#if AOTC_STRIP_ROWS > 4
            else if (rows == 5) AOTC_STRIP(5, 8);
            else if (rows == 6) AOTC_STRIP(6, 8);
            else if (rows == 7) AOTC_STRIP(7, 8);
            else AOTC_STRIP(8, 8);
#endif
#undef AOTC_STRIP
        }
    }
}

// nn, B as floats in panels of sixteen columns, each with its k rows one after the other, panel h at
// b + h * panel; rows of A as floats, AOTC_A_ROW apart.
AOTC_INLINE void aotc_nn_tile_LEFT_RIGHT(int rows, int panels, int64_t k, const float *a,
                                         const float *b, int64_t panel, float *c,
                                         int64_t c_row, int first) {
    aotc_v16 sum[AOTC_TILE_ROWS][4];
    for (int i = 0; i < rows; ++i)
        for (int h = 0; h < panels; ++h)
            sum[i][h] = first ? (aotc_v16){0} : *(const aotc_v16u *)(c + i * c_row + 16 * h);
    for (int64_t p = 0; p < k; ++p) {
        aotc_v16 w[4];
        for (int h = 0; h < panels; ++h) w[h] = *(const aotc_v16u *)(b + h * panel + p * 16);
        for (int i = 0; i < rows; ++i) {
            aotc_v16 x = aotc_splat(a[i * AOTC_A_ROW + p]);
            for (int h = 0; h < panels; ++h)
                sum[i][h] = __builtin_elementwise_fma(x, w[h], sum[i][h]);
        }
    }
    for (int i = 0; i < rows; ++i)
        for (int h = 0; h < panels; ++h)
            *(aotc_v16u *)(c + i * c_row + 16 * h) = sum[i][h];
}

// As many panels at a time as registers hold: few rows leave room for many streams of B.
AOTC_OUTLINE void aotc_nn_rows_LEFT_RIGHT(int rows, int64_t n, int64_t k, const float *a,
                                          const float *b, int64_t panel, float *c,
                                          int64_t c_row, int first) {
    int64_t j = 0;
#define AOTC_TILE(ROWS, PANELS) \
    for (; j + 16 * (PANELS) <= n; j += 16 * (PANELS)) \
        aotc_nn_tile_LEFT_RIGHT(ROWS, PANELS, k, a, b + j / 16 * panel, panel, c + j, c_row, first);
#define AOTC_ROWS(ROWS, PANELS) case ROWS: AOTC_TILE(ROWS, PANELS) AOTC_TILE(ROWS, 1) break;
    switch (rows) {
        AOTC_ROWS(1, 4)
#if AOTC_TILE_ROWS > 6
        AOTC_ROWS(2, 4) AOTC_ROWS(3, 4) AOTC_ROWS(4, 4) AOTC_ROWS(5, 2) AOTC_ROWS(6, 2)
        AOTC_ROWS(7, 2) AOTC_ROWS(8, 2) AOTC_ROWS(9, 2) AOTC_ROWS(10, 2) AOTC_ROWS(11, 2)
        AOTC_ROWS(12, 2)
#else
        AOTC_ROWS(2, 2) AOTC_ROWS(3, 2) AOTC_ROWS(4, 1) AOTC_ROWS(5, 1) AOTC_ROWS(6, 1)
#endif
    }
#undef AOTC_ROWS
#undef AOTC_TILE
}

// Convert B[0:depth][0:width] to floats in panels; the columns that the last one lacks are zero.
static void aotc_nn_pack_LEFT_RIGHT(int64_t depth, int64_t width, const RIGHT_TYPE *b,
                                    int64_t b_row, float *panels) {
    for (int64_t r = 0; r < depth; ++r) {
        const RIGHT_TYPE *from = b + r * b_row;
        int64_t s = 0;
        for (; s + 16 <= width; s += 16)
            *(aotc_v16u *)(panels + s * depth + r * 16) = aotc_load16_RIGHT(from + s);
        for (int64_t l = 0; s < width && l < 16; ++l)
            panels[s * depth + r * 16 + l] = s + l < width ? AOTC_TO_FLOAT_RIGHT(from[s + l]) : 0.0f;
    }
}

// nn, many rows: a block of B is packed into panels, and tiles of A are converted. Few rows
// pay for long reads of B's rows, many for staying long on a tile of C.
AOTC_OUTLINE void aotc_nn_many_LEFT_RIGHT(int64_t m, int64_t n, int64_t k, const LEFT_TYPE *a,
                                          int64_t a_row, int64_t a_column, const RIGHT_TYPE *b,
                                          int64_t b_row, float *c, int64_t c_row, int accumulate,
                                          void *scratch) {
    float *rows = scratch;
    float *block = rows + AOTC_A_ROW * AOTC_TILE_ROWS;
    const int64_t most = m <= 48 ? 128 : AOTC_DEPTH;
    const int64_t columns = AOTC_BLOCK / most;
    // Equal tiles, so that none is left with few rows.
    const int64_t tiles = (m + AOTC_TILE_ROWS - 1) / AOTC_TILE_ROWS;
    for (int64_t j = 0; j < n; j += columns) {
        int64_t width = n - j < columns ? n - j : columns;
        for (int64_t p = 0; p < k; p += most) {
            int64_t depth = k - p < most ? k - p : most;
            int first = p == 0 && !accumulate;
            aotc_nn_pack_LEFT_RIGHT(depth, width, b + p * b_row + j, b_row, block);
            for (int64_t t = 0; t < tiles; ++t) {
                const int64_t i = m * t / tiles;
                const int count = (int)(m * (t + 1) / tiles - i);
                for (int q = 0; q < count; ++q)
                    aotc_row_LEFT_RIGHT(depth, a + (i + q) * a_row + p * a_column, a_column,
                                        rows + q * AOTC_A_ROW);
                float *y = c + i * c_row + j;
                const int64_t whole = width / 16 * 16;
                aotc_nn_rows_LEFT_RIGHT(count, whole, depth, rows, block, 16 * depth, y, c_row, first);
                y += whole;
                for (int q = 0; whole < width && q < count; ++q) {
                    float edge[16] = {0};
                    for (int64_t l = 0; l < width - whole && !first; ++l) edge[l] = y[q * c_row + l];
                    aotc_nn_rows_LEFT_RIGHT(1, 16, depth, rows + q * AOTC_A_ROW, block + whole * depth,
                                            16 * depth, edge, 16, first);
                    for (int64_t l = 0; l < width - whole; ++l) y[q * c_row + l] = edge[l];
                }
            }
        }
    }
}

// nt: `rows` rows of A, as floats and AOTC_DOT_ROW apart, against `columns` rows of B, over k of their
// elements. The sums start from `partial` unless this is the first part of k, and go there unless it
// is the last.
AOTC_INLINE void aotc_nt_tile_LEFT_RIGHT(int rows, int columns, int64_t k, const float *a,
                                         const RIGHT_TYPE *b, int64_t b_row, aotc_v16 *partial,
                                         int first, int last, float *c, int64_t c_row,
                                         int accumulate) {
    aotc_v16 sum[AOTC_DOT_ROWS][AOTC_DOT_COLUMNS];
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j)
            sum[i][j] = first ? (aotc_v16){0} : partial[i * AOTC_DOT_BLOCK + j];
    int64_t p = 0;
    for (; p + 16 <= k; p += 16)
        for (int j = 0; j < columns; ++j) {
            aotc_v16 w = aotc_load16_RIGHT(b + j * b_row + p);
            // The next rows of B, or with few rows of A, where many rows of B are read at once, what
            // comes later in these.
            __builtin_prefetch(b + j * b_row + p + (rows > 2 ? columns * b_row : AOTC_AHEAD));
            for (int i = 0; i < rows; ++i)
                sum[i][j] = __builtin_elementwise_fma(
                    *(const aotc_v16u *)(a + i * AOTC_DOT_ROW + p), w, sum[i][j]);
        }
    for (int j = 0; j < columns && p < k; ++j) {
        const aotc_v16 w = aotc_load_some_RIGHT(k - p, b + j * b_row + p);
        // The rows of A end in zeros.
        for (int i = 0; i < rows; ++i)
            sum[i][j] = __builtin_elementwise_fma(*(const aotc_v16u *)(a + i * AOTC_DOT_ROW + p), w,
                                                  sum[i][j]);
    }
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) {
            if (!last) {
                partial[i * AOTC_DOT_BLOCK + j] = sum[i][j];
                continue;
            }
            float total = aotc_sum16(sum[i][j]);
            c[i * c_row + j] = accumulate ? c[i * c_row + j] + total : total;
        }
}

AOTC_OUTLINE void aotc_nt_rows_LEFT_RIGHT(int rows, int64_t n, int64_t k, const float *a,
                                          const RIGHT_TYPE *b, int64_t b_row, aotc_v16 *partial,
                                          int first, int last, float *c, int64_t c_row,
                                          int accumulate) {
    int64_t j = 0;
#define AOTC_TILE(ROWS, COLUMNS) \
    for (; j + (COLUMNS) <= n; j += (COLUMNS)) \
        aotc_nt_tile_LEFT_RIGHT(ROWS, COLUMNS, k, a, b + j * b_row, b_row, partial + j, first, \
                                last, c + j, c_row, accumulate);
#define AOTC_ROWS(ROWS, COLUMNS) case ROWS: AOTC_TILE(ROWS, COLUMNS) AOTC_TILE(ROWS, 1) break;
    switch (rows) {
        AOTC_ROWS(1, AOTC_DOT_COLUMNS) AOTC_ROWS(2, AOTC_DOT_COLUMNS / 2)
        AOTC_ROWS(3, AOTC_DOT_COLUMNS / 4) AOTC_ROWS(4, AOTC_DOT_COLUMNS / 4)
        AOTC_ROWS(5, AOTC_DOT_COLUMNS / 4) AOTC_ROWS(6, AOTC_DOT_COLUMNS / 4)
#if AOTC_DOT_ROWS > 6
        AOTC_ROWS(7, AOTC_DOT_COLUMNS / 4) AOTC_ROWS(8, AOTC_DOT_COLUMNS / 4)
#endif
    }
#undef AOTC_ROWS
#undef AOTC_TILE
}

// Parts of k that stay in the first cache, for blocks of B's rows: long ones, of few rows, where
// there is little to compute on each.
AOTC_OUTLINE void aotc_nt_LEFT_RIGHT(int64_t m, int64_t n, int64_t k, const LEFT_TYPE *a,
                                     int64_t a_row, int64_t a_column, const RIGHT_TYPE *b,
                                     int64_t b_row, float *c, int64_t c_row, int accumulate,
                                     void *scratch) {
    const int64_t parts = (k + AOTC_DOT_DEPTH - 1) / AOTC_DOT_DEPTH;
    const int64_t fit = (AOTC_BLOCK - 16 * AOTC_DOT_MOST * AOTC_DOT_BLOCK) / (parts * AOTC_DOT_ROW);
    const int64_t most = fit < AOTC_DOT_MOST ? fit : AOTC_DOT_MOST;
    aotc_v16 *partial = scratch;
    float *rows = (float *)(partial + AOTC_DOT_MOST * AOTC_DOT_BLOCK);
    for (int64_t g = 0; g < m; g += most) {
        // As many rows of A as fit are converted at once; B is read once for them.
        int64_t count = m - g < most ? m - g : most;
        for (int64_t i = 0; i < count; ++i)
            for (int64_t t = 0; t < parts; ++t) {
                int64_t p = t * AOTC_DOT_DEPTH, depth = k - p < AOTC_DOT_DEPTH ? k - p : AOTC_DOT_DEPTH;
                float *row = rows + (t * count + i) * AOTC_DOT_ROW;
                aotc_row_LEFT_RIGHT(depth, a + (g + i) * a_row + p * a_column, a_column, row);
                for (int64_t l = depth; l % 16; ++l) row[l] = 0.0f;
            }
        const int64_t block = count <= 2 ? AOTC_DOT_COLUMNS : AOTC_DOT_BLOCK;
        for (int64_t j = 0; j < n; j += block) {
            int64_t width = n - j < block ? n - j : block;
            for (int64_t t = 0; t < parts; ++t) {
                int64_t p = t * AOTC_DOT_DEPTH, depth = k - p < AOTC_DOT_DEPTH ? k - p : AOTC_DOT_DEPTH;
                for (int64_t i = 0; i < count; i += AOTC_DOT_ROWS) {
                    int tile = count - i < AOTC_DOT_ROWS ? (int)(count - i) : AOTC_DOT_ROWS;
                    aotc_nt_rows_LEFT_RIGHT(tile, width, depth,
                                            rows + (t * count + i) * AOTC_DOT_ROW, b + j * b_row + p,
                                            b_row, partial + i * AOTC_DOT_BLOCK, t == 0,
                                            t == parts - 1, c + (g + i) * c_row + j, c_row,
                                            accumulate);
                }
            }
        }
    }
}

// C[:, n_first:n_last] of the whole contraction. B is B[k][n] where b_column is 1, else B[n][k]
// where b_row is 1 (b_row steps over k). `scratch` holds AOTC_MATMUL_SCRATCH bytes.
static void aotc_matmul_LEFT_RIGHT(int64_t m, int64_t n_first, int64_t n_last, int64_t k,
                                   const LEFT_TYPE *a, int64_t a_row, int64_t a_column,
                                   const RIGHT_TYPE *b, int64_t b_row, int64_t b_column, float *c,
                                   int64_t c_row, int accumulate, void *scratch) {
    int64_t n = n_last - n_first;
    if (m <= 0 || n <= 0) return;
    b += n_first * b_column;
    c += n_first;
    if (k <= 0) {
        for (int64_t i = 0; i < m && !accumulate; ++i)
            for (int64_t j = 0; j < n; ++j) c[i * c_row + j] = 0.0f;
        return;
    }
    if (b_column == 1 && m <= AOTC_FEW_ROWS)
        aotc_nn_few_LEFT_RIGHT(m, n, k, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    else if (b_column == 1)
        aotc_nn_many_LEFT_RIGHT(m, n, k, a, a_row, a_column, b, b_row, c, c_row, accumulate,
                                scratch);
    else if (b_row == 1 && k <= AOTC_BLOCK / 4)
        aotc_nt_LEFT_RIGHT(m, n, k, a, a_row, a_column, b, b_column, c, c_row, accumulate, scratch);
    else
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
                float sum = accumulate ? c[i * c_row + j] : 0.0f;
                for (int64_t p = 0; p < k; ++p)
                    sum = __builtin_fmaf(AOTC_TO_FLOAT_LEFT(a[i * a_row + p * a_column]),
                                         AOTC_TO_FLOAT_RIGHT(b[p * b_row + j * b_column]), sum);
                c[i * c_row + j] = sum;
            }
}
