// Threads at a pace, for Python: `Pace`, `give_way` and `end_team`.
#include "pace.h"

#include <omp.h>
#include <time.h>
#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <new>
#include <thread>

#include "hook.h"

namespace framesmith {

constinit thread_local Pace* Pace::current = nullptr;

namespace {

// Asks the scheduler to run this thread for short times but soon: it may hold the GIL, and has little to do. Linux 6.12
// and later do; earlier ones ignore it.
void ask_for_short_slices() {
#ifdef SYS_sched_setattr
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes{};
  attributes.size = sizeof attributes;
  attributes.nice = getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)));
  attributes.runtime = 100'000;  // ns
  syscall(SYS_sched_setattr, 0, &attributes, 0);
#endif
}

// What all threads of the process have used.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void Pace::enter() {
  outer_ = current;
  current = this;
  began_ = Clock::now();
  ask_for_short_slices();
  count_active(false, true);
}

void Pace::leave() {
  current = outer_;
  count_active(true, false);
}

void Pace::end_team() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

void Pace::pause() {
  if (gives_way) {
    const auto start = Clock::now();
    const double used = processor_seconds();
    const Seconds worked = start - began_, rest = std::clamp<Seconds>(worked * (kRest / kWork), kRest, kLongestRest);
    Py_BEGIN_ALLOW_THREADS;
    std::this_thread::sleep_for(rest * rest_);
    Py_END_ALLOW_THREADS;
    const Seconds passed = Clock::now() - start;
    rest_ = processor_seconds() - used > kBusy * passed.count() ? 1.0 : std::max(rest_ / 2, kBrief);
  }
  began_ = Clock::now();
}

namespace {

struct PaceObject {
  PyObject_HEAD
  Pace pace;
};

Pace& pace_of(PyObject* self) { return as<PaceObject>(self)->pace; }

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self) new (&pace_of(self)) Pace();
  return self;
}

int set_gives_way(PyObject* self, PyObject* value, void*) {
  const int truth = value ? PyObject_IsTrue(value) : -1;
  if (truth >= 0) pace_of(self).gives_way = truth;
  return truth < 0 ? -1 : 0;
}

PyObject* get_gives_way(PyObject* self, void*) { return PyBool_FromLong(pace_of(self).gives_way); }

PyObject* enter(PyObject* self, PyObject*) {
  pace_of(self).enter();
  return Py_NewRef(self);
}

PyObject* leave(PyObject* self, PyObject*) {
  pace_of(self).leave();
  Py_RETURN_NONE;
}

PyObject* give_way(PyObject*, PyObject*) {
  if (Pace* pace = Pace::of_thread()) pace->pause();
  Py_RETURN_NONE;
}

PyObject* end_team(PyObject*, PyObject*) {
  Pace::end_team();
  Py_RETURN_NONE;
}

PyGetSetDef properties[] = {{"gives_way", get_gives_way, set_gives_way, "Whether other threads come first.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef pace_methods[] = {{"__enter__", enter, METH_NOARGS, "This thread is at the pace."},
                              {"__exit__", leave, METH_VARARGS, "It is at the pace that it was at before."},
                              {nullptr, nullptr, 0, nullptr}};
PyMethodDef methods[] = {
    {"give_way", give_way, METH_NOARGS, "Pause now, if this thread is at a pace."},
    {"end_team", end_team, METH_NOARGS,
     "End the OpenMP threads of this thread: those of others wait for work more briskly without them."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                       {Py_tp_getset, properties},
                       {Py_tp_methods, pace_methods},
                       {Py_tp_doc, const_cast<char*>("Whether a thread gives others way; `with pace:` is in it.")},
                       {0, nullptr}};
PyType_Spec spec{"framesmith._C.Pace", sizeof(PaceObject), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

int init_pace(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  const bool bad = !type || PyModule_AddObjectRef(module, "Pace", type) < 0;
  Py_XDECREF(type);
  return bad ? -1 : PyModule_AddFunctions(module, methods);
}

}  // namespace framesmith
