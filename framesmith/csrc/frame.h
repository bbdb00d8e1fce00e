// CPython's interpreter frame, as far as the hook touches it. All that depends on the Python version is in this file.
//
// Ownership, by version, of a frame given to an eval function:
//   3.11  the caller clears and pops the frame when the function returns;
//   3.12  the function itself must: `_PyEval_EvalFrameDefault` does so on return, and so do we when we run something
//         else instead.
#pragma once

#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000
#error "framesmith's frame hook knows CPython 3.11 and 3.12"
#endif

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#define FRAMESMITH_UNDEF_BUILD_CORE
#endif
extern "C" {
#undef _PyGC_FINALIZED
#undef HAVE_STD_ATOMIC  // C's <stdatomic.h> is not C++20's: CPython's headers take the compiler's built-ins instead
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
}
#ifdef FRAMESMITH_UNDEF_BUILD_CORE
#undef Py_BUILD_CORE
#undef FRAMESMITH_UNDEF_BUILD_CORE
#endif

#define FRAMESMITH_PY312 (PY_VERSION_HEX >= 0x030C0000)

namespace framesmith {

using Frame = _PyInterpreterFrame;

inline PyFunctionObject* frame_function(Frame* frame) {
#if FRAMESMITH_PY312
  return reinterpret_cast<PyFunctionObject*>(frame->f_funcobj);
#else
  return frame->f_func;
#endif
}

// Arguments in the order of co_varnames: positional, keyword-only, then *args and **kwargs if there.
inline int argument_count(const PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
         ((code->co_flags & CO_VARKEYWORDS) != 0);
}

// A frame about to run an ordinary function from its start: no class body or module (own locals mapping), no generator.
inline bool is_plain_call(const Frame* frame, int throwflag) {
  constexpr int optimized = CO_OPTIMIZED | CO_NEWLOCALS;
  constexpr int resumable = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  return !throwflag && (frame->f_code->co_flags & (optimized | resumable)) == optimized &&
         frame->owner == FRAME_OWNED_BY_THREAD && frame->f_locals == nullptr &&
         frame->prev_instr == _PyCode_CODE(frame->f_code) - 1;
}

#if FRAMESMITH_PY312
inline void pop_frame(PyThreadState* tstate, Frame* frame) {
  auto** base = reinterpret_cast<PyObject**>(frame);
  _PyStackChunk* chunk = tstate->datastack_chunk;
  if (base != &chunk->data[0]) {
    tstate->datastack_top = base;
    return;
  }
  _PyStackChunk* previous = chunk->previous;  // the root chunk is never popped: its first slot is never a frame
  tstate->datastack_top = &previous->data[previous->top];
  tstate->datastack_chunk = previous;
  PyObjectArenaAllocator arena;
  PyObject_GetArenaAllocator(&arena);
  arena.free(arena.ctx, chunk, chunk->size);
  tstate->datastack_limit = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(previous) + previous->size);
}
#endif

// Does what the eval function owes for a frame that it never started (so nothing can have made a frame object of it).
inline void discard_frame(PyThreadState* tstate, Frame* frame) {
#if FRAMESMITH_PY312
  tstate->c_recursion_remaining--;
  PyObject** locals = frame->localsplus;
  const int count = frame->stacktop;
  for (int i = 0; i < count; i++) Py_XDECREF(locals[i]);
  Py_XDECREF(frame->frame_obj);
  Py_XDECREF(frame->f_locals);
  Py_DECREF(frame->f_funcobj);
  Py_DECREF(frame->f_code);
  tstate->c_recursion_remaining++;
  pop_frame(tstate, frame);
#else
  (void)tstate;
  (void)frame;
#endif
}

// Room for our own calls at a depth at which the program's next one may be the last that the recursion limit allows.
class Headroom {
 public:
  explicit Headroom(PyThreadState* tstate) : remaining_(counter(tstate)) { remaining_ += extra; }
  ~Headroom() { remaining_ -= extra; }
  Headroom(const Headroom&) = delete;
  Headroom& operator=(const Headroom&) = delete;

 private:
  static constexpr int extra = 500;
  static int& counter(PyThreadState* tstate) {
#if FRAMESMITH_PY312
    return tstate->py_recursion_remaining;
#else
    return tstate->recursion_remaining;
#endif
  }
  int& remaining_;
};

// Whether a garbage collection is under way, perhaps within a C function that is not re-entrant, as `ast.parse` is not.
inline bool collecting(const PyThreadState* tstate) { return tstate->interp->gc.collecting != 0; }

inline Py_ssize_t request_code_slot(freefunc release) {
#if FRAMESMITH_PY312
  return PyUnstable_Eval_RequestCodeExtraIndex(release);
#else
  return _PyEval_RequestCodeExtraIndex(release);
#endif
}

inline void* code_slot(PyCodeObject* code, Py_ssize_t index) {
  void* extra = nullptr;
#if FRAMESMITH_PY312
  PyUnstable_Code_GetExtra(reinterpret_cast<PyObject*>(code), index, &extra);
#else
  _PyCode_GetExtra(reinterpret_cast<PyObject*>(code), index, &extra);
#endif
  return extra;
}

inline int set_code_slot(PyCodeObject* code, Py_ssize_t index, void* extra) {
#if FRAMESMITH_PY312
  return PyUnstable_Code_SetExtra(reinterpret_cast<PyObject*>(code), index, extra);
#else
  return _PyCode_SetExtra(reinterpret_cast<PyObject*>(code), index, extra);
#endif
}

}  // namespace framesmith
