// Arithmetic of the generated code: conversions, elementary functions, and the operators' helpers
// for each element type. Functions on floats have no branches, so loops over them vectorize.
// Bounds are in units in the last place of the correctly rounded result.

#ifndef AOTC_INLINE
#define AOTC_INLINE static inline __attribute__((always_inline))
#endif
#ifndef INT64_MIN
#define INT64_MIN (-__INT64_MAX__ - 1)
#endif

// A bf16 is the upper half of a float.
typedef uint16_t aotc_bf16;

typedef union aotc_float_bits {
    float value;
    uint32_t bits;
} aotc_float_bits;

AOTC_INLINE float aotc_from_bits(uint32_t bits) { return (aotc_float_bits){.bits = bits}.value; }
AOTC_INLINE uint32_t aotc_bits(float x) { return (aotc_float_bits){.value = x}.bits; }

AOTC_INLINE float aotc_float_from_bf16(aotc_bf16 x) { return aotc_from_bits((uint32_t)x << 16); }

// To nearest even; a NaN stays one, and quiet.
AOTC_INLINE aotc_bf16 aotc_bf16_from_float(float x) {
    uint32_t bits = aotc_bits(x);
    uint32_t nearest = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (aotc_bf16)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : nearest);
}
AOTC_INLINE float aotc_round_bf16(float x) { return aotc_float_from_bf16(aotc_bf16_from_float(x)); }
AOTC_INLINE float aotc_round_fp16(float x) { return (float)(_Float16)x; }

