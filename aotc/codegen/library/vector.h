// Vectors of eight floats, in GCC's vector extension: each target lowers them to its registers.

typedef float aotc_f8 __attribute__((vector_size(32)));
typedef float aotc_f8u __attribute__((vector_size(32), aligned(4)));
typedef uint16_t aotc_u16x8 __attribute__((vector_size(16), aligned(2)));
typedef uint32_t aotc_u32x8 __attribute__((vector_size(32)));
typedef _Float16 aotc_h8 __attribute__((vector_size(16), aligned(2)));

#define AOTC_DEPTH 512
#define AOTC_WIDTH 256
#define AOTC_MATMUL_SCRATCH (AOTC_DEPTH * 6 * 4 + AOTC_DEPTH * AOTC_WIDTH * 4)

AOTC_INLINE aotc_f8 aotc_splat(float x) { return (aotc_f8){x, x, x, x, x, x, x, x}; }

// ((0+4) + (2+6)) + ((1+5) + (3+7))
AOTC_INLINE float aotc_sum8(aotc_f8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

#define AOTC_TO_FLOAT_bf16(x) aotc_float_from_bf16(x)
#define AOTC_TO_FLOAT_fp16(x) ((float)(x))
#define AOTC_TO_FLOAT_fp32(x) (x)

AOTC_INLINE aotc_f8 aotc_load8_bf16(const aotc_bf16 *p) {
    aotc_u32x8 wide = __builtin_convertvector(*(const aotc_u16x8 *)p, aotc_u32x8) << 16;
    return (aotc_f8)wide;
}
AOTC_INLINE aotc_f8 aotc_load8_fp16(const _Float16 *p) {
    return __builtin_convertvector(*(const aotc_h8 *)p, aotc_f8);
}
AOTC_INLINE aotc_f8 aotc_load8_fp32(const float *p) { return *(const aotc_f8u *)p; }
