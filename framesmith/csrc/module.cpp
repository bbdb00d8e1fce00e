// `framesmith._C`: one module, six parts that register themselves, in order: the hook names types of the guards.
#include <Python.h>

int init_guards(PyObject* module);
int init_hook(PyObject* module);
int init_graph(PyObject* module);
int init_contract(PyObject* module);
int init_node(PyObject* module);
int init_states(PyObject* module);

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "framesmith._C", "The C++ core: guard trees, the frame hook, compiled graphs.", -1, nullptr,
    nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__C(void) {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  if (init_guards(module) < 0 || init_hook(module) < 0 || init_graph(module) < 0 || init_contract(module) < 0 ||
      init_node(module) < 0 || init_states(module) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
