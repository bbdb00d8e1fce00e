// The check of the thread's and the process's state under which a graph was captured.
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/PyInterpreter.h>

#include "guards_program.h"
#include "states.h"

namespace framesmith {
namespace {

struct Autocast {
  at::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
};

struct State : StepData {
  bool grad;
  bool inference;
  bool deterministic;
  at::impl::TorchFunctionDisabledState functions;
  at::ScalarType default_dtype;
  std::vector<Autocast> autocast;
  PyObject* device_mode = nullptr;  // the class of the mode that sets a default device, watched; null = none was set
  at::Device device{at::kCPU};
};

PyObject* device_name = nullptr;  // interned "device"

// No graph is captured under a user's function or dispatch mode or while `torch.jit.trace` records, so none may run
// then: its operators would not be seen. Only through the mode of `torch.set_default_device` capture goes.
bool modes_agree(const State& state) {
  const int64_t functions = at::impl::PythonTorchFunctionTLS::stack_len();
  if (at::impl::PythonTorchFunctionTLS::get_disabled_state() != state.functions) return false;
  if (c10::impl::TorchDispatchModeTLS::stack_len() != 0 || at::tracer::impl::is_dispatch_enabled()) return false;
  if (!state.device_mode || functions != 1) return !state.device_mode && functions == 0;
  PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(0)->ptr(getPyInterpreter());
  if (reinterpret_cast<PyObject*>(Py_TYPE(mode)) != state.device_mode) return false;
  PyObject* device = PyObject_GetAttr(mode, device_name);
  const bool same = device && THPDevice_Check(device) && reinterpret_cast<THPDevice*>(device)->device == state.device;
  Py_XDECREF(device);
  return same;
}

bool autocast_agrees(const Autocast& expected) {
  const bool enabled = at::autocast::is_autocast_enabled(expected.device);
  return enabled == expected.enabled &&
         (!enabled || at::autocast::get_autocast_dtype(expected.device) == expected.dtype);
}

bool globals_state(Step& step, Run&) {
  const auto& state = step.held<State>();
  if (c10::GradMode::is_enabled() != state.grad || c10::InferenceMode::is_enabled() != state.inference) return false;
  for (const Autocast& expected : state.autocast) {
    if (!autocast_agrees(expected)) return false;
  }
  return c10::get_default_dtype().toScalarType() == state.default_dtype &&
         at::globalContext().deterministicAlgorithms() == state.deterministic && modes_agree(state) &&
         !is_transformed();
}

bool read_dtype(PyObject* object, at::ScalarType* out) {
  if (!THPDtype_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%R is no torch dtype", object);
    return false;
  }
  *out = reinterpret_cast<THPDtype*>(object)->scalar_type;
  return true;
}

bool read_autocast(PyObject* rows, State* state) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
    const char* device;
    int enabled;
    PyObject* dtype;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "spO:autocast", &device, &enabled, &dtype)) return false;
    Autocast row{at::kCPU, enabled != 0, at::kFloat};
    if (enabled && !read_dtype(dtype, &row.dtype)) return false;
    try {
      row.device = c10::Device(device).type();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
      return false;
    }
    state->autocast.push_back(row);
  }
  return true;
}

// None, or (class of the mode, device).
bool read_device(PyObject* object, State* state, Holdings& holdings) {
  if (object == Py_None) return true;
  PyObject *type, *device;
  if (!PyArg_ParseTuple(object, "O!O:default_device", &PyType_Type, &type, &device)) return false;
  if (!THPDevice_Check(device)) {
    PyErr_Format(PyExc_TypeError, "%R is no torch device", device);
    return false;
  }
  if (!device_name) device_name = PyUnicode_InternFromString("device");
  state->device_mode = type;
  state->device = reinterpret_cast<THPDevice*>(device)->device;
  return device_name && holdings.watch(type);
}

// (grad, inference, autocast rows, default dtype, deterministic, default device, torch functions of subclasses).
bool prepare_state(Step& step, PyObject* payload, Holdings& holdings) {
  int grad, inference, deterministic, functions;
  PyObject *autocast, *dtype, *device;
  if (!PyArg_ParseTuple(payload, "ppO!OpOp:globals_state", &grad, &inference, &PyTuple_Type, &autocast, &dtype,
                        &deterministic, &device, &functions)) {
    return false;
  }
  auto& state = step.attach<State>();
  state.grad = grad;
  state.inference = inference;
  state.deterministic = deterministic;
  state.functions = functions ? at::impl::ENABLED : at::impl::SUBCLASSES_DISABLED;
  return read_dtype(dtype, &state.default_dtype) && read_autocast(autocast, &state) &&
         read_device(device, &state, holdings);
}

constexpr StepKind kinds[] = {{"globals_state", globals_state, prepare_state, Op::other, 1}};

}  // namespace

StepTable state_kinds() { return kinds; }

}  // namespace framesmith
