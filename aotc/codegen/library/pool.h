/* The thread pool and the barrier of a team. Needs aotc_abi.h; no libc.
 *
 * Work comes in phases, counted by `release`. A phase begins when thread 0 raises `release`, and
 * thread t has finished it when it sets its `arrived` to that number. A dispatch is one phase, and
 * each barrier inside begins another. A wait spins for a while and then sleeps in the kernel.
 *
 * The layout is part of the ABI: one object's pool runs another object's code.
 */

#define AOTC_LINE 128 /* two cache lines: the prefetcher pairs them */

typedef struct aotc_pool_slot {
    _Alignas(AOTC_LINE) uint32_t arrived; /* written by the slot's thread */
    uint32_t awaited;                     /* thread 0 sleeps on `arrived` */
    uint32_t turn;                        /* how many ranges the thread has shared: shares.h */
    _Alignas(AOTC_LINE) uint64_t taken;   /* the turn, and the units of the share that are taken */
    uint32_t helped;                      /* units of it that other threads have done */
    uint32_t waiting;                     /* the slot's thread sleeps on `helped` */
} aotc_pool_slot;

typedef struct aotc_pool {
    _Alignas(AOTC_LINE) uint32_t release; /* written by thread 0 */
    uint32_t sleepers;                    /* threads that sleep on `release` */
    _Alignas(AOTC_LINE) aotc_run_function run; /* NULL: leave the pool */
    const aotc_call *call;
    uint64_t patience; /* ticks to spin before sleeping */
    int32_t crowded;   /* more threads than processors: yield instead of spinning */
    int32_t threads;
    aotc_pool_slot slots[];
} aotc_pool;

#if defined(__x86_64__)

static inline uint64_t aotc_ticks(void) { return __builtin_ia32_rdtsc(); }

/* About 50 us on the machines of today; the counter runs at their nominal clock. */
static inline uint64_t aotc_patience(void) { return 150000; }

static inline void aotc_relax(void) { __builtin_ia32_pause(); }

static inline long aotc_system_call(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = 0;
    register long r9 __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#define AOTC_SYSTEM_FUTEX 202
#define AOTC_SYSTEM_SCHED_GETAFFINITY 204
#define AOTC_SYSTEM_SCHED_YIELD 24

#elif defined(__aarch64__)

static inline uint64_t aotc_ticks(void) {
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}

static inline uint64_t aotc_patience(void) {
    uint64_t ticks_per_second;
    __asm__("mrs %0, cntfrq_el0" : "=r"(ticks_per_second));
    return ticks_per_second / 20000; /* 50 us */
}

static inline void aotc_relax(void) { __asm__ volatile("yield"); }

static inline long aotc_system_call(long number, long a, long b, long c, long d) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = 0;
    register long x5 __asm__("x5") = 0;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

#define AOTC_SYSTEM_FUTEX 98
#define AOTC_SYSTEM_SCHED_GETAFFINITY 123
#define AOTC_SYSTEM_SCHED_YIELD 124

#else
#error "aotc: no thread pool for this machine"
#endif

#define AOTC_FUTEX_WAIT_PRIVATE 128
#define AOTC_FUTEX_WAKE_PRIVATE 129

/* Return when `*word` is no longer `old`. */
static inline void aotc_wait_change(const aotc_pool *pool, uint32_t *word, uint32_t old,
                                    uint32_t *sleepers) {
    uint64_t start = aotc_ticks();
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == old) {
        if (aotc_ticks() - start < pool->patience) {
            if (pool->crowded)
                aotc_system_call(AOTC_SYSTEM_SCHED_YIELD, 0, 0, 0, 0);
            else
                aotc_relax();
            continue;
        }
        /* Sequential consistency: the other side stores `word`, then reads `sleepers`. Either it
         * sees this sleeper, or the kernel sees its store and does not let this thread sleep. */
        __atomic_fetch_add(sleepers, 1, __ATOMIC_SEQ_CST);
        aotc_system_call(AOTC_SYSTEM_FUTEX, (long)word, AOTC_FUTEX_WAIT_PRIVATE, (long)old, 0);
        __atomic_fetch_sub(sleepers, 1, __ATOMIC_SEQ_CST);
    }
}

static inline void aotc_announce(uint32_t *word, uint32_t value, uint32_t *sleepers) {
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(sleepers, __ATOMIC_SEQ_CST) != 0)
        aotc_system_call(AOTC_SYSTEM_FUTEX, (long)word, AOTC_FUTEX_WAKE_PRIVATE, 0x7fffffff, 0);
}

/* Thread 0: wait until every other thread has finished the phase. */
static inline void aotc_gather(aotc_pool *pool) {
    uint32_t phase = pool->release;
    for (int32_t thread = 1; thread < pool->threads; thread++) {
        aotc_pool_slot *slot = &pool->slots[thread];
        aotc_wait_change(pool, &slot->arrived, phase - 1, &slot->awaited);
    }
}

