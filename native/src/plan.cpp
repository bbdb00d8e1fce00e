#include "plan.h"

#include <algorithm>
#include <limits>

#include "error.h"

namespace framesmith {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostNumbers = 1 << 24;  // values, symbols, entries of a table

const struct {
  const char* name;
  size_t bytes;
} kTypes[] = {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1},
              {"int16", 2},   {"int32", 4},   {"int64", 8},   {"uint8", 1},    {"bool", 1}};

int dtype_of(const std::string& name) {
  for (size_t k = 0; k < std::size(kTypes); k++)
    if (name == kTypes[k].name) return static_cast<int>(k);
  throw Error(FRAMESMITH_UNSUPPORTED, "elements of type " + name);
}

int small(const Json& from, int64_t least, int64_t most) { return static_cast<int>(from.integer(least, most)); }

}  // namespace

size_t item_size(int dtype) { return kTypes[dtype].bytes; }

Integer Plan::integer(const Json& from) const {
  if (from.kind() == Json::Kind::Integer) return {from.integer(), -1};
  if (from.array().size() != 1) damaged("a size");
  return {0, small(from.array()[0], 0, static_cast<int64_t>(table) - 1)};
}

std::vector<Integer> Plan::integers(const Json& from) const {
  std::vector<Integer> out;
  for (const Json& item : from.array()) out.push_back(integer(item));
  return out;
}

Value Plan::value(const Json& from) const {
  Value v{static_cast<Kind>(from["kind"].integer(0, 5)), dtype_of(from["dtype"].string()), integer(from["ref"]),
          integer(from["offset"]), integers(from["size"]), integers(from["stride"]), from["written"].boolean(),
          from["late"].boolean()};
  if (v.size.size() != v.stride.size()) damaged("a value's strides");
  return v;
}

Plan::Plan(const Json& manifest, const Json& plan) {
  table = static_cast<size_t>(plan["table"].integer(0, kMostNumbers));
  calls = small(plan["calls"], 0, kMostNumbers);
  arena = integer(plan["arena"]);
  for (const Json& item : plan["constants"].array()) constants.push_back(item.string());
  for (const Json& item : plan["values"].array()) values.push_back(value(item));
  const auto count = static_cast<int64_t>(values.size());
  for (const Json& item : manifest["inputs"].array())
    inputs.push_back({item["name"].string(), dtype_of(item["dtype"].string()),
                      static_cast<int>(std::min<size_t>(item["shape"].array().size(), FRAMESMITH_MAX_RANK + 1)), -1});
  for (const Json& item : manifest["outputs"].array()) output_names.push_back(item["name"].string());
  for (const Json& item : plan["outputs"].array()) outputs.push_back(small(item, 0, count - 1));
  for (const Json& item : plan["symbols"].array()) {
    Symbol s{small(item["input"], 0, static_cast<int64_t>(inputs.size()) - 1),
             small(item["dim"], 0, FRAMESMITH_MAX_RANK - 1), item["scale"].integer(1, kMostNumbers),
             item["offset"].integer(-kMostNumbers, kMostNumbers), 0, kMost, item["name"].string(), ""};
    const auto& shape = manifest["inputs"].array()[static_cast<size_t>(s.input)]["shape"].array();
    if (static_cast<size_t>(s.dim) >= shape.size()) damaged("where a size comes from");
    s.size = shape[static_cast<size_t>(s.dim)].string();
    for (const Json& d : manifest["dimensions"].array()) {
      if (d["name"].string() != s.name) continue;
      s.least = d["min"].integer(0, kMost);
      s.most = d["max"].kind() == Json::Kind::Null ? kMost : d["max"].integer(0, kMost);
    }
    symbols.push_back(std::move(s));
  }
  check();
  for (size_t v = 0; v < values.size(); v++)
    if (values[v].kind == Kind::Input) inputs[static_cast<size_t>(values[v].ref.literal)].value = static_cast<int>(v);
}

// What the kinds of values refer to is there: a run looks no more.
void Plan::check() const {
  const auto within = [](const Integer& n, size_t count) {
    if (n.entry >= 0 || n.literal < 0 || static_cast<size_t>(n.literal) >= count) damaged("a value's place");
  };
  for (const Value& v : values) {
    switch (v.kind) {
      case Kind::Input:
        within(v.ref, inputs.size());
        if (v.size.size() != static_cast<size_t>(inputs[static_cast<size_t>(v.ref.literal)].rank) ||
            v.dtype != inputs[static_cast<size_t>(v.ref.literal)].dtype)
          damaged("an input");
        break;
      case Kind::Constant: within(v.ref, constants.size()); break;
      case Kind::View:
        within(v.ref, values.size());
        if (values[static_cast<size_t>(v.ref.literal)].kind == Kind::View) damaged("a view of a view");
        break;
      case Kind::Result: damaged("a value that an operator makes"); break;
      case Kind::Output:
      case Kind::Arena: break;
    }
  }
  for (const auto& input : inputs)
    if (input.rank > FRAMESMITH_MAX_RANK) damaged("an input's rank");
  for (int v : outputs)
    if (values[static_cast<size_t>(v)].size.size() > FRAMESMITH_MAX_RANK) damaged("an output's rank");
  if (output_names.size() != outputs.size() || symbols.size() > table) damaged("its plan does not fit its manifest");
}

}  // namespace framesmith
