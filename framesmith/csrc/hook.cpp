// The frame hook (PEP 523): runs a variant instead of a frame if its guards hold, else asks the thread's callback.
#include "frame.h"
#include "hook.h"
#include "pace.h"

#include <array>
#include <memory>
#include <utility>

namespace framesmith {

size_t frames_replaced = 0;

namespace {

struct ThreadHook {
  PyObject* callback;  // owned; null = off
  Frame* passing;      // the frame being handed to the eval function before ours
};
thread_local __attribute__((tls_model("initial-exec"))) ThreadHook thread_hook{nullptr, nullptr};

// A frame that the hook looks at.
struct Call {
  PyThreadState* tstate;
  Frame* frame;
  PyObject* callback;
  PyObject* result = nullptr;  // of a call that is done; null = exception
  CodeState* state = nullptr;
};

size_t total_hits = 0;                       // calls that an entry took, of all code objects; guarded by the GIL
int active_threads = 0;                      // uses of the hook in all threads; guarded by the GIL
_PyFrameEvalFunction previous_eval = nullptr;  // who was there before us; null = CPython's own
PyThreadState* collector = nullptr;            // the thread in whose collection Python runs, if that is known

// What a callback may return besides an entry and None.
struct Answer {
  const char *name, *text;
  Verdict verdict;
  PyObject* object;  // interned str
} answers[] = {{"SKIP", "skip", Verdict::skip, nullptr},
               {"SKIP_RECURSIVE", "skip_recursive", Verdict::skip_recursive, nullptr},
               {"FULL", "full", Verdict::full, nullptr},
               {"EAGER", "eager", Verdict::eager, nullptr}};

// Runs the frame as if we were not here. Another hook may have been installed before ours and again above it, and each
// hands on to the other; `passing` ends that circle.
PyObject* pass(PyThreadState* tstate, Frame* frame, int throwflag) {
  if (!previous_eval) return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
  Frame* saved = thread_hook.passing;
  thread_hook.passing = frame;
  PyObject* result = previous_eval(tstate, frame, throwflag);
  thread_hook.passing = saved;
  return result;
}

FrameView view_of(Frame* frame, const Entry* entry) {
  return {frame->localsplus, entry->local_index.data(), frame->f_globals, frame->f_builtins,
          frame_function(frame)->func_closure, entry->cell_index.data()};
}

// A function of the residual code in the frame's globals and closure. It is the entry's parked one if that is at hand.
PyObject* residual_function(Frame* frame, Entry* entry) {
  PyFunctionObject* original = frame_function(frame);
  PyObject* object = std::exchange(entry->parked, nullptr);
  auto* function = as<PyFunctionObject>(object);
  if (!object) {
    object = PyFunction_NewWithQualName(entry->residual, frame->f_globals, original->func_qualname);
    if (!object) return nullptr;
    function = as<PyFunctionObject>(object);
  } else {
    function->func_globals = Py_NewRef(frame->f_globals);
    function->func_builtins = Py_NewRef(frame->f_builtins);
  }
  if (as<PyCodeObject>(entry->residual)->co_nfreevars) function->func_closure = Py_XNewRef(original->func_closure);
  return object;
}

// Keeps the function for the next call, without what would keep the user's globals or closure alive. One that somebody
// else holds (a frame in a traceback) is left to them.
void park(Entry* entry, PyObject* object) {
  if (Py_REFCNT(object) != 1 || entry->parked || !entry->residual) {
    Py_DECREF(object);
    return;
  }
  auto* function = as<PyFunctionObject>(object);
  entry->parked = object;
  PyObject* globals = std::exchange(function->func_globals, nullptr);
  PyObject* builtins = std::exchange(function->func_builtins, nullptr);
  PyObject* closure = std::exchange(function->func_closure, nullptr);
  Py_XDECREF(closure);
  Py_XDECREF(builtins);
  Py_XDECREF(globals);
}

// Calls the residual function on the frame's arguments, which it gives up, and the graph inputs (reference stolen).
PyObject* call_residual(Frame* frame, Entry* entry, PyObject* inputs) {
  frames_replaced++;
  PyObject* function = residual_function(frame, entry);
  if (!function) {
    Py_DECREF(inputs);
    return nullptr;
  }
  const int count = argument_count(frame->f_code);
  std::array<PyObject*, 24> small;
  std::unique_ptr<PyObject*[]> large;
  PyObject** args = small.data();
  if (static_cast<size_t>(count) >= small.size()) {
    large.reset(new PyObject*[count + 1]);
    args = large.get();
  }
  for (int i = 0; i < count; i++) args[i] = frame->localsplus[i];
  args[count] = inputs;
  PyObject* result;
  {
    Handover handover(entry->residual, frame->localsplus, count);
    result = PyObject_Vectorcall(function, args, count + 1, nullptr);
  }
  park(entry, function);
  Py_DECREF(inputs);
  return result;
}

// Values by the names from `first` on of the frame's code, but for those that are null.
PyObject* by_name(Frame* frame, int first, PyObject* const* values, int count) {
  PyObject* out = PyDict_New();
  for (int i = 0; out && i < count; i++) {
    PyObject* name = PyTuple_GET_ITEM(frame->f_code->co_localsplusnames, first + i);
    if (values[i] && PyDict_SetItem(out, name, values[i]) < 0) Py_CLEAR(out);
  }
  return out;
}

// The frame's arguments, in the order of co_varnames.
PyObject* named_arguments(Frame* frame) {
  return by_name(frame, 0, frame->localsplus, argument_count(frame->f_code));
}

// The function's closure cells.
PyObject* named_cells(Frame* frame) {
  auto* closure = as<PyTupleObject>(frame_function(frame)->func_closure);
  const int count = closure ? frame->f_code->co_nfreevars : 0;
  return by_name(frame, frame->f_code->co_nlocalsplus - count, closure ? closure->ob_item : nullptr, count);
}

// The callback's answer for a frame that no entry takes, as a new reference.
PyObject* ask_callback(Frame* frame, PyObject* callback) {
  PyObject* locals = named_arguments(frame);
  if (!locals) return nullptr;
  HookOff off;
  Headroom headroom(PyThreadState_Get());
  PyObject* answer = PyObject_CallFunctionObjArgs(callback, object_of(frame->f_code),
                                                  object_of(frame_function(frame)), locals, nullptr);
  Py_DECREF(locals);
  return answer;
}

// The tree's own words for why it fails on the frame; an empty string if it has none.
PyObject* why_failed(Frame* frame, PyObject* tree) {
  PyObject* locals = named_arguments(frame);
  PyObject* cells = named_cells(frame);
  PyObject* text = locals && cells ? PyObject_CallMethod(tree, "explain_failure", "OOOO", locals, frame->f_globals,
                                                         frame->f_builtins, cells)
                                   : nullptr;
  Py_XDECREF(locals);
  Py_XDECREF(cells);
  if (text && PyUnicode_Check(text)) return text;
  Py_XDECREF(text);
  PyErr_Clear();
  return PyUnicode_FromString("");
}

enum class Outcome { done, pass, pass_off, missed };

// Calls and lines of frames are looked at in this thread: what a graph replaces is not shown, everything else is.
bool left_to_tracer(PyThreadState* tstate, const Entry* entry) {
  return entry->graphless && (tstate->c_tracefunc || tstate->c_profilefunc);
}

// Tries the entries of this callback, the latest hit first.
Outcome try_entries(Call& call) {
  CodeState* state = call.state;
  bool dead = false;
  for (size_t i = 0; i < state->entries.size(); i++) {
    Entry* entry = state->entries[i];
    if (!entry->residual) {
      dead = true;
      continue;
    }
    if (!entry->callback.is(call.callback)) continue;
    Py_INCREF(entry);
    PyObject* inputs = check_tree(entry->tree, view_of(call.frame, entry));
    const bool passed = inputs && left_to_tracer(call.tstate, entry);
    if (passed) {
      Py_DECREF(inputs);
    } else if (inputs) {
      entry->hits++;
      total_hits++;
      if (i) state->promote(entry);
      call.result = call_residual(call.frame, entry, inputs);
    }
    Py_DECREF(entry);
    if (inputs) return passed ? Outcome::pass : Outcome::done;
  }
  if (dead) state->drop_dead();
  return Outcome::missed;
}

// Says so, once a code object: the callback is not asked again, since it would compile at each call.
Outcome refuse_fresh(Call& call, PyObject* tree) {
  call.state->decide(call.callback, Verdict::skip);
  HookOff off;
  PyObject* why = why_failed(call.frame, tree);
  if (!why) return Outcome::done;
  const PyCodeObject* code = call.frame->f_code;
  const int bad = PyErr_WarnFormat(
      PyExc_RuntimeWarning, 1,
      "framesmith: a guard of %U (%U:%d) fails on the values that it was made from; it stays in eager: %U",
      code->co_qualname, code->co_filename, code->co_firstlineno, why);
  Py_DECREF(why);
  return bad < 0 ? Outcome::done : Outcome::pass;
}

// Runs an entry that the callback has just made for this very frame. `missed`: its guards fail, for something has
// changed since (a module was imported in between, another thread); then the callback is asked `again`, once. An entry
// that another thread has dropped or reset since serves this call, as far as it can, and no other.
Outcome run_fresh(Call& call, Entry* entry, bool again) {
  if (entry->code && entry->code != object_of(call.frame->f_code)) {
    PyErr_SetString(PyExc_ValueError, "the callback's entry was made for another code object");
    return Outcome::done;
  }
  PyObject* inputs = entry->residual ? check_tree(entry->tree, view_of(call.frame, entry)) : nullptr;
  if (!inputs && !again && !PyErr_Occurred()) return Outcome::missed;
  if (PyErr_Occurred()) return Outcome::done;
  if (!inputs) return entry->residual ? refuse_fresh(call, entry->tree) : Outcome::pass;
  if (entry->code) call.state->add(entry);
  if (left_to_tracer(call.tstate, entry)) {
    Py_DECREF(inputs);
    return Outcome::pass;
  }
  call.result = call_residual(call.frame, entry, inputs);
  return Outcome::done;
}

Outcome by_verdict(Verdict verdict) {
  return verdict == Verdict::skip_recursive || verdict == Verdict::eager ? Outcome::pass_off : Outcome::pass;
}

Outcome follow(Call& call, PyObject* answer, bool again) {
  if (Py_IS_TYPE(answer, EntryType)) return run_fresh(call, as<Entry>(answer), again);
  if (answer == Py_None) return Outcome::pass;
  for (const Answer& known : answers) {
    if (answer != known.object) continue;
    if (known.verdict != Verdict::eager) call.state->decide(call.callback, known.verdict);
    return by_verdict(known.verdict);
  }
  PyErr_Format(PyExc_TypeError, "a frame callback returns an Entry, None, EAGER, SKIP, SKIP_RECURSIVE or FULL, not %R",
               answer);
  return Outcome::done;
}

// What a collection in another thread runs may wait, and meanwhile this thread goes on.
bool in_collection(const PyThreadState* tstate) {
  return collecting(tstate) && (!collector || collector == tstate);
}

// Decides what happens to a frame under a callback.
Outcome handle(Call& call) {
  if ((call.state = find_state(call.frame->f_code))) {
    const Outcome tried = call.state->entries.empty() ? Outcome::missed : try_entries(call);
    if (tried != Outcome::missed) return tried;
    const Verdict verdict = call.state->verdict(call.callback);
    if (verdict != Verdict::open) return by_verdict(verdict);
  } else if (!(call.state = state_of(call.frame->f_code))) {
    return Outcome::done;
  }
  // Finalizers and callbacks of a collection, audit hooks, and trace functions run entries, make none.
  if (in_collection(call.tstate) || call.tstate->tracing) return Outcome::pass;
  for (bool again : {false, true}) {
    PyObject* answer = ask_callback(call.frame, call.callback);
    if (!answer) return Outcome::done;
    const Outcome outcome = follow(call, answer, again);
    Py_DECREF(answer);
    if (outcome != Outcome::missed) return outcome;
  }
  return Outcome::pass;
}

PyObject* eval_hooked(PyThreadState* tstate, Frame* frame) {
  Call call{tstate, frame, Py_NewRef(thread_hook.callback)};
  const Outcome outcome = handle(call);
  Py_DECREF(call.callback);
  if (outcome == Outcome::pass) return pass(tstate, frame, 0);
  if (outcome == Outcome::pass_off) {
    HookOff off;
    return pass(tstate, frame, 0);
  }
  PyObject* result = call.result;
  if (result && Py_IS_TYPE(result, TailCallType) && !find_state(frame->f_code)->continuation)
    result = finish_tail(result);
  discard_frame(tstate, frame);
  return result;
}

PyObject* eval_frame(PyThreadState* tstate, Frame* frame, int throwflag) {
  if (thread_hook.passing == frame) {
    thread_hook.passing = nullptr;
    return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
  }
  Pace::step();
  Handover::begin(object_of(frame->f_code));
  if (!thread_hook.callback || !is_plain_call(frame, throwflag)) return pass(tstate, frame, throwflag);
  CodeState* state = find_state(frame->f_code);
  if (state && state->skip) return pass(tstate, frame, throwflag);
  return eval_hooked(tstate, frame);
}

void install() {
  PyInterpreterState* interp = PyInterpreterState_Get();
  _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
  if (current == eval_frame) return;
  previous_eval = current == _PyEval_EvalFrameDefault ? nullptr : current;
  _PyInterpreterState_SetEvalFrameFunc(interp, eval_frame);
}

// Leaves a hook that was installed over ours in its place; it goes on handing frames to us, and we to whom was before.
void uninstall() {
  PyInterpreterState* interp = PyInterpreterState_Get();
  if (_PyInterpreterState_GetEvalFrameFunc(interp) == eval_frame) {
    _PyInterpreterState_SetEvalFrameFunc(interp, previous_eval ? previous_eval : _PyEval_EvalFrameDefault);
  }
}

PyObject* py_set_callback(PyObject*, PyObject* callback) {
  if (callback != Py_None && !PyCallable_Check(callback)) {
    return PyErr_Format(PyExc_TypeError, "the frame callback must be callable or None, not %R", callback);
  }
  PyObject* old = exchange_callback(callback == Py_None ? nullptr : Py_NewRef(callback));
  return old ? old : Py_NewRef(Py_None);
}

PyObject* py_get_callback(PyObject*, PyObject*) { return optional(thread_hook.callback); }

PyObject* py_hook_installed(PyObject*, PyObject*) {
  return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == eval_frame);
}

// An element of `gc.callbacks`.
PyObject* py_note_collection(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const bool begins = count && PyUnicode_Check(args[0]) && !PyUnicode_CompareWithASCIIString(args[0], "start");
  collector = begins ? PyThreadState_Get() : nullptr;
  Py_RETURN_NONE;
}

// Calls of `note_collection` for each collection of the process.
int watch_collections(PyObject* module) {
  PyObject* gc = PyImport_ImportModule("gc");
  PyObject* callbacks = gc ? PyObject_GetAttrString(gc, "callbacks") : nullptr;
  PyObject* ours = callbacks ? PyObject_GetAttrString(module, "note_collection") : nullptr;
  const int failed = ours && PyList_Check(callbacks) ? PyList_Append(callbacks, ours) : -1;
  Py_XDECREF(ours);
  Py_XDECREF(callbacks);
  Py_XDECREF(gc);
  return failed;
}

PyObject* py_hits(PyObject*, PyObject*) { return PyLong_FromSize_t(total_hits); }

PyMethodDef methods[] = {
    {"note_collection", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_note_collection)), METH_FASTCALL,
     "note_collection(phase, info): note the thread that a collection runs in."},
    {"hits", py_hits, METH_NOARGS, "How many calls entries have taken in this process, besides those that made them."},
    {"set_callback", py_set_callback, METH_O, "Set this thread's frame callback (None = off), return the one before."},
    {"get_callback", py_get_callback, METH_NOARGS, "This thread's frame callback, or None."},
    {"hook_installed", py_hook_installed, METH_NOARGS, "Whether framesmith's eval function is the interpreter's."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* exchange_callback(PyObject* callback) {
  PyObject* old = thread_hook.callback;
  thread_hook.callback = callback;
  count_active(old != nullptr, callback != nullptr);
  return old;
}

void count_active(bool before, bool now) {
  if (now && !before) {
    if (active_threads++ == 0) install();
  } else if (!now && before) {
    if (--active_threads == 0) uninstall();
  }
}

}  // namespace framesmith

int init_hook(PyObject* module) {
  using namespace framesmith;
  if (PyModule_AddFunctions(module, methods) < 0 || watch_collections(module) < 0) return -1;
  for (Answer& answer : answers) {
    answer.object = PyUnicode_InternFromString(answer.text);
    if (!answer.object || PyModule_AddObjectRef(module, answer.name, answer.object) < 0) return -1;
  }
  const bool ready = !init_entries(module) && !init_tail(module) && !init_frames(module) && !init_pace(module) &&
                     !init_openmp_team(module) && !init_function(module);
  return ready ? 0 : -1;
}
