// The check of the thread's and the process's state under which a graph was captured.
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/PyInterpreter.h>

#include "guards_program.h"
#include "states.h"

namespace framesmith {
namespace {

struct Autocast {
  at::DeviceType device;
  at::ScalarType dtype;
};

struct State : StepData {
  bool grad;
  bool inference;
  bool deterministic;
  at::impl::TorchFunctionDisabledState functions;
  at::ScalarType default_dtype;
  c10::DispatchKeySet autocast_keys, autocast_off;  // of the devices that are looked at; of those without autocast
  std::vector<Autocast> autocast;                   // where it is on
  PyObject* device_mode = nullptr;  // the class of the mode that sets a default device, watched; null = none was set
  at::Device device{at::kCPU};
};

PyObject* device_name = nullptr;  // interned "device"

// No graph is captured under a user's dispatch mode or function transform, nor while `torch.jit.trace` records, so none
// may run then: its operators would not be seen.
constexpr c10::DispatchKeySet kSeesOperators({c10::DispatchKey::Python, c10::DispatchKey::Tracer,
                                              c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                              c10::DispatchKey::VmapMode});

// Of function modes capture goes through that of `torch.set_default_device` alone.
bool function_modes_agree(const State& state) {
  const int64_t functions = at::impl::PythonTorchFunctionTLS::stack_len();
  if (at::impl::PythonTorchFunctionTLS::get_disabled_state() != state.functions) return false;
  if (!state.device_mode || functions != 1) return !state.device_mode && functions == 0;
  PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(0)->ptr(getPyInterpreter());
  if (reinterpret_cast<PyObject*>(Py_TYPE(mode)) != state.device_mode) return false;
  PyObject* device = PyObject_GetAttr(mode, device_name);
  const bool same = device && THPDevice_Check(device) && reinterpret_cast<THPDevice*>(device)->device == state.device;
  Py_XDECREF(device);
  return same;
}

// The dispatch keys of the thread stand for several flags, and are read once: to read what another library keeps for a
// thread is a call.
bool keys_agree(const State& state) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  if (keys.included_.has_any(kSeesOperators)) return false;
  if ((keys.excluded_ & state.autocast_keys) != state.autocast_off) return false;
  for (const Autocast& on : state.autocast) {
    if (at::autocast::get_autocast_dtype(on.device) != on.dtype) return false;
  }
  return true;
}

bool globals_state(Step& step, Run&) {
  const auto& state = step.held<State>();
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  return autograd.get_grad_mode() == state.grad && autograd.get_inference_mode() == state.inference &&
         keys_agree(state) && c10::get_default_dtype().toScalarType() == state.default_dtype &&
         at::globalContext().deterministicAlgorithms() == state.deterministic && function_modes_agree(state) &&
         !is_at_forward_level();
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
    Autocast on{at::kCPU, at::kFloat};
    if (enabled && !read_dtype(dtype, &on.dtype)) return false;
    try {
      on.device = c10::Device(device).type();
      const c10::DispatchKeySet key(at::autocast::get_autocast_dispatch_key_from_device_type(on.device));
      state->autocast_keys = state->autocast_keys | key;
      if (!enabled) state->autocast_off = state->autocast_off | key;
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
      return false;
    }
    if (enabled) state->autocast.push_back(on);
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
