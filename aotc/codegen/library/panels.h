// Contractions of bf16, C[m][n] (+)= sum over k of A[m][k] * B, with B packed into panels: what
// aotc_pack (pack.h) makes of a weight. In a panel, sixteen columns of B stand side by side, the
// elements of two consecutive rows in one word, so one load gives two rows of sixteen floats.
//
//   kn: B[k][n], in blocks of `depth` rows: [k / depth][n / 16][depth / 2][16][2].
//   nk: B[n][k]: [n / 16][16][k / 32][16][2], where the second index is that of the sums of
//       matmul.h, k % 16, and the third goes over the k that they add up.
//
// The orders of accumulation are those of matmul.h: packed or not, B gives the same bits.

// Panels that are multiplied at once with `rows` rows of A, as registers have room.
#if defined(__AVX512F__)
#define AOTC_PANELS_OF(ROWS) ((ROWS) <= 3 ? 4 : 2)
#define AOTC_PANELS_OF_MANY 2
#else
#define AOTC_PANELS_OF(ROWS) ((ROWS) == 1 ? 4 : (ROWS) == 2 ? 2 : 1)
#define AOTC_PANELS_OF_MANY 1
#endif
// Panels for which a part of A stays in cache, and rows of A at once: of B[k][n], and of B[n][k].
#define AOTC_PANEL_GROUP 8
#define AOTC_PANEL_MOST 192
#define AOTC_PANEL_DOTS_GROUP 4
#define AOTC_PANEL_DOTS_MOST 16
// Floats of A that are packed at once.
#define AOTC_PANEL_LEFT (128 * 1024)
#define AOTC_PANEL_SCRATCH \
    (AOTC_PANEL_LEFT * 4 + AOTC_PANEL_DOTS_MOST * AOTC_PANEL_DOTS_GROUP * 16 * 16 * 4)
_Static_assert(AOTC_PANEL_SCRATCH >= AOTC_MATMUL_SCRATCH, "scratch serves both");

AOTC_INLINE void aotc_panel_step(int rows, int panels, const float *a, const uint32_t *b,
                                 int64_t panel, int odd, aotc_v16 sum[AOTC_TILE_ROWS][4]) {
    aotc_v16 w[4];
    for (int h = 0; h < panels; ++h) {
        aotc_u32x16 pair = *(const aotc_u32x16u *)(b + h * panel);
        w[h] = (aotc_v16)(odd ? pair & 0xFFFF0000u : pair << 16);
    }
    for (int i = 0; i < rows; ++i) {
        aotc_v16 x = aotc_splat(a[i]);
        for (int h = 0; h < panels; ++h) sum[i][h] = __builtin_elementwise_fma(x, w[h], sum[i][h]);
    }
}

// `rows` rows of A, packed, against `panels` panels, over `pairs` pairs of k. Every `pace` pairs a
// line at `next` is fetched, of each panel; none where `pace` is 0.
AOTC_INLINE void aotc_panel_tile(int rows, int panels, int pace, int64_t pairs, const float *a,
                                 const uint32_t *b, int64_t panel, float *c, int64_t c_row,
                                 int first, const uint32_t *next) {
    aotc_v16 sum[AOTC_TILE_ROWS][4];
    for (int i = 0; i < rows; ++i)
        for (int h = 0; h < panels; ++h)
            sum[i][h] = first ? (aotc_v16){0} : *(const aotc_v16u *)(c + i * c_row + 16 * h);
    const int unrolled = pace ? pace : 4;
    for (int64_t p = 0; p < pairs; p += unrolled, next += 16) {
        for (int h = 0; h < panels && pace; ++h) __builtin_prefetch(next + h * panel);
#pragma clang loop unroll(full)
        for (int q = 0; q < unrolled; ++q) {
            const uint32_t *words = b + q * 16;
            aotc_panel_step(rows, panels, a + 2 * q * rows, words, panel, 0, sum);
            // Hidden, so that the words are loaded again: registers do not hold them meanwhile.
            __asm__("" : "+r"(words));
            aotc_panel_step(rows, panels, a + (2 * q + 1) * rows, words, panel, 1, sum);
        }
        // Stepped by hand: clang is told not to look for a way (zig.py).
        a += 2 * unrolled * rows;
        b += 16 * unrolled;
    }
    for (int i = 0; i < rows; ++i)
        for (int h = 0; h < panels; ++h) *(aotc_v16u *)(c + i * c_row + 16 * h) = sum[i][h];
}

