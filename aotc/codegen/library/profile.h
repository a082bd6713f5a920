/* What a profile build records: an event for each time that a thread runs a region. It is written
 * to memory of the caller, a row of int64 for each thread: the number of events that there were,
 * then as many of them as fit, AOTC_EVENT_WORDS each.
 */

#define AOTC_EVENT_WORDS 5 /* region, first and last tick, flops, bytes */

typedef struct aotc_profile {
    int64_t *count;
    int64_t *event;       /* the next */
    const int64_t *limit; /* the end of the last that fits */
    int64_t begin, flops, bytes;
} aotc_profile;

AOTC_INLINE aotc_profile aotc_profile_start(int64_t *memory, int64_t words, int32_t thread) {
    int64_t *row = memory + words * thread;
    row[0] = 0;
    return (aotc_profile){.count = row, .event = row + 1, .limit = row + words};
}

AOTC_INLINE void aotc_profile_count(aotc_profile *profile, int64_t flops, int64_t bytes) {
    profile->flops += flops;
    profile->bytes += bytes;
}

AOTC_INLINE void aotc_profile_begin(aotc_profile *profile) {
    profile->flops = profile->bytes = 0;
    profile->begin = (int64_t)aotc_ticks();
}

AOTC_INLINE void aotc_profile_end(aotc_profile *profile, int64_t region) {
    int64_t end = (int64_t)aotc_ticks();
    int64_t *event = profile->event;
    *profile->count += 1;
    if (event + AOTC_EVENT_WORDS > profile->limit) return;
    event[0] = region;
    event[1] = profile->begin;
    event[2] = end;
    event[3] = profile->flops;
    event[4] = profile->bytes;
    profile->event = event + AOTC_EVENT_WORDS;
}
