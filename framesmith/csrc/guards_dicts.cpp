// Checks of a dict, of an object's instance dict, of a namespace (a module's dict or a class) by its names, and that a
// function has the body and the defaults with which it was captured.

#include <algorithm>

#include "guards_dict.h"
#include "guards_program.h"
#include "hook_switch.h"

namespace framesmith {
namespace {

struct KeyList : StepData {
  std::vector<PyObject*> keys;  // held (constants) or watched (compared by identity)
  std::vector<bool> constant;
};

bool is_constant(PyObject* key) {
  return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyFloat_CheckExact(key) || PyBytes_CheckExact(key) ||
         PyBool_Check(key) || key == Py_None || PyTuple_CheckExact(key);
}

bool prepare_keys(Step& step, PyObject* payload, Holdings& holdings) {
  if (!PyTuple_Check(payload)) {
    PyErr_SetString(PyExc_TypeError, "the keys of a dict come as a tuple");
    return false;
  }
  auto& list = step.attach<KeyList>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(payload); i++) {
    PyObject* key = PyTuple_GET_ITEM(payload, i);
    const bool constant = is_constant(key);
    if (constant ? !holdings.hold(key) : !holdings.watch(key)) return false;
    list.keys.push_back(key);
    list.constant.push_back(constant);
  }
  return true;
}

bool same_key(const KeyList& list, size_t i, PyObject* key) {
  return key == list.keys[i] || (list.constant[i] && same_value(key, list.keys[i]) == 1);
}

// An OrderedDict has an order of its own: moving a key changes neither the dict beneath nor its version.
bool ordered_keys(const KeyList& list, PyObject* dict) {
  PyObject* keys = PyODict_Type.tp_iter(dict);
  bool same = keys != nullptr;
  for (size_t i = 0; same && i < list.keys.size(); i++) {
    PyObject* key = PyIter_Next(keys);
    same = key && same_key(list, i, key);
    Py_XDECREF(key);
  }
  Py_XDECREF(keys);
  PyErr_Clear();
  return same;
}

bool keys(Step& step, Run& run) {
  PyObject* dict = subject(step, run);
  if (!PyDict_Check(dict)) return false;
  const auto& list = step.held<KeyList>();
  const bool ordered = PyODict_Check(dict) && list.keys.size() > 1;
  if (!ordered && dict_version(dict) == step.version) return true;
  if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != list.keys.size()) return false;
  if (ordered) return ordered_keys(list, dict);
  Py_ssize_t position = 0;
  PyObject* key;
  for (size_t i = 0; PyDict_Next(dict, &position, &key, nullptr); i++) {
    if (!same_key(list, i, key)) return false;
  }
  step.version = dict_version(dict);
  return true;
}

// 1, 0, or -1 when the container is neither a dict nor a set.
int raw_contains(PyObject* container, PyObject* key) {
  HookOff off;
  int found = -1;
  if (PyDict_Check(container)) found = PyDict_Contains(container, key);
  if (PyAnySet_Check(container)) found = PySet_Contains(container, key);
  PyErr_Clear();
  return found;
}

template <int wanted> bool contains(Step& step, Run& run) {
  PyObject* container = subject(step, run);
  const bool dict = PyDict_Check(container);
  if (dict && dict_version(container) == step.version) return true;
  if (raw_contains(container, step.payload) != wanted) return false;
  if (dict) step.version = dict_version(container);
  return true;
}

template <int wanted> bool has_attribute(Step& step, Run& run) {
  PyObject* dict = instance_dict(subject(step, run));
  if (!dict) return !wanted;
  if (dict_version(dict) == step.version) return true;
  if (PyDict_Contains(dict, step.payload) != wanted) return false;
  step.version = dict_version(dict);
  return true;
}

struct Names : StepData {
  PyObject* owner = nullptr;  // a dict, a class or a function; null = the frame's own globals
  std::vector<std::pair<PyObject*, PyObject*>> values;  // name -> object, null for a name that must be absent

  bool read(PyObject* pairs, PyObject* missing, Holdings& holdings) {
    PyObject *name, *value;
    for (Py_ssize_t position = 0; PyDict_Next(pairs, &position, &name, &value);) {
      holdings.hold(name);
      const bool absent = value == missing;
      if (!absent && !holdings.watch(value)) return false;
      values.emplace_back(name, absent ? nullptr : value);
    }
    return true;
  }
};

bool same_names(Step& step, const Names& names, PyObject* dict) {
  if (dict_version(dict) == step.version) return true;
  for (auto [name, value] : names.values) {
    if (PyDict_GetItemWithError(dict, name) != value) return false;
  }
  step.version = dict_version(dict);
  return true;
}

