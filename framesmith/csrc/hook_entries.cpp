// What hangs on a code object: its compiled variants and what its callbacks decided. Entries die with their code, or as
// soon as an object that their guards watch is gone.
#include "frame.h"
#include "hook.h"

#include <algorithm>
#include <utility>

namespace framesmith {

PyTypeObject* EntryType = nullptr;

namespace {

Py_ssize_t slot_index = -1;

void release_state(void* state) { delete static_cast<CodeState*>(state); }

}  // namespace

IdentityRef::IdentityRef(PyObject* target) {
  ref_ = PyWeakref_NewRef(target, nullptr);
  weak_ = ref_ != nullptr;
  if (!weak_) {
    PyErr_Clear();
    ref_ = Py_NewRef(target);
  }
}

IdentityRef& IdentityRef::operator=(IdentityRef&& other) noexcept {
  std::swap(ref_, other.ref_);
  std::swap(weak_, other.weak_);
  return *this;
}

PyObject* IdentityRef::get() const {
  if (!weak_) return ref_;
  PyObject* target = PyWeakref_GET_OBJECT(ref_);
  return target == Py_None ? nullptr : target;
}

CodeState* find_state(PyCodeObject* code) { return static_cast<CodeState*>(code_slot(code, slot_index)); }

CodeState* state_of(PyCodeObject* code) {
  if (CodeState* state = find_state(code)) return state;
  auto* state = new CodeState;
  if (set_code_slot(code, slot_index, state) < 0) {
    delete state;
    return nullptr;
  }
  return state;
}

namespace {

// Frees what the entry compiled to, at once, wherever else the entry is still listed.
void kill_entry(void* self) {
  auto* entry = static_cast<Entry*>(self);
  PyObject* residual = std::exchange(entry->residual, nullptr);
  PyObject* info = std::exchange(entry->info, nullptr);
  PyObject* parked = std::exchange(entry->parked, nullptr);
  Py_XDECREF(parked);
  Py_XDECREF(residual);
  Py_XDECREF(info);
}

void release_entries(std::vector<Entry*> entries) {
  for (Entry* entry : entries) {
    entry->code = nullptr;
    Py_DECREF(entry);
  }
}

}  // namespace

Verdict CodeState::verdict(PyObject* callback) const {
  for (const Decision& decision : decisions) {
    if (decision.callback.is(callback)) return decision.verdict;
  }
  return Verdict::open;
}

void CodeState::decide(PyObject* callback, Verdict verdict) {
  std::erase_if(decisions, [&](const Decision& d) { return !d.callback.get() || d.callback.is(callback); });
  decisions.push_back({IdentityRef(callback), verdict});
}

void CodeState::add(Entry* entry) {
  drop_dead();
  if (std::find(entries.begin(), entries.end(), entry) == entries.end()) {
    Py_INCREF(entry);
    entries.insert(entries.begin(), entry);
  }
}

void CodeState::promote(Entry* entry) {
  auto at = std::find(entries.begin(), entries.end(), entry);
  if (at != entries.end()) std::rotate(entries.begin(), at, at + 1);
}

// A code object that was full of variants has room again.
void CodeState::drop_dead() {
  std::vector<Entry*> dead;
  std::erase_if(entries, [&](Entry* entry) {
    const bool gone = !entry->residual || !entry->callback.get();
    if (gone) dead.push_back(entry);
    return gone;
  });
  if (dead.empty()) return;
  reopen();
  release_entries(std::move(dead));
}

void CodeState::reopen() {
  std::erase_if(decisions, [](const Decision& d) { return d.verdict == Verdict::full; });
}

void CodeState::clear() {
  decisions.clear();
  release_entries(std::exchange(entries, {}));
}

CodeState::~CodeState() { clear(); }

namespace {

// Positions of `wanted` among the first `count` names; false with ValueError for a name that is not there.
bool positions(PyObject* wanted, PyObject* names, Py_ssize_t first, Py_ssize_t last, std::vector<int>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(wanted); i++) {
    PyObject* name = PyTuple_GET_ITEM(wanted, i);
    Py_ssize_t at = first;
    while (at < last && PyUnicode_Compare(PyTuple_GET_ITEM(names, at), name) != 0) at++;
    if (at == last) {
      PyErr_Format(PyExc_ValueError, "the guards read %R, which is no argument or closure cell of the code", name);
      return false;
    }
    out->push_back(static_cast<int>(at - first));
  }
  return true;
}

// The shape that the hook relies on: a plain positional parameter for each argument of the user's code, and the inputs.
bool fits(PyCodeObject* code, PyCodeObject* residual) {
  constexpr int flags = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  if (residual->co_argcount != argument_count(code) + 1 || residual->co_kwonlyargcount || residual->co_flags & flags) {
    PyErr_Format(PyExc_ValueError, "residual code of %U must take %d positional parameters and no more",
                 code->co_qualname, argument_count(code) + 1);
    return false;
  }
  if (residual->co_nfreevars && residual->co_nfreevars != code->co_nfreevars) {
    PyErr_Format(PyExc_ValueError, "residual code of %U must have its free variables, or none", code->co_qualname);
    return false;
  }
  return true;
}

PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"tree", "code", "residual", "callback", "info", "graphless", nullptr};
  PyObject *tree, *code, *residual, *callback, *info = Py_None;
  int graphless = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O|Op:Entry", const_cast<char**>(names), GuardTreeType, &tree,
                                   &PyCode_Type, &code, &PyCode_Type, &residual, &callback, &info, &graphless)) {
    return nullptr;
  }
  auto* original = as<PyCodeObject>(code);
  if (!fits(original, as<PyCodeObject>(residual))) return nullptr;
  std::vector<int> locals, cells;
  PyObject* all = original->co_localsplusnames;
  const int free_end = original->co_nlocalsplus;
  if (!positions(tree_locals(tree), all, 0, argument_count(original), &locals) ||
      !positions(tree_cells(tree), all, free_end - original->co_nfreevars, free_end, &cells)) {
    return nullptr;
  }
  CodeState* state = state_of(as<PyCodeObject>(residual));
  if (!state) return nullptr;
  state->skip = true;
  auto* self = as<Entry>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->tree = Py_NewRef(tree);
  self->code = code;
  self->residual = Py_NewRef(residual);
  self->info = Py_NewRef(info);
  new (&self->callback) IdentityRef(callback);
  new (&self->local_index) std::vector<int>(std::move(locals));
  new (&self->cell_index) std::vector<int>(std::move(cells));
  self->graphless = graphless;
  if (tree_dead(tree)) kill_entry(self);
  else watch_tree(tree, kill_entry, self);
  return object_of(self);
}

