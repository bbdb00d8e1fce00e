// The pace of a thread whose work nobody waits for, beside threads that serve calls.
#pragma once

#include <Python.h>

#include <atomic>
#include <chrono>

namespace framesmith {

// Such a thread works for short times, with rests between them in which it is without the GIL: long ones while other
// threads of the process use the processor. It is looked at as each Python frame begins: a call of C is not cut short.
// A time in which it works costs others more than itself: threads of OpenMP wait for each other.
class Pace {
 public:
  // The thread that is here begins a frame.
  static void step() {
    if (__builtin_expect(current != nullptr, 0)) current->pause_if_due();
  }
  void enter();
  void leave();
  void pause();
  static Pace* of_thread() { return current; }
  // Ends the OpenMP threads of this thread: with more of them than cores, those of other threads give up waiting for
  // work so soon that each parallel loop has to wake them.
  static void end_team();
  std::atomic<bool> gives_way{false};  // another thread may set it

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  static constexpr Seconds kWork{0.0005}, kRest{0.01}, kLongestRest{0.1};
  static constexpr double kBusy = 0.1;   // of a core, used by other threads
  static constexpr double kBrief = 0.01;  // of a rest, when they use none
  void pause_if_due() {
    if (gives_way.load(std::memory_order_relaxed) && Clock::now() - began_ > kWork) {
      end_team();
      pause();
    }
  }

  Clock::time_point began_{};
  double rest_ = 1.0;  // the part of a rest that is needed
  Pace* outer_ = nullptr;
  static constinit thread_local __attribute__((tls_model("initial-exec"))) Pace* current;  // read without a wrapper
};

}  // namespace framesmith
