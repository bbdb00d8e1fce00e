// Calls of PyTorch operators from generated code: boxed, through the dispatcher, below autograd.
#include "graph_frame.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>

namespace framesmith {

// ----------------------------------------------------------------------------------------------------------- arguments

template <typename T, typename Items, typename F> static c10::IValue list_of(const Items& items, F f) {
  c10::List<T> list;
  list.reserve(items.size());
  for (const auto& item : items) list.push_back(f(item));
  return list;
}

static c10::IValue argument(const Frame& f, const Argument& a) {
  using Maybe = std::optional<at::Tensor>;
  switch (a.form) {
    case Argument::Form::Tensor: return *f.refs[a.values[0]];
    case Argument::Form::TensorList:
      return list_of<at::Tensor>(a.values, [&](int v) { return v < 0 ? at::Tensor() : *f.refs[v]; });
    case Argument::Form::OptionalTensorList:
      return list_of<Maybe>(a.values, [&](int v) { return v < 0 ? std::nullopt : Maybe(*f.refs[v]); });
    case Argument::Form::Int: return a.integers[0].get(f.table.data());
    case Argument::Form::IntList:
      return list_of<int64_t>(a.integers, [&](const Integer& i) { return i.get(f.table.data()); });
    default: return a.constant;
  }
}

// ------------------------------------------------------------------------------------------------------------- results

// A copy with a layout in which elements that are one in memory, as an expanded tensor's, are equal.
static at::Tensor laid_out(const at::Tensor& t, const Geometry& g) {
  at::Tensor source = t;
  for (size_t d = 0; d < g.size.size(); d++)
    if (g.stride[d] == 0 && g.size[d] > 1) source = source.narrow(static_cast<int64_t>(d), 0, 1);
  return at::empty_strided(source.sizes(), g.stride, t.options()).copy_(source).as_strided(g.size, g.stride);
}

// The tensor that stands for `value` from now on: `t`, or a copy of it when its layout is not the one that generated
// code was made for, or it shares memory, which may be the arena's. Schemas do not tell of all that does
// (`_unsafe_view`); `alone`: nobody else holds `t`.
static void bind(Frame& f, const Extern& e, int value, at::Tensor t, bool alone) {
  if (t.has_storage()) {
    const Geometry& g = f.geometry[value];
    at::ScalarType dtype = f.plan.values[value].dtype;
    TORCH_CHECK(t.scalar_type() == dtype && t.sizes() == c10::IntArrayRef(g.size), "framesmith: an operator returned ",
                t.scalar_type(), t.sizes(), " where ", dtype, c10::IntArrayRef(g.size), " was predicted");
    const bool clone = e.clone || (!e.begins && (t.storage().use_count() > 1 || (alone && t.use_count() > 1)));
    if (clone || t.is_neg() || t.is_conj() || !fits(t, g, dtype) ||
        (f.plan.device >= 0 && !is_aligned(t.const_data_ptr()))) {
      t = laid_out(t, g);
    } else if (C10_UNLIKELY(t.strides() != c10::IntArrayRef(g.stride))) {  // in dimensions of one element
      t = at::as_strided(t, g.size, g.stride, t.storage_offset());
    }
    f.pointers[value] = t.mutable_data_ptr();
  } else {
    f.pointers[value] = nullptr;  // an opaque layout
  }
  f.set_result(value, std::move(t));
}

static void bind_results(Frame& f, const Extern& e, torch::jit::Stack& returned) {
  size_t next = 0;
  auto take = [&](at::Tensor t, bool alone) {
    int value = next < e.results.size() ? e.results[next] : -1;
    next++;
    if (value >= 0) bind(f, e, value, std::move(t), alone);
    else if (value <= -2) const_cast<at::Tensor*>(f.refs[-2 - value])->copy_(t);
  };
  for (c10::IValue& r : returned) {
    if (r.isTensor()) take(std::move(r).toTensor(), e.op.has_value());  // Python's results have their objects, too
    else if (r.isTensorList())
      for (at::Tensor t : r.toTensorVector()) take(std::move(t), false);
  }
  returned.clear();
}

// -------------------------------------------------------------------------------------------------------------- Python

static py::object tensor_object(const Frame& f, int value) {
  return value < 0 ? py::none() : py::reinterpret_steal<py::object>(THPVariable_Wrap(*f.refs[value]));
}

static py::object python_argument(const Frame& f, py::handle encoded) {
  auto pair = encoded.cast<py::tuple>();
  py::object value = pair[1];
  switch (pair[0].cast<std::string>()[0]) {
    case 't': return tensor_object(f, value.cast<int>());
    case 'd': return py::int_(f.table[value.cast<size_t>()]);
    case 'l': {
      py::list out;
      for (int v : parse_ints(value)) out.append(tensor_object(f, v));
      return out;
    }
    case 'e': {
      py::list out;
      for (py::handle i : value) out.append(parse_integer(i).get(f.table.data()));
      return out;
    }
    default: return value;
  }
}

static void call_python(Frame& f, const Extern& e) {
  py::gil_scoped_acquire lock;
  py::list args;
  py::dict kwargs;
  for (py::handle a : e.python_args) args.append(python_argument(f, a));
  for (auto item : py::reinterpret_borrow<py::dict>(e.python_kwargs))
    kwargs[item.first] = python_argument(f, item.second);
  py::object returned = e.function(*args, **kwargs);
  auto push = [&](py::handle o) {
    if (THPVariable_Check(o.ptr())) f.stack.emplace_back(THPVariable_Unpack(o.ptr()));
  };
  if (PyTuple_Check(returned.ptr()) || PyList_Check(returned.ptr()))
    for (py::handle o : returned) push(o);
  else
    push(returned);
  bind_results(f, e, f.stack);
}

// ---------------------------------------------------------------------------------------------------------------- call

static bool is_of_call(const Plan& plan, int view) {
  return plan.values[plan.values[view].ref.literal].kind != Kind::Arena;
}

static void make_views(Frame& f, const Extern& e) {
  for (int v : e.views)
    if (is_of_call(f.plan, v))
      f.own(v, window(*f.refs[f.plan.values[v].ref.literal], f.geometry[v], f.plan.values[v].dtype));
}

static void drop_views(Frame& f, const Extern& e) {  // they would keep memory that is released
  for (int v : e.views)
    if (is_of_call(f.plan, v)) f.tensors[v].reset();
}

// Memory that an operator wrote into in another layout, as `out=` of `adaptive_avg_pool2d` does, gets the plan's again.
static void restore_layouts(Frame& f, const Extern& e) {
  for (const Argument& a : e.args) {
    if (a.form != Argument::Form::Tensor || a.values[0] < 0) continue;
    const Value& value = f.plan.values[a.values[0]];
    const at::Tensor& t = *f.refs[a.values[0]];
    const Geometry& g = f.geometry[a.values[0]];
    const bool planned = value.kind == Kind::Arena || value.kind == Kind::Output;
    if (C10_LIKELY(!planned || t.strides() == c10::IntArrayRef(g.stride))) continue;
    const bool moved = !fits(t, g, value.dtype);
    const at::Tensor found = moved ? t.clone() : t;
    t.unsafeGetTensorImpl()->set_sizes_and_strides(g.size, g.stride);
    if (moved) t.copy_(found);
  }
}

static void call_operator(Frame& f, const Extern& e) {
  f.stack.reserve(e.args.size());
  for (const Argument& a : e.args) f.stack.push_back(argument(f, a));
  e.op->callBoxed(f.stack);
  restore_layouts(f, e);
  bind_results(f, e, f.stack);
}

static size_t result_bytes(const Frame& f, const Extern& e) {
  size_t bytes = 0;
  for (int r : e.results)
    if (r != -1) bytes += f.geometry[r >= 0 ? r : -2 - r].bytes;
  return bytes;
}

// What is recorded is on the device: the CPU's numbers would be recorded as they are now, copies to it be waited for.
static void need_device(const Frame& f, const Extern& e) {
  auto check = [&](const c10::Device& d) {
    TORCH_CHECK(d.is_cuda() && (!d.has_index() || d == f.plan.cuda_device()), "it has to do with memory of ", d);
  };
  for (const Argument& a : e.args) {
    for (int v : a.values)
      if (v >= 0 && f.refs[v]->defined()) check(f.refs[v]->device());
    if (a.constant.isDevice()) check(a.constant.toDevice());
  }
}

int call_extern(Frame* frame, int index) {
  Frame& f = *frame;
  const Extern& e = f.plan.externs[index];
  const int failed = guarded(frame, [&] {
    if (f.plan.device < 0) expect_results(result_bytes(f, e));
    make_views(f, e);
    if (C10_UNLIKELY(f.recording && f.plan.device >= 0)) need_device(f, e);
    f.stack.clear();
    e.op ? call_operator(f, e) : call_python(f, e);
    drop_views(f, e);
  });
  if (C10_UNLIKELY(failed)) f.failed = index;
  return failed;
}

}  // namespace framesmith