/* Thread 0: begin the next phase. */
static inline void aotc_release(aotc_pool *pool) {
    aotc_announce(&pool->release, pool->release + 1, &pool->sleepers);
}

/* Another thread: finish the phase, or wait for the next to begin. */
static inline void aotc_arrive(aotc_pool_slot *slot) {
    aotc_announce(&slot->arrived, slot->arrived + 1, &slot->awaited);
}

static inline void aotc_await_release(aotc_pool *pool, aotc_pool_slot *slot) {
    aotc_wait_change(pool, &pool->release, slot->arrived, &pool->sleepers);
}

/* Wait until every thread of the team is here. Each calls it equally often within a run. */
__attribute__((unused)) static void aotc_barrier(const aotc_call *call, int32_t thread) {
    if (call->threads == 1) return;
    aotc_pool *pool = (aotc_pool *)call->team;
    if (thread == 0) {
        aotc_gather(pool);
        aotc_release(pool);
    } else {
        aotc_arrive(&pool->slots[thread]);
        aotc_await_release(pool, &pool->slots[thread]);
    }
}

/* The number of processors that this thread may run on. */
static int32_t aotc_processors(void) {
    uint64_t mask[128]; /* the kernel fills what it counts in `bytes` */
    long bytes = aotc_system_call(AOTC_SYSTEM_SCHED_GETAFFINITY, 0, sizeof mask, (long)mask, 0);
    if (bytes <= 0) return 0x7fffffff; /* more processors than the mask holds */
    int32_t count = 0;
    for (long word = 0; word < bytes / 8; word++) count += __builtin_popcountll(mask[word]);
    return count;
}

int32_t aotc_abi_version(void) { return AOTC_ABI_VERSION; }

int64_t aotc_pool_bytes(int32_t threads) {
    return (int64_t)(sizeof(aotc_pool) + sizeof(aotc_pool_slot) * (uint64_t)threads);
}

void aotc_pool_init(void *memory, int32_t threads) {
    aotc_pool *pool = (aotc_pool *)memory;
    pool->release = 0;
    pool->sleepers = 0;
    pool->run = 0;
    pool->call = 0;
    pool->patience = aotc_patience();
    pool->crowded = threads > aotc_processors();
    pool->threads = threads;
    for (int32_t thread = 0; thread < threads; thread++) {
        pool->slots[thread].arrived = 0;
        pool->slots[thread].awaited = 0;
        pool->slots[thread].turn = 0;
        pool->slots[thread].taken = 0;
        pool->slots[thread].helped = 0;
        pool->slots[thread].waiting = 0;
    }
}

void aotc_pool_enter(void *memory, int32_t thread) {
    aotc_pool *pool = (aotc_pool *)memory;
    aotc_pool_slot *slot = &pool->slots[thread];
    for (;;) {
        aotc_await_release(pool, slot);
        if (!pool->run) return;
        pool->run(pool->call, thread);
        aotc_arrive(slot);
    }
}

void aotc_pool_dispatch(void *memory, aotc_run_function run, const aotc_call *call) {
    aotc_pool *pool = (aotc_pool *)memory;
    pool->run = run;
    pool->call = call;
    aotc_release(pool);
    run(call, 0);
    aotc_gather(pool);
}

void aotc_pool_stop(void *memory) {
    aotc_pool *pool = (aotc_pool *)memory;
    pool->run = 0;
    aotc_release(pool);
}

/* Stores go past the caches: what is copied is more than they hold. */
static void aotc_copy_piece(char *to, const char *from, int64_t bytes) {
    typedef uint64_t line __attribute__((vector_size(64)));
    typedef uint64_t unaligned_line __attribute__((vector_size(64), aligned(1)));
    int64_t at = 0;
    for (; at < bytes && (uintptr_t)(to + at) % sizeof(line) != 0; at++) to[at] = from[at];
    for (; at + (int64_t)sizeof(line) <= bytes; at += (int64_t)sizeof(line))
        __builtin_nontemporal_store((line)*(const unaligned_line *)(from + at), (line *)(to + at));
    for (; at < bytes; at++) to[at] = from[at];
}

void aotc_copy(const aotc_call *call, int32_t thread) {
    char *to = (char *)call->arguments[0];
    const char *from = (const char *)call->arguments[1];
    int64_t bytes = call->symbols[0];
    int64_t step = (int64_t)AOTC_COPY_PIECE * call->threads;
    for (int64_t at = (int64_t)AOTC_COPY_PIECE * thread; at < bytes; at += step)
        aotc_copy_piece(to + at, from + at,
                        bytes - at < AOTC_COPY_PIECE ? bytes - at : AOTC_COPY_PIECE);
    /* Stores past the caches are not ordered with those that tell of the end. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
