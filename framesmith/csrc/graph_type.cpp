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
};

PyObject* graph_vectorcall(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyVectorcall_NARGS(nargsf) == 1 && !kwnames, "framesmith: a compiled graph takes one tuple or list");
  return reinterpret_cast<GraphObject*>(self)->graph->call(args[0]);
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
  delete reinterpret_cast<GraphObject*>(self)->graph;
  Py_TYPE(self)->tp_free(self);
}

PyObject* graph_check(PyObject* self, PyObject* inputs) {
  HANDLE_TH_ERRORS
  Graph& graph = *reinterpret_cast<GraphObject*>(self)->graph;
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
  reinterpret_cast<GraphObject*>(self)->graph->recordings = std::move(made);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* get_recordings(PyObject* self, void*) {
  const auto& all = reinterpret_cast<GraphObject*>(self)->graph->recordings;
  return Py_BuildValue("(nK)", static_cast<Py_ssize_t>(all ? all->size() : 0),
                       static_cast<unsigned long long>(all ? all->replays() : 0));
}

PyObject* get_calls(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<GraphObject*>(self)->graph->calls);
}
PyObject* get_refreshes(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<GraphObject*>(self)->graph->refreshes);
}
PyObject* get_checked(PyObject* self, void*) {
  return PyBool_FromLong(reinterpret_cast<GraphObject*>(self)->graph->checked);
}

int set_checked(PyObject* self, PyObject* value, void*) {
  int truth = value ? PyObject_IsTrue(value) : 0;
  if (truth < 0) return -1;
  reinterpret_cast<GraphObject*>(self)->graph->checked = truth;
  return 0;
}

PyMethodDef graph_methods[] = {
    {"check", graph_check, METH_O, "Raise ValueError unless the tuple's tensors have the geometry compiled for."},
    {"record", graph_record, METH_VARARGS,
     "record(recorder, limit): record calls and replay them; see framesmith/runtime/recorder.py."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef graph_getset[] = {
    {"calls", get_calls, nullptr, "Number of calls so far.", nullptr},
    {"refreshes", get_refreshes, nullptr, "How often the constants were computed.", nullptr},
    {"recordings", get_recordings, nullptr, "(Recordings that are kept, calls that were replayed so far).", nullptr},
    {"checked", get_checked, set_checked, "Check the geometry of the inputs in each call.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject graph_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

void fill_type() {
  graph_type.tp_name = "framesmith._C.CompiledGraph";
  graph_type.tp_doc = "CompiledGraph(plan, library, constants=None, refresh=None): call it with a tuple of inputs, or "
                      "a list that it empties; it returns a tuple.";
  graph_type.tp_basicsize = sizeof(GraphObject);
  graph_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  graph_type.tp_vectorcall_offset = offsetof(GraphObject, vectorcall);
  graph_type.tp_call = PyVectorcall_Call;
  graph_type.tp_new = graph_new;
  graph_type.tp_dealloc = graph_dealloc;
  graph_type.tp_traverse = graph_traverse;
  graph_type.tp_clear = graph_clear;
  graph_type.tp_methods = graph_methods;
  graph_type.tp_getset = graph_getset;
}

PyObject* trim(PyObject*, PyObject*) { return PyLong_FromSize_t(trim_memory()); }
PyObject* idle(PyObject*, PyObject*) { return PyLong_FromSize_t(idle_memory()); }

PyObject* recorded(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  int device, idle;
  if (!PyArg_ParseTuple(args, "ip", &device, &idle)) return nullptr;
  return PyLong_FromLongLong(recorded_bytes(device, idle != 0));
  END_HANDLE_TH_ERRORS
}

PyObject* stream(PyObject*, PyObject* device) {
  HANDLE_TH_ERRORS
  return PyLong_FromVoidPtr(new_cuda_stream(py::handle(device).cast<int>()));
  END_HANDLE_TH_ERRORS
}

std::vector<const at::Tensor*> tensors_of(PyObject* sequence) {
  std::vector<const at::Tensor*> out;
  for (py::handle item : py::handle(sequence)) {
    TORCH_CHECK_TYPE(THPVariable_Check(item.ptr()), "framesmith: a tensor expected, not ",
                     Py_TYPE(item.ptr())->tp_name);
    out.push_back(&THPVariable_Unpack(item.ptr()));
  }
  return out;
}

PyObject* watch(PyObject*, PyObject* sequence) {
  HANDLE_TH_ERRORS
  py::cpp_function hold([watches = std::make_shared<Watches>(tensors_of(sequence))](const py::object& now) {
    const auto tensors = tensors_of(now.ptr());
    return tensors.size() == watches->size() &&
           watches->hold([&](size_t i) -> const at::Tensor& { return *tensors[i]; });
  });
  return hold.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* detect(PyObject*, PyObject* name) {
  HANDLE_TH_ERRORS
  static const std::vector<std::string> names = {"automatic", "copy", "tracking", "digest", "accesses"};
  const auto found = std::find(names.begin(), names.end(), py::handle(name).cast<std::string>());
  TORCH_CHECK_VALUE(found != names.end(), "framesmith: no way to detect writes is called so");
  const Detection before = detect_writes_by(static_cast<Detection>(found - names.begin()));
  return py::cast(names[static_cast<size_t>(before)]).release().ptr();
  END_HANDLE_TH_ERRORS
}
PyObject* has_written(PyObject*, PyObject*) { return PyBool_FromLong(take_has_written()); }

PyMethodDef functions[] = {
    {"watch", watch, METH_O,
     "Begin to watch a list of tensors; returns a function: whether a list is those tensors, unwritten since."},
    {"detect_writes_by", detect, METH_O,
     "How tensors watched from now on are: automatic, copy, tracking, digest or accesses; returns what it was."},
    {"trim_memory", trim, METH_NOARGS, "Free the arenas and output blocks that no call uses; returns the bytes freed."},
    {"idle_memory", idle, METH_NOARGS, "Bytes of arenas and output blocks held for reuse."},
    {"recorded_bytes", recorded, METH_VARARGS,
     "recorded_bytes(device, idle): see framesmith.cuda_graph_memory; without what is in pools."},
    {"take_has_written", has_written, METH_NOARGS,
     "Whether this thread's last failed graph had begun to write inputs: nothing may run in its place. Asked once."},
    {"new_cuda_stream", stream, METH_O, "The handle of a new stream of a CUDA device (its index), the current device."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace framesmith

int init_graph(PyObject* module) {
  using namespace framesmith;
  fill_type();
  if (PyType_Ready(&graph_type) < 0) return -1;
  if (PyModule_AddObjectRef(module, "CompiledGraph", reinterpret_cast<PyObject*>(&graph_type)) < 0) return -1;
  return PyModule_AddFunctions(module, functions);
}
