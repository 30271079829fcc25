/* Definition of the Python module. */
#include "core.h"

#ifdef __linux__
#include <sys/uio.h>
#endif

#define FAST(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL

static PyMethodDef methods[] = {
    {"split_frames", FAST(split_frames), "See protocol/frame.py."},
    {"take_sends", FAST(take_sends), "See protocol/plain_sends.py."},
    {"signature_of", FAST(signature_of), "See protocol/signature.py."},
    {"queue_runs", FAST(queue_runs), "See store/dispatch/entries.py."},
    {"key_items", key_items, METH_O, "See store/dispatch/keys.py."},
    {"index_entries", FAST(index_entries), "See store/index/index_file.py."},
    {"log_runs", FAST(log_runs), "See store/dispatch/log_runs.py."},
    {"index_block", FAST(index_block), "See store/index/index_file.py."},
    {"read_records", FAST(read_records), "See protocol/record.py."},
    {"plain_records", FAST(plain_records), "See protocol/record_scan.py."},
    {"record_columns", FAST(record_columns), "See spark/record_columns.py."},
    {"record_starts", FAST(record_starts), "See spark/records.py."},
    {"record_faults", FAST(record_faults), "See spark/store/faults.py."},
    {"property_values", FAST(property_values), "See protocol/record.py."},
    {"scan_properties", scan_properties, METH_VARARGS, "See store/queue/property_scan.py."},
    {"entry_run", FAST(entry_run), "See store/queue/reading.py."},
#ifdef RWF_NOWAIT
    {"read_now", FAST(read_now), "See store/disk/files.py."},
    {"read_messages", FAST(read_messages), "See store/disk/files.py."},
#endif
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    CoreState *state = PyModule_GetState(module);
    fill_crc_table();
    choose_sha1();
    state->next_offset = PyUnicode_InternFromString("next_offset");
    if (!state->next_offset) return -1;
#define RULE_TEXT(name) #name,
    static const char *const rules[] = {RULES(RULE_TEXT)};
    for (int i = 0; i < RULE_COUNT; i++) {
        state->rules[i] = PyUnicode_InternFromString(rules[i]);
        if (!state->rules[i]) return -1;
    }
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    CoreState *state = PyModule_GetState(module);
    Py_VISIT(state->next_offset);
    for (int i = 0; i < RULE_COUNT; i++) Py_VISIT(state->rules[i]);
    return 0;
}

static int clear(PyObject *module) {
    CoreState *state = PyModule_GetState(module);
    Py_CLEAR(state->next_offset);
    for (int i = 0; i < RULE_COUNT; i++) Py_CLEAR(state->rules[i]);
    return 0;
}

static void end(void *module) { clear(module); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)start},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kerolox._core",
    .m_doc = "The hot core, compiled. Its twins in Python say what it does.",
    .m_size = sizeof(CoreState),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = end,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
