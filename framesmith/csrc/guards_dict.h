// Reading dicts without running user code. CPython's dict version tag, unique over all dicts and renewed by each
// change, makes a second look free: an equal tag means the same dict with the same content.
#pragma once

#include <Python.h>

#include <cstdint>

namespace framesmith {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
inline uint64_t dict_version(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }
#pragma GCC diagnostic pop

// The instance dict if the object has one made; borrowed, or null.
inline PyObject* made_dict(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    PyObject* dict = reinterpret_cast<PyObject**>(object)[-3];
#if PY_VERSION_HEX >= 0x030C0000
    if (reinterpret_cast<uintptr_t>(dict) & 1) return nullptr;  // tagged: inline values, no dict yet
#endif
    return dict;
  }
  const Py_ssize_t offset = type->tp_dictoffset;
  return offset > 0 ? *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset) : nullptr;
}

// The same, making it when the object keeps its attributes inline.
inline PyObject* instance_dict(PyObject* object) {
  if (PyObject* dict = made_dict(object)) return dict;
  PyObject** slot = _PyObject_GetDictPtr(object);
  return slot ? *slot : nullptr;
}

}  // namespace framesmith
