#include "graph.h"
#include "generators.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>

#include <ATen/ops/as_strided.h>

namespace framesmith {

// -------------------------------------------------------------------------------------------------------- construction

template <typename F>
static F symbol(void* library, const std::string& name) {
  void* found = dlsym(library, name.c_str());
  TORCH_CHECK(found, "framesmith: the compiled library has no function ", name);
  return reinterpret_cast<F>(found);
}

Graph::Graph(py::handle encoded, const std::string& path, py::object constants, py::object refresh_)
    : refresh(std::move(refresh_)), plan(parse_plan(encoded)) {
  TORCH_CHECK_VALUE(plan.watched.empty() || !refresh.is_none(), "framesmith: watched inputs need a refresh function");
  std::tie(failures_.clean, failures_.spoilt, failures_.rewinds) =
      py::cast<std::tuple<int, bool, bool>>(encoded.cast<py::tuple>()[17]);
  if (!constants.is_none()) set_constants(constants);
  else if (plan.constants == 0) generation_ = 1;
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) {
    const char* why = dlerror();
    TORCH_CHECK(false, "framesmith: cannot load ", path, ": ", why ? why : "unknown");
  }
  run_ = symbol<RunFunction>(library_, plan.entry);
  if (plan.dynamic()) sizes_ = symbol<SizesFunction>(library_, plan.entry + "_sizes");
  if (plan.device < 0) return;
  c10::DeviceGuard here(plan.cuda_device());
  for (const Image& image : plan.images) kernels_.push_back(load_cuda_kernel(plan.device, image));
}

Graph::~Graph() {
  if (library_) dlclose(library_);
}

void Graph::set_constants(py::handle sequence) {
  std::vector<at::Tensor> tensors;
  for (py::handle item : sequence) {
    TORCH_CHECK_TYPE(THPVariable_Check(item.ptr()), "framesmith: a constant is not a tensor");
    const at::Tensor& t = THPVariable_Unpack(item.ptr());
    // An alias without a Python object: counting references to it needs no lock.
    if (is_lazy(t)) tensors.push_back(settled(t));
    else
      tensors.emplace_back(t.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                            /*allow_tensor_metadata_change=*/false));
  }
  TORCH_CHECK_VALUE(tensors.size() == plan.constants, "framesmith: ", plan.constants, " constants expected, ",
                    tensors.size(), " given");
  constants_ = std::move(tensors);
  generation_++;
}

// ---------------------------------------------------------------------------------------------------------------- call

Graph::Lease::Lease(Graph& g) : graph(g) {
  if (g.plan.device >= 0) device.reset_device(g.plan.cuda_device());
  frame = g.take_frame();
}

Graph::Lease::~Lease() {
  give_arena(arena);
  frame->clear_call();
  graph.idle_.push_back(std::move(frame));
}

std::unique_ptr<Frame> Graph::take_frame() {
  if (idle_.empty()) return std::make_unique<Frame>(plan);
  auto frame = std::move(idle_.back());
  idle_.pop_back();
  return frame;
}

static const at::Tensor& tensor_at(PyObject* inputs, int64_t index) {
  PyObject* item = PyTuple_GET_ITEM(inputs, index);
  if (C10_UNLIKELY(!THPVariable_Check(item)))
    TORCH_CHECK_TYPE(false, "framesmith: input ", index, " must be a tensor, not ", Py_TYPE(item)->tp_name);
  return THPVariable_Unpack(item);
}

void Graph::read_inputs(Frame& frame, PyObject* inputs) const {
  for (int v : plan.input_values) {
    const at::Tensor& t = tensor_at(inputs, plan.values[v].ref.literal);
    if (frame.owns_inputs) frame.tensors[v] = t;
    frame.refs[v] = frame.owns_inputs ? &frame.tensors[v] : &t;
    C10_UNLIKELY(is_lazy(t)) ? frame.settle(v) : frame.point(v);
  }
}

