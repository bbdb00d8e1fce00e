// GuardTree: a program and what it refers to, as a Python object that is checked against frames.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "guards_block.h"
#include "guards_program.h"

namespace framesmith {

PyTypeObject* GuardTreeType = nullptr;

namespace {

struct GuardTree {
  PyObject_HEAD
  PyObject* locals;  // tuple of str
  PyObject* cells;   // tuple of str
  PyObject* dict;
  Program program;
  std::unique_ptr<Holdings> holdings;
  bool dead;
  int running;  // checks under way, which point at what is held
  void (*notify)(void*);
  void* notify_arg;
};

GuardTree* as_tree(PyObject* object) { return as<GuardTree>(object); }

void on_death(void* arg) {
  auto* object = static_cast<PyObject*>(arg);
  GuardTree* tree = as_tree(object);
  tree->dead = true;
  if (!Py_REFCNT(object)) return;  // it is letting go of all that it holds
  Py_INCREF(object);  // whoever is notified may let go of the tree
  if (auto* notify = std::exchange(tree->notify, nullptr)) notify(tree->notify_arg);
  if (!tree->running) tree->holdings->drop();
  Py_DECREF(object);
}

inline bool perform(Step& step, Run& run) {
  switch (step.op) {
    case Op::type_is: return object_of(Py_TYPE(subject(step, run))) == step.payload;
    case Op::id_is: return subject(step, run) == step.payload;
    case Op::local: return deliver(step, run, run.frame.local(step.index));
    case Op::dict_attr: {
      PyObject* dict = made_dict(subject(step, run));
      if (!dict || dict_version(dict) != step.version) break;
      run.registers[step.dst] = step.cached;
      return true;
    }
    case Op::item: {
      PyObject* object = subject(step, run);
      if (!PyDict_Check(object) || dict_version(object) != step.version) break;
      run.registers[step.dst] = step.cached;
      return true;
    }
    case Op::block:
      if (block_stands(step, run)) return true;
      break;
    case Op::other: break;
  }
  return step.perform(step, run);
}

// The step that fails, or null.
Step* first_failure(GuardTree* tree, Run& run) {
  Step* failed = nullptr;
  tree->running++;
  for (Step& step : tree->program.steps) {
    if (!perform(step, run)) {
      PyErr_Clear();
      failed = step.op == Op::block ? step.held<Block>().failed : &step;
      break;
    }
  }
  tree->running--;
  return failed;
}

// Room for the registers: on the stack unless there are very many.
class Registers {
 public:
  explicit Registers(size_t count) {
    if (count > std::size(small_)) large_.reset(new PyObject*[count]);
  }
  PyObject** data() { return large_ ? large_.get() : small_; }

 private:
  PyObject* small_[2048];
  std::unique_ptr<PyObject*[]> large_;
};

PyObject* collect(const GuardTree* tree, PyObject* const* registers) {
  PyObject* inputs = PyTuple_New(static_cast<Py_ssize_t>(tree->program.inputs.size()));
  if (!inputs) return nullptr;
  Py_ssize_t i = 0;
  for (int at : tree->program.inputs) PyTuple_SET_ITEM(inputs, i++, Py_NewRef(registers[at]));
  return inputs;
}

// ---- the type ----

// The accessors and checks that run when nothing is remembered.
size_t steps_of(const Program& program) {
  size_t count = 0;
  for (const Step& step : program.steps) {
    count += step.op == Op::block ? step.held<Block>().steps.size() : 1;
  }
  return count;
}

PyObject* tree_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"accessors", "checks", "inputs", "locals", "cells", nullptr};
  PyObject *accessors, *checks, *inputs, *locals, *cells;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OO!O!:GuardTree", const_cast<char**>(names), &PyList_Type,
                                   &accessors, &PyList_Type, &checks, &inputs, &PyTuple_Type, &locals, &PyTuple_Type,
                                   &cells)) {
    return nullptr;
  }
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  GuardTree* tree = as_tree(object);
  new (&tree->program) Program();
  new (&tree->holdings) std::unique_ptr<Holdings>(new Holdings(on_death, object));
  tree->locals = Py_NewRef(locals);
  tree->cells = Py_NewRef(cells);
  if (!build_program(&tree->program, *tree->holdings, accessors, checks, inputs)) Py_CLEAR(object);
  return object;
}

