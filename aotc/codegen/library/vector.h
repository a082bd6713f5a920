// Vectors of sixteen floats, in GCC's vector extension: each target lowers them to its registers.

typedef float aotc_v16 __attribute__((vector_size(64)));
typedef float aotc_v16u __attribute__((vector_size(64), aligned(4)));
typedef uint16_t aotc_u16x16 __attribute__((vector_size(32), aligned(2)));
typedef uint32_t aotc_u32x16 __attribute__((vector_size(64)));
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
// Of dots: the part of k, the distance of A's rows, rows of B in a block, and rows of A at once.
#define AOTC_DOT_DEPTH 1024
#define AOTC_DOT_ROW (AOTC_DOT_DEPTH + 16)
#define AOTC_DOT_BLOCK 16
#define AOTC_DOT_MOST 128
#define AOTC_MATMUL_SCRATCH (AOTC_A_ROW * AOTC_TILE_ROWS * 4 + AOTC_BLOCK * 4)

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

#define AOTC_TO_FLOAT_bf16(x) aotc_float_from_bf16(x)
#define AOTC_TO_FLOAT_fp16(x) ((float)(x))
#define AOTC_TO_FLOAT_fp32(x) (x)

AOTC_INLINE aotc_v16 aotc_load16_bf16(const aotc_bf16 *p) {
    aotc_u32x16 wide = __builtin_convertvector(*(const aotc_u16x16 *)p, aotc_u32x16) << 16;
    return (aotc_v16)wide;
}
AOTC_INLINE aotc_v16 aotc_load16_fp16(const _Float16 *p) {
    return __builtin_convertvector(*(const aotc_h16 *)p, aotc_v16);
}
AOTC_INLINE aotc_v16 aotc_load16_fp32(const float *p) { return *(const aotc_v16u *)p; }
