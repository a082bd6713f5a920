// How the threads of a team share a range: each takes pieces of a share of its own, and then, where it
// may, of what others have not taken yet. So one that is held up does not hold up the rest.
//
// As if each had done its own share: only those that have come to the range are helped, so what they
// did before is there, and each leaves when its share is done, by whomever.

typedef struct aotc_shares {
    aotc_pool *pool;  // NULL: no one helps, and `units` of the own share are left, from `at` on
    int64_t count, unit, at, units;
    int64_t piece;  // units of the last piece
    int32_t thread, threads;
    int32_t owner;  // how many threads after this one is the one whose share is at work
    uint32_t turn;
    uint32_t own;  // units of its share that the thread has done itself
} aotc_shares;

AOTC_INLINE int64_t aotc_shares_start(const aotc_shares *shares, int64_t thread) {
    return aotc_share(shares->count, shares->unit, thread, shares->threads);
}

// Share `count` elements in whole units. All threads begin the same ranges in the same order; with
// `together`, the same for all, they help each other.
static aotc_shares aotc_shares_begin(const aotc_call *call, int32_t thread, int64_t count,
                                     int64_t unit, int together) {
    aotc_shares shares = {.count = count, .unit = unit, .thread = thread, .threads = call->threads};
    // A word counts the units of a share in 32 bits.
    if (!together || call->threads == 1 || count / unit > __UINT32_MAX__) {
        shares.at = aotc_shares_start(&shares, thread);
        return shares;
    }
    shares.pool = call->team;
    aotc_pool_slot *slot = &shares.pool->slots[thread];
    shares.turn = ++slot->turn;
    slot->helped = 0;
    __atomic_store_n(&slot->taken, (uint64_t)shares.turn << 32, __ATOMIC_RELEASE);
    return shares;
}

// The last piece is done: its owner may wait for it.
static void aotc_shares_done(aotc_shares *shares, aotc_pool_slot *slot) {
    if (shares->owner == 0) {
        shares->own += (uint32_t)shares->piece;
    } else if (shares->piece != 0) {
        __atomic_fetch_add(&slot->helped, (uint32_t)shares->piece, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&slot->waiting, __ATOMIC_SEQ_CST) != 0)
            aotc_system_call(AOTC_SYSTEM_FUTEX, (long)&slot->helped, AOTC_FUTEX_WAKE_PRIVATE,
                             0x7fffffff, 0);
    }
    shares->piece = 0;
}

// Take a piece: at most `most` elements, and of a share that others may take from a half of what is
// left, but not less than `least`; both are multiples of the unit, or `most` is __INT64_MAX__. Call it
// when the last piece is done. Returns 0 where nothing is left, and the thread's own share is done.
static int aotc_shares_take(aotc_shares *shares, int64_t least, int64_t most, int64_t *first,
                            int64_t *last) {
    if (!shares->pool) {
        const int64_t end = aotc_shares_start(shares, shares->thread + 1);
        if (shares->at >= end) return 0;
        *first = shares->at;
        *last = shares->at = end - *first < most ? end : *first + most;
        return 1;
    }
    for (; shares->owner < shares->threads; ++shares->owner) {
        const int32_t owner = (shares->thread + shares->owner) % shares->threads;
        aotc_pool_slot *slot = &shares->pool->slots[owner];
        aotc_shares_done(shares, slot);
        const int64_t begin = aotc_shares_start(shares, owner);
        const int64_t end = aotc_shares_start(shares, owner + 1);
        const int64_t units = (end - begin + shares->unit - 1) / shares->unit;
        uint64_t word = __atomic_load_n(&slot->taken, __ATOMIC_ACQUIRE);
        for (;;) {
            const int64_t at = (int64_t)(uint32_t)word;
            // In another turn it has not come here yet, or is done.
            if ((uint32_t)(word >> 32) != shares->turn || at >= units) break;
            int64_t size = ((units - at + 1) / 2 * shares->unit + least - 1) / least * least;
            if (size > most) size = most;
            const int64_t to = size / shares->unit < units - at ? at + size / shares->unit : units;
            if (!__atomic_compare_exchange_n(&slot->taken, &word, word + (uint64_t)(to - at), 1,
                                             __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
                continue;
            shares->piece = to - at;
            *first = begin + at * shares->unit;
            *last = to == units ? end : begin + to * shares->unit;
            return 1;
        }
        if (shares->owner == 0) shares->units = units;
    }
    // All of its share is taken, but others may be at it.
    aotc_pool_slot *mine = &shares->pool->slots[shares->thread];
    for (uint32_t helped; (helped = __atomic_load_n(&mine->helped, __ATOMIC_ACQUIRE)) !=
                          (uint32_t)shares->units - shares->own;)
        aotc_wait_change(shares->pool, &mine->helped, helped, &mine->waiting);
    return 0;
}
