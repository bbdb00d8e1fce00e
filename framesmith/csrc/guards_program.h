// The program of a guard tree. Register i holds the value of accessor i; each step fills a register or checks some.
// Values in registers are borrowed: from the frame, `owned`, or containers that nothing changes during a check.
#pragma once

#include <Python.h>

#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "guards.h"
#include "objects.h"

namespace framesmith {

struct Step;

// One check of a tree against one frame.
struct Run {
  const FrameView& frame;
  PyObject** registers;
  std::vector<PyObject*> owned;  // new references made on the way

  explicit Run(const FrameView& view, PyObject** slots) : frame(view), registers(slots) {}
  ~Run() {
    for (PyObject* object : owned) Py_DECREF(object);
  }
  Run(const Run&) = delete;
  // Keeps a new reference for the run. False for null, whose exception is cleared: a failed access is a failed guard.
  bool keep(PyObject* made, PyObject** slot) {
    if (!made) {
      PyErr_Clear();
      return false;
    }
    owned.push_back(made);
    *slot = made;
    return true;
  }
};

// What a step needs beyond its fields; freed with the tree.
struct StepData {
  virtual ~StepData() = default;
};

// The steps that the loop runs without a call.
enum class Op : unsigned char { other, local, dict_attr, item, type_is, id_is, block };

// What alone decides a step's outcome: the content of the read object's instance dict; the read object's own content if
// that is a dict; which object is read; whether it is empty, if it is exactly a dict. `any`: decided anew each time.
enum class Reach : unsigned char { any, attributes, content, identity, emptiness };

struct Step {
  bool (*perform)(Step&, Run&) = nullptr;
  PyObject* payload = nullptr;  // held or watched by the tree
  PyObject* cached = nullptr;   // borrowed from the dict whose version is `version`
  uint64_t version = 0;
  StepData* data = nullptr;
  Py_ssize_t index = 0;
  int dst = -1;    // accessors: the register filled
  int src = -1;    // the register read
  int guard = -1;  // the guard's number
  Op op = Op::other;
  Reach reach = Reach::any;  // the kind's, or what `prepare` found

  // Makes the step's data, which belongs to the tree from then on, even if `prepare` fails.
  template <class T> T& attach() {
    auto* made = new T;
    data = made;
    return *made;
  }
  template <class T> T& held() const { return *static_cast<T*>(data); }
};

inline PyObject* subject(const Step& step, const Run& run) { return run.registers[step.src]; }
inline bool deliver(const Step& step, Run& run, PyObject* value) {
  run.registers[step.dst] = value;
  return value != nullptr;
}

// Owns what the steps of one tree refer to.
class Holdings {
 public:
  Holdings(void (*notify)(void*), void* arg) : notify_(notify), arg_(arg) {}
  ~Holdings();
  Holdings(const Holdings&) = delete;
  // Keeps `object` comparable by address: weakly if it allows that (its death calls `notify`), else strongly.
  bool watch(PyObject* object);
  // Keeps it alive.
  PyObject* hold(PyObject* object);
  int traverse(visitproc visit, void* arg);
  void drop();

 private:
  static PyObject* on_death(PyObject* self, PyObject* ref);
  static PyMethodDef death_method_;
  void (*notify_)(void*);
  void* arg_;
  PyObject* listener_ = nullptr;
  std::unordered_map<PyObject*, PyObject*> watched_;  // object -> weak reference, or itself when held
  std::vector<PyObject*> held_;
};

// How one kind of accessor or check is made and run. `prepare` reads the payload; false with an exception if unfit.
struct StepKind {
  const char* name;
  bool (*perform)(Step&, Run&);
  bool (*prepare)(Step&, PyObject* payload, Holdings&);
  Op op;
  int rank;  // checks: cheap and likely to fail first
  Reach reach = Reach::any;
};

using StepTable = std::span<const StepKind>;
StepTable access_kinds();
StepTable value_kinds();
StepTable dict_kinds();
StepTable tensor_kinds();
StepTable relation_kinds();
StepTable state_kinds();

// Steps in order, and the registers of the graph inputs. Owns the data of its steps.
struct Program {
  std::vector<Step> steps;
  std::vector<int> inputs;
  size_t registers = 0;
  Program() = default;
  Program(const Program&) = delete;
  ~Program() {
    for (Step& step : steps) delete step.data;
  }
};

// False with an exception for lists that are malformed or that `prepare` refuses.
bool build_program(Program* program, Holdings& holdings, PyObject* accessors, PyObject* checks, PyObject* inputs);

// `prepare` functions that several kinds share.
bool prepare_held(Step& step, PyObject* payload, Holdings& holdings);
bool prepare_watched(Step& step, PyObject* payload, Holdings& holdings);
bool prepare_key(Step& step, PyObject* payload, Holdings& holdings);  // held, or watched if known by its identity alone
bool prepare_index(Step& step, PyObject* payload, Holdings& holdings);
bool prepare_nothing(Step& step, PyObject* payload, Holdings& holdings);
// Reads a tuple or list of register numbers.
bool read_registers(PyObject* payload, std::vector<int>* out);

// Strict equality: same type, floats bit for bit, tuples element by element. -1 with an exception.
int same_value(PyObject* a, PyObject* b);

}  // namespace framesmith
