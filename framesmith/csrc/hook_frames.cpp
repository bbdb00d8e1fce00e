// Frames for tracebacks of exceptions that captured code raised and caught: plain Python would have left some.
#include <Python.h>
#include <frameobject.h>

#include "frame.h"
#include "hook.h"

namespace framesmith {
namespace {

// A frame of the code that has come to the instruction at a byte offset and holds nothing but its globals.
PyObject* dead_frame(PyObject*, PyObject* args) {
  PyObject *code, *globals;
  int offset;
  if (!PyArg_ParseTuple(args, "O!O!i", &PyCode_Type, &code, &PyDict_Type, &globals, &offset)) return nullptr;
  auto* own = as<PyCodeObject>(code);
  const bool within = offset >= 0 && offset < _PyCode_NBYTES(own);
  if (!within) return PyErr_Format(PyExc_ValueError, "no instruction at %d", offset);
  PyFrameObject* made = PyFrame_New(PyThreadState_Get(), own, globals, nullptr);
  if (!made) return nullptr;
  Frame* frame = made->f_frame;
  frame->prev_instr = _PyCode_CODE(own) + offset / static_cast<int>(sizeof(_Py_CODEUNIT));
  // who asks for its locals finds the cells of a closure where a frame that has begun keeps them
  for (int i = own->co_nlocalsplus - own->co_nfreevars; i < own->co_nlocalsplus; i++) {
    frame->localsplus[i] = PyCell_New(nullptr);
    if (!frame->localsplus[i]) {
      Py_DECREF(made);
      return nullptr;
    }
  }
  return object_of(made);
}

PyMethodDef methods[] = {
    {"dead_frame", dead_frame, METH_VARARGS,
     "dead_frame(code, globals, offset): a frame that ended at an instruction, for a traceback."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int init_frames(PyObject* module) { return PyModule_AddFunctions(module, methods); }

}  // namespace framesmith
