// The thread pool of the process, on which kernels run parallel loops.
#pragma once

namespace framesmith {

// What code of a package is given (framesmith/package/code/team.cpp declares it alike). `run` calls
// `member(data, number, count)` on `count` threads at once, of which the caller's is number 0; `count` is `wanted` or
// less: the threads are shared out among the runs that are active.
struct Team {
  int (*size)();
  void (*run)(void (*member)(void*, int, int), void* data, int wanted);
};

extern const Team team;

// Counts as a run while it lives.
class ActiveRun {
 public:
  ActiveRun();
  ~ActiveRun();
  ActiveRun(const ActiveRun&) = delete;
  ActiveRun& operator=(const ActiveRun&) = delete;
};

void set_team_size(int count);
int team_size();

}  // namespace framesmith
