#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace framesmith {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kSpins = 4000;  // polls of a counter before a thread sleeps: about the time of a small kernel

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// A parallel region: each of `count` threads calls `member`.
struct Region {
  void (*member)(void*, int, int);
  void* data;
  int count;
  std::atomic<int> left;  // of the threads other than the caller's
};

class Worker {
 public:
  Worker() : thread_(&Worker::work, this) { thread_.detach(); }

  // The region is the worker's until it has counted itself off there.
  void start(Region* region, int number) {
    region_ = region, number_ = number;
    {
      const std::lock_guard<std::mutex> held(mutex_);
      turn_.fetch_add(1, std::memory_order_release);
    }
    if (asleep_.load(std::memory_order_acquire)) wake_.notify_one();
  }

 private:
  void work() {
    for (unsigned seen = 0;;) {
      seen = next(seen);
      Region* const region = region_;
      region->member(region->data, number_, region->count);
      region->left.fetch_sub(1, std::memory_order_release);
    }
  }

  // Waits until the turn is another than `seen`.
  unsigned next(unsigned seen) {
    for (int spins = 0; spins < kSpins; spins++) {
      if (const unsigned now = turn_.load(std::memory_order_acquire); now != seen) return now;
      pause();
    }
    std::unique_lock<std::mutex> held(mutex_);
    asleep_.store(true, std::memory_order_release);
    wake_.wait(held, [&] { return turn_.load(std::memory_order_acquire) != seen; });
    asleep_.store(false, std::memory_order_release);
    return turn_.load(std::memory_order_acquire);
  }

  Region* region_ = nullptr;
  int number_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned> turn_{0};
  std::atomic<bool> asleep_{false};
  std::thread thread_;  // last: it begins when the others are there
};

// Shares out its threads among the runs that are active. Its workers are never destroyed.
class Pool {
 public:
  int size() const { return size_.load(std::memory_order_relaxed); }
  void set_size(int count) { size_.store(count, std::memory_order_relaxed); }
  // Returns whether no other run is active.
  bool begin() { return active_.fetch_add(1, std::memory_order_relaxed) == 0; }
  void end() { active_.fetch_sub(1, std::memory_order_relaxed); }

  void run(void (*member)(void*, int, int), void* data, int wanted) {
    Worker* taken[kMostThreads];
    const int others = take(taken, wanted - 1);
    if (!others) return member(data, 0, 1);
    Region region{member, data, others + 1, {others}};
    for (int k = 0; k < others; k++) taken[k]->start(&region, k + 1);
    member(data, 0, region.count);
    for (int spins = 0; region.left.load(std::memory_order_acquire); spins++)
      spins < kSpins ? pause() : std::this_thread::yield();
    const std::lock_guard<std::mutex> held(mutex_);
    idle_.insert(idle_.end(), taken, taken + others);
  }

 private:
  // Takes as many workers as are wanted, and as are the caller's share; returns their number.
  int take(Worker** taken, int wanted) {
    if (wanted <= 0) return 0;
    const std::lock_guard<std::mutex> held(mutex_);
    const int runs = std::max(1, active_.load(std::memory_order_relaxed)), busy = made_ - static_cast<int>(idle_.size());
    const int share = (size() + runs - 1) / runs - 1, left = size() - runs - busy;
    wanted = std::min({wanted, share, left});
    for (int k = 0; k < wanted; k++) {
      if (idle_.empty() && !grow()) return k;
      taken[k] = idle_.back();
      idle_.pop_back();
    }
    return std::max(wanted, 0);
  }

  // False if the system gives no more threads.
  bool grow() {
    try {
      idle_.push_back(new Worker);
      made_++;
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  std::atomic<int> size_{processors()}, active_{0};
  std::mutex mutex_;
  std::vector<Worker*> idle_;
  int made_ = 0;
};

Pool*& pool() {
  // Not destroyed: threads of the program may run models while the process ends. A forked child makes its own.
  static Pool* made = [] {
    pthread_atfork(nullptr, nullptr, [] {
      const int size = pool()->size();
      pool() = new Pool;
      pool()->set_size(size);
    });
    return new Pool;
  }();
  return made;
}

thread_local const Team* given_team = nullptr;  // the caller's threads, while a run of this thread uses them

}  // namespace

const Team team = {[] { return given_team ? given_team->size() : pool()->size(); },
                   [](void (*member)(void*, int, int), void* data, int wanted) {
                     given_team ? given_team->run(member, data, wanted) : pool()->run(member, data, wanted);
                   }};

void set_team_size(int count) { pool()->set_size(count < 1 ? 1 : count > kMostThreads ? kMostThreads : count); }
int team_size() { return pool()->size(); }

ActiveRun::ActiveRun(const Team* given) : outer_(given_team) { given_team = pool()->begin() ? given : nullptr; }
ActiveRun::~ActiveRun() {
  given_team = outer_;
  pool()->end();
}

}  // namespace framesmith
