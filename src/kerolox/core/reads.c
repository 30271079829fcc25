/* Reading of a queue: runs of entries, messages that pass a filter, and bytes that are in memory. */
#include "core.h"

#ifdef __linux__
#include <errno.h>
#include <sys/uio.h>
#endif

enum { SIFT_DONE, SIFT_ELSEWHERE, SIFT_UNKNOWN, SIFT_ODD };

PyObject *scan_properties(PyObject *module, PyObject *args) {
    PyObject *entries, *block, *names, *answers, *taken;
    Py_ssize_t number, count, count_max;
    long long block_at, floor_, size_bytes, bytes_max;
    if (!PyArg_ParseTuple(args, "SnSLLO!O!O!nnLL", &entries, &number, &block, &block_at, &floor_, &PyTuple_Type,
                          &names, &PyDict_Type, &answers, &PyList_Type, &taken, &count, &count_max, &size_bytes,
                          &bytes_max))
        return NULL;
    Py_ssize_t entry_count = PyBytes_GET_SIZE(entries) / QUEUE_ENTRY_BYTES, filtered = 0;
    long long block_end = block_at + PyBytes_GET_SIZE(block);
    int why = SIFT_DONE;
    if (number < 0) {
        PyErr_SetString(PyExc_ValueError, "scan_properties: entries are counted from 0");
        return NULL;
    }
    for (; number < entry_count; number++) {
        const char *entry = PyBytes_AS_STRING(entries) + number * QUEUE_ENTRY_BYTES;
        long long physical = get64(entry);
        int32_t size = (int32_t)get32(entry + 8);
        if (count && (count >= count_max || size_bytes + size > bytes_max)) break;
        if (physical < floor_ || size < RECORD_MIN) {
            why = SIFT_ODD;
            break;
        }
        if (physical < block_at || physical > block_end - size) {
            why = SIFT_ELSEWHERE;
            break;
        }
        const char *record = PyBytes_AS_STRING(block) + (physical - block_at);
        PyObject *values = values_of(record, size, names);
        if (!values) {
            if (PyErr_Occurred()) return NULL;
            why = SIFT_ODD;
            break;
        }
        PyObject *answer = PyDict_GetItemWithError(answers, values);
        Py_DECREF(values);
        if (!answer) {
            if (PyErr_Occurred()) return NULL;
            why = SIFT_UNKNOWN;
            break;
        }
        if (answer != Py_True) {
            filtered++;
            continue;
        }
        PyObject *copy = PyBytes_FromStringAndSize(record, size);
        if (!copy || PyList_Append(taken, copy) < 0) {
            Py_XDECREF(copy);
            return NULL;
        }
        Py_DECREF(copy);
        count++;
        size_bytes += size;
    }
    return Py_BuildValue("(nnLni)", number, count, size_bytes, filtered, why);
}

static const long long HOLE_TAGS = 0x6B65726F6C6F7865;

PyObject *entry_run(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 4 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "entry_run takes bytes of entries, a count, a size and a place");
        return NULL;
    }
    Py_ssize_t count = PyBytes_GET_SIZE(args[0]) / QUEUE_ENTRY_BYTES, count_max = PyLong_AsSsize_t(args[1]);
    long long bytes_max = PyLong_AsLongLong(args[2]), file_bytes = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (file_bytes <= 0) {
        PyErr_SetString(PyExc_ValueError, "entry_run: files have some bytes");
        return NULL;
    }
    const char *entry = PyBytes_AS_STRING(args[0]);
    long long first = 0, last = 0, end = 0, total = 0, step_max = 0, file_end = 0;
    Py_ssize_t number = 0;
    for (; number < count; number++, entry += QUEUE_ENTRY_BYTES) {
        long long physical = get64(entry);
        int32_t size = (int32_t)get32(entry + 8);
        if (physical < 0 || size < 0 || (long long)get64(entry + 12) == HOLE_TAGS) break;
        long long after = physical > INT64_MAX - size ? INT64_MAX : physical + size;
        if (!number) {
            first = physical;
            file_end = first / file_bytes > INT64_MAX / file_bytes - 1 ? INT64_MAX : (first / file_bytes + 1) * file_bytes;
        } else {
            if (physical <= last || number >= count_max || total + size > bytes_max || after > file_end) break;
            if (physical - last > step_max) step_max = physical - last;
        }
        last = physical;
        end = after;
        total += size;
    }
    if (!number) Py_RETURN_NONE;
    return Py_BuildValue("(nLLLLL)", number, total, first, last, end, step_max);
}

#ifdef RWF_NOWAIT
enum { COPIED_AT_ONCE = 64 * 1024 };

/* Reads bytes that are in memory. Small reads keep the GIL, because a switch of threads would take longer
 * than the copy. */
