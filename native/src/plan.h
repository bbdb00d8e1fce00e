// The plan of a compiled graph as packages have it: a part of what framesmith/runtime/plan.py says, where each extern
// is code of the package.
#pragma once
#include <string>
#include <vector>

#include "framesmith.h"
#include "json.h"

namespace framesmith {

size_t item_size(int dtype);

// A literal, or an entry of the table of a call.
struct Integer {
  int64_t literal = 0;
  int entry = -1;
  int64_t get(const int64_t* table) const { return entry < 0 ? literal : table[entry]; }
};

enum class Kind : int { Input, Constant, Output, Result, Arena, View };

struct Value {
  Kind kind;
  int dtype;
  Integer ref, offset;
  std::vector<Integer> size, stride;
  bool written, late;
};

// A size that varies lies from `least` to `most`. Dimension `dim` of an input is it, times `scale` plus `offset`; `size`
// says so.
struct Symbol {
  int input, dim;
  int64_t scale, offset, least, most;
  std::string name, size;
};

struct Plan {
  // `manifest`: names and dimensions; `plan`: what belongs to the code of one target. All numbers are within bounds.
  Plan(const Json& manifest, const Json& plan);

  struct Input {
    std::string name;
    int dtype, rank;
    int value;  // -1: nothing reads it
  };
  std::vector<Value> values;
  std::vector<Input> inputs;
  std::vector<std::string> output_names;
  std::vector<int> outputs;  // values
  std::vector<std::string> constants;  // names of members
  std::vector<Symbol> symbols;
  size_t table = 0;
  int calls = 0;
  Integer arena;

 private:
  Integer integer(const Json& from) const;
  std::vector<Integer> integers(const Json& from) const;
  Value value(const Json& from) const;
  void check() const;
};

}  // namespace framesmith
