#include "states.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include "guards_dict.h"

namespace framesmith {

bool is_plain(const at::Tensor& t) {
  using c10::DispatchKey;
  using c10::DispatchKeySet;
  static const uint64_t plain = (DispatchKeySet({DispatchKey::Dense, DispatchKey::Conjugate, DispatchKey::Negative}) |
                                 DispatchKeySet(DispatchKeySet::RAW, c10::full_backend_mask) |
                                 c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset)
                                    .raw_repr();
  return !(t.key_set().raw_repr() & ~plain);
}

// The level of forward-mode AD is a global of torch.autograd.forward_ad, read anew when its module's dict has changed:
// asking the core instead would take a lock.
bool is_at_forward_level() {
  static PyObject* const module = PyImport_ImportModule("torch.autograd.forward_ad");
  static PyObject* const names = module ? PyModule_GetDict(module) : PyDict_New();
  static uint64_t version = 0;
  static bool found = false;
  if (dict_version(names) != version) {
    version = dict_version(names);
    PyObject* level = PyDict_GetItemString(names, "_current_level");
    found = level && PyLong_Check(level) && PyLong_AsLong(level) >= 0;
    PyErr_Clear();
  }
  return found;
}

bool is_transformed() {
  static constexpr c10::DispatchKeySet transforms(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::VmapMode});
  return c10::impl::tls_local_dispatch_key_set().included_.has_any(transforms) || is_at_forward_level();
}

namespace {

PyObject* py_is_plain(PyObject*, PyObject* tensor) {
  if (!THPVariable_Check(tensor)) return PyErr_Format(PyExc_TypeError, "%R is no tensor", tensor);
  return PyBool_FromLong(is_plain(THPVariable_Unpack(tensor)));
}

PyObject* py_is_transformed(PyObject*, PyObject*) { return PyBool_FromLong(is_transformed()); }

PyMethodDef functions[] = {
    {"is_plain", py_is_plain, METH_O, "Whether compiled code can read a tensor's numbers in its memory."},
    {"is_transformed", py_is_transformed, METH_NOARGS,
     "Whether this thread is in a function transform, or at a level of forward-mode AD."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace framesmith

int init_states(PyObject* module) { return PyModule_AddFunctions(module, framesmith::functions); }