// exp(x) within 2 ulp, over all floats: infinity above 88.73, 0 below -103.98, NaN of NaN.
AOTC_INLINE float aotc_exp(float x) {
    const float magic = 12582912.0f;  // adding it rounds to an integer, which the low bits then hold
    float c = x > 89.0f ? 89.0f : x;
    c = c < -104.0f ? -104.0f : c;
    float shifted = __builtin_fmaf(c, 1.44269504f, magic);
    int32_t n = (int32_t)(aotc_bits(shifted) - 0x4B400000u);
    float whole = shifted - magic;
    float r = __builtin_fmaf(whole, -0.693359375f, c);
    r = __builtin_fmaf(whole, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.0f;
    // 2^n in two factors: the first product is exact, the second may overflow or be subnormal.
    int32_t half = n >> 1;
    float low = aotc_from_bits((uint32_t)(half + 127) << 23);
    float high = aotc_from_bits((uint32_t)(n - half + 127) << 23);
    return p * low * high;
}

// log(x) within 2 ulp, over all floats: -infinity of 0, NaN below 0.
AOTC_INLINE float aotc_log(float x) {
    const int tiny = x < 0x1p-126f;
    uint32_t bits = aotc_bits(tiny ? x * 0x1p23f : x);
    // The exponent such that the significand is in [sqrt(1/2), sqrt(2)).
    int32_t e = (int32_t)(bits - 0x3F3504F3u) >> 23;
    float f = aotc_from_bits(bits - ((uint32_t)e << 23)) - 1.0f;
    float exponent = (float)(e - (tiny ? 23 : 0));
    float square = f * f;
    float p = 7.0376836292e-2f;
    p = __builtin_fmaf(p, f, -1.1514610310e-1f);
    p = __builtin_fmaf(p, f, 1.1676998740e-1f);
    p = __builtin_fmaf(p, f, -1.2420140846e-1f);
    p = __builtin_fmaf(p, f, 1.4249322787e-1f);
    p = __builtin_fmaf(p, f, -1.6668057665e-1f);
    p = __builtin_fmaf(p, f, 2.0000714765e-1f);
    p = __builtin_fmaf(p, f, -2.4999993993e-1f);
    p = __builtin_fmaf(p, f, 3.3333331174e-1f);
    float y = __builtin_fmaf(exponent, -2.12194440e-4f, f * square * p);
    y = __builtin_fmaf(-0.5f, square, y);
    y = __builtin_fmaf(exponent, 0.693359375f, f + y);
    y = x < __builtin_inff() ? y : x;  // infinity and NaN
    y = x < 0.0f ? __builtin_nanf("") : y;
    return x == 0.0f ? -__builtin_inff() : y;
}

// Both operations are correctly rounded, so the result is within 1 ulp.
AOTC_INLINE float aotc_sqrt(float x) { return __builtin_elementwise_sqrt(x); }
AOTC_INLINE float aotc_rsqrt(float x) { return 1.0f / __builtin_elementwise_sqrt(x); }
AOTC_INLINE float aotc_recip(float x) { return 1.0f / x; }

// To an integral float: to nearest even, and to nearest with halves away from zero.
AOTC_INLINE float aotc_rint(float x) { return __builtin_rintf(x); }
AOTC_INLINE float aotc_round(float x) {
    return __builtin_truncf(x + __builtin_copysignf(0x1.fffffep-2f, x));
}

// The remainder that has the sign of the dividend, exact. The quotient is taken 28 bits at a time,
// from the largest that two floats can have: every product and difference is exact in a double.
AOTC_INLINE float aotc_fmod_f32(float x, float y) {
    double rest = __builtin_fabs((double)x), divisor = __builtin_fabs((double)y);
    const int defined = divisor > 0.0 && rest < __builtin_inf();
    for (double scale = 0x1p252; defined && divisor < __builtin_inf() && scale >= 1.0;
         scale *= 0x1p-28) {
        double step = divisor * scale;
        rest -= __builtin_trunc(rest / step) * step;
        rest += rest < 0.0 ? step : 0.0;
    }
    return defined ? __builtin_copysignf((float)rest, x) : __builtin_nanf("");
}
// The remainder that has the sign of the divisor.
AOTC_INLINE float aotc_rem_f32(float x, float y) {
    float rest = aotc_fmod_f32(x, y);
    if (rest == 0.0f) return __builtin_copysignf(0.0f, y);
    return (rest < 0.0f) != (y < 0.0f) ? rest + y : rest;
}

// NaN where one of them is.
AOTC_INLINE float aotc_max_f32(float x, float y) { return ((x > y) | (x != x)) ? x : y; }
AOTC_INLINE float aotc_min_f32(float x, float y) { return ((x < y) | (x != x)) ? x : y; }
AOTC_INLINE float aotc_sum_f32(float x, float y) { return x + y; }
AOTC_INLINE float aotc_prod_f32(float x, float y) { return x * y; }
AOTC_INLINE float aotc_abs_f32(float x) { return __builtin_fabsf(x); }
#define aotc_zero_f32 0.0f
#define aotc_one_f32 1.0f
#define aotc_lowest_f32 (-__builtin_inff())
#define aotc_highest_f32 __builtin_inff()

// Integers wrap around. WIDE is unsigned and at least 32 bits: no product of it overflows.
// A float is converted to the nearest end where it is out of range, NaN to 0.
#define AOTC_INTEGER(SUFFIX, TYPE, WIDE, LOWEST, HIGHEST, BELOW, ABOVE)                            \
    AOTC_INLINE TYPE aotc_max_##SUFFIX(TYPE x, TYPE y) { return x > y ? x : y; }                   \
    AOTC_INLINE TYPE aotc_min_##SUFFIX(TYPE x, TYPE y) { return x < y ? x : y; }                   \
    AOTC_INLINE TYPE aotc_sum_##SUFFIX(TYPE x, TYPE y) { return (TYPE)((WIDE)x + (WIDE)y); }       \
    AOTC_INLINE TYPE aotc_prod_##SUFFIX(TYPE x, TYPE y) { return (TYPE)((WIDE)x * (WIDE)y); }      \
    AOTC_INLINE TYPE aotc_abs_##SUFFIX(TYPE x) { return x < 1 ? (TYPE)(0 - (WIDE)x) : x; }         \
    AOTC_INLINE TYPE aotc_shl_##SUFFIX(TYPE x, TYPE n) {                                           \
        return (uint64_t)n < 8 * sizeof(TYPE) ? (TYPE)((WIDE)x << n) : 0;                          \
    }                                                                                              \
    AOTC_INLINE TYPE aotc_shr_##SUFFIX(TYPE x, TYPE n) {                                           \
        return (TYPE)(x >> ((uint64_t)n < 8 * sizeof(TYPE) ? n : (TYPE)(8 * sizeof(TYPE) - 1)))    \
               * (LOWEST != 0 || (uint64_t)n < 8 * sizeof(TYPE));                                  \
    }                                                                                              \
    /* Towards zero; 0 for a zero divisor. */                                                      \
    AOTC_INLINE TYPE aotc_div_##SUFFIX(TYPE x, TYPE y) {                                           \
        if (y == 0) return 0;                                                                      \
        return LOWEST != 0 && y == (TYPE)-1 ? (TYPE)(0 - (WIDE)x) : (TYPE)(x / y);                 \
    }                                                                                              \
    AOTC_INLINE TYPE aotc_fmod_##SUFFIX(TYPE x, TYPE y) {                                          \
        return y == 0 || (LOWEST != 0 && y == (TYPE)-1) ? 0 : (TYPE)(x % y);                       \
    }                                                                                              \
    AOTC_INLINE TYPE aotc_rem_##SUFFIX(TYPE x, TYPE y) {                                           \
        TYPE rest = aotc_fmod_##SUFFIX(x, y);                                                      \
        return rest != 0 && ((LOWEST != 0) & ((rest ^ y) < 0)) ? (TYPE)(rest + y) : rest;          \
    }                                                                                              \
    AOTC_INLINE TYPE aotc_to_##SUFFIX(float x) {                                                   \
        TYPE inside = x > BELOW && x < ABOVE ? (TYPE)x : 0;                                        \
        return x >= ABOVE ? HIGHEST : x <= BELOW ? LOWEST : inside;                                \
    }

