// What the guards without torch headers ask of a tensor.
#pragma once

#include <Python.h>

#include <cstdint>

namespace framesmith {

// A size (or stride) of a tensor; false if the object is no tensor with such a dimension.
bool tensor_dim(PyObject* object, bool stride, Py_ssize_t dim, int64_t* out);

}  // namespace framesmith
