// `_C.DifferentiableGraph`: calls a forward graph and puts its results into the autograd engine, as those of one node.
//
// The node keeps what the backward will read as SavedVariables, so that version checks, saved-tensor hooks and "a
// second time" are the engine's own; its backward calls back into `program` (framesmith/autograd/node.py), which owns
// the backward graphs.
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <set>

#include "states.h"

namespace framesmith {
namespace {

namespace ag = torch::autograd;
// a shared pointer in some versions, an intrusive one in others
using NodePointer = decltype(std::declval<ag::Edge>().function);

using Places = std::vector<std::pair<int, int64_t>>;  // (0 input, 1 result, 2 extra; place)

// Where the values of a call are, by number. `watched`: what nobody may write before the backward, though it is not
// kept. `needed`: inputs of a backward that is differentiated, `exact` those of them whose values matter. `copied`:
// inputs that are written and needed as they were. `order`: places in `wanted`, as eager accumulates their gradients.
// `later`: by differentiable result, those that are computed of it. `sizes`: (input, dimension) of sizes that vary.
// `segment`: by wanted input, the part of the backward that gives its gradient.
struct Layout {
  int64_t results = 0, outputs = 0;
  std::vector<int64_t> differentiable, wanted, written, needed, exact, copied, order, segment;
  std::vector<std::vector<int64_t>> later;
  Places kept, watched, sizes;
};

struct GraphObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *program, *forward;
  Layout* layout;
};

PyObject* wrapped(const at::Tensor& x) { return x.defined() ? THPVariable_Wrap(x) : Py_NewRef(Py_None); }

PyObject* tuple_of(const ag::variable_list& values) {
  PyObject* out = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
  if (!out) throw python_error();
  for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(out, i, wrapped(values[i]));
  return out;
}

// The tensors as a list, and no longer where they were.
PyObject* moved(ag::variable_list& values) {
  PyObject* out = PyList_New(static_cast<Py_ssize_t>(values.size()));
  if (!out) throw python_error();
  for (size_t i = 0; i < values.size(); ++i) PyList_SET_ITEM(out, i, wrapped(values[i]));
  values.clear();
  return out;
}

at::Tensor tensor_at(PyObject* tuple, int64_t i) {
  PyObject* item = PyTuple_GET_ITEM(tuple, i);
  return THPVariable_Check(item) ? THPVariable_Unpack(item) : at::Tensor();
}

// The version that a tensor had; one of inference mode has none. Keeps the counter alive, not the tensor.
struct Version {
  explicit Version(const at::Tensor& x)
      : counter(ag::impl::version_counter(x)), was(counter.enabled() ? counter.current_version() : 0) {}

  void check() const {
    TORCH_CHECK(!counter.enabled() || counter.current_version() == was,
                "one of the variables needed for gradient computation has been modified by an inplace "
                "operation: a tensor of a compiled graph is at version ",
                counter.current_version(), "; expected version ", was, " instead.");
  }

  c10::VariableVersion counter;
  uint32_t was;
};

PyObject* flags(const std::vector<bool>& values) {
  PyObject* out = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
  if (!out) throw python_error();
  for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(out, i, Py_NewRef(values[i] ? Py_True : Py_False));
  return out;
}

bool all(const std::vector<bool>& values) {
  return std::all_of(values.begin(), values.end(), [](bool b) { return b; });
}

bool are_plain(const ag::variable_list& values) {
  return std::all_of(values.begin(), values.end(), [](const at::Tensor& x) { return !x.defined() || is_plain(x); });
}

py::object steal(PyObject* object) { return py::reinterpret_steal<py::object>(object); }

// What is left of a backward that runs in segments, by the engine's run: an iterator over the gradients of each, or, if
// all were computed at once, these. Used under the interpreter's lock.
struct Rest {
  // Gives a node its gradients. It has an edge for each of `wanted` inputs, valid if they are its own, and behind them
  // one to the next segment.
  void hand_on(ag::Node& node, ag::variable_list& out) {
    const auto at = left.find(ag::get_current_graph_task_id());
    if (at == left.end()) return;
    const size_t wanted = node.num_outputs() - 1;
    py::object found = at->second;
    if (!PyTuple_Check(found.ptr())) found = steal(PyIter_Next(found.ptr()));
    if (!found && PyErr_Occurred()) throw py::error_already_set();
    TORCH_CHECK(found && PyTuple_GET_SIZE(found.ptr()) == static_cast<Py_ssize_t>(wanted),
                "framesmith: a segment of a backward gave another number of gradients");
    for (size_t i = 0; i < wanted; ++i)
      if (node.task_should_compute_output(i)) out[i] = tensor_at(found.ptr(), static_cast<int64_t>(i));
    if (!node.next_edge(wanted).is_valid()) left.erase(at);
  }

