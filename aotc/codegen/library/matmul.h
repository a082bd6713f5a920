// Contractions C[m][n] (+)= sum over k of A[m][k] * B, for one element type; this text is pasted
// once for each type that a program uses, with ELEMENT and STORAGE replaced.
//
// Every element of C is accumulated in one fixed order, whatever the number of rows, columns or
// threads, so a row alone and the same row within a batch give the same bits:
//   nn: B[k][n], columns contiguous: one fused multiply-add per k, k ascending.
//   nt: B[n][k], k contiguous: eight partial sums, lane k % 8, added as a tree at the end.

AOTC_INLINE float aotc_at_ELEMENT(const STORAGE *p, int64_t i) {
    return AOTC_TO_FLOAT_ELEMENT(p[i]);
}

// nn, few rows: B is read in place, eight of its rows at a time, and C stays in cache.
AOTC_INLINE void aotc_nn_strip_ELEMENT(int rows, int depth, int64_t n, const STORAGE *a,
                                       int64_t a_row, int64_t a_column, const STORAGE *b,
                                       int64_t b_row, float *c, int64_t c_row, int first) {
    float x[4][8];
    for (int i = 0; i < rows; ++i)
        for (int r = 0; r < depth; ++r)
            x[i][r] = aotc_at_ELEMENT(a, i * a_row + r * a_column);
    int64_t j = 0;
    for (; j + 8 <= n; j += 8) {
        aotc_f8 sum[4];
        for (int i = 0; i < rows; ++i)
            sum[i] = first ? (aotc_f8){0} : *(const aotc_f8u *)(c + i * c_row + j);
        for (int r = 0; r < depth; ++r) {
            aotc_f8 w = aotc_load8_ELEMENT(b + r * b_row + j);
            for (int i = 0; i < rows; ++i)
                sum[i] = __builtin_elementwise_fma(aotc_splat(x[i][r]), w, sum[i]);
        }
        for (int i = 0; i < rows; ++i)
            *(aotc_f8u *)(c + i * c_row + j) = sum[i];
    }
    for (; j < n; ++j)
        for (int i = 0; i < rows; ++i) {
            float sum = first ? 0.0f : c[i * c_row + j];
            for (int r = 0; r < depth; ++r)
                sum = __builtin_fmaf(x[i][r], aotc_at_ELEMENT(b, r * b_row + j), sum);
            c[i * c_row + j] = sum;
        }
}

static void aotc_nn_few_ELEMENT(int64_t m, int64_t n, int64_t k, const STORAGE *a, int64_t a_row,
                                int64_t a_column, const STORAGE *b, int64_t b_row, float *c,
                                int64_t c_row, int accumulate) {
    for (int64_t p = 0; p < k; p += 8) {
        int depth = k - p < 8 ? (int)(k - p) : 8;
        int first = p == 0 && !accumulate;
        for (int64_t i = 0; i < m; i += 4) {
            int rows = m - i < 4 ? (int)(m - i) : 4;
            const STORAGE *x = a + i * a_row + p * a_column;
            const STORAGE *w = b + p * b_row;
            float *y = c + i * c_row;
#define AOTC_STRIP(ROWS, DEPTH) \
    aotc_nn_strip_ELEMENT(ROWS, DEPTH, n, x, a_row, a_column, w, b_row, y, c_row, first)
            if (depth < 8) AOTC_STRIP(rows, depth);
            else if (rows == 4) AOTC_STRIP(4, 8);
            else if (rows == 3) AOTC_STRIP(3, 8);
            else if (rows == 2) AOTC_STRIP(2, 8);
            else AOTC_STRIP(1, 8);
#undef AOTC_STRIP
        }
    }
}