void entry_dealloc(PyObject* object) {
  auto* self = as<Entry>(object);
  PyTypeObject* type = Py_TYPE(object);
  watch_tree(self->tree, nullptr, nullptr);
  kill_entry(self);
  Py_XDECREF(self->tree);
  self->callback.~IdentityRef();
  self->local_index.~vector();
  self->cell_index.~vector();
  type->tp_free(object);
  Py_DECREF(type);
}

Entry* as_entry(PyObject* self) { return as<Entry>(self); }

PyGetSetDef entry_fields[] = {
    {"tree", [](PyObject* self, void*) { return optional(as_entry(self)->tree); }, nullptr, "The guard tree.", nullptr},
    {"residual", [](PyObject* self, void*) { return optional(as_entry(self)->residual); }, nullptr,
     "The code run instead of the frame, or None when the entry is dead.", nullptr},
    {"info", [](PyObject* self, void*) { return optional(as_entry(self)->info); }, nullptr, "Its maker's own object.",
     nullptr},
    {"callback", [](PyObject* self, void*) { return optional(as_entry(self)->callback.get()); }, nullptr,
     "The callback that it serves, or None when that is gone.", nullptr},
    {"hits", [](PyObject* self, void*) { return PyLong_FromSize_t(as_entry(self)->hits); }, nullptr,
     "Calls that it took, besides the one that made it.", nullptr},
    {"alive", [](PyObject* self, void*) { return PyBool_FromLong(as_entry(self)->residual != nullptr); }, nullptr,
     "False once an object that the guards watch is gone.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyObject* entry_drop(PyObject* self, PyObject*) {
  kill_entry(self);
  Py_RETURN_NONE;
}

PyObject* entry_add(PyObject* self, PyObject*) {
  auto* entry = as_entry(self);
  if (entry->code && entry->residual) {
    CodeState* state = state_of(as<PyCodeObject>(entry->code));
    if (!state) return nullptr;
    state->add(entry);
  }
  Py_RETURN_NONE;
}

PyMethodDef entry_methods[] = {
    {"add", entry_add, METH_NOARGS, "Let frames of its code take it from now on."},
    {"drop", entry_drop, METH_NOARGS, "Free what it compiled to; no call takes it any more."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot entry_slots[] = {{Py_tp_methods, entry_methods},
                             {Py_tp_new, reinterpret_cast<void*>(entry_new)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(entry_dealloc)},
                             {Py_tp_getset, entry_fields},
                             {Py_tp_doc, const_cast<char*>("One compiled variant of a code object.")},
                             {0, nullptr}};
PyType_Spec entry_spec = {"framesmith._C.Entry", sizeof(Entry), 0, Py_TPFLAGS_DEFAULT, entry_slots};

// A method of a code object or a function: `f` of the code's state.
template <PyObject* (*f)(CodeState&)> PyObject* of_code(PyObject*, PyObject* object) {
  if (PyFunction_Check(object)) object = PyFunction_GET_CODE(object);
  if (!PyCode_Check(object)) {
    return PyErr_Format(PyExc_TypeError, "expected a code object or a function, not %R", object);
  }
  CodeState* state = state_of(as<PyCodeObject>(object));
  return state ? f(*state) : nullptr;
}

PyObject* skip(CodeState& state) {
  state.skip = true;
  Py_RETURN_NONE;
}

PyObject* is_skipped(CodeState& state) { return PyBool_FromLong(state.skip); }

PyObject* continues(CodeState& state) {
  state.continuation = true;
  Py_RETURN_NONE;
}

PyObject* live_entries(CodeState& state) {
  state.drop_dead();
  PyObject* list = PyList_New(0);
  for (size_t i = 0; list && i < state.entries.size(); i++) {
    if (PyList_Append(list, object_of(state.entries[i])) < 0) Py_CLEAR(list);
  }
  return list;
}

PyObject* reset(CodeState& state) {
  state.clear();
  Py_RETURN_NONE;
}

PyObject* reopen(CodeState& state) {
  state.reopen();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"skip_code", of_code<skip>, METH_O, "Never touch frames of this code object."},
    {"is_skipped", of_code<is_skipped>, METH_O, "Whether frames of this code object are never touched."},
    {"mark_continuation", of_code<continues>, METH_O, "Frames of this code object may return tail calls."},
    {"entries", of_code<live_entries>, METH_O, "The live entries of a code object, the latest hit first."},
    {"reset", of_code<reset>, METH_O, "Drop the entries and the callbacks' verdicts of a code object."},
    {"reopen", of_code<reopen>, METH_O, "Forget that a code object is full of variants."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int init_entries(PyObject* module) {
  slot_index = request_code_slot(release_state);
  if (slot_index < 0) {
    PyErr_SetString(PyExc_RuntimeError, "CPython has no code slot left for framesmith");
    return -1;
  }
  EntryType = add_type(module, &entry_spec);
  return EntryType ? PyModule_AddFunctions(module, methods) : -1;
}

}  // namespace framesmith
