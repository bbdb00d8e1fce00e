// Checks of tensors: metadata against precomputed values, and that storages are apart.
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "guards_program.h"
#include "guards_tensor.h"
#include "hook_switch.h"

namespace framesmith {
namespace {

constexpr int64_t any = -1;  // a size or stride that is not checked

struct TensorFacts : StepData {
  PyTypeObject* type = nullptr;  // watched
  uint64_t keys = 0;
  bool check_keys = false;
  bool requires_grad = false;
  bool plain = false;  // Tensor or Parameter: no user code answers for its metadata
  bool check_strides = false;
  at::ScalarType dtype{};
  at::Layout layout{};
  at::Device device{at::kCPU};
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

bool agree(at::IntArrayRef actual, const std::vector<int64_t>& expected) {
  if (actual.size() != expected.size()) return false;
  for (size_t i = 0; i < expected.size(); i++) {
    if (actual[i] != expected[i] && expected[i] != any) return false;
  }
  return true;
}

bool agree(const at::TensorImpl* impl, const TensorFacts& facts) {
  if (facts.check_keys && impl->key_set().raw_repr() != facts.keys) return false;
  return impl->dtype() == c10::scalarTypeToTypeMeta(facts.dtype) && agree(impl->sizes(), facts.sizes) &&
         impl->device() == facts.device && (facts.check_keys || impl->layout() == facts.layout) &&
         (!facts.check_strides || agree(impl->strides(), facts.strides)) &&
         impl->requires_grad() == facts.requires_grad;
}

bool tensor(Step& step, Run& run) {
  PyObject* object = subject(step, run);
  const auto& facts = step.held<TensorFacts>();
  if (Py_TYPE(object) != facts.type) return false;
  const at::TensorImpl* impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
  try {
    if (facts.plain) return agree(impl, facts);
    HookOff off;
    return agree(impl, facts);
  } catch (const std::exception&) {  // a subclass or symbolic tensor that refuses to tell
    return false;
  }
}

bool read_dims(PyObject* items, std::vector<int64_t>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
    PyObject* item = PyTuple_GET_ITEM(items, i);
    const int64_t value = item == Py_None ? any : PyLong_AsLongLong(item);
    if (PyErr_Occurred()) return false;
    if (value < 0 && item != Py_None) {
      PyErr_SetString(PyExc_ValueError, "sizes and strides are not negative");
      return false;
    }
    out->push_back(value);
  }
  return true;
}

bool read_kinds(TensorFacts& facts, PyObject* dtype, PyObject* device, PyObject* layout) {
  if (!THPDtype_Check(dtype) || !THPDevice_Check(device) || !THPLayout_Check(layout)) {
    PyErr_SetString(PyExc_TypeError, "a tensor guard wants a torch dtype, device and layout");
    return false;
  }
  facts.dtype = as<THPDtype>(dtype)->scalar_type;
  facts.device = as<THPDevice>(device)->device;
  facts.layout = as<THPLayout>(layout)->layout;
  return true;
}

// (type, dtype, device, layout, sizes, strides or None, requires_grad, dispatch keys or -1).
bool prepare_tensor(Step& step, PyObject* payload, Holdings& holdings) {
  PyObject *type, *dtype, *device, *layout, *sizes, *strides, *keys;
  int requires_grad;
  if (!PyArg_ParseTuple(payload, "O!OOOO!OpO:tensor", &PyType_Type, &type, &dtype, &device, &layout, &PyTuple_Type,
                        &sizes, &strides, &requires_grad, &keys)) {
    return false;
  }
  auto& facts = step.attach<TensorFacts>();
  facts.type = as<PyTypeObject>(type);
  if (!PyType_IsSubtype(facts.type, as<PyTypeObject>(THPVariableClass))) {
    PyErr_Format(PyExc_TypeError, "%R is no class of tensors", type);
    return false;
  }
  facts.plain = THPVariable_CheckTypeExact(facts.type);
  facts.requires_grad = requires_grad;
  facts.check_strides = strides != Py_None;
  facts.keys = PyLong_AsUnsignedLongLongMask(keys);
  facts.check_keys = facts.keys != ~uint64_t{0};
  return !PyErr_Occurred() && holdings.watch(type) && read_kinds(facts, dtype, device, layout) &&
         read_dims(sizes, &facts.sizes) && (!facts.check_strides || read_dims(strides, &facts.strides));
}

// ---- no_alias ----

struct Registers : StepData {
  std::vector<int> at;
};

bool prepare_registers(Step& step, PyObject* payload, Holdings&) {
  return read_registers(payload, &step.attach<Registers>().at);
}

// The memory of each tensor's storage as [begin, end); a tensor without memory aliases nothing.
bool no_alias(Step& step, Run& run) {
  using Span = std::pair<const char*, const char*>;
  c10::SmallVector<Span, 32> spans;
  for (int i : step.held<Registers>().at) {
    PyObject* object = run.registers[i];
    if (!THPVariable_Check(object)) return false;
    const at::TensorImpl* impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
    if (!impl->has_storage()) continue;
    const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    const char* begin = static_cast<const char*>(storage->data());
    const size_t bytes = storage->nbytes();
    if (begin && bytes) spans.emplace_back(begin, begin + bytes);
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); i++) {
    if (spans[i].first < spans[i - 1].second) return false;
  }
  return true;
}

constexpr StepKind kinds[] = {
    {"tensor", tensor, prepare_tensor, Op::other, 0},
    {"no_alias", no_alias, prepare_registers, Op::other, 6},
};

}  // namespace

StepTable tensor_kinds() { return kinds; }

bool tensor_dim(PyObject* object, bool stride, Py_ssize_t dim, int64_t* out) {
  if (!THPVariable_Check(object)) return false;
  const at::TensorImpl* impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
  if (impl->has_symbolic_sizes_strides()) return false;
  at::IntArrayRef dims = stride ? impl->strides() : impl->sizes();
  if (dim < 0 || static_cast<size_t>(dim) >= dims.size()) return false;
  *out = dims[dim];
  return true;
}

}  // namespace framesmith