int tree_traverse(PyObject* object, visitproc visit, void* arg) {
  GuardTree* tree = as_tree(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(tree->dict);
  return tree->holdings ? tree->holdings->traverse(visit, arg) : 0;
}

int tree_clear(PyObject* object) {
  GuardTree* tree = as_tree(object);
  tree->dead = true;  // its steps point at what is dropped now
  Py_CLEAR(tree->dict);
  if (tree->holdings) tree->holdings->drop();
  return 0;
}

void tree_dealloc(PyObject* object) {
  GuardTree* tree = as_tree(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  tree->notify = nullptr;
  tree->holdings.~unique_ptr();
  tree->program.~Program();
  Py_XDECREF(tree->locals);
  Py_XDECREF(tree->cells);
  Py_XDECREF(tree->dict);
  type->tp_free(object);
  Py_DECREF(type);
}

// A frame made of mappings, for tests and for explaining a failure.
struct NamedFrame {
  std::vector<PyObject*> locals;
  PyObject* closure = nullptr;
  FrameView view{};
  ~NamedFrame() { Py_XDECREF(closure); }

  bool fill(GuardTree* tree, PyObject* f_locals, PyObject* globals, PyObject* builtins, PyObject* cells) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tree->locals); i++) {
      locals.push_back(PyDict_GetItemWithError(f_locals, PyTuple_GET_ITEM(tree->locals, i)));
    }
    if (cells != Py_None) {
      const Py_ssize_t count = PyTuple_GET_SIZE(tree->cells);
      if (!(closure = PyTuple_New(count))) return false;
      for (Py_ssize_t i = 0; i < count; i++) {
        PyObject* cell = PyDict_GetItemWithError(cells, PyTuple_GET_ITEM(tree->cells, i));
        PyTuple_SET_ITEM(closure, i, cell && PyCell_Check(cell) ? Py_NewRef(cell) : PyCell_New(nullptr));
      }
    }
    view = {locals.data(), nullptr, globals == Py_None ? nullptr : globals, builtins == Py_None ? nullptr : builtins,
            closure, nullptr};
    return !PyErr_Occurred();
  }
};

bool parse_frame(PyObject* object, PyObject* args, PyObject* kwargs, NamedFrame* frame) {
  static const char* names[] = {"f_locals", "f_globals", "f_builtins", "cells", nullptr};
  PyObject *locals, *globals = Py_None, *builtins = Py_None, *cells = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|OOO", const_cast<char**>(names), &PyDict_Type, &locals, &globals,
                                   &builtins, &cells)) {
    return false;
  }
  for (PyObject* mapping : {globals, builtins, cells}) {
    if (mapping != Py_None && !PyDict_Check(mapping)) {
      PyErr_SetString(PyExc_TypeError, "globals, builtins and cells are dicts or None");
      return false;
    }
  }
  return frame->fill(as_tree(object), locals, globals, builtins, cells);
}

PyObject* tree_check(PyObject* object, PyObject* args, PyObject* kwargs) {
  NamedFrame frame;
  if (!parse_frame(object, args, kwargs, &frame)) return nullptr;
  PyObject* inputs = check_tree(object, frame.view);
  if (inputs || PyErr_Occurred()) return inputs;
  Py_RETURN_NONE;
}

// (guard, register, value): register >= 0 with no value = that accessor failed. None if all hold.
PyObject* tree_failure(PyObject* object, PyObject* args, PyObject* kwargs) {
  NamedFrame frame;
  GuardTree* tree = as_tree(object);
  if (!parse_frame(object, args, kwargs, &frame)) return nullptr;
  if (tree->dead) return Py_BuildValue("iiO", -1, -1, Py_None);
  Registers registers(tree->program.registers);
  Run run(frame.view, registers.data());
  Step* step = first_failure(tree, run);
  if (!step) Py_RETURN_NONE;
  if (step->dst >= 0) return Py_BuildValue("iiO", step->guard, step->dst, Py_None);
  return Py_BuildValue("iiO", step->guard, -1, step->src >= 0 ? run.registers[step->src] : Py_None);
}

PyObject* own_dict(PyObject*, PyObject* object) { return optional(instance_dict(object)); }

// The hash of each element as it was when the element was put in: no code of the program's runs.
PyObject* stored_hashes(PyObject*, PyObject* container) {
  PyObject* out = PyDict_New();
  PyObject *key, *value;
  Py_hash_t hash;
  Py_ssize_t pos = 0;
  auto put = [&] {
    PyObject* name = PyLong_FromVoidPtr(key);
    PyObject* number = PyLong_FromSsize_t(hash);
    const bool done = name && number && PyDict_SetItem(out, name, number) == 0;
    Py_XDECREF(name);
    Py_XDECREF(number);
    return done;
  };
  bool fine = out;
  if (PyDict_Check(container))
    while (fine && _PyDict_Next(container, &pos, &key, &value, &hash)) fine = put();
  else if (PyAnySet_Check(container))
    while (fine && _PySet_NextEntry(container, &pos, &key, &hash)) fine = put();
  if (!fine) Py_CLEAR(out);
  return out;
}

