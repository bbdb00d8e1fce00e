// GuardTree: builds the program from accessors and checks, orders it so that the cheap and likely failures come first,
// and runs it.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "guards_dict.h"
#include "guards_program.h"

namespace framesmith {

PyTypeObject* GuardTreeType = nullptr;

namespace {

struct GuardTree {
  PyObject_HEAD
  PyObject* locals;  // tuple of str
  PyObject* cells;   // tuple of str
  PyObject* dict;
  std::vector<Step> steps;
  std::vector<int> inputs;  // registers of the graph inputs
  std::unique_ptr<Holdings> holdings;
  size_t registers;
  bool dead;
  void (*notify)(void*);
  void* notify_arg;
};

GuardTree* as_tree(PyObject* object) { return reinterpret_cast<GuardTree*>(object); }

void on_death(void* object) {
  GuardTree* tree = as_tree(static_cast<PyObject*>(object));
  tree->dead = true;
  if (auto* notify = std::exchange(tree->notify, nullptr)) notify(tree->notify_arg);
}

inline bool perform(Step& step, Run& run) {
  switch (step.op) {
    case Op::type_is: return reinterpret_cast<PyObject*>(Py_TYPE(run.registers[step.src])) == step.payload;
    case Op::id_is: return run.registers[step.src] == step.payload;
    case Op::local: {
      const FrameView& frame = run.frame;
      PyObject* value = frame.locals[frame.local_index ? frame.local_index[step.index] : step.index];
      run.registers[step.dst] = value;
      return value != nullptr;
    }
    case Op::dict_attr: {
      PyObject* dict = made_dict(run.registers[step.src]);
      if (!dict || dict_version(dict) != step.version) break;
      run.registers[step.dst] = step.cached;
      return true;
    }
    case Op::item: {
      PyObject* object = run.registers[step.src];
      if (!PyDict_Check(object) || dict_version(object) != step.version) break;
      run.registers[step.dst] = step.cached;
      return true;
    }
    case Op::other: break;
  }
  return step.perform(step, run);
}

// The step that fails, or null.
Step* first_failure(GuardTree* tree, Run& run) {
  for (Step& step : tree->steps) {
    if (!perform(step, run)) {
      PyErr_Clear();
      return &step;
    }
  }
  return nullptr;
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
  PyObject* inputs = PyTuple_New(static_cast<Py_ssize_t>(tree->inputs.size()));
  if (!inputs) return nullptr;
  Py_ssize_t i = 0;
  for (int at : tree->inputs) PyTuple_SET_ITEM(inputs, i++, Py_NewRef(registers[at]));
  return inputs;
}

// ---- building ----

const StepKind* find_kind(std::initializer_list<StepTable> tables, PyObject* name) {
  for (const StepTable& table : tables) {
    for (size_t i = 0; i < table.count; i++) {
      if (PyUnicode_CompareWithASCIIString(name, table.rows[i].name) == 0) return &table.rows[i];
    }
  }
  PyErr_Format(PyExc_ValueError, "unknown step of a guard tree: %R", name);
  return nullptr;
}

const StepKind* access_kind(PyObject* name) { return find_kind({access_kinds()}, name); }
const StepKind* check_kind(PyObject* name) {
  return find_kind({value_kinds(), dict_kinds(), tensor_kinds(), relation_kinds(), state_kinds()}, name);
}

// Kinds by the (interned) name object, so that a name is looked up once a tree.
class KindCache {
 public:
  explicit KindCache(const StepKind* (*find)(PyObject*)) : find_(find) {}
  const StepKind* operator()(PyObject* name) {
    auto [at, fresh] = known_.try_emplace(name, nullptr);
    if (fresh) at->second = find_(name);
    return at->second;
  }

 private:
  const StepKind* (*find_)(PyObject*);
  std::unordered_map<PyObject*, const StepKind*> known_;
};

struct Check {
  Step step;
  int rank;
  std::vector<int> reads;  // registers besides step.src
};

class Builder {
 public:
  explicit Builder(GuardTree* tree) : tree_(tree) {}
  ~Builder() {
    for (Check& check : checks_) delete check.step.data;
  }
  Builder(const Builder&) = delete;
  bool accessors(PyObject* list);
  bool checks(PyObject* list);
  bool inputs(PyObject* list);
  void finish();

 private:
  // Emits the accessors that register `at` needs and that are not there yet, on behalf of a guard.
  void need(int at, int guard);
  bool valid(int at) const { return at >= 0 && static_cast<size_t>(at) < access_.size(); }

  GuardTree* tree_;
  std::vector<Step> access_;
  std::vector<bool> emitted_;
  std::vector<Check> checks_;
};

bool Builder::accessors(PyObject* list) {
  KindCache kind_of(access_kind);
  const Py_ssize_t count = PyList_GET_SIZE(list);
  access_.reserve(count);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *name, *payload;
    int parent;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "UiO:accessor", &name, &parent, &payload)) return false;
    const StepKind* kind = kind_of(name);
    if (!kind) return false;
    if (parent >= static_cast<int>(i)) {
      PyErr_Format(PyExc_ValueError, "accessor %zd reads register %d, which comes after it", i, parent);
      return false;
    }
    Step step;
    step.perform = kind->perform;
    step.op = kind->op;
    step.src = parent;
    step.dst = static_cast<int>(i);
    if (!kind->prepare(step, payload, *tree_->holdings)) return false;
    access_.push_back(step);
  }
  emitted_.assign(access_.size(), false);
  tree_->registers = access_.size();
  return true;
}