  std::map<int, py::object> left;
};

// A later part of a backward: it runs when the gradients of the part before have been accumulated.
struct Segment : public ag::Node {
  explicit Segment(std::shared_ptr<Rest> rest) : rest(std::move(rest)) { add_input_metadata(undefined_input()); }

  ~Segment() override {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire lock;
    rest.reset();
  }

  std::string name() const override { return "CompiledBackwardSegment"; }

  ag::variable_list apply(ag::variable_list&&) override {
    ag::variable_list out(num_outputs());
    py::gil_scoped_acquire lock;
    rest->hand_on(*this, out);
    return out;
  }

  std::shared_ptr<Rest> rest;
};

struct GraphNode : public ag::Node {
  // Invariant: `owner` is a GraphObject; it is let go of under the interpreter's lock.
  explicit GraphNode(GraphObject* graph) : owner(Py_NewRef(reinterpret_cast<PyObject*>(graph))) {}

  ~GraphNode() override {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire lock;
    Py_DECREF(owner);
    rest.reset();
  }

  std::string name() const override { return "CompiledBackward"; }

  ag::variable_list apply(ag::variable_list&& grads) override {
    const Layout& layout = *reinterpret_cast<GraphObject*>(owner)->layout;
    ag::variable_list out(num_outputs());
    const bool ending = std::exchange(last, false);
    if (std::none_of(grads.begin(), grads.end(), [](const at::Tensor& g) { return g.defined(); })) return out;
    std::vector<bool> there, wanted;
    for (const auto& g : grads) there.push_back(g.defined());
    for (size_t i = 0; i < layout.wanted.size(); ++i)
      wanted.push_back((owners.empty() ? this : owners[i])->task_should_compute_output(i));
    const bool again = at::GradMode::is_enabled(), full = all(there) && all(wanted);
    all_taken = full;
    if (full) for (const auto& version : watched) version.check();
    if (again) for (const auto& version : versions) version.check();
    py::gil_scoped_acquire lock;
    auto program = py::reinterpret_borrow<py::object>(reinterpret_cast<GraphObject*>(owner)->program);
    auto asked = steal(flags(wanted));
    const py::tuple sized = py::cast(sizes);
    std::vector<bool> read(saved.size(), true), check;
    std::vector<bool> spent(saved.size(), ending);
    if (again || !full || released || !taken.empty()) {
      std::vector<int64_t> takes;
      auto found = program.attr("reads")(steal(flags(there)), asked, again, sized);
      using Found = std::tuple<std::vector<bool>, std::vector<bool>, std::vector<int64_t>>;
      std::tie(read, check, takes) = py::cast<Found>(found);
      const bool gone = released && (again || std::find(read.begin(), read.end(), true) != read.end());
      TORCH_CHECK(!gone && (takes.empty() || !released) &&
                      std::none_of(takes.begin(), takes.end(), [&](int64_t k) { return taken.count(k); }),
                  ag::ERR_BACKWARD_TWICE);
      if (ending && !full) {
        spent = py::cast<std::vector<bool>>(program.attr("spent")(steal(flags(there)), asked, sized));
        taken.insert(takes.begin(), takes.end());
        all_taken = !saved.empty() && all(spent);
      }
      for (size_t k = 0; k < watched.size() && saved.size() + k < check.size(); ++k)
        if (check[saved.size() + k]) watched[k].check();
    }
    ag::variable_list values(saved.size());
    {
      py::gil_scoped_release unlocked;
      std::lock_guard<std::mutex> lock(mutex_);  // another thread may run the same node
      for (size_t k = 0; k < saved.size(); ++k)
        if (read[k]) values[k] = saved[k].unpack(getptr());
        else if (k < check.size() && check[k]) saved[k].unpack(getptr());
      for (size_t k = 0; k < saved.size(); ++k)
        if (spent[k]) saved[k].reset_data();
    }
    const bool by_operators = is_transformed() || !are_plain(grads) || !are_plain(values);
    auto kept = steal(moved(values)), tangents = steal(moved(grads));
    py::object found = by_operators
                           ? program.attr("by_operators")(steal(tuple_of(inputs)), kept, tangents, asked, again, sized)
                       : again ? program.attr("whole")(steal(tuple_of(inputs)), kept, tangents, asked, sized)
                               : program.attr(rest ? "segments" : "backward")(kept, tangents, asked, sized);
    if (rest) {
      rest->left[ag::get_current_graph_task_id()] = std::move(found);
      rest->hand_on(*this, out);
      return out;
    }
    TORCH_CHECK(PyTuple_Check(found.ptr()) && PyTuple_GET_SIZE(found.ptr()) == static_cast<Py_ssize_t>(out.size()),
                "framesmith: a backward gave another number of gradients");
    for (size_t i = 0; i < out.size(); ++i)
      if (wanted[i]) out[i] = tensor_at(found.ptr(), static_cast<int64_t>(i));
    return out;
  }

