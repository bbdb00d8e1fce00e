// The check that a function was not given another body or other defaults since it was captured.
#include <memory>

#include "guards_dict.h"
#include "guards_program.h"

namespace framesmith {
namespace {

// Everything watched; a default is compared by identity.
struct Facts : StepData {
  PyFunctionObject* function = nullptr;
  PyObject* code = nullptr;
  std::vector<PyObject*> defaults;
  std::vector<std::pair<PyObject*, PyObject*>> keywords;
};

bool same_defaults(const Facts& facts) {
  PyObject* defaults = facts.function->func_defaults;
  const size_t count = defaults ? PyTuple_GET_SIZE(defaults) : 0;
  if (count != facts.defaults.size()) return false;
  for (size_t i = 0; i < count; i++) {
    if (PyTuple_GET_ITEM(defaults, i) != facts.defaults[i]) return false;
  }
  return true;
}

bool same_keywords(Step& step, const Facts& facts) {
  PyObject* keywords = facts.function->func_kwdefaults;
  if (!keywords) return facts.keywords.empty();
  if (dict_version(keywords) == step.version) return true;
  if (static_cast<size_t>(PyDict_GET_SIZE(keywords)) != facts.keywords.size()) return false;
  for (auto [name, value] : facts.keywords) {
    if (PyDict_GetItemWithError(keywords, name) != value) return false;
  }
  step.version = dict_version(keywords);
  return true;
}

bool function(Step& step, Run&) {
  const auto& facts = *static_cast<const Facts*>(step.data);
  return facts.function->func_code == facts.code && same_defaults(facts) && same_keywords(step, facts);
}

bool prepare_function(Step& step, PyObject* payload, Holdings& holdings) {
  if (!PyFunction_Check(payload)) {
    PyErr_Format(PyExc_TypeError, "%R is no function", payload);
    return false;
  }
  auto facts = std::make_unique<Facts>();
  auto* function = facts->function = reinterpret_cast<PyFunctionObject*>(payload);
  facts->code = function->func_code;
  if (!holdings.watch(payload) || !holdings.watch(facts->code)) return false;
  for (Py_ssize_t i = 0; function->func_defaults && i < PyTuple_GET_SIZE(function->func_defaults); i++) {
    facts->defaults.push_back(PyTuple_GET_ITEM(function->func_defaults, i));
    if (!holdings.watch(facts->defaults.back())) return false;
  }
  PyObject *name, *value;
  for (Py_ssize_t at = 0; function->func_kwdefaults && PyDict_Next(function->func_kwdefaults, &at, &name, &value);) {
    facts->keywords.emplace_back(holdings.hold(name), value);
    if (!holdings.watch(value)) return false;
  }
  step.data = facts.release();
  return true;
}

constexpr StepKind kinds[] = {{"function", function, prepare_function, Op::other, 2}};

}  // namespace

StepTable function_kinds() { return {kinds, std::size(kinds)}; }

}  // namespace framesmith
