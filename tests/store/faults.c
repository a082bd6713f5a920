// Preloaded into a process: counts its operations on files below one folder, and at one of them
// kills the process group, or makes it fail with an error, once or from then on.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct control {
    long count;        // operations so far
    long at;           // the one to fail, from 1; 0 for none
    int error;         // errno, or 0 to kill
    int sticky;        // all after it fail too
    int writes_only;   // operations that change nothing are not counted
    int refused;       // bits: calls that always fail with `error`, see REFUSE_*
    int leader;        // the process group to kill, whichever process of the build comes to `at`
    int unused;
    char prefix[4096]; // the folder
    char last[64];     // the name of the call that was made to fail
};
enum { REFUSE_RENAME = 1, REFUSE_FLOCK = 2, REFUSE_FCHMOD = 4, REFUSE_FOLDER_SYNC = 8, LOSE_RENAME = 16 };

static struct control *control;
static char tracked[1 << 16]; // by file descriptor: 1 where it is of the folder
static char folders[1 << 16];

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FAULTS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *memory = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED) control = memory;
}

static int inside(const char *path) {
    return control && path && control->prefix[0] &&
           strncmp(path, control->prefix, strlen(control->prefix)) == 0;
}
static int own(int file) { return control && file >= 0 && file < (1 << 16) && tracked[file]; }

static int fails(const char *name, int writes) {
    if (control->at == 0 || (control->writes_only && !writes)) return 0;
    long now = __atomic_add_fetch(&control->count, 1, __ATOMIC_SEQ_CST);
    if (now != control->at && !(control->sticky && now > control->at)) return 0;
    if (now == control->at) strncpy(control->last, name, sizeof control->last - 1);
    if (control->error == 0) {
        kill(-control->leader, SIGKILL);
        kill(0, SIGKILL);
        for (;;) pause();
    }
    errno = control->error;
    return 1;
}
static int refused(int which) {
    if (!control || !(control->refused & which)) return 0;
    errno = control->error;
    return 1;
}

#define REAL(name, result, ...)                                                                    \
    static result (*real)(__VA_ARGS__);                                                            \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        REAL(name, int, const char *, int, ...);                                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = va_arg(rest, mode_t);                                                        \
        va_end(rest);                                                                              \
        int mine = inside(path);                                                                   \
        if (mine && fails(#name, flags & (O_CREAT | O_WRONLY | O_RDWR))) return -1;                \
        int file = real(path, flags, mode);                                                        \
        if (file >= 0 && file < (1 << 16)) {                                                       \
            tracked[file] = mine;                                                                  \
            folders[file] = (flags & O_DIRECTORY) == O_DIRECTORY;                                  \
        }                                                                                          \
        return file;                                                                               \
    }
OPEN(open)
OPEN(open64)

#define ON_PATH(name, writes, result, failed, parameters, arguments, ...)                          \
    result name parameters {                                                                       \
        REAL(name, result, __VA_ARGS__);                                                           \
        if (inside(path) && fails(#name, writes)) return failed;                                   \
        return real arguments;                                                                     \
    }
#define ON_FILE(name, writes, result, parameters, arguments, ...)                                  \
    result name parameters {                                                                       \
        REAL(name, result, __VA_ARGS__);                                                           \
        if (own(file) && fails(#name, writes)) return -1;                                          \
        return real arguments;                                                                     \
    }
ON_PATH(mkdir, 1, int, -1, (const char *path, mode_t mode), (path, mode), const char *, mode_t)
ON_PATH(chmod, 1, int, -1, (const char *path, mode_t mode), (path, mode), const char *, mode_t)
ON_PATH(unlink, 1, int, -1, (const char *path), (path), const char *)
ON_PATH(rmdir, 1, int, -1, (const char *path), (path), const char *)
ON_PATH(opendir, 0, DIR *, NULL, (const char *path), (path), const char *)
ON_PATH(stat, 0, int, -1, (const char *path, struct stat *status), (path, status), const char *, struct stat *)
ON_PATH(stat64, 0, int, -1, (const char *path, struct stat64 *status), (path, status), const char *, struct stat64 *)
ON_PATH(lstat, 0, int, -1, (const char *path, struct stat *status), (path, status), const char *, struct stat *)
ON_PATH(lstat64, 0, int, -1, (const char *path, struct stat64 *status), (path, status), const char *, struct stat64 *)
ON_FILE(fstat, 0, int, (int file, struct stat *status), (file, status), int, struct stat *)
ON_FILE(fstat64, 0, int, (int file, struct stat64 *status), (file, status), int, struct stat64 *)
ON_FILE(read, 0, ssize_t, (int file, void *to, size_t size), (file, to, size), int, void *, size_t)
ON_FILE(write, 1, ssize_t, (int file, const void *from, size_t size), (file, from, size), int, const void *, size_t)

int fstatat(int folder, const char *path, struct stat *status, int flags) {
    REAL(fstatat, int, int, const char *, struct stat *, int);
    if ((inside(path) || own(folder)) && fails("fstatat", 0)) return -1;
    return real(folder, path, status, flags);
}
int fstatat64(int folder, const char *path, struct stat64 *status, int flags) {
    REAL(fstatat64, int, int, const char *, struct stat64 *, int);
    if ((inside(path) || own(folder)) && fails("fstatat64", 0)) return -1;
    return real(folder, path, status, flags);
}
int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat, int, int, const char *, const struct timespec *, int);
    if (inside(path) && fails("utimensat", 1)) return -1;
    return real(folder, path, times, flags);
}
int rename(const char *path, const char *to) {
    REAL(rename, int, const char *, const char *);
    if (inside(path) && refused(REFUSE_RENAME)) return -1;
    if (inside(path) && fails("rename", 1)) return -1;
    int result = real(path, to);
    // The answer of the server was lost, and the client asks again.
    if (result == 0 && inside(path) && refused(LOSE_RENAME)) return -1;
    return result;
}
int fsync(int file) {
    REAL(fsync, int, int);
    if (own(file) && folders[file] && refused(REFUSE_FOLDER_SYNC)) return -1;
    if (own(file) && fails("fsync", 1)) return -1;
    return real(file);
}
int fchmod(int file, mode_t mode) {
    REAL(fchmod, int, int, mode_t);
    if (own(file) && refused(REFUSE_FCHMOD)) return -1;
    if (own(file) && fails("fchmod", 1)) return -1;
    return real(file, mode);
}
int flock(int file, int operation) {
    REAL(flock, int, int, int);
    if (own(file) && refused(REFUSE_FLOCK)) return -1;
    if (own(file) && fails("flock", 1)) return -1;
    return real(file, operation);
}
int close(int file) {
    REAL(close, int, int);
    int mine = own(file);
    if (mine) tracked[file] = 0;
    int failed = mine && fails("close", 0);
    int error = errno;
    int result = real(file);
    if (!failed) return result;
    errno = error;
    return -1;
}
