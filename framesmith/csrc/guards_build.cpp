// From accessors and checks as lists to a program: cheap and likely failures first, reads of one dict as one block.
#include <algorithm>
#include <initializer_list>
#include <map>
#include <utility>

#include "guards_block.h"
#include "guards_program.h"

namespace framesmith {
namespace {

const StepKind* find_kind(std::initializer_list<StepTable> tables, PyObject* name) {
  for (const StepTable& table : tables) {
    for (const StepKind& kind : table) {
      if (PyUnicode_CompareWithASCIIString(name, kind.name) == 0) return &kind;
    }
  }
  PyErr_Format(PyExc_ValueError, "unknown step of a guard tree: %R", name);
  return nullptr;
}

const StepKind* access_kind(PyObject* name) { return find_kind({access_kinds()}, name); }
const StepKind* check_kind(PyObject* name) {
  return find_kind({value_kinds(), dict_kinds(), tensor_kinds(), relation_kinds(), state_kinds()}, name);
}

Step new_step(const StepKind& kind, int src) {
  Step step;
  step.perform = kind.perform;
  step.op = kind.op;
  step.reach = kind.reach;
  step.src = src;
  return step;
}

// A check that its subject is a plain dict or OrderedDict, whose truth is its size.
bool is_exact_dict_check(const Step& step) {
  return step.op == Op::type_is &&
         (step.payload == object_of(&PyDict_Type) || step.payload == object_of(&PyODict_Type));
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
  int plan = -1;           // the plan that it is a member of
};

// A block to be: what is read of one dict.
struct Plan {
  int src;
  bool attributes;
  std::vector<int> accessors;
  std::vector<int> checks;  // by their place in the order
  bool emitted = false;
};

class Builder {
 public:
  Builder(Program* program, Holdings& holdings) : program_(program), holdings_(holdings) {}
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
  void emit(Check& check);
  void emit(Plan& plan, int guard);
  void plan();
  void mark_used();
  bool valid(int at) const { return at >= 0 && static_cast<size_t>(at) < access_.size(); }

  Program* program_;
  Holdings& holdings_;
  std::vector<Step> access_;
  std::vector<bool> emitted_;
  std::vector<bool> used_;
  std::vector<Check> checks_;
  std::vector<Plan> plans_;
  std::vector<int> plan_of_;  // by accessor: the plan that it is a member of, or -1
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
    Step step = new_step(*kind, parent);
    step.dst = static_cast<int>(i);
    if (!kind->prepare(step, payload, holdings_)) return false;
    access_.push_back(step);
  }
  emitted_.assign(access_.size(), false);
  program_->registers = access_.size();
  return true;
}

bool Builder::checks(PyObject* list) {
  KindCache kind_of(check_kind);
  const Py_ssize_t count = PyList_GET_SIZE(list);
  checks_.reserve(count);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *name, *payload, *reads;
    int source, guard;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "UiOO!i:check", &name, &source, &payload, &PyTuple_Type, &reads,
                          &guard)) {
      return false;
    }
    const StepKind* kind = kind_of(name);
    if (!kind) return false;
    Check check{new_step(*kind, source), kind->rank, {}};
    if (!read_registers(reads, &check.reads)) return false;
    check.step.guard = guard;
    bool known = source == -1 || valid(source);
    for (int at : check.reads) known = known && valid(at);
    if (!known) {
      PyErr_Format(PyExc_ValueError, "check %zd (%U) reads an unknown register", i, name);
      return false;
    }
    // Data that `prepare` makes belongs to the tree from here on.
    const bool fit = kind->prepare(check.step, payload, holdings_);
    checks_.push_back(std::move(check));
    if (!fit) return false;
  }
  return true;
}

bool Builder::inputs(PyObject* list) {
  if (!read_registers(list, &program_->inputs)) return false;
  for (int at : program_->inputs) {
    if (!valid(at)) {
      PyErr_SetString(PyExc_ValueError, "a graph input is an unknown register");
      return false;
    }
  }
  return true;
}

void Builder::need(int at, int guard) {
  if (at < 0 || emitted_[at]) return;
  if (plan_of_[at] >= 0) {
    emit(plans_[plan_of_[at]], guard);
    return;
  }
  emitted_[at] = true;
  need(access_[at].src, guard);
  access_[at].guard = guard;
  program_->steps.push_back(access_[at]);
}

