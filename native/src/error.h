// The one exception of the runtime: a status of the C interface, with its text.
#pragma once
#include <stdexcept>
#include <string>

#include "framesmith.h"

namespace framesmith {

struct Error : std::runtime_error {
  framesmith_status status;
  Error(framesmith_status s, const std::string& text) : std::runtime_error(text), status(s) {}
};

[[noreturn]] inline void damaged(const std::string& what) {
  throw Error(FRAMESMITH_BAD_FILE, "the package is damaged: " + what);
}

}  // namespace framesmith