void Graph::read_symbols(Frame& frame, PyObject* inputs) const {
  auto& table = frame.table;
  size_t k = 0;
  for (auto [input, dim] : plan.symbols) {
    if (dim >= 0) {
      table[k++] = tensor_at(inputs, input).size(dim);
    } else {
      table[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(inputs, input));
      if (table[k++] == -1 && PyErr_Occurred()) throw python_error();
    }
  }
  if (frame.previous.size() == table.size() &&
      std::equal(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(k), frame.previous.begin())) {
    table = frame.previous;
    return;
  }
  sizes_(table.data());
  frame.previous = table;
  frame.resolve();
}

// All that the call gives a frame.
void Graph::ready(Frame& frame, PyObject* inputs) {
  read_inputs(frame, inputs);
  if (plan.dynamic()) read_symbols(frame, inputs);
  frame.set_constants(constants_, generation_);
}

void Graph::check_constants(PyObject* inputs) {
  const auto watched = [&](size_t i) -> const at::Tensor& { return tensor_at(inputs, plan.watched[i]); };
  if (C10_LIKELY(generation_ != 0 && (watches_.size() == plan.watched.size()) && watches_.hold(watched))) return;
  TORCH_CHECK_VALUE(!refresh.is_none(), "framesmith: the graph's constants were not given");
  std::vector<const at::Tensor*> tensors;
  for (size_t i = 0; i < plan.watched.size(); i++) tensors.push_back(&watched(i));
  Watches watches(tensors);  // taken before the constants are computed: a later write is seen
  py::object made = refresh(py::handle(inputs));
  set_constants(made);
  watches_ = std::move(watches);
  refreshes++;
}

const c10::DispatchKeySet& outside_keys() {
  static const c10::DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  return keys;
}

// what failed instead of an extern: anything else; a kernel's check of an index
constexpr int kNoExtern = -1, kIndex = -2;

void Graph::run(Frame& frame, char* arena) {
  at::internal::lazy_init_num_threads();  // PyTorch's thread count, in this thread as well
  c10::impl::ExcludeDispatchKeyGuard below(outside_keys());
  frame.realign();
  int status;
  if (plan.release) {
    py::gil_scoped_release unlocked;
    status = run_(arena, frame.pointers.data(), frame.table.data(), &frame.host);
  } else {
    status = run_(arena, frame.pointers.data(), frame.table.data(), &frame.host);
  }
  if (C10_UNLIKELY(!frame.stand_ins.empty())) frame.give_back();
  if (C10_LIKELY(status == 0)) return;
  if (frame.error) std::rethrow_exception(std::exchange(frame.error, nullptr));
  frame.failed = kIndex;
  TORCH_CHECK_INDEX(false, "index out of range in self");
}

static thread_local __attribute__((tls_model("initial-exec"))) bool written = false;

bool take_has_written() { return std::exchange(written, false); }

bool Graph::has_written(const Frame& frame) const {
  if (failures_.clean >= static_cast<int>(plan.externs.size()) && plan.bumped.empty()) return false;
  return frame.failed == kIndex ? failures_.spoilt : frame.failed < 0 || frame.failed >= failures_.clean;
}

// Runs the graph. If it fails before it has written an input, generators are as they were: eager can run instead.
void Graph::run_or_rewind(Frame& frame, char* arena, PyObject* inputs) {
  std::optional<GeneratorStates> before;
  if (C10_UNLIKELY(failures_.rewinds)) before.emplace(plan.device);
  try {
    run(frame, arena);
  } catch (...) {
    written = has_written(frame);
    frame.failed = kNoExtern;
    if (written) bump_versions(inputs);
    else if (before) before->restore();
    throw;
  }
}

void Graph::bump_versions(PyObject* inputs) const {
  for (int i : plan.bumped) {
    const at::Tensor& t = tensor_at(inputs, i);
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
  }
}

static at::Tensor output_view(const Frame& frame, int value) {
  const Value& v = frame.plan.values[value];
  const Geometry& g = frame.geometry[value];
  const at::Tensor& base = *frame.refs[v.ref.literal];
  if (base.scalar_type() != v.dtype) return window(base, g, v.dtype);
  return at::as_strided(base, g.size, g.stride, base.storage_offset() + g.offset);  // shares the version counter
}

