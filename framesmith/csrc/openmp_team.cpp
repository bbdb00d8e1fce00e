// PyTorch's threads, as packages' runtime takes those of a caller (`framesmith_team` of native/include/framesmith.h).
#include <ATen/Parallel.h>
#include <Python.h>
#include <omp.h>

#include "../../native/include/framesmith.h"
#include "hook.h"

namespace framesmith {
namespace {

void run(void (*member)(void*, int32_t, int32_t), void* data, int32_t wanted) {
#pragma omp parallel num_threads(wanted)
  member(data, omp_get_thread_num(), omp_get_num_threads());
}

constexpr framesmith_team openmp{[] { return static_cast<int32_t>(at::get_num_threads()); }, run};

PyObject* openmp_team(PyObject*, PyObject*) { return PyLong_FromVoidPtr(const_cast<framesmith_team*>(&openmp)); }

PyMethodDef methods[] = {{"openmp_team", openmp_team, METH_NOARGS, "The address of PyTorch's `framesmith_team`."},
                         {nullptr, nullptr, 0, nullptr}};

}  // namespace

int init_openmp_team(PyObject* module) { return PyModule_AddFunctions(module, methods); }

}  // namespace framesmith
