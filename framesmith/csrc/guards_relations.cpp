// Checks over several values: identity of two, difference of many, and relations between sizes.
#include <algorithm>
#include <array>
#include <bit>

#include "guards_program.h"
#include "guards_tensor.h"

namespace framesmith {
namespace {

// The registers of objects that differ, and a hash table for many of them: a slot is taken if it was in this round.
struct Different : StepData {
  std::vector<int> at;
  std::vector<PyObject*> slots;
  std::vector<uint32_t> rounds;
  uint32_t round = 0;
};

bool prepare_different(Step& step, PyObject* payload, Holdings&) {
  auto& data = step.attach<Different>();
  if (!read_registers(payload, &data.at)) return false;
  data.slots.resize(std::bit_ceil(2 * data.at.size()));
  data.rounds.resize(data.slots.size());
  return true;
}

bool same(Step& step, Run& run) { return run.registers[step.src] == run.registers[step.index]; }

bool distinct(Step& step, Run& run) {
  auto& data = step.held<Different>();
  const auto& at = data.at;
  if (at.size() <= 8) {
    for (size_t i = 1; i < at.size(); i++) {
      for (size_t j = 0; j < i; j++) {
        if (run.registers[at[i]] == run.registers[at[j]]) return false;
      }
    }
    return true;
  }
  if (++data.round == 0) {
    std::fill(data.rounds.begin(), data.rounds.end(), 0);
    data.round = 1;
  }
  const size_t mask = data.slots.size() - 1;
  for (int i : at) {
    PyObject* object = run.registers[i];
    size_t slot = (reinterpret_cast<uintptr_t>(object) >> 4) * 0x9E3779B97F4A7C15u >> 32 & mask;
    for (; data.rounds[slot] == data.round; slot = (slot + 1) & mask) {
      if (data.slots[slot] == object) return false;
    }
    data.rounds[slot] = data.round;
    data.slots[slot] = object;
  }
  return true;
}

// ---- shape: a relation as a postfix program over int64 ----

enum class Arith : char { constant, leaf, add, mul, floordiv, mod, min, max, le0, eq0, ne0, and_, or_ };
constexpr const char* arith_names[] = {"const", "leaf", "add", "mul", "floordiv", "mod", "min",
                                       "max",   "le",   "eq",  "ne",  "and",      "or"};
constexpr size_t usual_depth = 32;  // of the evaluation stack

struct Leaf {
  int at;
  char what;  // 's'ize, s't'ride, 'v'alue
  Py_ssize_t dim;
};

struct Instruction {
  Arith op;
  int64_t operand;
};

struct Relation : StepData {
  std::vector<Instruction> code;
  std::vector<Leaf> leaves;
  size_t depth = 0;  // of the stack that the code needs
};

bool read_leaf(const Leaf& leaf, Run& run, int64_t* out) {
  PyObject* object = run.registers[leaf.at];
  if (leaf.what != 'v') return tensor_dim(object, leaf.what == 't', leaf.dim, out);
  if (!PyLong_CheckExact(object)) return false;
  *out = PyLong_AsLongLong(object);
  if (*out != -1 || !PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

// A divisor of -1 is apart: the machine traps on the least integer.
bool floor_divide(int64_t a, int64_t b, int64_t* out) {
  if (b == -1) return !__builtin_sub_overflow(0, a, out);
  *out = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
  return true;
}

// False when 64 bits do not hold the value, or it is not defined: a division by zero.
bool apply(Arith op, int64_t a, int64_t b, int64_t* out) {
  if ((op == Arith::floordiv || op == Arith::mod) && b == 0) return false;
  switch (op) {
    case Arith::add: return !__builtin_add_overflow(a, b, out);
    case Arith::mul: return !__builtin_mul_overflow(a, b, out);
    case Arith::floordiv: return floor_divide(a, b, out);
    case Arith::mod: *out = b == -1 ? 0 : a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0); break;
    case Arith::min: *out = std::min(a, b); break;
    case Arith::max: *out = std::max(a, b); break;
    case Arith::and_: *out = a && b; break;
    case Arith::or_: *out = a || b; break;
    default: return false;
  }
  return true;
}

bool shape(Step& step, Run& run) {
  const auto& relation = step.held<Relation>();
  std::array<int64_t, usual_depth> usual;
  std::vector<int64_t> deep(relation.depth > usual_depth ? relation.depth : 0);
  int64_t* stack = deep.empty() ? usual.data() : deep.data();
  size_t top = 0;
  for (const Instruction& instruction : relation.code) {
    switch (instruction.op) {
      case Arith::constant: stack[top++] = instruction.operand; break;
      case Arith::leaf:
        if (!read_leaf(relation.leaves[instruction.operand], run, &stack[top++])) return false;
        break;
      case Arith::le0: stack[top - 1] = stack[top - 1] <= 0; break;
      case Arith::eq0: stack[top - 1] = stack[top - 1] == 0; break;
      case Arith::ne0: stack[top - 1] = stack[top - 1] != 0; break;
      default:
        top--;
        if (!apply(instruction.op, stack[top - 1], stack[top], &stack[top - 1])) return false;
    }
  }
  return stack[0] != 0;
}

bool read_code(PyObject* code, Relation& relation) {
  size_t depth = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code); i++) {
    const char* name;
    long long operand;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(code, i), "sL:shape", &name, &operand)) return false;
    const auto* at = std::find(std::begin(arith_names), std::end(arith_names), std::string_view(name));
    const auto op = static_cast<Arith>(at - std::begin(arith_names));
    const bool push = op == Arith::constant || op == Arith::leaf;
    const bool unary = op == Arith::le0 || op == Arith::eq0 || op == Arith::ne0;
    const size_t taken = push ? 0 : unary ? 1 : 2;
    const bool known = at != std::end(arith_names) &&
                       (op != Arith::leaf || (operand >= 0 && static_cast<size_t>(operand) < relation.leaves.size()));
    if (!known || depth < taken) {
      PyErr_SetString(PyExc_ValueError, "a shape guard's program is malformed");
      return false;
    }
    depth += 1 - taken;
    relation.depth = std::max(relation.depth, depth);
    relation.code.push_back({op, operand});
  }
  if (depth == 1) return true;
  PyErr_SetString(PyExc_ValueError, "a shape guard's program must leave one value");
  return false;
}

// (code, leaves): code = ((operation, operand), ...), leaves = ((register, 's' | 't' | 'v', dim), ...).
bool prepare_shape(Step& step, PyObject* payload, Holdings&) {
  PyObject *code, *leaves;
  if (!PyArg_ParseTuple(payload, "O!O!:shape", &PyTuple_Type, &code, &PyTuple_Type, &leaves)) return false;
  auto& relation = step.attach<Relation>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); i++) {
    int at, what;
    Py_ssize_t dim;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(leaves, i), "iCn:leaf", &at, &what, &dim)) return false;
    relation.leaves.push_back({at, static_cast<char>(what), dim});
  }
  return read_code(code, relation);
}

constexpr StepKind kinds[] = {
    {"same", same, prepare_index, Op::other, 1},
    {"distinct", distinct, prepare_different, Op::other, 5},
    {"shape", shape, prepare_shape, Op::other, 1},
};

}  // namespace

StepTable relation_kinds() { return kinds; }

}  // namespace framesmith
