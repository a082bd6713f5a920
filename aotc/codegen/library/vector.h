// Vectors of sixteen floats, in GCC's vector extension: each target lowers them to its registers.

typedef float aotc_v16 __attribute__((vector_size(64)));
typedef float aotc_v16u __attribute__((vector_size(64), aligned(4)));
typedef uint16_t aotc_u16x16 __attribute__((vector_size(32), aligned(2)));
typedef uint32_t aotc_u32x16 __attribute__((vector_size(64)));
typedef uint32_t aotc_u32x16u __attribute__((vector_size(64), aligned(4)));
typedef _Float16 aotc_h16 __attribute__((vector_size(32), aligned(2)));

// How many rows and columns a contraction keeps in registers, of which AVX-512 has 32 of
// 16 floats, NEON 32 of 4 and AVX2 16 of 8. Up to AOTC_FEW_ROWS rows of A it is faster to stream B
// in place than to pack it (measured, see docs/performance.md).
#if defined(__AVX512F__)
#define AOTC_TILE_ROWS 12
#define AOTC_STRIP_ROWS 8
#define AOTC_FEW_ROWS 32
#define AOTC_DOT_ROWS 8
#define AOTC_DOT_COLUMNS 8
#else
#define AOTC_TILE_ROWS 6
#define AOTC_STRIP_ROWS 4
#define AOTC_FEW_ROWS 8
#define AOTC_DOT_ROWS 6
#define AOTC_DOT_COLUMNS 4
#endif
// Rows of a block of B that is packed at once, and its elements; the distance of A's rows beside it.
#define AOTC_DEPTH 512
#define AOTC_BLOCK (128 * 1024)
#define AOTC_A_ROW (AOTC_DEPTH + 16)
// How many elements of a row of B are fetched ahead while it streams.
#define AOTC_AHEAD 512
// Of dots: the part of k, the distance of A's rows, rows of B in a block, and rows of A at once.
#define AOTC_DOT_DEPTH 1024
#define AOTC_DOT_ROW (AOTC_DOT_DEPTH + 16)
#define AOTC_DOT_BLOCK 16
#define AOTC_DOT_MOST 128
// Of a batch with few rows of A: the rows of B in a group, where the columns of B are contiguous.
#if defined(__AVX512F__)
#define AOTC_BATCH_DEPTH 4
#else
#define AOTC_BATCH_DEPTH 8
#endif
#define AOTC_MATMUL_SCRATCH (AOTC_A_ROW * AOTC_TILE_ROWS * 4 + AOTC_BLOCK * 4)

// How many columns of a contraction of m rows a thread does before other work on them: few rows stay
// in cache whole, and of many as many columns as are packed at once. Where weights are packed it is
// A that is packed for each piece, so pieces are larger.
AOTC_INLINE int64_t aotc_most_columns(int64_t m) {
    if (m <= AOTC_FEW_ROWS) return __INT64_MAX__;
    int64_t most = AOTC_BLOCK / AOTC_DEPTH;
#if !defined(__AVX512F__)
    most = 2 * most;
    if (m * most < AOTC_BLOCK / 4) most = AOTC_BLOCK / 4 / m / 16 * 16;
#endif
    return most;
}

// And how many it takes at least: A is packed, or read, for each piece.
AOTC_INLINE int64_t aotc_least_columns(int64_t m) { return m <= AOTC_FEW_ROWS ? 64 : 128; }

