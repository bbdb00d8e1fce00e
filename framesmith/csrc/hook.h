// The frame hook's own parts, which its files share.
#pragma once

#include <Python.h>

#include <vector>

#include "guards.h"
#include "hook_switch.h"
#include "objects.h"

namespace framesmith {

// An object by identity, held weakly if it allows that: entries must not keep a user's callback and its closure alive.
class IdentityRef {
 public:
  IdentityRef() = default;
  explicit IdentityRef(PyObject* target);
  IdentityRef(IdentityRef&& other) noexcept : ref_(other.ref_), weak_(other.weak_) { other.ref_ = nullptr; }
  IdentityRef& operator=(IdentityRef&& other) noexcept;
  IdentityRef(const IdentityRef&) = delete;
  ~IdentityRef() { Py_XDECREF(ref_); }
  // Borrowed; null once the object is gone.
  PyObject* get() const;
  bool is(PyObject* other) const { return get() == other; }

 private:
  PyObject* ref_ = nullptr;
  bool weak_ = false;
};

// One compiled variant of a code object.
struct Entry {
  PyObject_HEAD
  PyObject* tree;      // GuardTree
  PyObject* code;      // the user's; borrowed (the entry lives in its slot), null once detached
  PyObject* residual;  // code object; null once the entry is dead
  PyObject* parked;    // a function of the residual code between two calls, without globals and closure; or null
  PyObject* info;      // the creator's; any object that doesn't keep the model alive
  IdentityRef callback;
  std::vector<int> local_index;  // the tree's local number i is argument local_index[i]
  std::vector<int> cell_index;   // the tree's cell number i is func.__closure__[cell_index[i]]
  size_t hits;
  bool graphless;  // nothing is computed: a tracer or profiler is to see the frame as it is
};
extern PyTypeObject* EntryType;

// What the hook does with a frame that no entry takes, as the callback decided once.
enum class Verdict : char { open, full, skip, skip_recursive, eager };

// What hangs on a code object. Reached only with the GIL.
struct CodeState {
  struct Decision {
    IdentityRef callback;
    Verdict verdict;
  };
  bool skip = false;  // never touched, whatever the callback
  bool continuation = false;  // its frames return their tail calls
  std::vector<Entry*> entries;
  std::vector<Decision> decisions;

  Verdict verdict(PyObject* callback) const;
  void decide(PyObject* callback, Verdict verdict);
  void add(Entry* entry);
  void promote(Entry* entry);
  void drop_dead();
  void reopen();  // a code object that was full has room again
  void clear();
  CodeState() = default;
  ~CodeState();
  CodeState(const CodeState&) = delete;
};

CodeState* find_state(PyCodeObject* code);
CodeState* state_of(PyCodeObject* code);  // makes it; null with an exception set

extern PyTypeObject* TailCallType;

// References that whoever calls a function of `code` gives up once its frame runs, so that what the frame lets go of
// dies there. (The frame has its own.)  Lives on the stack of the caller, who is this thread's innermost one.
class Handover {
 public:
  Handover(PyObject* code, PyObject** items, Py_ssize_t count)
      : code_(code), items_(items), count_(count), outer_(innermost) {
    innermost = this;
  }
  ~Handover() { innermost = outer_; }
  Handover(const Handover&) = delete;
  // A frame of `code` begins.
  static void begin(PyObject* code) {
    if (innermost && innermost->code_ == code) innermost->give();
  }

 private:
  void give();

  PyObject* code_;
  PyObject** items_;
  Py_ssize_t count_;
  Handover* outer_;
  static thread_local __attribute__((tls_model("initial-exec"))) Handover* innermost;
};

// Makes the tail calls that a result stands for (reference stolen); null passes through.
PyObject* finish_tail(PyObject* result);

int init_entries(PyObject* module);
int init_tail(PyObject* module);
int init_frames(PyObject* module);
int init_function(PyObject* module);
int init_pace(PyObject* module);
int init_openmp_team(PyObject* module);

}  // namespace framesmith
