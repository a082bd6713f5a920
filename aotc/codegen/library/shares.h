// How the threads of a team share a range: each takes pieces of a share of its own, and then, where it
// may, of what the others have not taken yet. So one that is held up does not hold up the rest.

typedef struct aotc_shares {
    aotc_pool *pool;  // NULL: each thread has its own share alone, between `first` and `end`
    int64_t count, unit, first, end;
    int32_t thread, threads;
    int32_t owner;  // how many threads after this one is the one whose share is at work
    uint32_t turn;
} aotc_shares;

// Where a share is taken up to, in units, by the turn of `word`: all of it in a later turn, to which a
// thread comes when nothing is left of this one, and nothing in an earlier one.
AOTC_INLINE int64_t aotc_shares_taken(const aotc_shares *shares, uint64_t word) {
    const int32_t later = (int32_t)((uint32_t)(word >> 32) - shares->turn);
    return later > 0 ? __INT64_MAX__ : later < 0 ? 0 : (int64_t)(uint32_t)word;
}

// Share `count` elements in whole units. All threads begin the same ranges in the same order; with
// `together`, the same for all, they take from each other.
static aotc_shares aotc_shares_begin(const aotc_call *call, int32_t thread, int64_t count,
                                     int64_t unit, int together) {
    aotc_shares shares = {.count = count, .unit = unit, .thread = thread, .threads = call->threads};
    shares.first = aotc_share(count, unit, thread, call->threads);
    shares.end = aotc_share(count, unit, thread + 1, call->threads);
    // A word counts the units of a share in 32 bits.
    if (!together || call->threads == 1 || count / unit > __UINT32_MAX__) return shares;
    shares.pool = call->team;
    aotc_pool_slot *slot = &shares.pool->slots[thread];
    shares.turn = ++slot->turn;
    // Even where the share is empty: no turn is ever so old that it seems a later one.
    uint64_t word = __atomic_load_n(&slot->taken, __ATOMIC_RELAXED);
    while ((int32_t)((uint32_t)(word >> 32) - shares.turn) < 0 &&
           !__atomic_compare_exchange_n(&slot->taken, &word, (uint64_t)shares.turn << 32, 1,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return shares;
}

// Take a piece: at most `most` elements, and of a share that others take from a half of what is left,
// but not less than `least`. Returns 0 where nothing is left. `least` and `most` are multiples of the
// unit, or `most` is __INT64_MAX__. A barrier orders what pieces read and write; this orders nothing.
static int aotc_shares_take(aotc_shares *shares, int64_t least, int64_t most, int64_t *first,
                            int64_t *last) {
    if (!shares->pool) {
        if (shares->first >= shares->end) return 0;
        *first = shares->first;
        *last = shares->first = shares->end - *first < most ? shares->end : *first + most;
        return 1;
    }
    for (; shares->owner < shares->threads; ++shares->owner) {
        const int32_t owner = (shares->thread + shares->owner) % shares->threads;
        const int64_t begin = aotc_share(shares->count, shares->unit, owner, shares->threads);
        const int64_t end = aotc_share(shares->count, shares->unit, owner + 1, shares->threads);
        const int64_t units = (end - begin + shares->unit - 1) / shares->unit;
        uint64_t *const taken = &shares->pool->slots[owner].taken;
        uint64_t word = __atomic_load_n(taken, __ATOMIC_RELAXED), next;
        for (;;) {
            const int64_t at = aotc_shares_taken(shares, word);
            if (at >= units) break;
            int64_t piece = ((units - at + 1) / 2 * shares->unit + least - 1) / least * least;
            if (piece > most) piece = most;
            int64_t to = at + piece / shares->unit;
            if (to > units) to = units;
            next = (uint64_t)shares->turn << 32 | (uint64_t)to;
            if (!__atomic_compare_exchange_n(taken, &word, next, 1, __ATOMIC_RELAXED,
                                             __ATOMIC_RELAXED))
                continue;
            *first = begin + at * shares->unit;
            *last = to == units ? end : begin + to * shares->unit;
            return 1;
        }
    }
    return 0;
}