#define AOTC_EACH_ROWS(CASE) CASE(3) CASE(4) CASE(5) CASE(6) AOTC_MORE_ROWS(CASE)
#if AOTC_TILE_ROWS > 6
#define AOTC_MORE_ROWS(CASE) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#else
#define AOTC_MORE_ROWS(CASE)
#endif
#define AOTC_TILE(ROWS, PANELS, PACE) \
    aotc_panel_tile(ROWS, PANELS, PACE, pairs, a, b, panel, c, c_row, first, next)

// All rows of A at once. A row alone finds its lines by itself: it reads four panels at a time.
AOTC_OUTLINE void aotc_panel_few(int rows, int64_t panels, int64_t pairs, const float *a,
                                 const uint32_t *b, int64_t panel, float *c, int64_t c_row,
                                 int first, const uint32_t *after) {
#define AOTC_CASE(ROWS) \
    case ROWS: \
        for (; h < panels; h += step, b += step * panel, c += step * 16) { \
            step = panels - h < AOTC_PANELS_OF(ROWS) ? 1 : AOTC_PANELS_OF(ROWS); \
            const uint32_t *next = h + step < panels ? b + step * panel : after; \
            if (step == AOTC_PANELS_OF(ROWS)) AOTC_TILE(ROWS, AOTC_PANELS_OF(ROWS), ROWS > 1); \
            else AOTC_TILE(ROWS, 1, 0); \
        } \
        break;
    int64_t h = 0, step;
    switch (rows) { AOTC_CASE(1) AOTC_CASE(2) AOTC_EACH_ROWS(AOTC_CASE) }
#undef AOTC_CASE
}

// A part of the rows of A, three at least; `both` says how fast to fetch, see aotc_panel_block.
AOTC_OUTLINE void aotc_panel_some(int rows, int panels, int both, int64_t pairs, const float *a,
                                  const uint32_t *b, int64_t panel, float *c, int64_t c_row,
                                  int first, const uint32_t *next) {
#define AOTC_CASE(ROWS) \
    case ROWS: \
        if (AOTC_PANELS_OF_MANY > 1 && panels == 1) AOTC_TILE(ROWS, 1, 0); \
        else if (both) AOTC_TILE(ROWS, AOTC_PANELS_OF_MANY, 2); \
        else AOTC_TILE(ROWS, AOTC_PANELS_OF_MANY, 4); \
        break;
    switch (rows) { AOTC_EACH_ROWS(AOTC_CASE) }
#undef AOTC_CASE
}
#undef AOTC_TILE
#undef AOTC_MORE_ROWS
#undef AOTC_EACH_ROWS

// The next rows of A that go together: as many as registers hold, but never one or two at the end.
AOTC_INLINE int aotc_panel_rows(int64_t left) {
    if (left <= AOTC_TILE_ROWS) return (int)left;
    return left < AOTC_TILE_ROWS + 3 ? AOTC_TILE_ROWS / 2 + 1 : AOTC_TILE_ROWS;
}

typedef float aotc_v8 __attribute__((vector_size(32)));
typedef float aotc_v8u __attribute__((vector_size(32), aligned(4)));
typedef uint16_t aotc_u16x8 __attribute__((vector_size(16), aligned(2)));
typedef uint32_t aotc_u32x8 __attribute__((vector_size(32)));

