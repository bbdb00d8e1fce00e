// The plan of a compiled graph as C++ data; see framesmith/runtime/plan.py for what each part means.
#pragma once
#include "cuda.h"

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace framesmith {

enum class Kind : uint8_t { Input, Constant, Output, Result, Arena, View };

// A literal, or an entry of the call's integer table.
struct Integer {
  int64_t literal = 0;
  int32_t entry = -1;
  int64_t get(const int64_t* table) const { return entry < 0 ? literal : table[entry]; }
};

struct Value {
  Kind kind;
  bool written;
  at::ScalarType dtype;
  Integer ref, offset;
  std::vector<Integer> size, stride;
  bool late = false;       // generated code asks for its memory
  bool as_tensor = false;  // an extern or an output needs it as a tensor, not only its pointer
};

// One argument of an extern.
struct Argument {
  enum class Form : uint8_t { Constant, Tensor, TensorList, OptionalTensorList, Int, IntList } form;
  c10::IValue constant;
  std::vector<int> values;         // Tensor, TensorList: numbers of values, -1 for None
  std::vector<Integer> integers;   // Int, IntList
};

struct Extern {
  std::optional<c10::OperatorHandle> op;
  py::object function;             // instead of `op`: a Python callable, with its argument template
  py::object python_args, python_kwargs;
  std::vector<Argument> args;
  std::vector<int> views;          // VIEW values among the arguments
  std::vector<int> results;        // by returned tensor: its RESULT value, -1 for none, -2 - v: copy it to value v
  bool clone = false;              // the operator may return an alias of an argument
  bool begins = false;             // a collective: what it returns is written, and held, until it is waited for
};

struct Result {
  int value;
  Integer integer;
  py::object constant;             // when `value` is -1 and this is not null; else `integer`
};

struct Plan {
  Py_ssize_t inputs;
  std::vector<Value> values;
  std::vector<Result> outputs;
  std::vector<Extern> externs;
  std::vector<std::pair<int, int>> symbols;
  size_t table;
  Integer arena;
  std::vector<int> bumped, watched;
  bool release;
  std::string entry;
  size_t constants;
  int device;                      // index of the CUDA device on which kernels run; -1: functions of the library
  std::vector<Image> images;       // the kernels of a CUDA device, by number
  std::vector<int> aligned;        // input values that kernels want aligned
  std::vector<int> numbers;        // input values that kernels are given by value: one number each, in the CPU's memory
  bool late;                       // generated code asks for the arena
  // Derived: numbers of the values of each kind; output values that are allocated at the start.
  std::vector<int> input_values, constant_values, output_values, result_values, arena_values, arena_views, call_views,
      early_values;
  std::vector<int> given_values;   // OUTPUT and RESULT values that are returned, or windows on which are
  bool dynamic() const { return table != 0; }
  c10::Device cuda_device() const { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}; }
};

Plan parse_plan(py::handle encoded);          // graph_plan.cpp
Extern parse_extern(py::handle encoded);      // graph_arguments.cpp
Integer parse_integer(py::handle value);
std::vector<int> parse_ints(py::handle value);

}  // namespace framesmith
