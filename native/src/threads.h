// The thread pool of the process, on which kernels run parallel loops.
#pragma once

#include "framesmith.h"

namespace framesmith {

// What code of a package is given (framesmith/package/code/team.cpp declares it alike): the threads of the active run.
// Those of the pool are shared out among the runs that are active.
using Team = framesmith_team;

extern const Team team;

// Counts as a run of this thread while it lives. `given`: the threads that it uses if no other run is active, or null.
class ActiveRun {
 public:
  explicit ActiveRun(const Team* given);
  ~ActiveRun();
  ActiveRun(const ActiveRun&) = delete;
  ActiveRun& operator=(const ActiveRun&) = delete;

 private:
  const Team* outer_;
};

void set_team_size(int count);
int team_size();

}  // namespace framesmith