// Eight elements of k of up to eight rows of A: of each k all rows, `step` floats after the one
// before. What stands in for missing rows is to be written over, with the next k.
AOTC_INLINE void aotc_panel_turn(int64_t rows, const aotc_bf16 *a, int64_t a_row, float *to,
                                 int64_t step) {
    aotc_v8 v[8], w[8];
    for (int q = 0; q < 8; ++q) {
        const aotc_bf16 *row = a + (q < rows ? q : rows - 1) * a_row;
        v[q] = (aotc_v8)(__builtin_convertvector(*(const aotc_u16x8 *)row, aotc_u32x8) << 16);
    }
    // Two rows, then four, then all of one k side by side.
    for (int q = 0; q < 8; q += 2) {
        w[q] = __builtin_shufflevector(v[q], v[q + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        w[q + 1] = __builtin_shufflevector(v[q], v[q + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int q = 0; q < 8; q += 4)
        for (int l = q; l < q + 2; ++l) {
            v[2 * l - q] = __builtin_shufflevector(w[l], w[l + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            v[2 * l - q + 1] = __builtin_shufflevector(w[l], w[l + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int p = 0; p < 4; ++p)
        *(aotc_v8u *)(to + p * step) =
            __builtin_shufflevector(v[p], v[p + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    for (int p = 0; p < 4; ++p)
        *(aotc_v8u *)(to + (p + 4) * step) =
            __builtin_shufflevector(v[p], v[p + 4], 4, 5, 6, 7, 12, 13, 14, 15);
}

// Pack A[0:count][0:depth] by the rows that go together, column by column; up to seven floats
// beyond are written, too.
static void aotc_panel_left(int64_t count, int64_t depth, const aotc_bf16 *a, int64_t a_row,
                            int64_t a_column, float *packed) {
    int64_t rows;
    for (int64_t i = 0; i < count; i += rows, a += rows * a_row, packed += rows * depth) {
        rows = aotc_panel_rows(count - i);
        int64_t p = 0;
        for (; a_column == 1 && p + 8 <= depth; p += 8) {
            float *to = packed + p * rows;
            if (rows > 8) aotc_panel_turn(rows - 8, a + 8 * a_row + p, a_row, to + 8, rows);
            aotc_panel_turn(rows, a + p, a_row, to, rows);
        }
        for (; p < depth; ++p)
            for (int64_t q = 0; q < rows; ++q)
                packed[p * rows + q] = aotc_float_from_bf16(a[q * a_row + p * a_column]);
    }
}

// `count` packed rows of A against `panels` panels, over `depth` of k; `after` is what comes next.
static void aotc_panel_block(int64_t count, int64_t panels, int64_t depth, const float *left,
                             const uint32_t *b, int64_t panel, float *c, int64_t c_row, int first,
                             const uint32_t *after) {
    const int64_t pairs = depth / 2;
    if (count <= AOTC_TILE_ROWS) {
        aotc_panel_few((int)count, panels, pairs, left, b, panel, c, c_row, first, after);
        return;
    }
    for (int64_t h = 0; h < panels; h += AOTC_PANELS_OF_MANY) {
        const int width = panels - h < AOTC_PANELS_OF_MANY ? 1 : AOTC_PANELS_OF_MANY;
        const uint32_t *w = b + h * panel;
        const uint32_t *next = h + width < panels ? w + width * panel : after;
        // Where there are few tiles the first two fetch a half of what comes next each, of more the
        // first four a quarter.
        const int both = count <= 3 * AOTC_TILE_ROWS;
        const int64_t share = pairs / (both ? 2 : 4) * 16;
        int rows, tiles = 0;
        for (int64_t i = 0; i < count; i += rows) {
            rows = aotc_panel_rows(count - i);
            float *y = c + i * c_row + 16 * h;
            for (int q = 0; q < rows && !first && i + rows + q < count; ++q)
                __builtin_prefetch(y + (rows + q) * c_row);
            aotc_panel_some(rows, width, both, pairs, left + i * depth, w, panel, y, c_row, first,
                            next);
            next = ++tiles < (both ? 2 : 4) ? next + share : w;
        }
    }
}

// C[:, n_first:n_last] for B[k][n], of `width` columns in all; `scratch` of AOTC_PANEL_SCRATCH bytes.
static void aotc_panels_kn(int64_t m, int64_t n_first, int64_t n_last, int64_t k,
                           const aotc_bf16 *a, int64_t a_row, int64_t a_column,
                           const aotc_bf16 *b, int64_t width, int64_t depth, float *c,
                           int64_t c_row, int accumulate, void *scratch) {
    const int64_t panel = depth * 8, block = width / 16 * panel;  // words
    const uint32_t *words = (const uint32_t *)b + n_first / 16 * panel;
    const int64_t panels = (n_last - n_first) / 16;
    float *const left = scratch;
    c += n_first;
    for (int64_t g = 0; g < m; g += AOTC_PANEL_MOST) {
        const int64_t count = m - g < AOTC_PANEL_MOST ? m - g : AOTC_PANEL_MOST;
        const int64_t most = AOTC_PANEL_LEFT / count / depth * depth;
        for (int64_t start = 0; start < k; start += most) {
            const int64_t part = k - start < most ? k - start : most;
            for (int64_t p = 0; p < part; p += depth)
                aotc_panel_left(count, depth, a + g * a_row + (start + p) * a_column, a_row,
                                a_column, left + count * p);
            for (int64_t j = 0; j < panels; j += AOTC_PANEL_GROUP) {
                const int64_t some = panels - j < AOTC_PANEL_GROUP ? panels - j : AOTC_PANEL_GROUP;
                const uint32_t *from = words + start / depth * block + j * panel;
                for (int64_t p = 0; p < part; p += depth) {
                    const uint32_t *w = from + p / depth * block;
                    const uint32_t *after = p + depth < part ? w + block
                                            : j + some < panels ? from + some * panel : w;
                    aotc_panel_block(count, some, depth, left + count * p, w, panel,
                                     c + g * c_row + 16 * j, c_row,
                                     start + p == 0 && !accumulate, after);
                }
            }
        }
    }
}

// The same for B[n][k].
static void aotc_panels_nk(int64_t m, int64_t n_first, int64_t n_last, int64_t k,
                           const aotc_bf16 *a, int64_t a_row, int64_t a_column,
                           const aotc_bf16 *b, float *c, int64_t c_row, int accumulate,
                           void *scratch) {
    const int64_t depth = k / 16, panel = k * 8;
    const uint32_t *words = (const uint32_t *)b + n_first / 16 * panel;
    const int64_t panels = (n_last - n_first) / 16;
    float *const left = scratch, *const sums = left + AOTC_PANEL_LEFT;
    const int64_t row = AOTC_PANEL_DOTS_GROUP * 16;
    const int64_t fit = AOTC_PANEL_LEFT / k;
    const int64_t most = fit < AOTC_PANEL_DOTS_MOST ? fit : AOTC_PANEL_DOTS_MOST;
    c += n_first;
    for (int64_t g = 0; g < m; g += most) {
        const int64_t count = m - g < most ? m - g : most;
        for (int64_t lane = 0; lane < 16; ++lane)
            aotc_panel_left(count, depth, a + g * a_row + lane * a_column, a_row, 16 * a_column,
                            left + count * lane * depth);
        for (int64_t j = 0; j < panels; j += AOTC_PANEL_DOTS_GROUP) {
            const int64_t rest = panels - j;
            const int64_t some = rest < AOTC_PANEL_DOTS_GROUP ? rest : AOTC_PANEL_DOTS_GROUP;
            const uint32_t *from = words + j * panel;
            for (int64_t lane = 0; lane < 16; ++lane) {
                const uint32_t *w = from + lane * depth * 8;
                const uint32_t *after = lane < 15 ? w + depth * 8
                                        : some < rest ? from + some * panel : w;
                aotc_panel_block(count, some, depth, left + count * lane * depth, w, panel,
                                 sums + lane * count * row, row, 1, after);
            }
            for (int64_t i = 0; i < count; ++i)
                for (int64_t h = 0; h < some; ++h) {
                    aotc_v16 tree[16];
                    for (int lane = 0; lane < 16; ++lane)
                        tree[lane] = *(const aotc_v16u *)(sums + (lane * count + i) * row + 16 * h);
                    for (int half = 8; half > 0; half /= 2)
                        for (int lane = 0; lane < half; ++lane) tree[lane] += tree[lane + half];
                    aotc_v16u *y = (aotc_v16u *)(c + (g + i) * c_row + 16 * (j + h));
                    *y = accumulate ? *y + tree[0] : tree[0];
                }
        }
    }
}
