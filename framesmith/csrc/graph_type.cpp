// `_C.CompiledGraph(plan, library, constants=None, refresh=None)`: the Python type over `Graph`, called with one tuple.
#include "graph.h"

#include <structmember.h>

#include <algorithm>

namespace framesmith {
namespace {

struct GraphObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Graph* graph;
  PyObject* weakrefs;
};

Graph& graph_of(PyObject* self) { return *reinterpret_cast<GraphObject*>(self)->graph; }

PyObject* graph_vectorcall(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyVectorcall_NARGS(nargsf) == 1 && !kwnames, "framesmith: a compiled graph takes one tuple or list");
  return graph_of(self).call(args[0]);
  END_HANDLE_TH_ERRORS
}

PyObject* graph_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"plan", "library", "constants", "refresh", nullptr};
  PyObject *plan, *constants = Py_None, *refresh = Py_None;
  const char* library;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!s|OO", const_cast<char**>(names), &PyTuple_Type, &plan, &library,
                                   &constants, &refresh))
    return nullptr;
  auto graph = std::make_unique<Graph>(plan, library, py::reinterpret_borrow<py::object>(constants),
                                       py::reinterpret_borrow<py::object>(refresh));
  auto* self = reinterpret_cast<GraphObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = graph_vectorcall;
  self->graph = graph.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

int graph_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* graph = reinterpret_cast<GraphObject*>(self)->graph;
  if (graph) {
    Py_VISIT(graph->refresh.ptr());
    for (const Extern& e : graph->plan.externs) Py_VISIT(e.function.ptr());
  }
  return 0;
}

int graph_clear(PyObject* self) {
  auto* graph = reinterpret_cast<GraphObject*>(self)->graph;
  if (graph) graph->refresh = py::none();
  return 0;
}

void graph_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (reinterpret_cast<GraphObject*>(self)->weakrefs) PyObject_ClearWeakRefs(self);
  delete reinterpret_cast<GraphObject*>(self)->graph;
  Py_TYPE(self)->tp_free(self);
}

