// Reads the nested tuples of `Plan.encode` (framesmith/runtime/plan.py).
#include "graph_plan.h"

#include <torch/csrc/Dtype.h>

#include <algorithm>

namespace framesmith {

Integer parse_integer(py::handle value) {
  if (PyTuple_Check(value.ptr())) return {0, value[py::int_(0)].cast<int32_t>()};
  return {value.cast<int64_t>(), -1};
}

std::vector<int> parse_ints(py::handle value) {
  std::vector<int> out;
  for (py::handle item : value) out.push_back(item.cast<int>());
  return out;
}

static std::vector<Integer> parse_integers(py::handle value) {
  std::vector<Integer> out;
  for (py::handle item : value) out.push_back(parse_integer(item));
  return out;
}

static Value parse_value(py::handle encoded) {
  auto t = encoded.cast<py::tuple>();
  Value v;
  v.kind = static_cast<Kind>(t[0].cast<int>());
  v.ref = parse_integer(t[1]);
  v.size = parse_integers(t[2]);
  v.stride = parse_integers(t[3]);
  TORCH_CHECK_TYPE(THPDtype_Check(py::object(t[4]).ptr()), "framesmith: a value's dtype is not a torch.dtype");
  v.dtype = reinterpret_cast<THPDtype*>(py::object(t[4]).ptr())->scalar_type;
  v.offset = parse_integer(t[5]);
  v.written = t[6].cast<bool>();
  v.late = t[7].cast<bool>();
  return v;
}

static Result parse_result(py::handle encoded) {
  auto t = encoded.cast<py::tuple>();
  Result r{t[0].cast<int>(), {}, {}};
  if (r.value < 0) {
    if (t[2].cast<bool>()) r.integer = parse_integer(t[1]);
    else r.constant = t[1];
  }
  return r;
}

static Image parse_image(py::handle encoded) {
  auto t = encoded.cast<py::tuple>();
  return {t[0].cast<std::string>(), t[1].cast<py::bytes>(), t[2].cast<unsigned>(), t[3].cast<unsigned>()};
}

static void mark(Plan& plan, int value) {
  TORCH_CHECK(value >= 0 && value < static_cast<int>(plan.values.size()), "framesmith: a plan names value ", value,
              " that it does not have");
  Value& v = plan.values[value];
  if (!v.as_tensor) {
    v.as_tensor = true;
    if (v.kind == Kind::View) mark(plan, static_cast<int>(v.ref.literal));
  }
}

// Which values are needed as tensors, and the lists by kind.
static void derive(Plan& plan) {
  for (const Result& r : plan.outputs)
    if (r.value >= 0) mark(plan, r.value);
  for (Extern& e : plan.externs) {
    for (const Argument& a : e.args)
      for (int v : a.values)
        if (v >= 0) {
          mark(plan, v);
          if (plan.values[v].kind == Kind::View) e.views.push_back(v);
        }
    for (int r : e.results)
      if (r <= -2) {
        mark(plan, -2 - r);
        if (plan.values[-2 - r].kind == Kind::View) e.views.push_back(-2 - r);
      }
  }
  std::vector<int>* lists[] = {&plan.input_values, &plan.constant_values, &plan.output_values, &plan.result_values,
                               &plan.arena_values};
  for (int i = 0; i < static_cast<int>(plan.values.size()); i++) {
    Value& v = plan.values[i];
    if (v.kind == Kind::View) {
      bool scratch = plan.values.at(v.ref.literal).kind == Kind::Arena;
      (scratch ? plan.arena_views : plan.call_views).push_back(i);
    } else {
      lists[static_cast<int>(v.kind)]->push_back(i);
    }
    if (v.kind == Kind::Output && !v.late) plan.early_values.push_back(i);
    if (v.kind == Kind::Input)
      TORCH_CHECK(v.ref.literal >= 0 && v.ref.literal < plan.inputs, "framesmith: a plan names a missing input");
    if (v.kind == Kind::Constant)
      TORCH_CHECK(v.ref.literal >= 0 && v.ref.literal < static_cast<int64_t>(plan.constants),
                  "framesmith: a plan names a missing constant");
  }
}

static std::vector<int> given_values(const Plan& plan) {
  std::vector<int> out;
  for (const Result& r : plan.outputs) {
    if (r.value < 0) continue;
    const Value& v = plan.values[r.value];
    const int base = v.kind == Kind::View ? static_cast<int>(v.ref.literal) : r.value;
    const Kind kind = plan.values[base].kind;
    if ((kind == Kind::Output || kind == Kind::Result) && std::find(out.begin(), out.end(), base) == out.end())
      out.push_back(base);
  }
  return out;
}

Plan parse_plan(py::handle encoded) {
  auto t = encoded.cast<py::tuple>();
  TORCH_CHECK_VALUE(t.size() == 18, "framesmith: a plan has 18 parts, not ", t.size());
  Plan plan;
  plan.inputs = t[0].cast<Py_ssize_t>();
  for (py::handle v : py::object(t[1])) plan.values.push_back(parse_value(v));
  for (py::handle o : py::object(t[2])) plan.outputs.push_back(parse_result(o));
  for (py::handle e : py::object(t[3])) plan.externs.push_back(parse_extern(e));
  for (py::handle s : py::object(t[4])) {
    auto pair = s.cast<std::pair<int, int>>();
    TORCH_CHECK(pair.first >= 0 && pair.first < plan.inputs, "framesmith: a size symbol names a missing input");
    plan.symbols.push_back(pair);
  }
  plan.table = t[5].cast<size_t>();
  plan.arena = parse_integer(t[6]);
  plan.bumped = parse_ints(t[7]);
  plan.watched = parse_ints(t[8]);
  plan.release = t[9].cast<bool>();
  plan.entry = t[10].cast<std::string>();
  plan.constants = t[11].cast<size_t>();
  plan.device = t[12].cast<int>();
  for (py::handle i : py::object(t[13])) plan.images.push_back(parse_image(i));
  plan.aligned = parse_ints(t[14]);
  plan.numbers = parse_ints(t[15]);
  plan.late = t[16].cast<bool>();
  for (const auto* list : {&plan.bumped, &plan.watched})
    for (int i : *list) TORCH_CHECK(i >= 0 && i < plan.inputs, "framesmith: a plan names a missing input");
  derive(plan);
  plan.given_values = given_values(plan);
  return plan;
}

}  // namespace framesmith
