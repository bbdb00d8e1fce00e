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

enum class Kind : int { Input, Constant, Output, Result, Arena, View, State };

struct Value {
  Kind kind;
  int dtype;
  Integer ref, offset;
  std::vector<Integer> size, stride;
  bool written, late;
};

// A size of an input: that of a dimension of the model, times `scale` plus `offset`; or `offset` alone.
struct Size {
  int dimension = -1;
  int64_t scale = 0, offset = 0;
  std::string text;
  int64_t get(const int64_t* dimensions) const {
    return dimension < 0 ? offset : scale * dimensions[dimension] + offset;
  }
};

// A dynamic dimension in [`least`, `most`]. Size `at` of an input is `scale` times it.
struct Dimension {
  std::string name;
  int64_t least, most, scale = 0;
  int input = -1, at = 0;
};

// A tensor that runs write, and that later runs find as they left it. `initial`: the member that it is at first; empty:
// zeros.
struct Kept {
  size_t bytes;
  std::string initial;
};

struct Plan {
  // `manifest`: names and dimensions; `plan`: what belongs to the code of one target. All numbers are within bounds.
  Plan(const Json& manifest, const Json& plan);

  struct Input {
    std::string name;
    int dtype;
    std::vector<Size> sizes;
    int value = -1;  // none: nothing reads it
  };
  std::vector<Value> values;
  std::vector<Input> inputs;
  std::vector<std::string> output_names;
  std::vector<int> outputs;  // values
  std::vector<std::string> constants;  // names of members
  std::vector<Kept> state;
  std::vector<Dimension> dimensions;
  std::vector<size_t> symbols;  // the first entries of the table: dimensions
  size_t table = 0;
  int calls = 0;
  Integer arena;

 private:
  void read_interface(const Json& manifest);
  Size size(const Json& from, const Json& text) const;
  Integer integer(const Json& from) const;
  std::vector<Integer> integers(const Json& from) const;
  Value value(const Json& from) const;
  void check() const;
};

}  // namespace framesmith