bool Builder::checks(PyObject* list) {
  KindCache kind_of(check_kind);
  const Py_ssize_t count = PyList_GET_SIZE(list);
  checks_.reserve(count);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *name, *payload, *reads;
    int source, guard;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "UiOO!i:check", &name, &source, &payload, &PyTuple_Type, &reads, &guard)) {
      return false;
    }
    const StepKind* kind = kind_of(name);
    if (!kind) return false;
    Check check{{}, kind->rank, {}};
    if (!read_registers(reads, &check.reads)) return false;
    check.step.perform = kind->perform;
    check.step.op = kind->op;
    check.step.src = source;
    check.step.guard = guard;
    bool known = source == -1 || valid(source);
    for (int at : check.reads) known = known && valid(at);
    if (!known) {
      PyErr_Format(PyExc_ValueError, "check %zd (%U) reads an unknown register", i, name);
      return false;
    }
    // Data that `prepare` makes belongs to the tree from here on.
    const bool fit = kind->prepare(check.step, payload, *tree_->holdings);
    checks_.push_back(std::move(check));
    if (!fit) return false;
  }
  return true;
}

bool Builder::inputs(PyObject* list) {
  if (!read_registers(list, &tree_->inputs)) return false;
  for (int at : tree_->inputs) {
    if (!valid(at)) {
      PyErr_SetString(PyExc_ValueError, "a graph input is an unknown register");
      return false;
    }
  }
  return true;
}

void Builder::need(int at, int guard) {
  if (at < 0 || emitted_[at]) return;
  emitted_[at] = true;
  need(access_[at].src, guard);
  access_[at].guard = guard;
  tree_->steps.push_back(access_[at]);
}

void Builder::finish() {
  // A value one step from the frame is a call's argument: the likeliest to differ.
  for (Check& check : checks_) {
    const bool near = check.step.src < 0 || access_[check.step.src].src < 0;
    check.rank += near ? 0 : 10;
  }
  std::stable_sort(checks_.begin(), checks_.end(), [](const Check& a, const Check& b) { return a.rank < b.rank; });
  tree_->steps.reserve(access_.size() + checks_.size());
  for (Check& check : checks_) {
    need(check.step.src, check.step.guard);
    for (int at : check.reads) need(at, check.step.guard);
    tree_->steps.push_back(check.step);
  }
  checks_.clear();
  for (int at : tree_->inputs) need(at, -1);
}

void drop_data(std::vector<Step>& steps) {
  for (Step& step : steps) delete std::exchange(step.data, nullptr);
}

// ---- the type ----

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
  new (&tree->steps) std::vector<Step>();
  new (&tree->inputs) std::vector<int>();
  new (&tree->holdings) std::unique_ptr<Holdings>(new Holdings(on_death, object));
  tree->locals = Py_NewRef(locals);
  tree->cells = Py_NewRef(cells);
  Builder builder(tree);
  if (!builder.accessors(accessors) || !builder.checks(checks) || !builder.inputs(inputs)) {
    Py_DECREF(object);
    return nullptr;
  }
  builder.finish();
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
  drop_data(tree->steps);
  tree->holdings.~unique_ptr();
  tree->steps.~vector();
  tree->inputs.~vector();
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
  int failed = -1;
  PyObject* inputs = check_tree(object, frame.view, &failed);
  if (inputs || PyErr_Occurred()) return inputs;
  Py_RETURN_NONE;
}

// (guard, register, value): register >= 0 with no value = that accessor failed. None if all hold.
PyObject* tree_failure(PyObject* object, PyObject* args, PyObject* kwargs) {
  NamedFrame frame;
  GuardTree* tree = as_tree(object);
  if (!parse_frame(object, args, kwargs, &frame)) return nullptr;
  if (tree->dead) return Py_BuildValue("iiO", -1, -1, Py_None);
  Registers registers(tree->registers);
  Run run(frame.view, registers.data());
  Step* step = first_failure(tree, run);
  if (!step) Py_RETURN_NONE;
  if (step->dst >= 0) return Py_BuildValue("iiO", step->guard, step->dst, Py_None);
  return Py_BuildValue("iiO", step->guard, -1, step->src >= 0 ? run.registers[step->src] : Py_None);
}

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
    {"steps", [](PyObject* self, void*) { return PyLong_FromSize_t(as_tree(self)->steps.size()); }, nullptr,
     "How many accessors and checks a full check runs.", nullptr},
    {"locals", [](PyObject* self, void*) { return Py_NewRef(as_tree(self)->locals); }, nullptr, "Arguments read.", nullptr},
    {"cells", [](PyObject* self, void*) { return Py_NewRef(as_tree(self)->cells); }, nullptr, "Closure cells read.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyObject* check_tree(PyObject* object, const FrameView& frame, int* failed) {
  GuardTree* tree = as_tree(object);
  *failed = -1;
  if (tree->dead) return nullptr;
  Registers registers(tree->registers);
  Run run(frame, registers.data());
  if (Step* step = first_failure(tree, run)) {
    *failed = step->guard;
    return nullptr;
  }
  return collect(tree, run.registers);
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
  GuardTreeType = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!GuardTreeType) return -1;
  return PyModule_AddObjectRef(module, "GuardTree", reinterpret_cast<PyObject*>(GuardTreeType));
}
