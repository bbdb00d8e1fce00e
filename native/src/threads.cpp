#include "threads.h"

#include <pthread.h>
#include <sched.h>

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

class Pool {
 public:
  ~Pool() { resize(1); }

  int size() const { return size_.load(std::memory_order_relaxed); }

  void set_size(int count) {
    const std::lock_guard<std::mutex> alone(running_);
    size_ = count;
  }

  void run(void (*member)(void*, int, int), void* data, int wanted) {
    std::unique_lock<std::mutex> alone(running_, std::try_to_lock);
    if (!alone || wanted <= 1) return member(data, 0, 1);
    resize(size_);
    const int others = static_cast<int>(workers_.size()), count = wanted <= others ? wanted : others + 1;
    if (count == 1) return member(data, 0, 1);
    member_ = member, data_ = data, count_ = count;
    done_.store(0, std::memory_order_relaxed);
    {
      const std::lock_guard<std::mutex> held(mutex_);
      turn_.fetch_add(1, std::memory_order_release);
    }
    if (asleep_.load(std::memory_order_acquire)) wake_.notify_all();
    member(data, 0, count);
    for (int spins = 0; done_.load(std::memory_order_acquire) != others; spins++)
      spins < kSpins ? pause() : std::this_thread::yield();
  }

 private:
  // `count` - 1 workers, or as many as the system gives.
  void resize(int count) {
    if (static_cast<int>(workers_.size()) == count - 1) return;
    {
      const std::lock_guard<std::mutex> held(mutex_);
      ending_ = true;
      turn_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& t : workers_) t.join();
    workers_.clear();
    ending_ = false;
    try {
      for (int k = 1; k < count; k++) workers_.emplace_back(&Pool::work, this, k, turn_.load());
    } catch (const std::exception&) {
      size_ = static_cast<int>(workers_.size()) + 1;
    }
  }

  void work(int number, unsigned seen) {
    while (true) {
      seen = next(seen);
      if (ending_) return;
      if (number < count_) member_(data_, number, count_);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  // Waits until the turn is another than `seen`.
  unsigned next(unsigned seen) {
    for (int spins = 0; spins < kSpins; spins++) {
      if (const unsigned now = turn_.load(std::memory_order_acquire); now != seen) return now;
      pause();
    }
    std::unique_lock<std::mutex> held(mutex_);
    asleep_.fetch_add(1, std::memory_order_release);
    wake_.wait(held, [&] { return turn_.load(std::memory_order_acquire) != seen; });
    asleep_.fetch_sub(1, std::memory_order_release);
    return turn_.load(std::memory_order_acquire);
  }

  std::mutex running_;  // one run at a time uses the workers
  std::atomic<int> size_{processors()};
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned> turn_{0};
  std::atomic<int> asleep_{0}, done_{0};
  std::atomic<bool> ending_{false};
  void (*member_)(void*, int, int) = nullptr;
  void* data_ = nullptr;
  int count_ = 0;
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

}  // namespace

const Team team = {[] { return pool()->size(); },
                   [](void (*member)(void*, int, int), void* data, int wanted) { pool()->run(member, data, wanted); }};

void set_team_size(int count) { pool()->set_size(count < 1 ? 1 : count > kMostThreads ? kMostThreads : count); }
int team_size() { return pool()->size(); }

}  // namespace framesmith
