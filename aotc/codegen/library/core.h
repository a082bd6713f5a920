// Small helpers of the generated code: shares of a loop, integer division, lane-wise reductions.

#define AOTC_INLINE static inline __attribute__((always_inline))
// A loop of its own: it would lose registers to what surrounds it.
#define AOTC_OUTLINE static __attribute__((noinline))
#define AOTC_LANES 16

// Where the share of `thread` in `count` pieces of `unit` elements starts; its end is the start of
// the next thread's share.
AOTC_INLINE int64_t aotc_share(int64_t count, int64_t unit, int64_t thread, int64_t threads) {
    int64_t pieces = (count + unit - 1) / unit;
    int64_t start = pieces * thread / threads * unit;
    return start < count ? start : count;
}

// Integer division and remainder round towards minus infinity, as in Python.
AOTC_INLINE int64_t aotc_scalar_floordiv_index(int64_t a, int64_t b) {
    int64_t q = a / b;
    return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
AOTC_INLINE int64_t aotc_scalar_mod_index(int64_t a, int64_t b) {
    int64_t r = a % b;
    return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0);
}
AOTC_INLINE float aotc_scalar_floordiv_f32(float a, float b) { return __builtin_floorf(a / b); }
AOTC_INLINE float aotc_scalar_mod_f32(float a, float b) { return a - b * __builtin_floorf(a / b); }
AOTC_INLINE int64_t aotc_scalar_min_index(int64_t a, int64_t b) { return a < b ? a : b; }
AOTC_INLINE int64_t aotc_scalar_max_index(int64_t a, int64_t b) { return a > b ? a : b; }
AOTC_INLINE float aotc_scalar_min_f32(float a, float b) { return a < b ? a : b; }
AOTC_INLINE float aotc_scalar_max_f32(float a, float b) { return a > b ? a : b; }
AOTC_INLINE int64_t aotc_abs_index(int64_t a) { return a < 0 ? -a : a; }
