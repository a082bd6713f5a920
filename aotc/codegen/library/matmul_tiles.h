// Contractions C[m][n] (+)= sum over k of A[m][k] * B of bf16 with the tiles of AMX, where the
// target has them. Batched contractions stay as they are.
//
// A tile is sixteen rows of 64 bytes. One of A holds 32 elements of k of sixteen rows; one of B
// holds sixteen pairs of k of sixteen columns; one of C holds 16 x 16 floats. A step takes 32
// elements of k: sixteen even products are added in one chain of fused multiply-adds, the odd ones
// in another, and the sum of both is added to the element of C. Missing elements count as zeros, and
// so do denormals. Hence every element of C is accumulated in one fixed order, whatever the number
// of rows, columns or threads, and whether B is [k][n] or [n][k].

#if defined(__AMX_BF16__)

// Columns of B that are fetched ahead, and those packed before they are used; columns and elements
// of k of a block of B for many rows; elements of k in a part of long dots; floats of C in cache.
#define AOTC_TILES_AHEAD 256
#define AOTC_TILES_STRIP 256
#define AOTC_TILES_COLUMNS 1024
#define AOTC_TILES_DEPTH 256
#define AOTC_TILES_PART 8192
#define AOTC_TILES_SUMS (160 * 1024)
// Rows of A that make do without tiles, and rows of B that are read at once for them.
#define AOTC_CHAIN_MOST 2
#define AOTC_CHAIN_ROWS 8
#undef AOTC_MATMUL_SCRATCH
#define AOTC_MATMUL_SCRATCH (64 * AOTC_TILES_STRIP + 4 * AOTC_TILES_SUMS + 8192)

typedef uint16_t aotc_u16x32 __attribute__((vector_size(64), aligned(2)));

// The tiles: four of C, two of A, of its upper and lower rows, two of B, of its left and right
// columns. C need not have lower rows or right columns.
#define AOTC_C00 0
#define AOTC_C01 1
#define AOTC_C10 2
#define AOTC_C11 3
#define AOTC_A0 4
#define AOTC_A1 5
#define AOTC_B0 6
#define AOTC_B1 7

typedef struct aotc_tile_shapes {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} aotc_tile_shapes;

// MXCSR: round to nearest, raise nothing, count denormals as zeros, of operands and of results.
#define AOTC_FLUSH 0x9fc0
#define AOTC_SYSTEM_ARCH_PRCTL 158
#define AOTC_REQUEST_PERMISSION 0x1023
#define AOTC_TILE_DATA 18

// The system gives tiles to a process, that is to all its threads, when one asks.
AOTC_INLINE void aotc_tiles_allow(void) {
    static uint32_t asked;
    if (__atomic_load_n(&asked, __ATOMIC_RELAXED)) return;
    aotc_system_call(AOTC_SYSTEM_ARCH_PRCTL, AOTC_REQUEST_PERMISSION, AOTC_TILE_DATA, 0, 0);
    __atomic_store_n(&asked, 1, __ATOMIC_RELAXED);
}

// Let blocks of C have `rows` rows and `columns` columns, 1 to 32.
AOTC_INLINE void aotc_tiles_shape(int rows, int columns) {
    const int upper = rows < 16 ? rows : 16, lower = rows > 16 ? rows - 16 : 1;
    const int left = columns < 16 ? columns : 16, right = columns > 16 ? columns - 16 : 1;
    aotc_tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; ++tile) {
        const int is_a = tile >> 1 == AOTC_A0 >> 1, is_b = tile >> 1 == AOTC_B0 >> 1;
        shapes.rows[tile] = is_b ? 16 : (is_a ? tile & 1 : tile >> 1) ? lower : upper;
        shapes.row_bytes[tile] = is_a ? 64 : 4 * (tile & 1 ? right : left);
    }
    __builtin_ia32_tile_loadconfig(&shapes);
}

// A block of C from memory, to memory, of zeros.
AOTC_INLINE void aotc_tiles_load(const float *c, int64_t c_row, int lower, int right) {
    __builtin_ia32_tileloadd64(AOTC_C00, c, 4 * c_row);
    if (right) __builtin_ia32_tileloadd64(AOTC_C01, c + 16, 4 * c_row);
    if (lower) __builtin_ia32_tileloadd64(AOTC_C10, c + 16 * c_row, 4 * c_row);
    if (lower && right) __builtin_ia32_tileloadd64(AOTC_C11, c + 16 * c_row + 16, 4 * c_row);
}

