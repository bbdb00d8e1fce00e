// What OpenMP's pragmas of a package's code call (GOMP's interface, as g++ and clang emit it), by the threads of the
// runtime that has loaded it. Everything but `fs_bind` stays within the library: no OpenMP runtime of the process is
// taken for it, and none is needed.
#include <atomic>

#define FS_LOCAL extern "C" __attribute__((visibility("hidden")))

// native/src/threads.h declares it alike.
struct Team {
  int (*size)();
  void (*run)(void (*member)(void*, int, int), void* data, int wanted);
};

namespace {

const Team* team = nullptr;

// A parallel region under way.
struct Region {
  void (*body)(void*);
  void* data;
  std::atomic<int> waiting{0}, meetings{0}, singles{0};
};

thread_local Region* region = nullptr;
thread_local int number = 0, count = 1, singles = 0;

void member(void* given, int me, int members) {
  Region* const outer = region;
  const int outer_number = number, outer_count = count, outer_singles = singles;
  region = static_cast<Region*>(given), number = me, count = members, singles = 0;
  region->body(region->data);
  region = outer, number = outer_number, count = outer_count, singles = outer_singles;
}

std::atomic_flag critical = ATOMIC_FLAG_INIT;

void enter() {
  while (critical.test_and_set(std::memory_order_acquire)) {
  }
}
void leave() { critical.clear(std::memory_order_release); }

}  // namespace

extern "C" __attribute__((visibility("default"))) void fs_bind(const Team* given) { team = given; }

FS_LOCAL void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  Region made{body, data};
  const int wanted = threads ? static_cast<int>(threads) : team->size();
  if (count > 1 || wanted <= 1) member(&made, 0, 1);  // one level of threads
  else team->run(member, &made, wanted);
}

FS_LOCAL void GOMP_barrier() {
  if (count == 1) return;
  const int meeting = region->meetings.load(std::memory_order_acquire);
  if (region->waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    region->waiting.store(0, std::memory_order_relaxed);
    region->meetings.store(meeting + 1, std::memory_order_release);
    return;
  }
  while (region->meetings.load(std::memory_order_acquire) == meeting) {
  }
}

FS_LOCAL bool GOMP_single_start() {
  if (!region) return true;
  int expected = singles++;
  return region->singles.compare_exchange_strong(expected, singles);
}

FS_LOCAL void GOMP_critical_start() { enter(); }
FS_LOCAL void GOMP_critical_end() { leave(); }
FS_LOCAL void GOMP_critical_name_start(void**) { enter(); }
FS_LOCAL void GOMP_critical_name_end(void**) { leave(); }
FS_LOCAL void GOMP_atomic_start() { enter(); }
FS_LOCAL void GOMP_atomic_end() { leave(); }
FS_LOCAL int omp_get_thread_num() { return number; }
FS_LOCAL int omp_get_num_threads() { return count; }
FS_LOCAL int omp_get_max_threads() { return count > 1 ? 1 : team->size(); }
