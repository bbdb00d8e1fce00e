#include "plan.h"

#include <algorithm>
#include <limits>

#include "error.h"

namespace framesmith {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostNumbers = 1 << 24;  // values, symbols, entries of a table
constexpr int64_t kMostBytes = int64_t{1} << 46;
constexpr int64_t kMostScale = 1 << 16;  // no size overflows

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
  Value v{static_cast<Kind>(from["kind"].integer(0, 6)), dtype_of(from["dtype"].string()), integer(from["ref"]),
          integer(from["offset"]), integers(from["size"]), integers(from["stride"]), from["written"].boolean(),
          from["late"].boolean()};
  if (v.size.size() != v.stride.size()) damaged("a value's strides");
  return v;
}

Size Plan::size(const Json& from, const Json& text) const {
  if (from.kind() == Json::Kind::Integer) return {-1, 0, from.integer(0, kMostBytes), ""};
  const auto& parts = from.array();
  if (parts.size() != 3) damaged("a size of an input");
  return {small(parts[0], 0, static_cast<int64_t>(dimensions.size()) - 1), parts[1].integer(1, kMostScale),
          parts[2].integer(-kMostScale, kMostScale), text.string()};
}

void Plan::read_interface(const Json& manifest) {
  for (const Json& item : manifest["dimensions"].array())
    dimensions.push_back({item["name"].string(), item["min"].integer(0, kMost),
                          item["max"].kind() == Json::Kind::Null ? kMost : item["max"].integer(0, kMost)});
  for (const Json& item : manifest["inputs"].array()) {
    Input input{item["name"].string(), dtype_of(item["dtype"].string()), {}};
    const auto &sizes = item["sizes"].array(), &texts = item["shape"].array();
    if (sizes.size() > FRAMESMITH_MAX_RANK || sizes.size() != texts.size()) damaged("an input's rank");
    for (size_t d = 0; d < sizes.size(); d++) {
      input.sizes.push_back(size(sizes[d], texts[d]));
      const Size& read = input.sizes.back();
      if (read.dimension < 0) continue;
      Dimension& of = dimensions[static_cast<size_t>(read.dimension)];
      if (of.input >= 0 && of.scale <= read.scale) continue;
      of.input = static_cast<int>(inputs.size()), of.at = static_cast<int>(d), of.scale = read.scale;
    }
    inputs.push_back(std::move(input));
  }
  for (const Json& item : manifest["outputs"].array()) output_names.push_back(item["name"].string());
  for (const Json& item : manifest["state"].array())
    state.push_back({static_cast<size_t>(item["bytes"].integer(0, kMostBytes)),
                     item["initial"].kind() == Json::Kind::Null ? "" : item["initial"].string()});
}

Plan::Plan(const Json& manifest, const Json& plan) {
  read_interface(manifest);
  table = static_cast<size_t>(plan["table"].integer(0, kMostNumbers));
  calls = small(plan["calls"], 0, kMostNumbers);
  arena = integer(plan["arena"]);
  for (const Json& item : plan["constants"].array()) constants.push_back(item.string());
  for (const Json& item : plan["values"].array()) values.push_back(value(item));
  const auto count = static_cast<int64_t>(values.size());
  for (const Json& item : plan["outputs"].array()) outputs.push_back(small(item, 0, count - 1));
  for (const Json& item : plan["symbols"].array()) {
    const auto found = std::find_if(dimensions.begin(), dimensions.end(),
                                    [&](const Dimension& d) { return d.name == item.string(); });
    if (found == dimensions.end()) damaged("a size that has no name");
    symbols.push_back(static_cast<size_t>(found - dimensions.begin()));
  }
  check();
  for (size_t v = 0; v < values.size(); v++)
    if (values[v].kind == Kind::Input) inputs[static_cast<size_t>(values[v].ref.literal)].value = static_cast<int>(v);
}

// Every reference of a value is in bounds, so that runs need not check.
void Plan::check() const {
  const auto within = [](const Integer& n, size_t count) {
    if (n.entry >= 0 || n.literal < 0 || static_cast<size_t>(n.literal) >= count) damaged("a value's place");
  };
  for (const Value& v : values) {
    switch (v.kind) {
      case Kind::Input:
        within(v.ref, inputs.size());
        if (v.size.size() != inputs[static_cast<size_t>(v.ref.literal)].sizes.size() ||
            v.dtype != inputs[static_cast<size_t>(v.ref.literal)].dtype)
          damaged("an input");
        break;
      case Kind::Constant: within(v.ref, constants.size()); break;
      case Kind::State: within(v.ref, state.size()); break;
      case Kind::View:
        within(v.ref, values.size());
        if (values[static_cast<size_t>(v.ref.literal)].kind == Kind::View) damaged("a view of a view");
        break;
      case Kind::Result: damaged("a value that an operator makes"); break;
      case Kind::Output:
      case Kind::Arena: break;
    }
  }
  for (const Dimension& d : dimensions)
    if (d.input < 0) damaged("a size that no input has");
  for (int v : outputs)
    if (values[static_cast<size_t>(v)].size.size() > FRAMESMITH_MAX_RANK) damaged("an output's rank");
  if (output_names.size() != outputs.size() || symbols.size() > table) damaged("its plan does not fit its manifest");
}

}  // namespace framesmith
