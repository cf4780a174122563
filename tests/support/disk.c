/* A disk that loses power, as an LD_PRELOAD library for processes of one test.
 *
 * Writes pass through to the real files. For each file below RUNNEL_DISK_ROOT the library logs the writes since the
 * last sync, with the bytes before and after. After a power cut the test (disk.rs) applies these logs and so drops
 * writes that were not synced. The logs survive, because only the processes end.
 *
 * Model:
 * - fsync and fdatasync make the writes of their file durable. sync_file_range and msync do not count.
 * - A write through O_SYNC or O_DSYNC is durable at once.
 * - Created, removed and renamed names are durable after a sync of their directory. With `sync_keeps_name`, the first
 *   sync of a new file also keeps its name, as ext4, XFS and Btrfs do.
 * - A failed sync loses the writes before it for good, as Linux does: a later sync succeeds without them.
 * - Shared writable mappings are not modelled and abort. Files that end with "-shm" (the index of SQLite's log, which a
 *   start builds again) are not watched. Streams of stdio are not watched, because the C library writes them itself.
 *
 * System calls are made directly, so no name of the C library is resolved twice. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Shared by all processes of the disk and the test, which writes the first fields by their offset. */
struct control {
    uint32_t is_off;           /* every operation blocks */
    uint32_t ignores_syncs;    /* nothing becomes durable; checks the checker */
    uint32_t failing_syncs;    /* this many syncs fail with EIO */
    uint32_t write_error;      /* errno of each write and each change of a name */
    uint32_t operations_left;  /* the power goes off after this many operations; 0: never */
    uint32_t sync_keeps_name;
    uint32_t syncs;            /* successful syncs, for the test */
    uint32_t writes;           /* logged writes, for the test */
    uint32_t state;            /* of the mutex: 0 absent, 1 in creation, 2 ready */
    pthread_mutex_t mutex;
};

/* Header of a record in a file's log. Old bytes follow, then new bytes. */
struct record {
    uint32_t kind;
    uint32_t old_count;
    uint32_t new_count;
    uint32_t reserved;
    uint64_t offset;
    uint64_t old_length;
    uint64_t new_length;
};
enum { WRITE = 1, RESIZE, DURABLE_WRITE, SYNCED, LOST };

#define MAX_FILES 65536
static struct { bool is_watched, is_synchronous; } files[MAX_FILES];
static struct control *control;
static char root[PATH_MAX], logs[PATH_MAX];

#define real(name, ...) syscall(SYS_##name, __VA_ARGS__)

static void fail(const char *why) {
    dprintf(2, "disk: %s: %s\n", why, strerror(errno));
    abort();
}

__attribute__((constructor)) static void begin(void) {
    const char *watched = getenv("RUNNEL_DISK_ROOT"), *directory = getenv("RUNNEL_DISK_LOGS");
    if (!watched || !directory) return;
    snprintf(root, sizeof root, "%s", watched);
    snprintf(logs, sizeof logs, "%s", directory);
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/control", logs);
    int fd = real(openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) fail(path);
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) fail("control");
    real(close, fd);
    struct control *shared = mapped;
    uint32_t absent = 0;
    if (__atomic_compare_exchange_n(&shared->state, &absent, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&shared->mutex, &attributes);
        __atomic_store_n(&shared->state, 2, __ATOMIC_SEQ_CST);
    }
    while (__atomic_load_n(&shared->state, __ATOMIC_SEQ_CST) != 2) usleep(100);
    control = shared;
}

/* One operation at a time, in all processes: a log entry and its write belong together. */
static void lock_disk(void) {
    if (pthread_mutex_lock(&control->mutex) == EOWNERDEAD) pthread_mutex_consistent(&control->mutex);
    if (control->operations_left && --control->operations_left == 0) control->is_off = 1;
    if (!__atomic_load_n(&control->is_off, __ATOMIC_SEQ_CST)) return;
    pthread_mutex_unlock(&control->mutex);
    for (;;) pause();
}

static long unlock_disk(long result) {
    int error = errno;
    pthread_mutex_unlock(&control->mutex);
    errno = error;
    return result;
}