  // Gradients that come to a result from later ones are added within the backward, where no hook sees them, and none
  // who asks for the gradient of the result.
  void check_seen(const ag::variable_list& grads) {
    const Layout& layout = *reinterpret_cast<GraphObject*>(owner)->layout;
    auto check = [&](size_t result, const char* who) {
      for (int64_t other : layout.later.at(result))
        TORCH_CHECK(!grads[other].defined(), "framesmith: ", who,
                    " a result of compiled code would miss the gradient that comes from other results of the same "
                    "call; compile what is computed of it as a function of its own");
    };
    for (const auto& [result, hook] : retains_grad_hooks()) check(result, "retain_grad() on");
    for (const auto& hook : tensor_pre_hooks())  // whose type is hidden in PyTorch's library
      if (std::strstr(typeid(*hook).name(), "PyFunctionTensorPreHook"))
        check(static_cast<ag::PyFunctionTensorPreHook&>(*hook).value_idx, "a hook on");
    const auto* running = ag::get_current_graph_task_exec_info();
    if (!running) return;
    const auto found = running->find(this);
    if (found == running->end() || !found->second.captures_) return;
    for (const auto& capture : *found->second.captures_) check(capture.input_idx_, "a gradient with respect to");
  }

  void will_release_variables() override { last = true; }

  void release_variables() override {
    if (!all_taken) return;  // other gradients may be asked for later
    std::lock_guard<std::mutex> lock(mutex_);
    released = true;
    for (auto& one : saved) one.reset_data();
    inputs.clear();
  }