AOTC_INLINE void aotc_tiles_store(float *c, int64_t c_row, int lower, int right) {
    __builtin_ia32_tilestored64(AOTC_C00, c, 4 * c_row);
    if (right) __builtin_ia32_tilestored64(AOTC_C01, c + 16, 4 * c_row);
    if (lower) __builtin_ia32_tilestored64(AOTC_C10, c + 16 * c_row, 4 * c_row);
    if (lower && right) __builtin_ia32_tilestored64(AOTC_C11, c + 16 * c_row + 16, 4 * c_row);
}

AOTC_INLINE void aotc_tiles_zero(void) {
    __builtin_ia32_tilezero(AOTC_C00);
    __builtin_ia32_tilezero(AOTC_C01);
    __builtin_ia32_tilezero(AOTC_C10);
    __builtin_ia32_tilezero(AOTC_C11);
}

// One step on a block of C: rows of A `a_row` elements apart; B's two tiles one after the other.
AOTC_INLINE void aotc_tiles_step(const aotc_bf16 *a, int64_t a_row, const aotc_bf16 *b, int lower,
                                 int right) {
    __builtin_ia32_tileloadd64(AOTC_B0, b, 64);
    __builtin_ia32_tileloadd64(AOTC_A0, a, 2 * a_row);
    __builtin_ia32_tdpbf16ps(AOTC_C00, AOTC_A0, AOTC_B0);
    if (right) {
        __builtin_ia32_tileloadd64(AOTC_B1, b + 512, 64);
        __builtin_ia32_tdpbf16ps(AOTC_C01, AOTC_A0, AOTC_B1);
    }
    if (lower) {
        __builtin_ia32_tileloadd64(AOTC_A1, a + 16 * a_row, 2 * a_row);
        __builtin_ia32_tdpbf16ps(AOTC_C10, AOTC_A1, AOTC_B0);
        if (right) __builtin_ia32_tdpbf16ps(AOTC_C11, AOTC_A1, AOTC_B1);
    }
}

// Transpose 16 x 16 elements of four bytes: halves, then quarters and so on change places.
AOTC_INLINE void aotc_transpose16(aotc_u32x16 v[16]) {
#define AOTC_LANE(L, D) ((L) & (D) ? 16 + (L) - (D) : (L))
#define AOTC_EACH(F, D) \
    F(0, D), F(1, D), F(2, D), F(3, D), F(4, D), F(5, D), F(6, D), F(7, D), F(8, D), F(9, D), \
        F(10, D), F(11, D), F(12, D), F(13, D), F(14, D), F(15, D)
#define AOTC_OTHER(L, D) (AOTC_LANE(L, D) + (D))
#define AOTC_SWAP(D) \
    for (int i = 0; i < 16; ++i) { \
        if (i & (D)) continue; \
        aotc_u32x16 x = v[i], y = v[i + (D)]; \
        v[i] = __builtin_shufflevector(x, y, AOTC_EACH(AOTC_LANE, D)); \
        v[i + (D)] = __builtin_shufflevector(x, y, AOTC_EACH(AOTC_OTHER, D)); \
    }
    AOTC_SWAP(8)
    AOTC_SWAP(4)
    AOTC_SWAP(2)
    AOTC_SWAP(1)
#undef AOTC_SWAP
#undef AOTC_OTHER
#undef AOTC_EACH
#undef AOTC_LANE
}

// The first `count` of 32 elements, `step` apart, and zeros.
AOTC_INLINE aotc_u16x32 aotc_tiles_row(int64_t count, const aotc_bf16 *from, int64_t step) {
    if (count == 32 && step == 1) return *(const aotc_u16x32 *)from;
    _Alignas(64) aotc_bf16 row[32] = {0};
    for (int64_t l = 0; l < count; ++l) row[l] = from[l * step];
    return *(const aotc_u16x32 *)row;
}

