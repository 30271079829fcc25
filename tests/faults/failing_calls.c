/* Fails system calls of a process on some of its files: preloaded (LD_PRELOAD), and steered through a page that it
 * shares with the test, so that a failure begins and ends while the process runs. Its layout is that of
 * process_faults.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, CREATE = 2, READ = 4, WRITE = 8, FLUSH = 16, REMOVE = 32, RENAME = 64, TRUNCATE = 128 };
enum { PARTS = 4, PART_BYTES = 64, ROOT_BYTES = 256 };

struct page {
    _Atomic int error; /* 0: nothing fails */
    _Atomic unsigned operations;
    _Atomic unsigned long hits;
    char root[ROOT_BYTES];              /* paths begin with it... */
    char parts[PARTS][PART_BYTES];      /* ...and have one of these in them... */
    char not_with[PART_BYTES];          /* ...but not this one, unless it is empty */
};

static struct page *page;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("KEROLOX_FAILING_CALLS");
    int fd = name == NULL ? -1 : open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED)
        page = found;
}

static int fails_path(unsigned operation, const char *path) {
    if (page == NULL || path == NULL)
        return 0;
    int error = atomic_load(&page->error);
    if (error == 0 || !(atomic_load(&page->operations) & operation) ||
        strncmp(path, page->root, strlen(page->root)) != 0)
        return 0;
    if (page->not_with[0] != 0 && strstr(path, page->not_with) != NULL)
        return 0;
    for (int part = 0; part < PARTS && page->parts[part][0] != 0; part++)
        if (strstr(path, page->parts[part]) != NULL) {
            atomic_fetch_add(&page->hits, 1);
            errno = error;
            return 1;
        }
    return 0;
}

static int fails_fd(unsigned operation, int fd) {
    if (page == NULL || atomic_load(&page->error) == 0)
        return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    return fails_path(operation, path);
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (next == NULL) \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static unsigned opened_for(const char *path, int flags) {
    struct stat found;
    if (flags & O_CREAT)
        return CREATE;
    if ((flags & O_ACCMODE) != O_RDONLY || (stat(path, &found) == 0 && S_ISDIR(found.st_mode)))
        return OPEN; /* a directory is opened to be flushed */
    return READ;
}

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        NEXT(name); \
        if (page != NULL && atomic_load(&page->error) != 0 && fails_path(opened_for(path, flags), path)) \
            return -1; \
        return next(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define ON_FD(type, name, operation, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        return fails_fd(operation, fd) ? -1 : next arguments; \
    }
ON_FD(ssize_t, pread64, READ, (int fd, void *into, size_t size, off64_t at), (fd, into, size, at))
ON_FD(ssize_t, preadv64v2, READ, (int fd, const struct iovec *to, int count, off64_t at, int flags),
      (fd, to, count, at, flags))
ON_FD(ssize_t, pwrite64, WRITE, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
ON_FD(ssize_t, pwritev64v2, WRITE, (int fd, const struct iovec *from, int count, off64_t at, int flags),
      (fd, from, count, at, flags))
ON_FD(ssize_t, write, WRITE, (int fd, const void *from, size_t size), (fd, from, size))
ON_FD(int, fsync, FLUSH, (int fd), (fd))
ON_FD(int, fdatasync, FLUSH, (int fd), (fd))

int ftruncate64(int fd, off64_t size) {
    NEXT(ftruncate64);
    struct stat now;
    unsigned operation = fstat(fd, &now) == 0 && size < now.st_size ? TRUNCATE : CREATE;
    return fails_fd(operation, fd) ? -1 : next(fd, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) { /* returns the error */
    NEXT(posix_fallocate64);
    return fails_fd(CREATE, fd) ? errno : next(fd, at, size);
}

#define ON_PATH(name, operation, parameters, arguments) \
    int name parameters { \
        NEXT(name); \
        return fails_path(operation, path) ? -1 : next arguments; \
    }
ON_PATH(mkdir, CREATE, (const char *path, mode_t mode), (path, mode))
ON_PATH(unlink, REMOVE, (const char *path), (path))
ON_PATH(rmdir, REMOVE, (const char *path), (path))
ON_PATH(rename, RENAME, (const char *path, const char *to), (path, to))
ON_PATH(link, RENAME, (const char *path, const char *to), (path, to))
