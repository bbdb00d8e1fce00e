// Accessors: the steps that walk from the frame to a value.
#include <optional>
#include "guards_dict.h"
#include "guards_program.h"
#include "hook_switch.h"

namespace framesmith {
namespace {

bool local(Step& step, Run& run) { return deliver(step, run, run.frame.local(step.index)); }

bool cell(Step& step, Run& run) {
  const FrameView& frame = run.frame;
  const Py_ssize_t at = frame.cell_index ? frame.cell_index[step.index] : step.index;
  if (!frame.closure || at >= PyTuple_GET_SIZE(frame.closure)) return false;
  return deliver(step, run, PyCell_GET(PyTuple_GET_ITEM(frame.closure, at)));
}

// A key whose hash or comparison may be user code.
bool runs_user_code(PyObject* key) { return !PyUnicode_CheckExact(key) && !PyLong_CheckExact(key); }

bool dict_item(Step& step, Run& run, PyObject* dict) {
  if (dict_version(dict) == step.version) return deliver(step, run, step.cached);
  std::optional<HookOff> off;
  if (runs_user_code(step.payload)) off.emplace();
  PyObject* value = PyDict_GetItemWithError(dict, step.payload);
  if (!value) {
    PyErr_Clear();
    return false;
  }
  step.version = dict_version(dict);
  step.cached = value;
  return deliver(step, run, value);
}

bool global(Step& step, Run& run) { return run.frame.globals && dict_item(step, run, run.frame.globals); }
bool builtin(Step& step, Run& run) { return run.frame.builtins && dict_item(step, run, run.frame.builtins); }

bool pinned(Step& step, Run& run) { return deliver(step, run, step.payload); }

bool dict_attr(Step& step, Run& run) {
  PyObject* dict = instance_dict(subject(step, run));
  return dict && dict_item(step, run, dict);
}

// The type's own lookup. User code may run in it (a property, `__getattr__`): not under the hook.
bool attr(Step& step, Run& run) {
  PyObject* object = subject(step, run);
  if (PyModule_CheckExact(object)) {
    PyObject* dict = PyModule_GetDict(object);
    if (dict && dict_item(step, run, dict)) return true;
  }
  HookOff off;
  return run.keep(PyObject_GetAttr(object, step.payload), &run.registers[step.dst]);
}

// (owner, name). The owner is watched, so it is alive whenever the step runs.
template <PyTypeObject* Type> bool prepare_owned(Step& step, PyObject* payload, Holdings& holdings) {
  PyObject *owner, *name;
  if (!PyArg_ParseTuple(payload, "O!U:owned", Type, &owner, &name) || !holdings.watch(owner)) return false;
  step.payload = holdings.hold(name);
  step.index = reinterpret_cast<Py_ssize_t>(owner);
  return true;
}

// A class's own descriptor in C, whatever the object's class finds under the name.
bool slot(Step& step, Run& run) {
  auto* cls = reinterpret_cast<PyTypeObject*>(step.index);
  PyObject* raw = _PyType_Lookup(cls, step.payload);
  const bool found = raw && (Py_IS_TYPE(raw, &PyMemberDescr_Type) || Py_IS_TYPE(raw, &PyGetSetDescr_Type)) &&
                     PyDescr_TYPE(raw) == cls;
  if (!found) return false;
  PyObject* object = subject(step, run);
  HookOff off;
  return run.keep(Py_TYPE(raw)->tp_descr_get(raw, object, object_of(Py_TYPE(object))), &run.registers[step.dst]);
}

bool item(Step& step, Run& run) {
  PyObject* object = subject(step, run);
  if (PyDict_Check(object)) return dict_item(step, run, object);
  const bool sized = PyList_Check(object) || PyTuple_Check(object);
  const Py_ssize_t size = sized ? Py_SIZE(object) : -1;
  const Py_ssize_t at = step.index < 0 ? step.index + size : step.index;
  if (at < 0 || at >= size) return false;
  return deliver(step, run, PyList_Check(object) ? PyList_GET_ITEM(object, at) : PyTuple_GET_ITEM(object, at));
}

// An OrderedDict has an order of its own, which changes without a change of the dict within it.
bool ordered_key(Step& step, Run& run, PyObject* dict) {
  PyObject* keys = PyODict_Type.tp_iter(dict);
  if (!keys) return false;
  PyObject* key = PyODictIter_Type.tp_iternext(keys);
  for (Py_ssize_t seen = 0; key && seen < step.index; seen++) Py_SETREF(key, PyODictIter_Type.tp_iternext(keys));
  Py_DECREF(keys);
  return run.keep(key, &run.registers[step.dst]);
}

bool dict_key(Step& step, Run& run) {
  PyObject* dict = subject(step, run);
  if (!PyDict_Check(dict)) return false;
  if (PyODict_Check(dict)) return ordered_key(step, run, dict);
  if (dict_version(dict) == step.version) return deliver(step, run, step.cached);
  Py_ssize_t position = 0, seen = 0;
  PyObject* key;
  while (PyDict_Next(dict, &position, &key, nullptr)) {
    if (seen++ == step.index) {
      step.version = dict_version(dict);
      step.cached = key;
      return deliver(step, run, key);
    }
  }
  return false;
}

bool type_of(Step& step, Run& run) { return deliver(step, run, object_of(Py_TYPE(subject(step, run)))); }

// What a function of ours makes of the value, anew at each check.
bool applied(Step& step, Run& run) {
  HookOff off;
  return run.keep(PyObject_CallOneArg(step.payload, subject(step, run)), &run.registers[step.dst]);
}

bool prepare_item(Step& step, PyObject* payload, Holdings& holdings) {
  if (!prepare_key(step, payload, holdings)) return false;
  step.index = PY_SSIZE_T_MIN;  // no index: out of the range of any list
  if (PyLong_CheckExact(payload)) {
    step.index = PyLong_AsSsize_t(payload);
    if (step.index == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      step.index = PY_SSIZE_T_MIN;
    }
  }
  return true;
}

bool module_global(Step& step, Run& run) {
  return dict_item(step, run, PyModule_GetDict(reinterpret_cast<PyObject*>(step.index)));
}

constexpr StepKind kinds[] = {
    {"local", local, prepare_index, Op::local, 0},
    {"cell", cell, prepare_index, Op::other, 0},
    {"global", global, prepare_held, Op::other, 0},
    {"builtin", builtin, prepare_held, Op::other, 0},
    {"module_global", module_global, prepare_owned<&PyModule_Type>, Op::other, 0},
    {"pinned", pinned, prepare_watched, Op::other, 0},
    {"made", pinned, prepare_held, Op::other, 0},
    {"attr", attr, prepare_held, Op::other, 0},
    {"slot", slot, prepare_owned<&PyType_Type>, Op::other, 0},
    {"dict_attr", dict_attr, prepare_held, Op::dict_attr, 0, Reach::attributes},
    {"item", item, prepare_item, Op::item, 0, Reach::content},
    {"dict_key", dict_key, prepare_index, Op::other, 0, Reach::content},
    {"type_of", type_of, prepare_nothing, Op::other, 0},
    {"applied", applied, prepare_held, Op::other, 0},
};

}  // namespace

StepTable access_kinds() { return kinds; }

}  // namespace framesmith