// Copy a step's elements of up to 32 rows to 32 rows of 32, and zeros for what is missing.
AOTC_INLINE void aotc_tiles_copy(int64_t rows, int64_t depth, const aotc_bf16 *a, int64_t a_row,
                                 int64_t a_column, aotc_bf16 *to) {
    for (int64_t i = 0; i < 32; ++i)
        *(aotc_u16x32 *)(to + 32 * i) =
            i < rows ? aotc_tiles_row(depth, a + i * a_row, a_column) : (aotc_u16x32){0};
}

// Pack a step's elements of up to 32 columns, contiguous in k, as two tiles of B.
AOTC_INLINE void aotc_tiles_turn(int64_t columns, int64_t depth, const aotc_bf16 *b,
                                 int64_t b_row, int64_t b_column, aotc_bf16 *to) {
    for (int64_t h = 0; h < 2; ++h) {
        aotc_u32x16 v[16];
        for (int64_t j = 0; j < 16; ++j)
            v[j] = 16 * h + j < columns
                       ? (aotc_u32x16)aotc_tiles_row(depth, b + (16 * h + j) * b_column, b_row)
                       : (aotc_u32x16){0};
        aotc_transpose16(v);
        for (int64_t r = 0; r < 16; ++r) ((aotc_u32x16 *)to)[16 * h + r] = v[r];
    }
}

// Pack up to sixteen rows of up to 32 columns side by side as the halves of two tiles of B.
AOTC_INLINE void aotc_tiles_pair(int64_t columns, int64_t depth, const aotc_bf16 *b, int64_t b_row,
                                 aotc_bf16 *to) {
#define AOTC_PAIRS(L) \
    L, L + 32, L + 1, L + 33, L + 2, L + 34, L + 3, L + 35, L + 4, L + 36, L + 5, L + 37, L + 6, \
        L + 38, L + 7, L + 39
    for (int64_t r = 0; r < 8; ++r) {
        aotc_u16x32 even = {0}, odd = {0};
        if (2 * r < depth) even = aotc_tiles_row(columns, b + 2 * r * b_row, 1);
        if (2 * r + 1 < depth) odd = aotc_tiles_row(columns, b + (2 * r + 1) * b_row, 1);
        *(aotc_u16x32 *)(to + 32 * r) =
            __builtin_shufflevector(even, odd, AOTC_PAIRS(0), AOTC_PAIRS(8));
        *(aotc_u16x32 *)(to + 32 * r + 512) =
            __builtin_shufflevector(even, odd, AOTC_PAIRS(16), AOTC_PAIRS(24));
    }
#undef AOTC_PAIRS
}

// Pack half a step of columns `j` and on of `width` that lie side by side, and fetch what comes
// AOTC_TILES_AHEAD columns later: of these rows, or of those at `next`.
AOTC_INLINE void aotc_tiles_half(int64_t j, int64_t width, int64_t depth, const aotc_bf16 *b,
                                 int64_t b_row, const aotc_bf16 *next, aotc_bf16 *to) {
    const int64_t ahead = j + AOTC_TILES_AHEAD;
    const aotc_bf16 *later = ahead < width ? b + ahead : next + (ahead - width);
    for (int64_t r = 0; r < 16; ++r) __builtin_prefetch(later + r * b_row);
    if (width - j >= 32 && depth >= 16)
        aotc_tiles_pair(32, 16, b + j, b_row, to);
    else
        aotc_tiles_pair(width - j < 32 ? width - j : 32, depth, b + j, b_row, to);
}

// Copy a block of C to or from tiles of `rows` rows of 32 columns.
AOTC_INLINE void aotc_tiles_sums(int out, int64_t m, int64_t width, int64_t rows, float *c,
                                 int64_t c_row, float *sums) {
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < width; j += 32) {
            float *x = sums + j * rows + i * 32, *y = c + i * c_row + j;
            const int64_t count = width - j < 32 ? width - j : 32;
            for (int64_t l = 0; l < count; ++l)
                if (out) y[l] = x[l];
                else x[l] = y[l];
        }
}