PyObject* Graph::results(Frame& frame) const {
  auto tuple = py::reinterpret_steal<py::object>(PyTuple_New(static_cast<Py_ssize_t>(plan.outputs.size())));
  if (!tuple) throw python_error();
  for (size_t i = 0; i < plan.outputs.size(); i++) {
    const Result& r = plan.outputs[i];
    PyObject* item;
    if (r.value >= 0) {
      Kind kind = plan.values[r.value].kind;
      item = kind == Kind::View ? THPVariable_Wrap(output_view(frame, r.value))
                                : THPVariable_Wrap(*frame.refs[r.value]);
    } else if (r.constant) {
      item = r.constant.inc_ref().ptr();
    } else {
      item = PyLong_FromLongLong(r.integer.get(frame.table.data()));
    }
    if (!item) throw python_error();
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  return tuple.release().ptr();
}

// The arena of a call; null where the code that runs asks for it.
char* Graph::take_memory(Frame& frame, Arena& arena) const {
  if (plan.device >= 0) {
    frame.kernels = kernels_.data();
    frame.stream = cuda_stream(plan.device);
    return plan.late ? nullptr : frame.take_scratch();
  }
  arena = take_arena(static_cast<size_t>(plan.arena.get(frame.table.data())));
  if (arena.base) frame.set_arena(arena.base);
  return arena.base;
}

// The elements of a list as a tuple; the list is empty then.
static py::object taken(PyObject* list) {
  auto tuple = py::reinterpret_steal<py::object>(PyList_AsTuple(list));
  if (!tuple || PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) throw python_error();
  return tuple;
}

PyObject* Graph::call(PyObject* inputs) {
  py::object given_up;
  if (PyList_Check(inputs)) {
    given_up = taken(inputs);
    inputs = given_up.ptr();
  }
  TORCH_CHECK_TYPE(PyTuple_Check(inputs) && PyTuple_GET_SIZE(inputs) == plan.inputs, "framesmith: a tuple of ",
                   plan.inputs, " inputs expected");
  calls++;
  written = false;
  if (plan.constants != 0) check_constants(inputs);
  Lease lease(*this);
  lease.frame->owns_inputs = given_up && plan.bumped.empty();
  ready(*lease.frame, inputs);
  if (checked) check(inputs);
  std::optional<Ranges> ranges;  // ends before the lease
  if (C10_UNLIKELY(is_profiled())) ranges.emplace(*lease.frame, names);
  if (!recordings || !recorded(lease, inputs)) {
    Frame& frame = *lease.frame;
    char* arena = take_memory(frame, lease.arena);
    for (int v : plan.early_values) frame.allocate(v);
    if (frame.owns_inputs) given_up = py::object();  // the frame alone has them now
    run_or_rewind(frame, arena, inputs);
    if (recordings) recordings->tables = frame.table_sizes();
  }
  if (C10_UNLIKELY(!lease.frame->stand_ins.empty())) {  // a recording has been replayed
    c10::impl::ExcludeDispatchKeyGuard below(outside_keys());
    lease.frame->give_back();
  }
  bump_versions(inputs);
  return results(*lease.frame);
}

void Graph::check(PyObject* inputs) const {
  Frame frame(plan);
  if (plan.dynamic()) read_symbols(frame, inputs);
  for (int v : plan.input_values) {
    const Value& value = plan.values[v];
    const at::Tensor& t = tensor_at(inputs, value.ref.literal);
    const Geometry& g = frame.geometry[v];
    TORCH_CHECK_VALUE(fits(t, g, value.dtype), "framesmith: input ", value.ref.literal, " is ", t.scalar_type(),
                      t.sizes(), " with strides ", t.strides(), "; the graph was compiled for ", value.dtype,
                      c10::IntArrayRef(g.size), " with strides ", c10::IntArrayRef(g.stride));
  }
}

}  // namespace framesmith