  PyObject* owner;
  std::vector<ag::SavedVariable> saved;
  ag::variable_list inputs;  // for a backward that is differentiated in its turn
  std::vector<int64_t> sizes;
  std::vector<Version> watched, versions;
  bool last = false, released = false;  // the run at hand is the last one; it is over
  bool all_taken = false;               // after the run at hand no gradients are left
  // what last runs for some of the gradients have read of what eager keeps, by number
  std::set<int64_t> taken;
  // Of a backward in segments: what is left, and the node that has the edge of each wanted input.
  std::shared_ptr<Rest> rest;
  std::vector<ag::Node*> owners;
};

// Hands a gradient on, when it is its turn: nodes that accumulate gradients have none of their own.
struct InTurn : public ag::Node {
  explicit InTurn(ag::Edge&& next) { add_next_edge(std::move(next)); }
  std::string name() const override { return "CompiledBackwardInTurn"; }
  ag::variable_list apply(ag::variable_list&& grads) override { return std::move(grads); }
};

template <class N, class Pointer = NodePointer, class... Args>
Pointer new_node(Args&&... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<ag::Node>>)
    return Pointer(new N(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<N>(std::forward<Args>(args)...);
}

bool accumulates(const ag::Edge& edge) { return edge.is_valid() && edge.function->sequence_nr() == UINT64_MAX; }

bool has_hooks(ag::Node& node) {
  return !node.tensor_pre_hooks().empty() || node.tensor_post_acc_grad_hooks() || !node.pre_hooks().empty() ||
         !node.post_hooks().empty();
}

// Whether a hook sees that a gradient is accumulated.
bool is_seen(const ag::Edge& edge) { return accumulates(edge) && has_hooks(*edge.function); }

// Sees what the engine hands to a node, whether or not the node then runs.
struct SeenCheck : public ag::FunctionPreHook {
  explicit SeenCheck(GraphNode& node) : node(node) {}

  ag::variable_list operator()(const ag::variable_list& grads) override {
    node.check_seen(grads);
    return grads;
  }

  GraphNode& node;  // owns this
};

// Puts the edges of later segments into nodes of their own, behind which `node` has an edge to the first of them.
void divide(GraphNode& node, const Layout& layout, ag::edge_list& edges, std::vector<NodePointer> segments) {
  node.rest = static_cast<Segment&>(*segments.front()).rest;
  node.owners.assign(edges.size(), &node);
  ag::Edge next;
  for (size_t k = segments.size(); k > 0; --k) {
    ag::edge_list own(edges.size());
    for (size_t i = 0; i < edges.size(); ++i)
      if (layout.segment[i] == static_cast<int64_t>(k)) {
        own[i] = std::exchange(edges[i], ag::Edge());
        node.owners[i] = segments[k - 1].get();
      }
    own.push_back(std::move(next));
    segments[k - 1]->set_next_edges(std::move(own));
    next = ag::Edge(std::move(segments[k - 1]), 0);
  }
  edges.push_back(std::move(next));
}

// Where gradients go. If a hook sees when they are accumulated, it is in eager's order, and each segment's are before
// the next runs: of what is ready, the engine takes the node that was made last.
ag::edge_list edges_of(const Layout& layout, PyObject* inputs, std::vector<NodePointer>& segments) {
  ag::edge_list edges;
  edges.reserve(layout.wanted.size());
  for (int64_t i : layout.wanted) edges.push_back(ag::impl::gradient_edge(tensor_at(inputs, i)));
  if (std::any_of(edges.begin(), edges.end(), is_seen)) {
    const int64_t later = layout.segment.empty() ? 0 : *std::max_element(layout.segment.begin(), layout.segment.end());
    const auto rest = std::make_shared<Rest>();
    for (int64_t k = 0; k < later; ++k) segments.push_back(new_node<Segment>(rest));
    for (auto at = layout.order.rbegin(); at != layout.order.rend(); ++at) {
      ag::Edge& edge = edges[*at];
      if (!accumulates(edge)) continue;
      NodePointer pointer = new_node<InTurn>(std::move(edge));
      pointer->add_input_metadata(tensor_at(inputs, layout.wanted[*at]));
      edge = ag::Edge(std::move(pointer), 0);
    }
  }
  return edges;
}

// The forward's values as a new tuple; recorded by nobody.
py::object run_forward(GraphObject* self, PyObject* inputs) {
  at::AutoGradMode off(false);
  PyObject* values = PyObject_CallOneArg(self->forward, inputs);
  if (!values) throw python_error();
  return py::reinterpret_steal<py::object>(values);
}

// Results that are views, as a forward without autograd made them, become tensors of their own; nobody has their base.
py::object no_views(py::object values, int64_t results) {
  py::object out = values;
  for (int64_t i = 0; i < results; ++i) {
    at::Tensor x = tensor_at(values.ptr(), i);
    if (!x.defined() || !x.is_view()) continue;
    if (out.ptr() == values.ptr()) out = steal(PyList_AsTuple(steal(PySequence_List(values.ptr())).ptr()));
    PyObject* old = PyTuple_GET_ITEM(out.ptr(), i);
    PyTuple_SET_ITEM(out.ptr(), i, wrapped(x.variable_data()));
    Py_DECREF(old);
  }
  return out;
}

// Writes a result into an input, which is then that result of the node to autograd, too.
void write(at::Tensor x, const at::Tensor& value) {
  if (!value.requires_grad() || x.is_view()) {
    x.copy_(value);
    return;
  }
  at::AutoGradMode off(false);
  x.copy_(value);
  ag::impl::rebase_history(x, ag::impl::gradient_edge(value));
}

void keep(GraphNode& node, const Layout& layout, const ag::variable_list& inputs, PyObject* values) {
  for (auto [place, dim] : layout.sizes) node.sizes.push_back(inputs[place].size(dim));
  node.saved.reserve(layout.kept.size());
  node.inputs.resize(inputs.size());
  for (int64_t i : layout.needed) node.inputs[i] = inputs[i];
  for (auto [kind, place] : layout.kept) {
    const bool result = kind == 1;
    at::Tensor value = kind == 0 ? inputs[place] : tensor_at(values, result ? place : layout.results + place);
    node.saved.emplace_back(value, result && value.grad_fn().get() == &node);
  }
}

// What eager refuses to keep or to write is refused before the forward draws random numbers or an input is written.
void refuse(const Layout& layout, PyObject* inputs) {
  for (const Places* places : {&layout.kept, &layout.watched})
    for (auto [kind, place] : *places)
      if (kind == 0) {
        const at::Tensor x = tensor_at(inputs, place);
        TORCH_CHECK(!x.defined() || !x.is_inference(), "Inference tensors cannot be saved for backward.");
      }
  for (int64_t i : layout.written) ag::check_inplace(tensor_at(inputs, i), true);
}

constexpr const char* FROM_HOOK = "__framesmith_from_hook__";

// The exception being raised came from a hook of the user's: `capture/eager_fallback.py` lets it through.
void mark_as_hooks() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && PyObject_SetAttrString(value, FROM_HOOK, Py_True) < 0) PyErr_Clear();
  PyErr_Restore(type, value, trace);
}