// nn, up to 32 rows of A: B is read in place, sixteen of its rows at a time, and packed on the way.
AOTC_OUTLINE void aotc_tiles_few(int64_t m, int64_t n, int64_t k, const aotc_bf16 *a,
                                int64_t a_row, int64_t a_column, const aotc_bf16 *b, int64_t b_row,
                                float *c, int64_t c_row, int accumulate, aotc_bf16 *scratch) {
    const int lower = m > 16;
    aotc_bf16 *rows = scratch, *strip = rows + 1024;
    float *sums = (float *)(strip + 32 * AOTC_TILES_STRIP);
    const int64_t blocks = (n * m + AOTC_TILES_SUMS - 1) / AOTC_TILES_SUMS;
    const int64_t most = ((n + blocks - 1) / blocks + 31) / 32 * 32;
    aotc_tiles_shape((int)m, 32);
    for (int64_t h = 0; h < n; h += most) {
        const int64_t width = n - h < most ? n - h : most;
        if (accumulate) aotc_tiles_sums(0, m, width, m, c + h, c_row, sums);
        for (int64_t p = 0; p < k; p += 32) {
            const int64_t depth = k - p < 32 ? k - p : 32;
            const aotc_bf16 *const upper = b + p * b_row + h;
            aotc_tiles_copy(m, depth, a + p * a_column, a_row, a_column, rows);
            for (int64_t s = 0; s < width; s += AOTC_TILES_STRIP) {
                const int64_t part = width - s < AOTC_TILES_STRIP ? width - s : AOTC_TILES_STRIP;
                const aotc_bf16 *from = upper + s, *after = from + 16 * b_row;
                for (int64_t j = 0; j < part; j += 32)
                    aotc_tiles_half(j, part, depth, from, b_row, after, strip + 32 * j);
                from = after;
                after = s + part < width ? upper + s + part : upper + (p + 32 < k ? 32 * b_row : 0);
                for (int64_t j = 0; j < part; j += 32) {
                    aotc_tiles_half(j, part, depth - 16, from, b_row, after, strip + 32 * j + 256);
                    float *y = sums + (s + j) * m;
                    if (p == 0 && !accumulate) aotc_tiles_zero();
                    else aotc_tiles_load(y, 32, lower, 1);
                    aotc_tiles_step(rows, 32, strip + 32 * j, lower, 1);
                    aotc_tiles_store(y, 32, lower, 1);
                }
            }
        }
        aotc_tiles_sums(1, m, width, m, c + h, c_row, sums);
    }
}

// Sixteen columns of a row of B, of which `count` are there, and zeros.
AOTC_INLINE aotc_v16 aotc_chain_load(int64_t count, const aotc_bf16 *from) {
    return count >= 16 ? aotc_load16_bf16(from) : aotc_load_some_bf16(count, from);
}

// AOTC_CHAIN_ROWS rows of a step, of which `depth` are there: both chains of each element of C begin,
// or go on from `chains`, and stay there, or end in C. Columns are `whole` if they are a multiple of
// sixteen. What comes AOTC_AHEAD columns later is fetched: of these rows, or of those at `next`.
AOTC_INLINE void aotc_chain_strip(int m, int64_t depth, int whole, int64_t n, const float *a,
                                  const aotc_bf16 *b, int64_t b_row, const aotc_bf16 *next,
                                  aotc_v16 *chains, float *c, int64_t c_row, int begin, int end,
                                  int first) {
    float x[AOTC_CHAIN_MOST][AOTC_CHAIN_ROWS];
    for (int i = 0; i < m; ++i)
        for (int r = 0; r < AOTC_CHAIN_ROWS; ++r) x[i][r] = a[32 * i + r];
    const int64_t ahead = n < AOTC_AHEAD ? n : AOTC_AHEAD;
    for (int64_t j = 0; j < n; j += 16, chains += 2 * m) {
        const int64_t count = whole ? 16 : n - j;
        aotc_v16 even[AOTC_CHAIN_MOST], odd[AOTC_CHAIN_MOST];
        for (int i = 0; i < m; ++i) {
            even[i] = begin ? (aotc_v16){0} : chains[2 * i];
            odd[i] = begin ? (aotc_v16){0} : chains[2 * i + 1];
        }
        if (j % 32 == 0) {
            const aotc_bf16 *later = j + ahead < n ? b + j + ahead : next + (j + ahead - n);
            for (int r = 0; r < AOTC_CHAIN_ROWS; ++r) __builtin_prefetch(later + r * b_row);
        }
        for (int r = 0; r < AOTC_CHAIN_ROWS; r += 2) {
            aotc_v16 u = {0}, v = {0};
            if (r < depth) u = aotc_chain_load(count, b + r * b_row + j);
            if (r + 1 < depth) v = aotc_chain_load(count, b + (r + 1) * b_row + j);
            for (int i = 0; i < m; ++i) {
                even[i] = __builtin_elementwise_fma(aotc_splat(x[i][r]), u, even[i]);
                odd[i] = __builtin_elementwise_fma(aotc_splat(x[i][r + 1]), v, odd[i]);
            }
        }
        for (int i = 0; i < m; ++i) {
            float *y = c + i * c_row + j;
            const aotc_v16 both = even[i] + odd[i];
            if (!end) {
                chains[2 * i] = even[i];
                chains[2 * i + 1] = odd[i];
            } else if (count >= 16) {
                *(aotc_v16u *)y = (first ? (aotc_v16){0} : *(const aotc_v16u *)y) + both;
            } else {
                for (int64_t l = 0; l < count; ++l) y[l] = (first ? 0.0f : y[l]) + both[l];
            }
        }
    }
}

