// Weights from row-major to panels and back; panels.h says what they are and multiplies with them.
// The threads share the panels as they do in a contraction, so each touches first what it will read.

// Two rows of sixteen elements to words, the first in the low halves, and back.
AOTC_INLINE void aotc_zip(const uint16_t *low, const uint16_t *high, uint32_t *words) {
    aotc_u32x16u first = __builtin_convertvector(*(const aotc_u16x16 *)low, aotc_u32x16u);
    aotc_u32x16u second = __builtin_convertvector(*(const aotc_u16x16 *)high, aotc_u32x16u);
    *(aotc_u32x16u *)words = first | second << 16;
}
AOTC_INLINE void aotc_unzip(uint16_t *low, uint16_t *high, const uint32_t *words) {
    aotc_u32x16u both = *(const aotc_u32x16u *)words;
    *(aotc_u16x16 *)low = __builtin_convertvector(both & 0xFFFFu, aotc_u16x16);
    *(aotc_u16x16 *)high = __builtin_convertvector(both >> 16, aotc_u16x16);
}
AOTC_INLINE void aotc_transpose(const uint32_t *from, int64_t from_row, uint32_t *to,
                                int64_t to_row) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[i * to_row + j] = from[j * from_row + i];
}

// B[k][n], `columns` wide, in blocks of `depth` rows. Four panels at a time: whole cache lines of B.
AOTC_INLINE void aotc_move_kn(int packing, int64_t rows, int64_t columns, int64_t depth,
                              int64_t first, int64_t last, uint16_t *plain, uint32_t *panels) {
    for (int64_t block = 0; block < rows / depth; ++block)
        for (int64_t j = first; j < last; j += 4)
            for (int64_t p = 0; p < depth / 2; ++p)
                for (int64_t h = j; h < j + 4 && h < last; ++h) {
                    uint16_t *row = plain + (block * depth + 2 * p) * columns + 16 * h;
                    uint32_t *words = panels + ((block * (columns / 16) + h) * (depth / 2) + p) * 16;
                    if (packing) aotc_zip(row, row + columns, words);
                    else aotc_unzip(row, row + columns, words);
                }
}

// B[n][k], `columns` being k.
AOTC_INLINE void aotc_move_nk(int packing, int64_t columns, int64_t first, int64_t last,
                              uint16_t *plain, uint32_t *panels) {
    const int64_t lane = columns / 2;  // words between two sums of a panel
    for (int64_t h = first; h < last; ++h)
        for (int64_t q = 0; q < columns / 32; ++q) {
            uint32_t square[256];
            uint16_t *rows = plain + 16 * h * columns + 32 * q;
            uint32_t *words = panels + h * 8 * columns + 16 * q;
            if (!packing) aotc_transpose(words, lane, square, 16);
            for (int r = 0; r < 16; ++r, rows += columns) {
                if (packing) aotc_zip(rows, rows + 16, square + 16 * r);
                else aotc_unzip(rows, rows + 16, square + 16 * r);
            }
            if (packing) aotc_transpose(square, 16, words, lane);
        }
}

AOTC_INLINE void aotc_move_panels(int packing, const aotc_call *call, int32_t thread,
                                  uint16_t *plain, uint32_t *panels) {
    const int64_t rows = call->symbols[0], columns = call->symbols[1], depth = call->symbols[2];
    const int64_t count = (depth ? columns : rows) / 16;
    const int64_t first = aotc_share(count, 1, thread, call->threads);
    const int64_t last = aotc_share(count, 1, thread + 1, call->threads);
    if (depth) aotc_move_kn(packing, rows, columns, depth, first, last, plain, panels);
    else aotc_move_nk(packing, columns, first, last, plain, panels);
}

AOTC_EXPORT void aotc_pack(const aotc_call *call, int32_t thread) {
    aotc_move_panels(1, call, thread, call->arguments[1], call->arguments[0]);
}

AOTC_EXPORT void aotc_unpack(const aotc_call *call, int32_t thread) {
    aotc_move_panels(0, call, thread, call->arguments[0], call->arguments[1]);
}
