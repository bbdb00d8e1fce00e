// What a guard tree refers to: objects it must not keep alive are watched through weak references.
#include "guards_program.h"

namespace framesmith {

PyMethodDef Holdings::death_method_ = {"on_death", Holdings::on_death, METH_O, nullptr};

// `self` is a capsule on the Holdings; it has a context once they have let go of their weak references, which live on
// where the collector holds them.
PyObject* Holdings::on_death(PyObject* self, PyObject*) {
  if (PyCapsule_GetContext(self)) Py_RETURN_NONE;
  auto* holdings = static_cast<Holdings*>(PyCapsule_GetPointer(self, nullptr));
  if (!holdings) return nullptr;
  holdings->notify_(holdings->arg_);
  Py_RETURN_NONE;
}

bool Holdings::watch(PyObject* object) {
  if (watched_.contains(object)) return true;
  if (!listener_) {
    PyObject* capsule = PyCapsule_New(this, nullptr, nullptr);
    // by which capture knows it from the program's own callbacks
    PyObject* module = PyUnicode_FromString("framesmith._C");
    listener_ = capsule && module ? PyCFunction_NewEx(&death_method_, capsule, module) : nullptr;
    Py_XDECREF(module);
    Py_XDECREF(capsule);
    if (!listener_) return false;
  }
  PyObject* ref = PyWeakref_NewRef(object, listener_);
  if (!ref) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
    PyErr_Clear();
    ref = Py_NewRef(object);
  }
  watched_.emplace(object, ref);
  return true;
}

PyObject* Holdings::hold(PyObject* object) {
  held_.push_back(Py_NewRef(object));
  return object;
}

int Holdings::traverse(visitproc visit, void* arg) {
  for (auto& [object, ref] : watched_) Py_VISIT(ref);
  for (PyObject* object : held_) Py_VISIT(object);
  Py_VISIT(listener_);
  return 0;
}

void Holdings::drop() {
  auto watched = std::move(watched_);
  auto held = std::move(held_);
  watched_.clear();
  held_.clear();
  if (listener_) PyCapsule_SetContext(PyCFunction_GET_SELF(listener_), listener_);
  for (auto& [object, ref] : watched) Py_DECREF(ref);
  for (PyObject* object : held) Py_DECREF(object);
  Py_CLEAR(listener_);
}

Holdings::~Holdings() { drop(); }

bool prepare_held(Step& step, PyObject* payload, Holdings& holdings) {
  step.payload = holdings.hold(payload);
  return true;
}

bool prepare_watched(Step& step, PyObject* payload, Holdings& holdings) {
  step.payload = payload;
  return holdings.watch(payload);
}

bool prepare_key(Step& step, PyObject* payload, Holdings& holdings) {
  const bool by_identity = Py_TYPE(payload)->tp_hash == PyBaseObject_Type.tp_hash;
  return by_identity ? prepare_watched(step, payload, holdings) : prepare_held(step, payload, holdings);
}

bool prepare_index(Step& step, PyObject* payload, Holdings&) {
  step.index = PyLong_AsSsize_t(payload);
  return !(step.index == -1 && PyErr_Occurred());
}

bool prepare_nothing(Step&, PyObject*, Holdings&) { return true; }

bool read_registers(PyObject* payload, std::vector<int>* out) {
  PyObject* items = PySequence_Fast(payload, "registers come as a list or tuple of int");
  if (!items) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
    const long at = PyLong_AsLong(PySequence_Fast_GET_ITEM(items, i));
    if (at == -1 && PyErr_Occurred()) break;
    out->push_back(static_cast<int>(at));
  }
  Py_DECREF(items);
  return !PyErr_Occurred();
}

}  // namespace framesmith