AOTC_INLINE aotc_v16 aotc_splat(float x) {
    return (aotc_v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

// As a tree of halves: lane l and l + 8, then 4, 2 and 1 apart.
AOTC_INLINE float aotc_sum16(aotc_v16 v) {
    typedef float v8 __attribute__((vector_size(32)));
    typedef float v4 __attribute__((vector_size(16)));
    v8 eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    v4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
              __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// The same sums of sixteen vectors at once. First four vectors: lanes 4 i to 4 i + 3 hold what is
// left to add of vector i.
AOTC_INLINE aotc_v16 aotc_sum4(aotc_v16 a, aotc_v16 b, aotc_v16 c, aotc_v16 d) {
#define AOTC_LOW(x, y) \
    __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define AOTC_HIGH(x, y) \
    __builtin_shufflevector(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
    aotc_v16 ab = AOTC_LOW(a, b) + AOTC_HIGH(a, b), cd = AOTC_LOW(c, d) + AOTC_HIGH(c, d);
#undef AOTC_LOW
#undef AOTC_HIGH
    return __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
// Then four results of that: lane 4 q + i is the sum of vector i of the q-th four.
AOTC_INLINE aotc_v16 aotc_sum4x4(const aotc_v16 *q) {
#define AOTC_LOW(x, y) \
    __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define AOTC_HIGH(x, y) \
    __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
    aotc_v16 x = AOTC_LOW(q[0], q[1]) + AOTC_HIGH(q[0], q[1]);
    aotc_v16 y = AOTC_LOW(q[2], q[3]) + AOTC_HIGH(q[2], q[3]);
#undef AOTC_LOW
#undef AOTC_HIGH
    aotc_v16 even = __builtin_shufflevector(x, y, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14,
                                            28, 30);
    aotc_v16 odd = __builtin_shufflevector(x, y, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15,
                                           29, 31);
    aotc_v16 z = even + odd;
    return __builtin_shufflevector(z, z, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

#define AOTC_TO_FLOAT_bf16(x) aotc_float_from_bf16(x)
#define AOTC_TO_FLOAT_fp16(x) ((float)(x))
#define AOTC_TO_FLOAT_fp32(x) (x)

// A part of such a vector, which one register holds: of dots with few rows of A, so many rows of B
// at once that their sums fill the registers.
#if defined(__AVX512F__)
#define AOTC_PART 16
#define AOTC_PART_COLUMNS(ROWS) ((ROWS) > 6 ? 2 : 4)
#else
#define AOTC_PART 8
#define AOTC_PART_COLUMNS(ROWS) 2
#endif
typedef float aotc_part __attribute__((vector_size(4 * AOTC_PART), aligned(4)));
typedef uint16_t aotc_part_u16 __attribute__((vector_size(2 * AOTC_PART), aligned(2)));
typedef uint32_t aotc_part_u32 __attribute__((vector_size(4 * AOTC_PART)));
typedef _Float16 aotc_part_f16 __attribute__((vector_size(2 * AOTC_PART), aligned(2)));

AOTC_INLINE aotc_part aotc_load_part_bf16(const aotc_bf16 *p) {
    return (aotc_part)(__builtin_convertvector(*(const aotc_part_u16 *)p, aotc_part_u32) << 16);
}
AOTC_INLINE aotc_part aotc_load_part_fp16(const _Float16 *p) {
    return __builtin_convertvector(*(const aotc_part_f16 *)p, aotc_part);
}
AOTC_INLINE aotc_part aotc_load_part_fp32(const float *p) { return *(const aotc_part *)p; }

AOTC_INLINE aotc_v16 aotc_load16_bf16(const aotc_bf16 *p) {
    aotc_u32x16 wide = __builtin_convertvector(*(const aotc_u16x16 *)p, aotc_u32x16) << 16;
    return (aotc_v16)wide;
}
AOTC_INLINE aotc_v16 aotc_load16_fp16(const _Float16 *p) {
    return __builtin_convertvector(*(const aotc_h16 *)p, aotc_v16);
}
AOTC_INLINE aotc_v16 aotc_load16_fp32(const float *p) { return *(const aotc_v16u *)p; }

// The first `count` of sixteen elements, and zeros.
#define AOTC_LOAD_SOME(NAME, TYPE)                                                   \
    AOTC_OUTLINE aotc_v16 aotc_load_some_##NAME(int64_t count, const TYPE *p) {      \
        aotc_v16 v = {0};                                                            \
        for (int64_t l = 0; l < count; ++l) ((float *)&v)[l] = AOTC_TO_FLOAT_##NAME(p[l]); \
        return v;                                                                    \
    }
AOTC_LOAD_SOME(bf16, aotc_bf16)
AOTC_LOAD_SOME(fp16, _Float16)
AOTC_LOAD_SOME(fp32, float)
#undef AOTC_LOAD_SOME