PyObject *read_now(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 3) return PyErr_Format(PyExc_TypeError, "read_now takes 3 arguments, got %zd", arg_count);
    int fd = (int)PyLong_AsLong(args[0]);
    Py_ssize_t size = PyLong_AsSsize_t(args[1]);
    long long offset = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    PyObject *data = PyBytes_FromStringAndSize(NULL, size);
    if (!data) return NULL;
    struct iovec place = {PyBytes_AS_STRING(data), (size_t)size};
    ssize_t got;
    int error;
    if (size <= COPIED_AT_ONCE) {
        got = preadv2(fd, &place, 1, offset, RWF_NOWAIT);
        error = errno;
    } else {
        Py_BEGIN_ALLOW_THREADS
        got = preadv2(fd, &place, 1, offset, RWF_NOWAIT);
        error = errno;
        Py_END_ALLOW_THREADS
    }
    if (got == size) return data;
    Py_DECREF(data);
    if (got >= 0 || error == EAGAIN || error == EINTR) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

enum { PIECES_MAX = 1024, GAP_MAX = 8 * 1024 };

/* Fills all of these pieces from an offset on. Returns 1; 0 if some bytes are not in memory or not in the
 * file; -1 with an error. */
static int fill_pieces(int fd, struct iovec *pieces, int count, long long offset, int flags) {
    while (count) {
        ssize_t got = preadv2(fd, pieces, count, offset, flags);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno == EAGAIN ? 0 : -1;
        if (!got) return 0;
        offset += got;
        while (count && (size_t)got >= pieces->iov_len) {
            got -= (ssize_t)pieces->iov_len;
            pieces++;
            count--;
        }
        if (got) {
            pieces->iov_base = (char *)pieces->iov_base + got;
            pieces->iov_len -= (size_t)got;
        }
    }
    return 1;
}

/* Copies messages to one place, without the bytes between them: reading a short gap costs less than
 * another call. */
static int gather_messages(int fd, const char *entry, Py_ssize_t count, long long base, char *to, int flags) {
    struct iovec pieces[PIECES_MAX];
    char passed_over[GAP_MAX];
    Py_ssize_t number = 0;
    while (number < count) {
        int used = 0, is_message = 0;
        long long begin = get64(entry), at = begin;
        for (; number < count && used + 2 <= PIECES_MAX; number++, entry += QUEUE_ENTRY_BYTES) {
            long long gap = (long long)get64(entry) - at;
            int32_t size = (int32_t)get32(entry + 8);
            if (gap < 0 || gap > GAP_MAX) break;
            if (gap) {
                pieces[used++] = (struct iovec){passed_over, (size_t)gap};
                is_message = 0;
            }
            if (is_message) {
                pieces[used - 1].iov_len += (size_t)size;
            } else {
                pieces[used++] = (struct iovec){to, (size_t)size};
                is_message = 1;
            }
            to += size;
            at += gap + size;
        }
        int done = fill_pieces(fd, pieces, used, begin - base, flags);
        if (done <= 0) return done;
    }
    return 1;
}

PyObject *read_messages(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 5 || !PyBytes_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "read_messages takes a file, entries, their count, a place and a wish");
        return NULL;
    }
    int fd = (int)PyLong_AsLong(args[0]), may_wait = PyObject_IsTrue(args[4]);
    Py_ssize_t count = PyLong_AsSsize_t(args[2]);
    long long base = PyLong_AsLongLong(args[3]), total = 0;
    if (PyErr_Occurred()) return NULL;
    if (count < 0 || count > PyBytes_GET_SIZE(args[1]) / QUEUE_ENTRY_BYTES) {
        PyErr_SetString(PyExc_ValueError, "read_messages: there are fewer entries");
        return NULL;
    }
    const char *entries = PyBytes_AS_STRING(args[1]);
    long long end = base;
    for (Py_ssize_t number = 0; number < count; number++) {
        const char *entry = entries + number * QUEUE_ENTRY_BYTES;
        int32_t size = (int32_t)get32(entry + 8);
        if (size < 0 || (long long)get64(entry) < end) {
            PyErr_SetString(PyExc_ValueError, "read_messages: entries have to lie one behind the other");
            return NULL;
        }
        end = (long long)get64(entry) + size;
        total += size;
    }
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!data) return NULL;
    char *to = PyBytes_AS_STRING(data);
    int done, error, flags = may_wait ? 0 : RWF_NOWAIT;
    if (total <= COPIED_AT_ONCE && !may_wait) {
        done = gather_messages(fd, entries, count, base, to, flags);
        error = errno;
    } else {
        Py_BEGIN_ALLOW_THREADS
        done = gather_messages(fd, entries, count, base, to, flags);
        error = errno;
        Py_END_ALLOW_THREADS
    }
    if (done > 0) return data;
    Py_DECREF(data);
    if (!done) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}
#endif