// As many columns as have their chains in `chains`.
AOTC_OUTLINE void aotc_chain_block(int m, int64_t n, int64_t k, const aotc_bf16 *a, int64_t a_row,
                                   int64_t a_column, const aotc_bf16 *b, int64_t b_row, float *c,
                                   int64_t c_row, int accumulate, aotc_v16 *chains) {
    const int64_t whole = n / 16 * 16;
    float x[AOTC_CHAIN_MOST * 32];
    for (int64_t p = 0; p < (k + 31) / 32 * 32; p += AOTC_CHAIN_ROWS) {
        const int64_t depth = k - p, s = p % 32;
        for (int i = 0; i < m && s == 0; ++i)
            for (int64_t r = 0; r < 32; ++r)
                x[32 * i + r] =
                    r < depth ? aotc_float_from_bf16(a[i * a_row + (p + r) * a_column]) : 0.0f;
        const aotc_bf16 *from = b + p * b_row;
        const aotc_bf16 *next = depth >= 2 * AOTC_CHAIN_ROWS ? from + AOTC_CHAIN_ROWS * b_row : b;
        const int first = p < 32 && !accumulate;
#define AOTC_CHAIN(ROWS, DEPTH, WHOLE, J, N) \
    aotc_chain_strip(ROWS, DEPTH, WHOLE, N, x + s, from + (J), b_row, next + (J), \
                     chains + (J) / 8 * m, c + (J), c_row, s == 0, s + AOTC_CHAIN_ROWS == 32, first)
        if (depth < AOTC_CHAIN_ROWS) {
            AOTC_CHAIN(m, depth, 0, 0, n);
            continue;
        }
        if (m == 1) AOTC_CHAIN(1, AOTC_CHAIN_ROWS, 1, 0, whole);
        else AOTC_CHAIN(2, AOTC_CHAIN_ROWS, 1, 0, whole);
        if (whole < n) AOTC_CHAIN(m, AOTC_CHAIN_ROWS, 0, whole, n - whole);
#undef AOTC_CHAIN
    }
}

// nn, very few rows, of which tiles would be all but empty: the same operations on vectors, with B
// in place, eight of its rows at a time, while the chains of elements of C stay in cache. Only which
// NaN comes out of several may differ.
AOTC_OUTLINE void aotc_chain_few(int64_t m, int64_t n, int64_t k, const aotc_bf16 *a,
                                 int64_t a_row, int64_t a_column, const aotc_bf16 *b, int64_t b_row,
                                 float *c, int64_t c_row, int accumulate, aotc_v16 *chains) {
    const int64_t blocks = (2 * n * m + AOTC_TILES_SUMS - 1) / AOTC_TILES_SUMS;
    const int64_t most = ((n + blocks - 1) / blocks + 31) / 32 * 32;
    const uint32_t control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(AOTC_FLUSH);
    for (int64_t h = 0; h < n; h += most)
        aotc_chain_block((int)m, n - h < most ? n - h : most, k, a, a_row, a_column, b + h, b_row,
                         c + h, c_row, accumulate, chains);
    __builtin_ia32_ldmxcsr(control);
}

