// The thread pool of the process, on which kernels run parallel loops.
#pragma once

namespace framesmith {

// What code of a package is given (framesmith/package/code/team.cpp declares it alike). `run` calls
// `member(data, number, count)` on `count` threads at once, of which the caller's is number 0; `count` is `wanted` or
// less, and 1 while another run has the threads.
struct Team {
  int (*size)();
  void (*run)(void (*member)(void*, int, int), void* data, int wanted);
};

extern const Team team;

void set_team_size(int count);
int team_size();

}  // namespace framesmith
