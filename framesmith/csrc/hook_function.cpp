// CompiledFunction: calls a function with a frame callback set in the calling thread.
#include <Python.h>
#include <structmember.h>

#include "guards_dict.h"
#include "hook.h"

namespace framesmith {
namespace {

struct CompiledFunction {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* callback;  // None = the hook is off during the call
  PyObject* dict;
  PyObject* weakrefs;
  // the first calls, in which no frame was replaced; kTold: one was, or the callback knows that none was
  int silent_calls;
};

constexpr int kTold = 4;

// What the program said by torch.compiler.set_stance: a global of two modules, ours and torch.compile's. The versions
// of three dicts say when to look again.
class Stance {
 public:
  bool forces_eager() {
    if (dict_version(modules_) != modules_version_ || ours_.changed() || theirs_.changed()) look();
    return eager_;
  }
  void watch(PyObject* modules) { modules_ = Py_NewRef(modules); }

 private:
  struct Module {
    const char* name;
    PyObject* names = nullptr;  // the module's dict, once there is one
    uint64_t version = 0;

    bool changed() const { return names && dict_version(names) != version; }
    bool forces_eager(PyObject* modules) {
      PyObject* module = PyDict_GetItemString(modules, name);
      Py_XSETREF(names, module && PyModule_Check(module) ? Py_NewRef(PyModule_GetDict(module)) : nullptr);
      if (names) version = dict_version(names);
      PyObject* stance = names ? PyDict_GetItemString(names, "_stance") : nullptr;
      PyObject* said = stance ? PyObject_GetAttrString(stance, "stance") : nullptr;
      const bool eager = said && PyUnicode_Check(said) && PyUnicode_CompareWithASCIIString(said, "force_eager") == 0;
      Py_XDECREF(said);
      PyErr_Clear();
      return eager;
    }
  };

  void look() {
    modules_version_ = dict_version(modules_);
    const bool ours = ours_.forces_eager(modules_), theirs = theirs_.forces_eager(modules_);
    eager_ = ours || theirs;
  }

  PyObject* modules_ = nullptr;  // sys.modules
  uint64_t modules_version_ = 0;
  Module ours_{"framesmith.util.dynamo"}, theirs_{"torch._dynamo.eval_frame"};
  bool eager_ = false;
} stance;

CompiledFunction* as_function(PyObject* self) { return as<CompiledFunction>(self); }

// Tells the callback of a function whose first calls replaced no frame. Gives `result`; null if that became an error.
PyObject* note_silence(PyObject* object, size_t before, PyObject* result) {
  CompiledFunction* self = as_function(object);
  self->silent_calls = frames_replaced == before ? self->silent_calls + 1 : kTold;
  if (frames_replaced != before || self->silent_calls < kTold ||
      !PyObject_HasAttrString(self->callback, "note_silence"))
    return result;
  HookOff off;
  PyObject* told = PyObject_CallMethod(self->callback, "note_silence", "O", object);
  if (!told) Py_CLEAR(result);
  Py_XDECREF(told);
  return result;
}

PyObject* call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  CompiledFunction* self = as_function(object);
  PyObject* callback = self->callback == Py_None || stance.forces_eager() ? nullptr : Py_NewRef(self->callback);
  const size_t before = frames_replaced;
  PyObject* saved = exchange_callback(callback);
  PyObject* result = PyObject_Vectorcall(self->function, args, nargsf, names);
  Py_XDECREF(exchange_callback(saved));
  if (__builtin_expect(self->silent_calls < kTold, 0))
    return result && callback ? note_silence(object, before, result) : result;
  return result;
}

// Takes over a plain function's name, doc and the like; of another callable just remembers it.
int wrap(PyObject* self, PyObject* function) {
  if (!PyFunction_Check(function)) return PyObject_SetAttrString(self, "__wrapped__", function);
  HookOff off;
  PyObject* functools = PyImport_ImportModule("functools");
  PyObject* done = functools ? PyObject_CallMethod(functools, "update_wrapper", "OO", self, function) : nullptr;
  Py_XDECREF(functools);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  const bool two = PyTuple_GET_SIZE(args) >= 2;
  PyObject *function = two ? PyTuple_GET_ITEM(args, 0) : Py_None, *callback = two ? PyTuple_GET_ITEM(args, 1) : Py_None;
  if (!PyCallable_Check(function) || (callback != Py_None && !PyCallable_Check(callback))) {
    PyErr_SetString(PyExc_TypeError, "CompiledFunction takes a callable and a frame callback");
    return nullptr;
  }
  // CPython 3.11 does not hand the flag down to classes written in Python.
  if (type->tp_call == PyVectorcall_Call) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  CompiledFunction* self = as_function(object);
  self->vectorcall = call;
  self->function = Py_NewRef(function);
  self->callback = Py_NewRef(callback);
  if (wrap(object, function) < 0) Py_CLEAR(object);
  return object;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  CompiledFunction* self = as_function(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->callback);
  Py_VISIT(self->dict);
  return 0;
}

// Leaves None, not null: a call may still arrive from another object of the same dead cycle.
int clear(PyObject* object) {
  CompiledFunction* self = as_function(object);
  Py_SETREF(self->function, Py_NewRef(Py_None));
  Py_SETREF(self->callback, Py_NewRef(Py_None));
  Py_CLEAR(self->dict);
  return 0;
}

void dealloc(PyObject* object) {
  CompiledFunction* self = as_function(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs) PyObject_ClearWeakRefs(object);
  Py_XDECREF(self->function);
  Py_XDECREF(self->callback);
  Py_XDECREF(self->dict);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<%s of %R>", Py_TYPE(self)->tp_name, as_function(self)->function);
}

// The function whose text the program wrote. Tools that read functions (TorchScript, torch.export) read that one.
PyObject* original(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__wrapped__"); }

PyObject* of_original(PyObject* self, void* name) {
  PyObject* function = original(self, nullptr);
  PyObject* found = function ? PyObject_GetAttrString(function, static_cast<const char*>(name)) : nullptr;
  Py_XDECREF(function);
  return found;
}

PyGetSetDef delegated(const char* name) { return {name, of_original, nullptr, nullptr, const_cast<char*>(name)}; }

PyMethodDef methods[] = {{"__prepare_scriptable__", original, METH_NOARGS, "What torch.jit.script takes instead."},
                         {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFunction, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFunction, weakrefs), READONLY, nullptr},
    {"function", T_OBJECT, offsetof(CompiledFunction, function), READONLY, "The callable that is called."},
    {"callback", T_OBJECT, offsetof(CompiledFunction, callback), READONLY, "The frame callback set while it runs."},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef fields[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                        delegated("__code__"), delegated("__globals__"), delegated("__closure__"),
                        delegated("__defaults__"), delegated("__kwdefaults__"),
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(create)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                       {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
                       {Py_tp_repr, reinterpret_cast<void*>(repr)},
                       {Py_tp_methods, methods},
                       {Py_tp_members, members},
                       {Py_tp_getset, fields},
                       {Py_tp_doc,
                        const_cast<char*>("CompiledFunction(function, callback): calls function with the frame "
                                          "callback set in the calling thread (None: with the hook off).")},
                       {0, nullptr}};
PyType_Spec spec = {"framesmith._C.CompiledFunction", sizeof(CompiledFunction), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

int init_function(PyObject* module) {
  stance.watch(PyImport_GetModuleDict());
  return add_type(module, &spec) ? 0 : -1;
}

}  // namespace framesmith
