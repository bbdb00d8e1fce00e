// Checks of one Python value: its type, identity, equality, length, truth.
#include <cstring>

#include "guards_program.h"
#include "hook_switch.h"

namespace framesmith {
namespace {

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

int same_items(PyObject* a, PyObject* b) {
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++) {
    const int same = same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
    if (same != 1) return same;
  }
  return 1;
}

}  // namespace

int same_value(PyObject* a, PyObject* b) {
  if (a == b) return 1;
  PyTypeObject* type = Py_TYPE(a);
  if (type != Py_TYPE(b)) return 0;
  if (type == &PyFloat_Type) return same_bits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (type == &PyComplex_Type) {
    const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return same_bits(x.real, y.real) && same_bits(x.imag, y.imag);
  }
  if (type == &PyTuple_Type) return same_items(a, b);
  if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBytes_Type)
    return PyObject_RichCompareBool(a, b, Py_EQ);
  HookOff off;
  return PyObject_RichCompareBool(a, b, Py_EQ);
}

namespace {

bool type_is(Step& step, Run& run) { return object_of(Py_TYPE(subject(step, run))) == step.payload; }
bool id_is(Step& step, Run& run) { return subject(step, run) == step.payload; }
bool none(Step& step, Run& run) { return subject(step, run) == Py_None; }
bool not_none(Step& step, Run& run) { return subject(step, run) != Py_None; }
bool equals(Step& step, Run& run) { return same_value(subject(step, run), step.payload) == 1; }

Py_ssize_t raw_length(PyObject* object) {
  if (PyList_Check(object) || PyTuple_Check(object)) return Py_SIZE(object);
  if (PyDict_Check(object)) return reinterpret_cast<PyDictObject*>(object)->ma_used;
  if (PyAnySet_Check(object)) return reinterpret_cast<PySetObject*>(object)->used;
  HookOff off;
  return PyObject_Size(object);
}

bool length(Step& step, Run& run) { return raw_length(subject(step, run)) == step.index; }

bool truth(Step& step, Run& run) {
  HookOff off;
  return PyObject_IsTrue(subject(step, run)) == step.index;
}

bool callable(Step& step, Run& run) {
  HookOff off;
  PyObject* answer = PyObject_CallOneArg(step.payload, step.src < 0 ? Py_None : subject(step, run));
  const bool holds = answer && PyObject_IsTrue(answer) == 1;
  Py_XDECREF(answer);
  return holds;
}

bool prepare_truth(Step& step, PyObject* payload, Holdings&) {
  step.index = PyObject_IsTrue(payload);
  return step.index >= 0;
}

// An object's class can be assigned to only where both are heap types or modules.
bool prepare_type(Step& step, PyObject* payload, Holdings& holdings) {
  if (PyType_Check(payload)) {
    auto* type = reinterpret_cast<PyTypeObject*>(payload);
    const bool fixed = !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyType_IsSubtype(type, &PyModule_Type);
    if (fixed) step.reach = Reach::identity;
  }
  return prepare_watched(step, payload, holdings);
}

// What equals such a value once always does.
bool is_immutable(PyObject* value) {
  return PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) || PyBool_Check(value) ||
         PyBytes_CheckExact(value) || PyComplex_CheckExact(value);
}

bool prepare_equals(Step& step, PyObject* payload, Holdings& holdings) {
  if (is_immutable(payload)) step.reach = Reach::identity;
  return prepare_held(step, payload, holdings);
}

constexpr StepKind kinds[] = {
    {"type", type_is, prepare_type, Op::type_is, 0},
    {"id", id_is, prepare_watched, Op::id_is, 0, Reach::identity},
    {"equals", equals, prepare_equals, Op::other, 0},
    {"none", none, prepare_nothing, Op::other, 0, Reach::identity},
    {"not_none", not_none, prepare_nothing, Op::other, 0, Reach::identity},
    {"len", length, prepare_index, Op::other, 0},
    {"bool", truth, prepare_truth, Op::other, 1, Reach::emptiness},
    {"callable", callable, prepare_held, Op::other, 30},
};

}  // namespace

StepTable value_kinds() { return kinds; }

}  // namespace framesmith