// What Py_ReprEnter keeps while the text of a container is made: a list in the thread's dict.
PyObject* not_shown(PyObject*, PyObject* object) {
  PyObject* dict = PyThreadState_GetDict();
  PyObject* shown = dict ? PyDict_GetItemString(dict, "Py_Repr") : nullptr;
  if (shown && PyList_Check(shown))
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(shown); ++i)
      if (PyList_GET_ITEM(shown, i) == object) Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

PyMethodDef functions[] = {
    {"not_shown", not_shown, METH_O, "False within the making of a container's own text, which shows it as dots."},
    {"stored_hashes", stored_hashes, METH_O, "{id of an element: its hash, as stored} of a dict's keys or of a set."},
    {"instance_dict", own_dict, METH_O, "An object's instance dict, past any `__dict__` of its class, or None."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef tree_methods[] = {
    {"check", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(tree_check)), METH_VARARGS | METH_KEYWORDS,
     "The graph inputs as a tuple if every guard holds, else None."},
    {"failure", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(tree_failure)), METH_VARARGS | METH_KEYWORDS,
     "(guard number, failed accessor or -1, value looked at) of the first failure, or None."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef tree_fields[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"alive", [](PyObject* self, void*) { return PyBool_FromLong(!as_tree(self)->dead); }, nullptr,
     "False once an object that the guards watch is gone.", nullptr},
    {"steps", [](PyObject* self, void*) { return PyLong_FromSize_t(steps_of(as_tree(self)->program)); }, nullptr,
     "How many accessors and checks a full check runs.", nullptr},
    {"locals", [](PyObject* self, void*) { return Py_NewRef(as_tree(self)->locals); }, nullptr, "Arguments read.",
     nullptr},
    {"cells", [](PyObject* self, void*) { return Py_NewRef(as_tree(self)->cells); }, nullptr, "Closure cells read.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyObject* check_tree(PyObject* object, const FrameView& frame) {
  GuardTree* tree = as_tree(object);
  if (tree->dead) return nullptr;
  Registers registers(tree->program.registers);
  Run run(frame, registers.data());
  return first_failure(tree, run) ? nullptr : collect(tree, run.registers);
}

bool run_block(Step& step, Run& run) {
  auto& block = step.held<Block>();
  PyObject* dict = subject(step, run);
  dict = block.attributes ? instance_dict(dict) : PyDict_Check(dict) ? dict : nullptr;
  const uint64_t version = dict ? dict_version(dict) : 0;
  for (Step& inner : block.steps) {
    if (inner.perform(inner, run)) continue;
    block.failed = &inner;
    return false;
  }
  if (!dict || dict_version(dict) != version) return true;  // a comparison of keys ran user code
  if (!block.attributes && PyODict_Check(dict)) return true;  // its order is no part of the version
  for (Block::Size& size : block.sizes) size.value = run.registers[size.at];
  for (Block::Deposit& deposit : block.deposits) deposit.value = run.registers[deposit.at];
  step.version = version;
  return true;
}

bool tree_dead(PyObject* tree) { return as_tree(tree)->dead; }
PyObject* tree_locals(PyObject* tree) { return as_tree(tree)->locals; }
PyObject* tree_cells(PyObject* tree) { return as_tree(tree)->cells; }

void watch_tree(PyObject* tree, void (*notify)(void*), void* arg) {
  as_tree(tree)->notify = notify;
  as_tree(tree)->notify_arg = arg;
}

}  // namespace framesmith

int init_guards(PyObject* module) {
  using namespace framesmith;
  static PyMemberDef members[] = {
      {"__dictoffset__", T_PYSSIZET, offsetof(GuardTree, dict), READONLY, nullptr}, {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(tree_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(tree_dealloc)},
                                {Py_tp_traverse, reinterpret_cast<void*>(tree_traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(tree_clear)},
                                {Py_tp_methods, tree_methods},
                                {Py_tp_getset, tree_fields},
                                {Py_tp_members, members},
                                {Py_tp_doc, const_cast<char*>("The guards of one compiled variant, ready to check.")},
                                {0, nullptr}};
  static PyType_Spec spec = {"framesmith._C.GuardTree", sizeof(GuardTree), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  GuardTreeType = add_type(module, &spec);
  return GuardTreeType ? PyModule_AddFunctions(module, functions) : -1;
}
