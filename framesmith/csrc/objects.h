// What the parts over CPython's API share.
#pragma once

#include <Python.h>

namespace framesmith {

template <class T> T* as(PyObject* object) { return reinterpret_cast<T*>(object); }
template <class T> PyObject* object_of(T* object) { return reinterpret_cast<PyObject*>(object); }

// A new reference; None in place of null.
inline PyObject* optional(PyObject* object) { return Py_NewRef(object ? object : Py_None); }

// Makes a type and puts it into the module; null with an exception set.
inline PyTypeObject* add_type(PyObject* module, PyType_Spec* spec) {
  auto* type = as<PyTypeObject>(PyType_FromSpec(spec));
  return type && PyModule_AddType(module, type) == 0 ? type : nullptr;
}

}  // namespace framesmith