// Pack B[0:depth][0:width], a block for many rows: panels of 32 columns, each step after step.
AOTC_INLINE void aotc_tiles_block(int64_t width, int64_t depth, const aotc_bf16 *b, int64_t b_row,
                                  int64_t b_column, aotc_bf16 *panels) {
    const int64_t steps = (depth + 31) / 32;
    for (int64_t p = 0; p < 2 * steps && b_column == 1; ++p) {
        const aotc_bf16 *from = b + 16 * p * b_row;
        for (int64_t j = 0; j < width; j += 32)
            aotc_tiles_half(j, width, depth - 16 * p, from, b_row, from + 16 * b_row,
                            panels + 32 * steps * j + 1024 * (p / 2) + 256 * (p % 2));
    }
    for (int64_t j = 0; j < width && b_column != 1; j += 32)
        for (int64_t p = 0; p < steps; ++p) {
            const int64_t columns = width - j < 32 ? width - j : 32;
            const int64_t rest = depth - 32 * p < 32 ? depth - 32 * p : 32;
            const aotc_bf16 *from = b + 32 * p * b_row + j * b_column;
            aotc_bf16 *to = panels + 32 * steps * j + 1024 * p;
            if (b_row == 1 && columns == 32 && rest == 32)
                aotc_tiles_turn(32, 32, from, 1, b_column, to);
            else
                aotc_tiles_turn(columns, rest, from, b_row, b_column, to);
        }
}

// Up to 32 rows of A, packed step after step, by a block of B.
AOTC_INLINE void aotc_tiles_rows(int64_t m, int64_t width, int64_t steps, const aotc_bf16 *a,
                                 const aotc_bf16 *panels, float *c, int64_t c_row, int first) {
    const int lower = m > 16;
    _Alignas(64) float edge[1024];
    for (int64_t j = 0; j < width; j += 32) {
        const int whole = width - j >= 32;
        float *y = whole ? c + j : edge;
        const int64_t y_row = whole ? c_row : 32;
        if (!whole && !first) aotc_tiles_sums(0, m, width - j, m, c + j, c_row, edge);
        if (first) aotc_tiles_zero();
        else aotc_tiles_load(y, y_row, lower, 1);
        for (int64_t p = 0; p < steps; ++p)
            aotc_tiles_step(a + 1024 * p, 32, panels + 32 * steps * j + 1024 * p, lower, 1);
        aotc_tiles_store(y, y_row, lower, 1);
        if (!whole) aotc_tiles_sums(1, m, width - j, m, c + j, c_row, edge);
    }
}

// Many rows: a block of B is packed, then used by all of them.
AOTC_OUTLINE void aotc_tiles_many(int64_t m, int64_t n, int64_t k, const aotc_bf16 *a,
                                  int64_t a_row, int64_t a_column, const aotc_bf16 *b,
                                  int64_t b_row, int64_t b_column, float *c, int64_t c_row,
                                  int accumulate, aotc_bf16 *scratch) {
    aotc_bf16 *rows = scratch, *panels = rows + 32 * AOTC_TILES_DEPTH;
    for (int64_t j = 0; j < n; j += AOTC_TILES_COLUMNS) {
        const int64_t width = n - j < AOTC_TILES_COLUMNS ? n - j : AOTC_TILES_COLUMNS;
        for (int64_t p = 0; p < k; p += AOTC_TILES_DEPTH) {
            const int64_t depth = k - p < AOTC_TILES_DEPTH ? k - p : AOTC_TILES_DEPTH;
            const int first = p == 0 && !accumulate;
            aotc_tiles_block(width, depth, b + p * b_row + j * b_column, b_row, b_column, panels);
            for (int64_t i = 0; i < m; i += 32) {
                const int64_t count = m - i < 32 ? m - i : 32;
                if (i == 0 || count < 32) aotc_tiles_shape((int)count, 32);
                const aotc_bf16 *from = a + i * a_row + p * a_column;
                for (int64_t s = 0; s < depth; s += 32)
                    aotc_tiles_copy(count, depth - s < 32 ? depth - s : 32, from + s * a_column,
                                    a_row, a_column, rows + 32 * s);
                aotc_tiles_rows(count, width, (depth + 31) / 32, rows, panels, c + i * c_row + j,
                                c_row, first);
            }
        }
    }
}