PyObject* call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyVectorcall_NARGS(nargsf) == 1 && !kwnames && PyTuple_Check(args[0]),
                   "framesmith: a compiled graph takes one tuple");
  auto* self = reinterpret_cast<GraphObject*>(object);
  const Layout& layout = *self->layout;
  PyObject* inputs = args[0];
  at::AutoGradMode on(true);
  refuse(layout, inputs);
  ag::variable_list given;
  for (Py_ssize_t i = 0, count = PyTuple_GET_SIZE(inputs); i < count; ++i) given.push_back(tensor_at(inputs, i));
  for (int64_t i : layout.copied) given[i] = given[i].clone();
  py::object values = no_views(run_forward(self, inputs), layout.results);
  std::vector<NodePointer> segments;
  ag::edge_list edges = edges_of(layout, inputs, segments);
  NodePointer pointer = new_node<GraphNode>(self);
  auto& node = static_cast<GraphNode&>(*pointer);
  if (!segments.empty()) divide(node, layout, edges, std::move(segments));
  if (std::any_of(layout.later.begin(), layout.later.end(), [](const auto& results) { return !results.empty(); }))
    node.add_tensor_pre_hook(std::make_unique<SeenCheck>(node));
  node.set_next_edges(std::move(edges));
  for (int64_t i : layout.differentiable) ag::set_history(tensor_at(values.ptr(), i), pointer);
  try {
    keep(node, layout, given, values.ptr());
  } catch (python_error& error) {
    error.restore();
    mark_as_hooks();
    return nullptr;
  }
  for (int64_t i : layout.exact) node.versions.emplace_back(given[i]);
  for (size_t k = 0; k < layout.written.size(); ++k)
    write(tensor_at(inputs, layout.written[k]), tensor_at(values.ptr(), layout.outputs + static_cast<int64_t>(k)));
  for (auto [kind, place] : layout.watched)
    node.watched.emplace_back(tensor_at(kind == 0 ? inputs : values.ptr(), place));
  return PyTuple_GetSlice(values.ptr(), 0, layout.outputs);
  END_HANDLE_TH_ERRORS
}

