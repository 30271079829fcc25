/* Reading a queue: which entries lie together, which messages a filter takes, and bytes that are in memory. */
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

PyObject *entry_run(PyObject *module, PyObject *entries) {
    if (!PyBytes_CheckExact(entries)) {
        PyErr_SetString(PyExc_TypeError, "entry_run takes bytes");
        return NULL;
    }
    Py_ssize_t count = PyBytes_GET_SIZE(entries) / QUEUE_ENTRY_BYTES;
    const char *entry = PyBytes_AS_STRING(entries);
    long long first = 0, last = 0, end = 0, total = 0, step_max = 0;
    if (!count) Py_RETURN_NONE;
    for (Py_ssize_t number = 0; number < count; number++, entry += QUEUE_ENTRY_BYTES) {
        long long physical = get64(entry);
        int32_t size = (int32_t)get32(entry + 8);
        if (physical < 0 || size < 0 || (long long)get64(entry + 12) == HOLE_TAGS) Py_RETURN_NONE;
        if (!number) {
            first = physical;
        } else {
            if (physical <= last) Py_RETURN_NONE;
            if (physical - last > step_max) step_max = physical - last;
        }
        last = physical;
        end = physical > INT64_MAX - size ? INT64_MAX : physical + size;
        total += size;
    }
    return Py_BuildValue("(nLLLLL)", count, total, first, last, end, step_max);
}

#ifdef RWF_NOWAIT
enum { COPIED_AT_ONCE = 64 * 1024 };

/* What is in memory is copied so quickly that letting other threads run would take longer. */
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
#endif