// nn, many rows: panels of B, AOTC_DEPTH x 16, are packed in scratch; tiles of six rows of A too.
AOTC_INLINE void aotc_nn_tile_ELEMENT(int rows, int64_t k, const float *a, const STORAGE *b,
                                      float *c, int64_t c_row, int first) {
    aotc_f8 sum[6][2];
    for (int i = 0; i < rows; ++i)
        for (int h = 0; h < 2; ++h)
            sum[i][h] = first ? (aotc_f8){0} : *(const aotc_f8u *)(c + i * c_row + 8 * h);
    for (int64_t p = 0; p < k; ++p) {
        aotc_f8 w0 = aotc_load8_ELEMENT(b + p * 16);
        aotc_f8 w1 = aotc_load8_ELEMENT(b + p * 16 + 8);
        for (int i = 0; i < rows; ++i) {
            aotc_f8 x = aotc_splat(a[p * 6 + i]);
            sum[i][0] = __builtin_elementwise_fma(x, w0, sum[i][0]);
            sum[i][1] = __builtin_elementwise_fma(x, w1, sum[i][1]);
        }
    }
    for (int i = 0; i < rows; ++i)
        for (int h = 0; h < 2; ++h)
            *(aotc_f8u *)(c + i * c_row + 8 * h) = sum[i][h];
}

static void aotc_nn_rows_ELEMENT(int rows, int64_t k, const float *a, const STORAGE *b, float *c,
                                 int64_t c_row, int first) {
    switch (rows) {
    case 6: aotc_nn_tile_ELEMENT(6, k, a, b, c, c_row, first); break;
    case 5: aotc_nn_tile_ELEMENT(5, k, a, b, c, c_row, first); break;
    case 4: aotc_nn_tile_ELEMENT(4, k, a, b, c, c_row, first); break;
    case 3: aotc_nn_tile_ELEMENT(3, k, a, b, c, c_row, first); break;
    case 2: aotc_nn_tile_ELEMENT(2, k, a, b, c, c_row, first); break;
    default: aotc_nn_tile_ELEMENT(1, k, a, b, c, c_row, first); break;
    }
}

static void aotc_nn_many_ELEMENT(int64_t m, int64_t n, int64_t k, const STORAGE *a, int64_t a_row,
                                 int64_t a_column, const STORAGE *b, int64_t b_row, float *c,
                                 int64_t c_row, int accumulate, void *scratch) {
    float *rows = scratch;
    STORAGE *panels = (STORAGE *)(rows + AOTC_DEPTH * 6);
    for (int64_t j = 0; j < n; j += AOTC_WIDTH) {
        int64_t width = n - j < AOTC_WIDTH ? n - j : AOTC_WIDTH;
        for (int64_t p = 0; p < k; p += AOTC_DEPTH) {
            int64_t depth = k - p < AOTC_DEPTH ? k - p : AOTC_DEPTH;
            int first = p == 0 && !accumulate;
            for (int64_t r = 0; r < depth; ++r)
                for (int64_t s = 0; s < width; s += 16)
                    for (int64_t l = 0; l < 16; ++l)
                        panels[s * depth + r * 16 + l] =
                            s + l < width ? b[(p + r) * b_row + j + s + l] : (STORAGE)0;
            for (int64_t i = 0; i < m; i += 6) {
                int count = m - i < 6 ? (int)(m - i) : 6;
                for (int64_t r = 0; r < depth; ++r)
                    for (int t = 0; t < count; ++t)
                        rows[r * 6 + t] =
                            aotc_at_ELEMENT(a, (i + t) * a_row + (p + r) * a_column);
                for (int64_t s = 0; s < width; s += 16) {
                    float *y = c + i * c_row + j + s;
                    const STORAGE *panel = panels + s * depth;
                    if (width - s >= 16) {
                        aotc_nn_rows_ELEMENT(count, depth, rows, panel, y, c_row, first);
                        continue;
                    }
                    float edge[6 * 16] = {0};
                    for (int t = 0; t < count && !first; ++t)
                        for (int64_t l = 0; l < width - s; ++l)
                            edge[t * 16 + l] = y[t * c_row + l];
                    aotc_nn_rows_ELEMENT(count, depth, rows, panel, edge, 16, first);
                    for (int t = 0; t < count; ++t)
                        for (int64_t l = 0; l < width - s; ++l)
                            y[t * c_row + l] = edge[t * 16 + l];
                }
            }
        }
    }
}

