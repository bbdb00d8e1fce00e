// Tail calls of residual code. A captured frame that goes on elsewhere returns a TailCall, it nests no call, and
// the caller of its root frame runs it: a loop that breaks at each iteration needs no deeper stack than plain Python.
#include <Python.h>

#include <cstddef>
#include <utility>

#include "frame.h"
#include "hook.h"

namespace framesmith {

PyTypeObject* TailCallType = nullptr;

namespace {

struct TailCall {
  PyObject_VAR_HEAD
  PyObject* after;     // null, or what is called when the call has returned
  PyObject* items[1];  // the callable and its positional arguments
};

TailCall* as_tail(PyObject* object) { return as<TailCall>(object); }

PyObject* create(PyObject*, PyObject* const* args, size_t nargsf, PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf), named = names ? PyTuple_GET_SIZE(names) : 0;
  if (count < 1 || named > 1 || (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "after") != 0)) {
    PyErr_SetString(PyExc_TypeError, "TailCall takes a callable and its positional arguments");
    return nullptr;
  }
  PyObject* object = TailCallType->tp_alloc(TailCallType, count);
  for (Py_ssize_t i = 0; object && i < count; i++) as_tail(object)->items[i] = Py_NewRef(args[i]);
  if (object && named) as_tail(object)->after = Py_NewRef(args[count]);
  return object;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(as_tail(object)->after);
  for (Py_ssize_t i = 0; i < Py_SIZE(object); i++) Py_CLEAR(as_tail(object)->items[i]);
  type->tp_free(object);
  Py_DECREF(type);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(as_tail(object)->after);
  for (Py_ssize_t i = 0; i < Py_SIZE(object); i++) Py_VISIT(as_tail(object)->items[i]);
  return 0;
}

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_doc,
                        const_cast<char*>("A call that the caller of a captured frame is to make in its place.")},
                       {0, nullptr}};
PyType_Spec spec = {"framesmith._C.TailCall", offsetof(TailCall, items), sizeof(PyObject*),
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

// Makes a tail call and what it goes on with, to the end.
PyObject* run(PyObject*, PyObject* call) {
  if (!Py_IS_TYPE(call, TailCallType)) return PyErr_Format(PyExc_TypeError, "run takes a TailCall, not %R", call);
  return finish_tail(Py_NewRef(call));
}

// Our own work in the middle of the program's: with the hook off, and whatever depth the program has come to.
PyObject* aside(PyObject*, PyObject* const* args, size_t nargsf, PyObject* names) {
  if (PyVectorcall_NARGS(nargsf) < 1) {
    PyErr_SetString(PyExc_TypeError, "aside takes a callable and its arguments");
    return nullptr;
  }
  HookOff off;
  Headroom headroom(PyThreadState_Get());
  return PyObject_Vectorcall(args[0], args + 1, PyVectorcall_NARGS(nargsf) - 1, names);
}

PyMethodDef methods[] = {
    {"tail_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(create)), METH_FASTCALL | METH_KEYWORDS,
     "tail_call(function, *args, after=None): the result of residual code that goes on with function(*args). When "
     "that has returned, not raised, after() is called."},
    {"run", run, METH_O, "run(call): the result of a tail call and of those that it returns.  It can be run once."},
    {"aside", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(aside)), METH_FASTCALL | METH_KEYWORDS,
     "aside(function, *args): the call, with the hook off and with room below the recursion limit."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

thread_local __attribute__((tls_model("initial-exec"))) Handover* Handover::innermost = nullptr;

void Handover::give() {
  const Py_ssize_t count = std::exchange(count_, 0);
  for (Py_ssize_t i = 0; i < count; i++) Py_CLEAR(items_[i]);
}

PyObject* finish_tail(PyObject* result) {
  while (result && Py_IS_TYPE(result, TailCallType)) {
    TailCall* tail = as_tail(result);
    PyObject* function = tail->items[0];
    const Py_ssize_t count = Py_SIZE(result) - 1;
    PyObject* next;
    {
      Handover handover(PyFunction_Check(function) ? PyFunction_GET_CODE(function) : nullptr, tail->items + 1, count);
      next = PyObject_Vectorcall(function, tail->items + 1, count, nullptr);
    }
    if (next && tail->after) {
      PyObject* done = PyObject_CallNoArgs(tail->after);
      Py_XDECREF(done);
      if (!done) Py_CLEAR(next);
    }
    Py_DECREF(result);
    result = next;
  }
  return result;
}

int init_tail(PyObject* module) {
  TailCallType = add_type(module, &spec);
  return TailCallType ? PyModule_AddFunctions(module, methods) : -1;
}

}  // namespace framesmith