static long refuse(int error) {
    errno = error;
    return unlock_disk(-1);
}

/* The C library may close a file by itself, and its number may then be that of a socket. */
static bool is_watched(int fd) {
    struct stat status;
    return control && fd >= 0 && fd < MAX_FILES && files[fd].is_watched && fstat(fd, &status) == 0 &&
        (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

/* --- logs of files --- */

static void log_path(char *path, ino_t inode, const char *suffix) {
    snprintf(path, PATH_MAX, "%s/%llu%s", logs, (unsigned long long)inode, suffix);
}

static struct stat status_of(int fd) {
    struct stat status;
    if (fstat(fd, &status)) fail("fstat");
    return status;
}

static void append(ino_t inode, const struct record *record, const void *old, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    log_path(path, inode, ".log");
    int fd = real(openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) fail(path);
    struct iovec all[count + 2];
    all[0] = (struct iovec){(void *)record, sizeof *record};
    all[1] = (struct iovec){(void *)old, record->old_count};
    for (int n = 0; n < count; n++) all[n + 2] = parts[n];
    ssize_t expected = sizeof *record + record->old_count + record->new_count;
    if (real(writev, fd, all, count + 2) != expected) fail(path);
    real(close, fd);
}

/* Bytes from `offset`, at most `count`; the caller frees them. A file open for writing only is opened again. */
static void *read_old(int fd, uint64_t offset, uint64_t count) {
    char *old = malloc(count ? count : 1), path[64];
    int reading = fd;
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        reading = real(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    }
    for (uint64_t done = 0; done < count;) {
        ssize_t some = pread(reading, old + done, count - done, offset + done);
        if (some <= 0) fail("cannot read old bytes");
        done += some;
    }
    if (reading != fd) real(close, reading);
    return old;
}

static uint64_t smaller(uint64_t one, uint64_t other) { return one < other ? one : other; }

static void log_write(int fd, uint64_t offset, const struct iovec *parts, int count, uint64_t bytes) {
    struct stat status = status_of(fd);
    uint64_t length = status.st_size, old_count = offset < length ? smaller(bytes, length - offset) : 0;
    struct record record = {
        .kind = files[fd].is_synchronous ? DURABLE_WRITE : WRITE,
        .old_count = old_count,
        .new_count = bytes,
        .offset = offset,
        .old_length = length,
        .new_length = offset + bytes > length ? offset + bytes : length,
    };
    void *old = read_old(fd, offset, old_count);
    append(status.st_ino, &record, old, parts, count);
    free(old);
    control->writes++;
}

static void log_resize(int fd, uint64_t new_length) {
    struct stat status = status_of(fd);
    uint64_t length = status.st_size, old_count = new_length < length ? length - new_length : 0;
    struct record record = {
        .kind = RESIZE,
        .old_count = old_count,
        .offset = new_length,
        .old_length = length,
        .new_length = new_length,
    };
    void *old = read_old(fd, new_length, old_count);
    append(status.st_ino, &record, old, NULL, 0);
    free(old);
}

static void forget(ino_t inode) {
    char path[PATH_MAX];
    for (int n = 0; n < 2; n++) {
        log_path(path, inode, n ? ".lost" : ".log");
        real(unlinkat, AT_FDCWD, path, 0);
    }
}

static void mark(ino_t inode, uint32_t kind) { append(inode, &(struct record){.kind = kind}, NULL, NULL, 0); }

/* A file with lost writes keeps its log: the test needs the order of all writes. */
static void settle(ino_t inode) {
    char path[PATH_MAX];
    log_path(path, inode, ".lost");
    if (real(faccessat, AT_FDCWD, path, F_OK) == 0) mark(inode, SYNCED);
    else forget(inode);
}

static void lose(ino_t inode) {
    char path[PATH_MAX];
    log_path(path, inode, ".lost");
    real(close, real(openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    mark(inode, LOST);
}

/* --- names --- */

/* The absolute path of a name below the root, or of the root. The last part is not resolved: it may be absent. */
static bool resolve(int directory, const char *path, char *full) {
    if (!control || !path) return false;
    char start[PATH_MAX] = "", joined[2 * PATH_MAX];
    if (path[0] != '/' && directory != AT_FDCWD) {
        snprintf(joined, sizeof joined, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(joined, start, sizeof start - 2);
        if (length < 0) return false;
        start[length] = '/';
        start[length + 1] = 0;
    }
    snprintf(joined, sizeof joined, "%s%s", start, path);
    for (size_t end = strlen(joined); end > 1 && joined[end - 1] == '/'; end--) joined[end - 1] = 0;
    char *slash = strrchr(joined, '/'), *name = slash ? slash + 1 : joined, parent[PATH_MAX];
    char last[NAME_MAX + 1];
    snprintf(last, sizeof last, "%s", name);
    if (slash) *name = 0;
    int error = errno;
    bool is_found = realpath(slash ? joined : ".", parent) != NULL;
    errno = error;
    if (!is_found || snprintf(full, PATH_MAX, "%s/%s", parent, last) >= PATH_MAX) return false;
    size_t length = strlen(root), end = strlen(full);
    bool is_index = end > 4 && strcmp(full + end - 4, "-shm") == 0;
    return strncmp(full, root, length) == 0 && (full[length] == '/' || !full[length]) && !is_index;
}

static void names_path(char *path, const char *suffix) { snprintf(path, PATH_MAX, "%s/names%s", logs, suffix); }

/* `kind`, one or two paths below the root, and the link that keeps a removed file: fields of one line. */
static void log_name(const char *kind, const char *path, const char *from, const char *link) {
    char file[PATH_MAX], line[3 * PATH_MAX];
    names_path(file, "");
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\n", kind, path, from, link);
    int fd = real(openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || real(write, fd, line, length) != length) fail(file);
    real(close, fd);
}

/* Keeps the file of this name by a link next to the logs. The link's name, or empty without a file. */
static void keep(const char *path, char *link) {
    struct stat status;
    link[0] = 0;
    if (lstat(path, &status) || !S_ISREG(status.st_mode)) return;
    for (unsigned n = 0;; n++) {
        snprintf(link, PATH_MAX, "%s/removed-%llu-%u", logs, (unsigned long long)status.st_ino, n);
        if (real(linkat, AT_FDCWD, path, AT_FDCWD, link, 0) == 0) return;
        if (errno != EEXIST) fail(link);
    }
}

static void drop_link(const char *link) {
    struct stat status;
    if (!link[0]) return;
    if (lstat(link, &status) == 0 && status.st_nlink == 1) forget(status.st_ino);
    real(unlinkat, AT_FDCWD, link, 0);
}

/* Makes the names of a directory durable, or with `is_file` the creation of one file. */
static void settle_names(const char *settled, bool is_file) {
    char path[PATH_MAX], next[PATH_MAX], line[3 * PATH_MAX];
    names_path(path, "");
    names_path(next, ".next");
    FILE *old = fopen(path, "re");
    if (!old) return;
    FILE *new = fopen(next, "we");
    if (!new) fail(next);
    while (fgets(line, sizeof line, old)) {
        char fields[3 * PATH_MAX], *rest = fields;
        snprintf(fields, sizeof fields, "%s", line);
        fields[strcspn(fields, "\n")] = 0;
        char *kind = strsep(&rest, "\t"), *name = strsep(&rest, "\t");
        strsep(&rest, "\t");
        size_t length = strlen(settled);
        bool is_in = strncmp(name, settled, length) == 0 && strrchr(name, '/') == name + length;
        if (is_file ? strcmp(kind, "create") == 0 && strcmp(name, settled) == 0 : is_in) drop_link(rest);
        else fputs(line, new);
    }
    fclose(old);
    if (fclose(new) || real(renameat, AT_FDCWD, next, AT_FDCWD, path)) fail(path);
}

/* --- operations on open files --- */

static long write_at(int fd, const struct iovec *parts, int count, off_t offset) {
    uint64_t bytes = 0;
    for (int n = 0; n < count; n++) bytes += parts[n].iov_len;
    lock_disk();
    if (control->write_error) return refuse(control->write_error);
    off_t at = offset;
    if (offset < 0) at = fcntl(fd, F_GETFL) & O_APPEND ? status_of(fd).st_size : lseek(fd, 0, SEEK_CUR);
    log_write(fd, at, parts, count, bytes);
    if (offset < 0) return unlock_disk(real(writev, fd, parts, count));
    return unlock_disk(real(pwritev, fd, parts, count, (long)offset, 0L));
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (!is_watched(fd)) return real(write, fd, bytes, count);
    return write_at(fd, &(struct iovec){(void *)bytes, count}, 1, -1);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return is_watched(fd) ? write_at(fd, parts, count, -1) : real(writev, fd, parts, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    if (!is_watched(fd)) return real(pwrite64, fd, bytes, count, offset);
    return write_at(fd, &(struct iovec){(void *)bytes, count}, 1, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    if (!is_watched(fd)) return real(pwritev, fd, parts, count, (long)offset, 0L);
    return write_at(fd, parts, count, offset);
}

int ftruncate(int fd, off_t length) {
    if (!is_watched(fd)) return real(ftruncate, fd, length);
    lock_disk();
    if (control->write_error) return refuse(control->write_error);
    log_resize(fd, length);
    return unlock_disk(real(ftruncate, fd, length));
}

int fallocate(int fd, int mode, off_t offset, off_t count) {
    if (!is_watched(fd)) return real(fallocate, fd, mode, offset, count);
    if (mode) {
        errno = EOPNOTSUPP;
        return -1;
    }
    lock_disk();
    if (control->write_error) return refuse(control->write_error);
    if (offset + count > status_of(fd).st_size) log_resize(fd, offset + count);
    return unlock_disk(real(fallocate, fd, mode, offset, count));
}

int posix_fallocate(int fd, off_t offset, off_t count) { return fallocate(fd, 0, offset, count) ? errno : 0; }

/* The caller falls back to reads and writes. */
ssize_t copy_file_range(int from, off_t *from_offset, int to, off_t *to_offset, size_t count, unsigned flags) {
    if (!is_watched(to)) return real(copy_file_range, from, from_offset, to, to_offset, count, flags);
    errno = ENOSYS;
    return -1;
}

static int synced(int fd, long call) {
    if (!is_watched(fd)) return syscall(call, fd);
    lock_disk();
    struct stat status = status_of(fd);
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    if (control->failing_syncs) {
        if (control->failing_syncs != UINT32_MAX) control->failing_syncs--;
        if (S_ISREG(status.st_mode)) lose(status.st_ino);
        return refuse(EIO);
    }
    if (syscall(call, fd)) return unlock_disk(-1);
    control->syncs++;
    if (control->ignores_syncs) return unlock_disk(0);
    if (S_ISDIR(status.st_mode)) {
        settle_names(path, false);
    } else {
        settle(status.st_ino);
        if (control->sync_keeps_name) settle_names(path, true);
    }
    return unlock_disk(0);
}

int fsync(int fd) { return synced(fd, SYS_fsync); }

int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    if (is_watched(fd) && (flags & MAP_SHARED) && (protection & PROT_WRITE)) fail("a shared mapping is not modelled");
    return (void *)real(mmap, address, length, protection, flags, fd, offset);
}

/* --- open and close --- */

static int opened(int fd, int flags, bool is_below_root) {
    if (fd >= MAX_FILES) fail("too many files");
    if (fd < 0) return fd;
    files[fd].is_synchronous = flags & O_DSYNC;
    files[fd].is_watched = is_below_root;
    return fd;
}

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    bool is_below_root = resolve(directory, path, full);
    if (!is_below_root || ((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC))))
        return opened(real(openat, directory, path, flags, mode), flags, is_below_root);
    lock_disk();
    struct stat status;
    bool is_new = (flags & O_CREAT) && lstat(full, &status) != 0;
    if (control->write_error == EROFS || (control->write_error && is_new)) return refuse(control->write_error);
    /* Truncated below, after the old bytes are logged. */
    int fd = opened(real(openat, directory, path, flags & ~O_TRUNC, mode), flags, true);
    if (fd < 0) return unlock_disk(fd);
    status = status_of(fd);
    if (is_new) {
        /* The inode may have belonged to a removed file. */
        forget(status.st_ino);
        log_name("create", full, "", "");
    } else if ((flags & O_TRUNC) && S_ISREG(status.st_mode) && status.st_size) {
        log_resize(fd, 0);
        real(ftruncate, fd, 0L);
    }
    return unlock_disk(fd);
}

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; }

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_at(directory, path, flags, mode);
}

int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

int truncate(const char *path, off_t length) {
    int fd = open_at(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int result = ftruncate(fd, length), error = errno;
    close(fd);
    errno = error;
    return result;
}

int close(int fd) {
    if (fd >= 0 && fd < MAX_FILES) files[fd].is_watched = false;
    return real(close, fd);
}

/* --- names: create, remove, rename --- */

static int removed(int directory, const char *path, int flags) {
    char full[PATH_MAX], link[PATH_MAX];
    if (!resolve(directory, path, full)) return real(unlinkat, directory, path, flags);
    lock_disk();
    if (control->write_error == EROFS) return refuse(EROFS);
    keep(full, link);
    if (real(unlinkat, directory, path, flags)) {
        int error = errno;
        drop_link(link);
        return refuse(error);
    }
    log_name(flags & AT_REMOVEDIR ? "rmdir" : "remove", full, "", link);
    return unlock_disk(0);
}

int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }

int unlinkat(int directory, const char *path, int flags) { return removed(directory, path, flags); }

int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }

static int renamed(int directory, const char *from, int other, const char *to, unsigned flags) {
    char full[PATH_MAX], source[PATH_MAX], link[PATH_MAX];
    if (!resolve(other, to, full) || !resolve(directory, from, source))
        return real(renameat2, directory, from, other, to, flags);
    lock_disk();
    if (control->write_error) return refuse(control->write_error);
    keep(full, link);
    if (real(renameat2, directory, from, other, to, flags)) {
        int error = errno;
        drop_link(link);
        return refuse(error);
    }
    log_name("rename", full, source, link);
    return unlock_disk(0);
}

int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }

int renameat(int directory, const char *from, int other, const char *to) {
    return renamed(directory, from, other, to, 0);
}

int renameat2(int directory, const char *from, int other, const char *to, unsigned flags) {
    return renamed(directory, from, other, to, flags);
}

static int linked(int directory, const char *from, int other, const char *to, int flags) {
    char full[PATH_MAX];
    if (!resolve(other, to, full)) return real(linkat, directory, from, other, to, flags);
    lock_disk();
    if (control->write_error) return refuse(control->write_error);
    if (real(linkat, directory, from, other, to, flags)) return unlock_disk(-1);
    log_name("create", full, "", "");
    return unlock_disk(0);
}

int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int directory, const char *from, int other, const char *to, int flags) {
    return linked(directory, from, other, to, flags);
}

static int made(int directory, const char *path, mode_t mode) {
    char full[PATH_MAX];
    if (!resolve(directory, path, full)) return real(mkdirat, directory, path, mode);
    lock_disk();
    if (control->write_error) return refuse(control->write_error);
    if (real(mkdirat, directory, path, mode)) return unlock_disk(-1);
    log_name("create", full, "", "");
    return unlock_disk(0);
}

int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode); }

int mkdirat(int directory, const char *path, mode_t mode) { return made(directory, path, mode); }

/* --- the names of large files and of checked builds --- */

#define also(name, original) extern __typeof__(original) name __attribute__((alias(#original)))
also(open64, open);
also(openat64, openat);
also(__open_2, open);
also(__open64_2, open);
also(__openat_2, openat);
also(__openat64_2, openat);
also(creat64, creat);
also(pwrite64, pwrite);
also(pwritev64, pwritev);
also(ftruncate64, ftruncate);
also(truncate64, truncate);
also(fallocate64, fallocate);
also(posix_fallocate64, posix_fallocate);
also(mmap64, mmap);