// nt: `rows` rows of A against `columns` rows of B.
AOTC_INLINE void aotc_nt_tile_ELEMENT(int rows, int columns, int64_t k, const STORAGE *a,
                                      int64_t a_row, const STORAGE *b, int64_t b_row, float *c,
                                      int64_t c_row, int accumulate) {
    aotc_f8 sum[4][8];
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j)
            sum[i][j] = (aotc_f8){0};
    int64_t p = 0;
    for (; p + 8 <= k; p += 8) {
        aotc_f8 x[4];
        for (int i = 0; i < rows; ++i)
            x[i] = aotc_load8_ELEMENT(a + i * a_row + p);
        for (int j = 0; j < columns; ++j) {
            aotc_f8 w = aotc_load8_ELEMENT(b + j * b_row + p);
            for (int i = 0; i < rows; ++i)
                sum[i][j] = __builtin_elementwise_fma(x[i], w, sum[i][j]);
        }
    }
    if (p < k)
        for (int j = 0; j < columns; ++j)
            for (int i = 0; i < rows; ++i) {
                aotc_f8 x = {0}, w = {0};
                for (int64_t l = 0; l < k - p; ++l) {
                    x[l] = aotc_at_ELEMENT(a, i * a_row + p + l);
                    w[l] = aotc_at_ELEMENT(b, j * b_row + p + l);
                }
                sum[i][j] = __builtin_elementwise_fma(x, w, sum[i][j]);
            }
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) {
            float total = aotc_sum8(sum[i][j]);
            c[i * c_row + j] = accumulate ? c[i * c_row + j] + total : total;
        }
}

static void aotc_nt_ELEMENT(int64_t m, int64_t n, int64_t k, const STORAGE *a, int64_t a_row,
                            const STORAGE *b, int64_t b_row, float *c, int64_t c_row,
                            int accumulate) {
    for (int64_t j = 0; j < n; j += 8) {
        int64_t width = n - j < 8 ? n - j : 8;
        for (int64_t i = 0; i < m;) {
            const STORAGE *x = a + i * a_row;
            const STORAGE *w = b + j * b_row;
            float *y = c + i * c_row + j;
#define AOTC_TILE(ROWS, COLUMNS, AT) \
    aotc_nt_tile_ELEMENT(ROWS, COLUMNS, k, x, a_row, w + (AT) * b_row, b_row, y + (AT), c_row, \
                         accumulate)
            int64_t s = 0;
            if (m - i >= 4) {
                for (; s + 2 <= width; s += 2) AOTC_TILE(4, 2, s);
                for (; s < width; ++s) AOTC_TILE(4, 1, s);
                i += 4;
            } else if (m - i >= 2) {
                for (; s + 4 <= width; s += 4) AOTC_TILE(2, 4, s);
                for (; s < width; ++s) AOTC_TILE(2, 1, s);
                i += 2;
            } else {
                for (; s + 8 <= width; s += 8) AOTC_TILE(1, 8, s);
                for (; s < width; ++s) AOTC_TILE(1, 1, s);
                i += 1;
            }
#undef AOTC_TILE
        }
    }
}

// C[:, n_first:n_last] of the whole contraction. B is B[k][n] where b_column is 1, else B[n][k]
// where b_row is 1 (b_row steps over k). `scratch` holds AOTC_MATMUL_SCRATCH bytes.
static void aotc_matmul_ELEMENT(int64_t m, int64_t n_first, int64_t n_last, int64_t k,
                                const STORAGE *a, int64_t a_row, int64_t a_column,
                                const STORAGE *b, int64_t b_row, int64_t b_column, float *c,
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
    if (b_column == 1 && m <= 8)
        aotc_nn_few_ELEMENT(m, n, k, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    else if (b_column == 1)
        aotc_nn_many_ELEMENT(m, n, k, a, a_row, a_column, b, b_row, c, c_row, accumulate, scratch);
    else if (b_row == 1 && a_column == 1)
        aotc_nt_ELEMENT(m, n, k, a, a_row, b, b_column, c, c_row, accumulate);
    else
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
                float sum = accumulate ? c[i * c_row + j] : 0.0f;
                for (int64_t p = 0; p < k; ++p)
                    sum = __builtin_fmaf(aotc_at_ELEMENT(a, i * a_row + p * a_column),
                                         aotc_at_ELEMENT(b, p * b_row + j * b_column), sum);
                c[i * c_row + j] = sum;
            }
}