PyObject* graph_check(PyObject* self, PyObject* inputs) {
  HANDLE_TH_ERRORS
  const Graph& graph = graph_of(self);
  TORCH_CHECK_TYPE(PyTuple_Check(inputs) && PyTuple_GET_SIZE(inputs) == graph.plan.inputs, "framesmith: a tuple of ",
                   graph.plan.inputs, " inputs expected");
  graph.check(inputs);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* graph_record(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* recorder;
  Py_ssize_t limit;
  if (!PyArg_ParseTuple(args, "On", &recorder, &limit)) return nullptr;
  TORCH_CHECK_VALUE(limit > 0, "framesmith: room for ", limit, " recordings");
  auto made = std::make_unique<Recordings>(py::reinterpret_borrow<py::object>(recorder), static_cast<size_t>(limit));
  graph_of(self).recordings = std::move(made);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* graph_name(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  auto [graph, steps] = py::cast<std::pair<std::string, std::vector<std::string>>>(py::handle(args));
  graph_of(self).names = {std::move(graph), std::move(steps)};
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* get_constants(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  py::list out;
  for (const at::Tensor& t : graph_of(self).constants()) {  // what a library packed has no storage
    const auto address = t.has_storage() ? reinterpret_cast<uintptr_t>(t.const_data_ptr()) : 0;
    out.append(py::make_tuple(address, static_cast<size_t>(t.numel()) * t.itemsize()));
  }
  return out.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* get_recordings(PyObject* self, void*) {
  const auto& all = graph_of(self).recordings;
  return Py_BuildValue("(nK)", static_cast<Py_ssize_t>(all ? all->size() : 0),
                       static_cast<unsigned long long>(all ? all->replays() : 0));
}

int set_checked(PyObject* self, PyObject* value, void*) {
  int truth = value ? PyObject_IsTrue(value) : 0;
  if (truth >= 0) graph_of(self).checked = truth;
  return truth < 0 ? -1 : 0;
}

PyMethodDef graph_methods[] = {
    {"check", graph_check, METH_O, "Raise ValueError unless the tuple's tensors have the geometry compiled for."},
    {"record", graph_record, METH_VARARGS,
     "record(recorder, limit): record calls and replay them; see framesmith/runtime/recorder.py."},
    {"name", graph_name, METH_VARARGS, "name(graph, steps): the names of ranges that a profiler is shown."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef graph_getset[] = {
    {"calls", [](PyObject* self, void*) { return PyLong_FromUnsignedLongLong(graph_of(self).calls); }, nullptr,
     "Number of calls so far.", nullptr},
    {"refreshes", [](PyObject* self, void*) { return PyLong_FromUnsignedLongLong(graph_of(self).refreshes); }, nullptr,
     "How often the constants were computed.", nullptr},
    {"constants", get_constants, nullptr, "(Address, bytes) of each constant; 0 for one without storage.", nullptr},
    {"recordings", get_recordings, nullptr, "(Recordings that are kept, calls that were replayed so far).", nullptr},
    {"checked", [](PyObject* self, void*) { return PyBool_FromLong(graph_of(self).checked); }, set_checked,
     "Check the geometry of the inputs in each call.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// Fields by name, the rest are zeros: what CPython's own files write.
PyTypeObject graph_type = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "framesmith._C.CompiledGraph",
    .tp_basicsize = sizeof(GraphObject),
    .tp_dealloc = graph_dealloc,
    .tp_vectorcall_offset = offsetof(GraphObject, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "CompiledGraph(plan, library, constants=None, refresh=None): call it with a tuple of inputs, or a list "
              "that it empties; it returns a tuple.",
    .tp_traverse = graph_traverse,
    .tp_clear = graph_clear,
    .tp_weaklistoffset = offsetof(GraphObject, weakrefs),
    .tp_methods = graph_methods,
    .tp_getset = graph_getset,
    .tp_new = graph_new,
};

std::vector<const at::Tensor*> tensors_of(py::handle sequence) {
  std::vector<const at::Tensor*> out;
  for (py::handle item : sequence) {
    TORCH_CHECK_TYPE(THPVariable_Check(item.ptr()), "framesmith: a tensor expected, not ",
                     Py_TYPE(item.ptr())->tp_name);
    out.push_back(&THPVariable_Unpack(item.ptr()));
  }
  return out;
}

py::cpp_function watch(const py::object& sequence) {
  return py::cpp_function([watches = std::make_shared<Watches>(tensors_of(sequence))](const py::object& now) {
    const auto tensors = tensors_of(now);
    return tensors.size() == watches->size() &&
           watches->hold([&](size_t i) -> const at::Tensor& { return *tensors[i]; });
  });
}

std::string detect(const std::string& name) {
  static const std::vector<std::string> names = {"automatic", "copy", "tracking", "digest", "accesses"};
  const auto found = std::find(names.begin(), names.end(), name);
  TORCH_CHECK_VALUE(found != names.end(), "framesmith: no way to detect writes is called so");
  return names[static_cast<size_t>(detect_writes_by(static_cast<Detection>(found - names.begin())))];
}

void define_functions(py::module_ m) {
  using torch::wrap_pybind_function;
  m.def("watch", wrap_pybind_function(watch),
        "Begin to watch a list of tensors; returns a function: whether a list is those tensors, unwritten since.");
  m.def("detect_writes_by", wrap_pybind_function(detect),
        "How tensors watched from now on are: automatic, copy, tracking, digest or accesses; returns what it was.");
  m.def("trim_memory", trim_memory, "Free the arenas and output blocks that no call uses; returns the bytes freed.");
  m.def("idle_memory", idle_memory, "Bytes of arenas and output blocks held for reuse.");
  m.def("recorded_bytes", wrap_pybind_function(recorded_bytes),
        "See framesmith.cuda_graph_memory; without what is in pools.");
  m.def("take_has_written", take_has_written,
        "Whether this thread's last failed graph had begun to write inputs: nothing may run in its place. Asked once.");
  m.def("new_cuda_stream", [](int device) { return reinterpret_cast<uintptr_t>(new_cuda_stream(device)); },
        "The handle of a new stream of a CUDA device (its index), the current device.");
}

}  // namespace
}  // namespace framesmith

int init_graph(PyObject* module) {
  using namespace framesmith;
  define_functions(py::reinterpret_borrow<py::module_>(module));
  return PyModule_AddType(module, &graph_type);
}