#define aotc_lowest_i8 ((int8_t)-128)
#define aotc_lowest_i16 ((int16_t)-32768)
#define aotc_lowest_i32 (-__INT32_MAX__ - 1)
#define aotc_lowest_i64 (-__INT64_MAX__ - 1)
#define aotc_lowest_u8 0
#define aotc_lowest_u16 0
#define aotc_lowest_u32 0
#define aotc_lowest_u64 0
#define aotc_highest_i8 127
#define aotc_highest_i16 32767
#define aotc_highest_i32 __INT32_MAX__
#define aotc_highest_i64 __INT64_MAX__
#define aotc_highest_u8 __UINT8_MAX__
#define aotc_highest_u16 __UINT16_MAX__
#define aotc_highest_u32 __UINT32_MAX__
#define aotc_highest_u64 __UINT64_MAX__

#define AOTC_SIGNED(BITS, WIDE, END)                                                               \
    AOTC_INTEGER(i##BITS, int##BITS##_t, WIDE, aotc_lowest_i##BITS, aotc_highest_i##BITS, -END, END)
#define AOTC_UNSIGNED(BITS, WIDE, END)                                                             \
    AOTC_INTEGER(u##BITS, uint##BITS##_t, WIDE, 0, aotc_highest_u##BITS, 0.0f, END)

AOTC_SIGNED(8, uint32_t, 0x1p7f)
AOTC_SIGNED(16, uint32_t, 0x1p15f)
AOTC_SIGNED(32, uint32_t, 0x1p31f)
AOTC_SIGNED(64, uint64_t, 0x1p63f)
AOTC_UNSIGNED(8, uint32_t, 0x1p8f)
AOTC_UNSIGNED(16, uint32_t, 0x1p16f)
AOTC_UNSIGNED(32, uint32_t, 0x1p32f)
AOTC_UNSIGNED(64, uint64_t, 0x1p64f)

#define aotc_zero_i8 0
#define aotc_zero_i16 0
#define aotc_zero_i32 0
#define aotc_zero_i64 0
#define aotc_zero_u8 0
#define aotc_zero_u16 0
#define aotc_zero_u32 0
#define aotc_zero_u64 0
#define aotc_one_i8 1
#define aotc_one_i16 1
#define aotc_one_i32 1
#define aotc_one_i64 1
#define aotc_one_u8 1
#define aotc_one_u16 1
#define aotc_one_u32 1
#define aotc_one_u64 1
