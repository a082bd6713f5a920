/* The C ABI of an aotc program, version 3.
 *
 * A program for `cpu` is a shared object that needs no library, not even libc. A host (a C or C++
 * server, or aotc.runtime) maps it with dlopen, checks aotc_abi_version(), and calls it:
 *
 *   one thread       call.threads = 1, call.team = NULL; aotc_run(&call, 0).
 *   a team of T      pool memory of aotc_pool_bytes(T), aligned to AOTC_POOL_ALIGNMENT;
 *                    aotc_pool_init(pool, T); T - 1 host threads call aotc_pool_enter(pool, 1..T-1)
 *                    and stay inside. For each call, call.threads = T, call.team = pool;
 *                    aotc_pool_dispatch(pool, aotc_run, &call), the caller being thread 0.
 *                    At the end aotc_pool_stop(pool), and join the threads.
 *
 * The pool of any object of a version runs aotc_run of any object of that version: a server needs
 * one pool for all its programs. A pool takes one dispatch at a time.
 *
 * The host checks arguments against the program's contract; the program trusts them.
 */
#ifndef AOTC_ABI_H
#define AOTC_ABI_H

#define AOTC_ABI_VERSION 3
#define AOTC_WORKSPACE_ALIGNMENT 64
#define AOTC_POOL_ALIGNMENT 128
#define AOTC_COPY_PIECE (2 << 20)

/* Generated C is compiled without any header; its compiler gives the types. */
#if defined(__STDC_HOSTED__) && __STDC_HOSTED__ == 1
#include <stdint.h>
#else
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
#endif

#if defined(_WIN32)
#define AOTC_EXPORT
#else
#define AOTC_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One call of a program. Everything it points at stays valid until the call returns. */
typedef struct aotc_call {
    /* One pointer for each parameter of the contract, in order, aligned to its element type: to
     * the elements, contiguous and row-major unless `packed` says otherwise; for a scalar, to its
     * value. */
    void *const *arguments;
    /* One value for each symbol of the contract, in the order of its `symbols`. */
    const int64_t *symbols;
    /* Scratch of aotc_workspace_bytes() bytes, aligned to AOTC_WORKSPACE_ALIGNMENT; its contents
     * mean nothing before and after. Huge pages help. May be NULL where 0 bytes are asked. */
    void *workspace;
    /* The pool, where the program's barriers live; NULL for one thread. */
    void *team;
    /* The size of the team, at least 1: that of the pool. */
    int32_t threads;
    /* Zero. */
    int32_t reserved;
    /* One byte for each parameter: 1 where the argument is packed as the contract asks, by
     * aotc_pack, 0 where it is row-major. May be NULL where none is packed. Only a parameter whose
     * contract has `panels` may be packed; results are the same, bit for bit. */
    const uint8_t *packed;
} aotc_call;

typedef void (*aotc_run_function)(const aotc_call *call, int32_t thread);

/* The version of this ABI that the object was compiled for: AOTC_ABI_VERSION. */
AOTC_EXPORT int32_t aotc_abi_version(void);

/* The bytes of workspace that one call with these symbols and this team needs. */
AOTC_EXPORT int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads);

/* Run the program as thread `thread` of the team. Every thread 0..threads-1 enters. */
AOTC_EXPORT void aotc_run(const aotc_call *call, int32_t thread);

/* The bytes of memory for a pool of `threads`, which is at least 1. */
AOTC_EXPORT int64_t aotc_pool_bytes(int32_t threads);

/* Prepare `pool`, of aotc_pool_bytes(threads) bytes, before any thread enters it. */
AOTC_EXPORT void aotc_pool_init(void *pool, int32_t threads);

/* Serve dispatches as thread `thread`, 1..threads-1; return after aotc_pool_stop. */
AOTC_EXPORT void aotc_pool_enter(void *pool, int32_t thread);

/* Run `run` on every thread of the team, the caller as thread 0; return when all have returned.
 * Threads that have not entered yet are waited for. */
AOTC_EXPORT void aotc_pool_dispatch(void *pool, aotc_run_function run, const aotc_call *call);

/* Copy `*call->symbols` bytes from call->arguments[1] to call->arguments[0], which do not overlap:
 * an aotc_run_function. Pieces of AOTC_COPY_PIECE bytes go to the threads in turn, so fresh memory
 * is touched first, and placed, by all of the team, on a huge page each. Objects of before it was
 * there lack it. */
AOTC_EXPORT void aotc_copy(const aotc_call *call, int32_t thread);

/* Pack a matrix of bf16, call->arguments[1], row-major, into call->arguments[0], which has as many
 * bytes and does not overlap: an aotc_run_function. call->symbols are its rows, its columns, and
 * the `depth` of `panels` in the contract. With a depth, the columns are a multiple of 16 and the
 * rows of the depth; blocks of so many rows are packed each for itself. Without, 0, the rows are a
 * multiple of 16 and the columns of 128, and blocks of 16 rows are packed each for itself. */
AOTC_EXPORT void aotc_pack(const aotc_call *call, int32_t thread);

/* The reverse of aotc_pack: call->arguments[1] is packed, call->arguments[0] row-major. */
AOTC_EXPORT void aotc_unpack(const aotc_call *call, int32_t thread);

/* Make every aotc_pool_enter return. No dispatch may be running, and none may follow. */
AOTC_EXPORT void aotc_pool_stop(void *pool);

#ifdef __cplusplus
}
#endif

#endif