// nt, up to 32 rows of A: rows of B are tiles as they are, and C comes out transposed.
AOTC_OUTLINE void aotc_tiles_dots(int64_t m, int64_t n, int64_t k, const aotc_bf16 *a,
                                  int64_t a_row, int64_t a_column, const aotc_bf16 *b,
                                  int64_t b_column, float *c, int64_t c_row, int accumulate,
                                  aotc_bf16 *scratch) {
    const int right = m > 16;
    aotc_bf16 *rows = scratch, *turned = rows + 1024;
    _Alignas(64) float block[1024];
    aotc_tiles_shape(32, (int)m);
    for (int64_t p = 0; p < k; p += AOTC_TILES_PART) {
        const int64_t depth = k - p < AOTC_TILES_PART ? k - p : AOTC_TILES_PART;
        for (int64_t s = 0; s < depth; s += 32)
            aotc_tiles_turn(m, depth - s < 32 ? depth - s : 32, a + (p + s) * a_column, a_column,
                            a_row, turned + 32 * s);
        for (int64_t j = 0; j < n; j += 32) {
            const int64_t width = n - j < 32 ? n - j : 32;
            const aotc_bf16 *from = b + j * b_column + p;
            float *y = c + j;
            if (p == 0 && !accumulate) {
                aotc_tiles_zero();
            } else {
                for (int64_t i = 0; i < m; ++i)
                    for (int64_t l = 0; l < width; ++l) block[32 * l + i] = y[i * c_row + l];
                aotc_tiles_load(block, 32, 1, right);
            }
            int64_t s = 0;
            for (; width == 32 && s + 32 <= depth; s += 32)
                aotc_tiles_step(from + s, b_column, turned + 32 * s, 1, right);
            for (; s < depth; s += 32) {
                aotc_tiles_copy(width, depth - s < 32 ? depth - s : 32, from + s, b_column, 1, rows);
                aotc_tiles_step(rows, 32, turned + 32 * s, 1, right);
            }
            aotc_tiles_store(block, 32, 1, right);
            for (int64_t i = 0; i < m; ++i)
                for (int64_t l = 0; l < width; ++l) y[i * c_row + l] = block[32 * l + i];
        }
    }
}

// The parameters are those of aotc_matmul.
static void aotc_tiles_matmul(int64_t m, int64_t n_first, int64_t n_last, int64_t k,
                              const aotc_bf16 *a, int64_t a_row, int64_t a_column,
                              const aotc_bf16 *b, int64_t b_row, int64_t b_column, float *c,
                              int64_t c_row, int accumulate, void *scratch) {
    const int64_t n = n_last - n_first;
    if (m <= 0 || n <= 0) return;
    b += n_first * b_column;
    c += n_first;
    if (k <= 0) {
        for (int64_t i = 0; i < m && !accumulate; ++i)
            for (int64_t j = 0; j < n; ++j) c[i * c_row + j] = 0.0f;
        return;
    }
    if (m <= AOTC_CHAIN_MOST && b_column == 1) {
        aotc_chain_few(m, n, k, a, a_row, a_column, b, b_row, c, c_row, accumulate, scratch);
        return;
    }
    aotc_tiles_allow();
    if (m <= 32 && b_column == 1)
        aotc_tiles_few(m, n, k, a, a_row, a_column, b, b_row, c, c_row, accumulate, scratch);
    else if (m <= 32 && b_row == 1)
        aotc_tiles_dots(m, n, k, a, a_row, a_column, b, b_column, c, c_row, accumulate, scratch);
    else
        aotc_tiles_many(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row, accumulate,
                        scratch);
    __builtin_ia32_tilerelease();
}
#define aotc_matmul_bf16_bf16 aotc_tiles_matmul

#endif
