/* From bytes to frames: protocol/frame.py. */
#include "core.h"

PyObject *split_frames(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "split_frames takes 2 arguments, got %zd", count);
    long long bytes_max = PyLong_AsLongLong(args[1]);
    if (bytes_max == -1 && PyErr_Occurred()) return NULL;
    Py_buffer source;
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) return NULL;
    const char *data = source.buf;
    Py_ssize_t end = source.len, position = 0, needed = 8;
    PyObject *frames = PyList_New(0);
    if (!frames) goto failed;
    while (end - position >= 8) {
        int64_t length = (int32_t)get32(data + position);
        uint32_t mark = get32(data + position + 4);
        int64_t header_length = mark & 0xFFFFFF;
        if (length + 4 > bytes_max || length < 4 + header_length || header_length > HEADER_BYTES_MAX) {
            needed = -1;
            break;
        }
        if (length + 4 > end - position) {
            needed = (Py_ssize_t)(length + 4);
            break;
        }
        const char *header = data + position + 8;
        PyObject *frame = PyTuple_New(3);
        if (!frame) goto failed;
        PyTuple_SET_ITEM(frame, 0, PyLong_FromLong((long)(mark >> 24)));
        PyTuple_SET_ITEM(frame, 1, PyBytes_FromStringAndSize(header, (Py_ssize_t)header_length));
        PyTuple_SET_ITEM(
            frame, 2, PyBytes_FromStringAndSize(header + header_length, (Py_ssize_t)(length - 4 - header_length)));
        int bad = !PyTuple_GET_ITEM(frame, 0) || !PyTuple_GET_ITEM(frame, 1) || !PyTuple_GET_ITEM(frame, 2) ||
                  PyList_Append(frames, frame) < 0;
        Py_DECREF(frame);
        if (bad) goto failed;
        position += (Py_ssize_t)length + 4;
    }
    PyBuffer_Release(&source);
    return Py_BuildValue("(Nnn)", frames, position, needed);
failed:
    Py_XDECREF(frames);
    PyBuffer_Release(&source);
    return NULL;
}