// (dict or None for the frame's globals, module that owns the dict or None, {name: object}, marker of absent names).
bool prepare_dict_names(Step& step, PyObject* payload, Holdings& holdings) {
  PyObject *dict, *module, *pairs, *missing;
  if (!PyArg_ParseTuple(payload, "OOO!O:dict_names", &dict, &module, &PyDict_Type, &pairs, &missing)) return false;
  auto& names = step.attach<Names>();
  if (dict != Py_None) {
    // A module's dict lives as long as the module, which can be watched; a bare dict cannot.
    if (module != Py_None ? !holdings.watch(module) : !holdings.hold(dict)) return false;
    names.owner = dict;
  }
  return names.read(pairs, missing, holdings);
}

bool dict_names(Step& step, Run& run) {
  const auto& names = step.held<Names>();
  PyObject* dict = names.owner ? names.owner : run.frame.globals;
  return dict && same_names(step, names, dict);
}

bool prepare_class_names(Step& step, PyObject* payload, Holdings& holdings) {
  PyObject *type, *pairs, *missing;
  if (!PyArg_ParseTuple(payload, "O!O!O:class_names", &PyType_Type, &type, &PyDict_Type, &pairs, &missing))
    return false;
  auto& names = step.attach<Names>();
  names.owner = type;
  return holdings.watch(type) && names.read(pairs, missing, holdings);
}

// The version of a class and its bases as CPython's method cache keeps it; 0 = none.
uint64_t class_version(PyTypeObject* type) {
  return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? type->tp_version_tag : 0;
}

bool class_names(Step& step, Run&) {
  const auto& names = step.held<Names>();
  auto* type = as<PyTypeObject>(names.owner);
  const uint64_t version = class_version(type);
  if (version && version == step.version) return true;
  for (auto [name, value] : names.values) {
    if (_PyType_Lookup(type, name) != value) return false;
  }
  step.version = class_version(type);
  return true;
}

struct Function : Names {
  PyObject* code = nullptr;
  std::vector<PyObject*> defaults;  // watched, as the keywords' are: compared by identity
};

bool same_defaults(const std::vector<PyObject*>& expected, PyObject* defaults) {
  if (!defaults) return expected.empty();
  PyObject** items = as<PyTupleObject>(defaults)->ob_item;
  return std::equal(expected.begin(), expected.end(), items, items + PyTuple_GET_SIZE(defaults));
}

bool function(Step& step, Run&) {
  const auto& facts = step.held<Function>();
  const auto* now = as<PyFunctionObject>(facts.owner);
  if (now->func_code != facts.code || !same_defaults(facts.defaults, now->func_defaults)) return false;
  PyObject* keywords = now->func_kwdefaults;
  if (!keywords) return facts.values.empty();
  return static_cast<size_t>(PyDict_GET_SIZE(keywords)) == facts.values.size() && same_names(step, facts, keywords);
}

bool prepare_function(Step& step, PyObject* payload, Holdings& holdings) {
  if (!PyFunction_Check(payload)) {
    PyErr_Format(PyExc_TypeError, "%R is no function", payload);
    return false;
  }
  auto& facts = step.attach<Function>();
  const auto* now = as<PyFunctionObject>(payload);
  facts.owner = payload;
  facts.code = now->func_code;
  if (!holdings.watch(payload) || !holdings.watch(facts.code)) return false;
  for (Py_ssize_t i = 0; now->func_defaults && i < PyTuple_GET_SIZE(now->func_defaults); i++) {
    facts.defaults.push_back(PyTuple_GET_ITEM(now->func_defaults, i));
    if (!holdings.watch(facts.defaults.back())) return false;
  }
  return !now->func_kwdefaults || facts.read(now->func_kwdefaults, nullptr, holdings);
}

constexpr StepKind kinds[] = {
    {"keys", keys, prepare_keys, Op::other, 1, Reach::content},
    {"contains", contains<1>, prepare_key, Op::other, 1, Reach::content},
    {"not_contains", contains<0>, prepare_key, Op::other, 1, Reach::content},
    {"hasattr", has_attribute<1>, prepare_held, Op::other, 1, Reach::attributes},
    {"not_hasattr", has_attribute<0>, prepare_held, Op::other, 1, Reach::attributes},
    {"dict_names", dict_names, prepare_dict_names, Op::other, 2},
    {"class_names", class_names, prepare_class_names, Op::other, 2},
    {"function", function, prepare_function, Op::other, 2},
};

}  // namespace

StepTable dict_kinds() { return kinds; }

}  // namespace framesmith