void Builder::emit(Check& check) {
  if (check.plan >= 0) {
    emit(plans_[check.plan], check.step.guard);
    return;
  }
  need(check.step.src, check.step.guard);
  for (int at : check.reads) need(at, check.step.guard);
  program_->steps.push_back(check.step);
}

void Builder::emit(Plan& plan, int guard) {
  if (std::exchange(plan.emitted, true)) return;
  need(plan.src, guard);
  Step& step = program_->steps.emplace_back();
  step.perform = run_block;
  step.op = Op::block;
  step.src = plan.src;
  auto& block = step.attach<Block>();
  block.attributes = plan.attributes;
  for (int at : plan.accessors) {
    emitted_[at] = true;
    access_[at].guard = guard;
    block.steps.push_back(access_[at]);
    if (used_[at]) block.deposits.push_back({at, nullptr});
  }
  for (int i : plan.checks) {
    const Step& check = checks_[i].step;
    block.steps.push_back(check);
    if (check.reach == Reach::emptiness) block.sizes.push_back({check.src, check.index == 0, nullptr});
  }
}

// Which registers something reads that is not a member of the plan that fills them.
void Builder::mark_used() {
  used_.assign(access_.size(), false);
  auto read = [&](int at, int by_plan) {
    if (at >= 0 && (by_plan < 0 || plan_of_[at] != by_plan)) used_[at] = true;
  };
  for (size_t i = 0; i < access_.size(); i++) read(access_[i].src, -1);
  for (const Check& check : checks_) {
    read(check.step.src, check.plan);
    for (int at : check.reads) read(at, -1);
  }
  for (int at : program_->inputs) read(at, -1);
}

// Finds the blocks. A check of a value is of the block that reads the value when nothing else can change its outcome.
void Builder::plan() {
  std::map<std::pair<int, bool>, int> of_dict;
  auto plan_for = [&](const Step& step) {
    const bool attributes = step.reach == Reach::attributes;
    if (!attributes && step.reach != Reach::content) return -1;
    auto [at, fresh] = of_dict.try_emplace({step.src, attributes}, static_cast<int>(plans_.size()));
    if (fresh) plans_.push_back({step.src, attributes, {}, {}});
    return at->second;
  };
  plan_of_.assign(access_.size(), -1);
  for (size_t i = 0; i < access_.size(); i++) {
    if (access_[i].src < 0) continue;
    plan_of_[i] = plan_for(access_[i]);
    if (plan_of_[i] >= 0) plans_[plan_of_[i]].accessors.push_back(static_cast<int>(i));
  }
  std::vector<bool> exact_dict(access_.size(), false);
  for (const Check& check : checks_) {
    if (check.step.src >= 0 && is_exact_dict_check(check.step)) exact_dict[check.step.src] = true;
  }
  for (size_t i = 0; i < checks_.size(); i++) {
    Check& check = checks_[i];
    const int src = check.step.src;
    if (src < 0 || !check.reads.empty()) continue;
    const bool of_value = check.step.reach == Reach::identity ||
                          (check.step.reach == Reach::emptiness && exact_dict[src]);
    check.plan = of_value ? plan_of_[src] : plan_for(check.step);
    if (check.plan >= 0) plans_[check.plan].checks.push_back(static_cast<int>(i));
  }
}

void Builder::finish() {
  // A value one step from the frame is a call's argument: the likeliest to differ.
  for (Check& check : checks_) {
    const bool near = check.step.src < 0 || access_[check.step.src].src < 0;
    check.rank += near ? 0 : 10;
  }
  std::stable_sort(checks_.begin(), checks_.end(), [](const Check& a, const Check& b) { return a.rank < b.rank; });
  plan();
  mark_used();
  program_->steps.reserve(access_.size() + checks_.size());
  for (Check& check : checks_) emit(check);
  checks_.clear();
  for (int at : program_->inputs) need(at, -1);
}

}  // namespace

bool build_program(Program* program, Holdings& holdings, PyObject* accessors, PyObject* checks, PyObject* inputs) {
  Builder builder(program, holdings);
  if (!builder.accessors(accessors) || !builder.checks(checks) || !builder.inputs(inputs)) return false;
  builder.finish();
  return true;
}

}  // namespace framesmith
