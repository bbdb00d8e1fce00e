// The hook's switch of this thread.
#pragma once

#include <Python.h>

namespace framesmith {

extern size_t frames_replaced;  // calls of residual code in this process; guarded by the GIL

// Sets this thread's callback (null = off) and returns the one before; references move. The eval function is installed
// while any thread has a callback or a pace, so that Python outside compiled calls runs at its full speed.
PyObject* exchange_callback(PyObject* callback);

// The thread has turned one of its uses of the eval function (a callback, a pace) on or off.
void count_active(bool before, bool now);

// Turns the hook off in this thread for a scope, such as Python code that framesmith itself runs.
class HookOff {
 public:
  HookOff() : saved_(exchange_callback(nullptr)) {}
  ~HookOff() { Py_XDECREF(exchange_callback(saved_)); }
  HookOff(const HookOff&) = delete;
  HookOff& operator=(const HookOff&) = delete;

 private:
  PyObject* saved_;
};

}  // namespace framesmith
