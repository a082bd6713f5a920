/* Runs an object for aarch64 without an operating system's loader or a C library:
 *
 *     host OBJECT JOB
 *
 * JOB is int64: threads, the number of symbols, that of arguments, the symbols, and where each
 * argument starts in the file. It is mapped, so that results go into it. */
#include "aotc_abi.h"

typedef struct header {
    unsigned char identity[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, segments, sections;
    uint32_t flags;
    uint16_t size, segment_size, segment_count, section_size, section_count, names;
} header;
typedef struct segment {
    uint32_t type, flags;
    uint64_t offset, address, physical, file_size, memory_size, align;
} segment;
typedef struct section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t align, entry_size;
} section;
typedef struct symbol {
    uint32_t name;
    unsigned char info, other;
    uint16_t index;
    uint64_t value, size;
} symbol;
typedef struct relocation {
    uint64_t offset, info;
    int64_t addend;
} relocation;

enum { LOAD = 1, RELA = 4, DYNSYM = 11 };
enum { ABS64 = 257, GLOB_DAT = 1025, JUMP_SLOT = 1026, RELATIVE = 1027 };
enum { OPENAT = 56, LSEEK = 62, EXIT_GROUP = 94, YIELD = 124, MMAP = 222 };

static long system_call(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

static void stop(int code) {
    system_call(EXIT_GROUP, code, 0, 0, 0, 0, 0);
    __builtin_unreachable();
}

static char *map(long bytes, int protection, int flags, int file) {
    long address = system_call(MMAP, 0, bytes ? bytes : 1, protection, flags, file, 0);
    if (address < 0 && address > -4096) stop(100);
    return (char *)address;
}

static char *anonymous(long bytes) { return map(bytes, 7, 0x22, -1); }

static char *map_file(const char *path, int shared) {
    long file = system_call(OPENAT, -100, (long)path, shared ? 2 : 0, 0, 0, 0);
    if (file < 0) stop(101);
    long bytes = system_call(LSEEK, file, 0, 2, 0, 0, 0);
    return map(bytes, 3, shared ? 1 : 2, (int)file);
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static char *image;
static const symbol *symbols;
static uint64_t symbol_count;
static const char *names;

static void load(const char *path) {
    const char *file = map_file(path, 0);
    const header *head = (const header *)file;
    const segment *segments = (const segment *)(file + head->segments);
    const section *sections = (const section *)(file + head->sections);
    uint64_t end = 0;
    for (int i = 0; i < head->segment_count; i++)
        if (segments[i].type == LOAD && segments[i].address + segments[i].memory_size > end)
            end = segments[i].address + segments[i].memory_size;
    image = anonymous((long)end);
    for (int i = 0; i < head->segment_count; i++)
        for (uint64_t at = 0; segments[i].type == LOAD && at < segments[i].file_size; at++)
            image[segments[i].address + at] = file[segments[i].offset + at];
    for (int i = 0; i < head->section_count; i++)
        if (sections[i].type == DYNSYM) {
            symbols = (const symbol *)(file + sections[i].offset);
            symbol_count = sections[i].size / sizeof(symbol);
            names = file + sections[sections[i].link].offset;
        }
    for (int i = 0; i < head->section_count; i++) {
        if (sections[i].type != RELA) continue;
        const relocation *all = (const relocation *)(file + sections[i].offset);
        for (uint64_t r = 0; r < sections[i].size / sizeof(relocation); r++) {
            char **place = (char **)(image + all[r].offset);
            const symbol *of = symbols + (all[r].info >> 32);
            switch ((uint32_t)all[r].info) {
            case RELATIVE: *place = image + all[r].addend; break;
            case ABS64:
            case GLOB_DAT:
            case JUMP_SLOT:
                if (of->index == 0) stop(102); /* the object needs a library */
                *place = image + of->value + all[r].addend;
                break;
            default: stop(103);
            }
        }
    }
}

static void *find(const char *name) {
    for (uint64_t i = 1; i < symbol_count; i++)
        if (symbols[i].index && same(names + symbols[i].name, name)) return image + symbols[i].value;
    stop(104);
    return 0;
}

/* Start a thread on a stack whose top holds a function and its argument. */
void start_thread(void *stack);
__asm__(".globl start_thread\n"
        "start_thread:\n"
        "    mov x1, x0\n"
        "    mov x0, #0x0f00\n"
        "    movk x0, #0x5, lsl #16\n"
        "    mov x2, #0\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    mov x8, #220\n"
        "    svc #0\n"
        "    cbz x0, 1f\n"
        "    ret\n"
        "1:  ldp x1, x0, [sp]\n"
        "    blr x1\n"
        "    mov x0, #0\n"
        "    mov x8, #93\n"
        "    svc #0\n");

static void *pool;
static int32_t left;
static void (*enter)(void *, int32_t);

static void thread_main(int64_t index) {
    enter(pool, (int32_t)index);
    __atomic_fetch_add(&left, 1, __ATOMIC_SEQ_CST);
}

__attribute__((used)) static void host_main(long *stack) {
    if (stack[0] != 3) stop(105);
    load((const char *)stack[2]);
    char *job = map_file((const char *)stack[3], 1);
    const int64_t *words = (const int64_t *)job;
    int32_t threads = (int32_t)words[0];
    const int64_t *values = words + 3, *starts = values + words[1];
    const int64_t *flags = starts + words[2];
    void *arguments[64];
    uint8_t packed[64];
    if (words[2] > 64) stop(106);
    for (int64_t i = 0; i < words[2]; i++) {
        arguments[i] = job + starts[i];
        packed[i] = (uint8_t)flags[i];
    }

    int32_t (*version)(void) = find("aotc_abi_version");
    if (version() != AOTC_ABI_VERSION) stop(107);
    int64_t (*workspace_bytes)(const int64_t *, int32_t) = find("aotc_workspace_bytes");
    aotc_run_function run = find("aotc_run");
    aotc_call call = {.arguments = arguments, .symbols = values, .threads = threads, .packed = packed};
    call.workspace = anonymous(workspace_bytes(values, threads));
    if (threads == 1) {
        run(&call, 0);
        stop(0);
    }
    int64_t (*pool_bytes)(int32_t) = find("aotc_pool_bytes");
    void (*init)(void *, int32_t) = find("aotc_pool_init");
    void (*dispatch)(void *, aotc_run_function, const aotc_call *) = find("aotc_pool_dispatch");
    void (*leave)(void *) = find("aotc_pool_stop");
    enter = find("aotc_pool_enter");
    pool = anonymous(pool_bytes(threads));
    init(pool, threads);
    for (int64_t i = 1; i < threads; i++) {
        int64_t *top = (int64_t *)(anonymous(1 << 20) + (1 << 20) - 64);
        top[0] = (int64_t)thread_main;
        top[1] = i;
        start_thread(top);
    }
    call.team = pool;
    dispatch(pool, run, &call);
    leave(pool);
    while (__atomic_load_n(&left, __ATOMIC_SEQ_CST) != threads - 1)
        system_call(YIELD, 0, 0, 0, 0, 0, 0);
    stop(0);
}

__asm__(".globl _start\n"
        "_start:\n"
        "    mov x0, sp\n"
        "    bl host_main\n");