// DifferentiableGraph(program, forward, results, outputs, differentiable, wanted, written, kept, watched, needed,
// exact, copied, order, later, sizes, segment)
PyObject* new_graph(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyTuple_GET_SIZE(args) == 16 && !kwargs, "DifferentiableGraph takes 16 arguments");
  auto layout = std::make_unique<Layout>();
  auto put = [&](Py_ssize_t i, auto& part) {
    part = py::cast<std::decay_t<decltype(part)>>(PyTuple_GET_ITEM(args, i));
  };
  put(2, layout->results), put(3, layout->outputs), put(4, layout->differentiable), put(5, layout->wanted);
  put(6, layout->written), put(7, layout->kept), put(8, layout->watched), put(9, layout->needed);
  put(10, layout->exact), put(11, layout->copied), put(12, layout->order), put(13, layout->later);
  put(14, layout->sizes), put(15, layout->segment);
  auto* self = reinterpret_cast<GraphObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = call;
  self->program = Py_NewRef(PyTuple_GET_ITEM(args, 0));
  self->forward = Py_NewRef(PyTuple_GET_ITEM(args, 1));
  self->layout = layout.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<GraphObject*>(object);
  Py_VISIT(self->program);
  Py_VISIT(self->forward);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<GraphObject*>(object);
  Py_CLEAR(self->program);
  Py_CLEAR(self->forward);
  return 0;
}

void dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  delete reinterpret_cast<GraphObject*>(object)->layout;
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject graph_type = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "framesmith._C.DifferentiableGraph",
    .tp_basicsize = sizeof(GraphObject),
    .tp_dealloc = dealloc,
    .tp_vectorcall_offset = offsetof(GraphObject, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "A forward graph whose results have gradients; called with one tuple.",
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_new = new_graph,
};

bool lies_as(const at::Tensor& x, PyObject* stride) {
  if (!PyTuple_Check(stride) || PyTuple_GET_SIZE(stride) != x.dim()) return false;
  for (int64_t d = 0; d < x.dim(); ++d) {
    PyObject* expected = PyTuple_GET_ITEM(stride, d);
    if (!PyLong_CheckExact(expected) || PyLong_AsLongLong(expected) != x.stride(d)) return false;
  }
  return true;
}

// misplaced(values, strides): the values without those that are None, as a list; and of those that have other strides
// than `strides` says, (place in the list, number).
PyObject* misplaced(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *values, *strides;
  if (!PyArg_ParseTuple(args, "OO!", &values, &PyTuple_Type, &strides)) return nullptr;
  py::object given = steal(PySequence_Fast(values, "a list or a tuple is expected"));
  if (!given) return nullptr;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(given.ptr());
  TORCH_CHECK_VALUE(count == PyTuple_GET_SIZE(strides), "framesmith: ", PyTuple_GET_SIZE(strides), " values expected, ",
                    count, " given");
  py::object out = steal(PyList_New(0));
  py::list wrong;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(given.ptr(), i);
    if (item == Py_None) continue;
    if (!THPVariable_Check(item) || !lies_as(THPVariable_Unpack(item), PyTuple_GET_ITEM(strides, i)))
      wrong.append(py::make_tuple(PyList_GET_SIZE(out.ptr()), i));
    if (PyList_Append(out.ptr(), item) < 0) return nullptr;
  }
  return py::make_tuple(std::move(out), std::move(wrong)).release().ptr();
  END_HANDLE_TH_ERRORS
}

// hooked(tensors): whether a hook sees that the gradient of one of them is accumulated.
PyObject* hooked(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  py::object given = steal(PySequence_Fast(tensors, "a list or a tuple is expected"));
  if (!given) return nullptr;
  bool found = false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(given.ptr()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(given.ptr(), i);
    if (!THPVariable_Check(item)) continue;
    const at::Tensor& x = THPVariable_Unpack(item);
    const NodePointer accumulator = x.is_leaf() ? ag::impl::try_get_grad_accumulator(x) : NodePointer();
    found = found || (accumulator && has_hooks(*accumulator));
  }
  return PyBool_FromLong(found);
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"misplaced", misplaced, METH_VARARGS,
     "The values (but None) as a list, and which of them have other strides than is said."},
    {"hooked", hooked, METH_O, "Whether a hook sees that the gradient of one of the tensors is accumulated."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace framesmith

int init_node(PyObject* module) {
  if (PyModule_AddType(module, &framesmith::graph_type) < 0) return -1;
  return PyModule_AddFunctions(module, framesmith::functions);
}
