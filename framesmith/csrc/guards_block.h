// Blocks: the steps whose outcome the content of one dict decides. While that dict's version stands they are not run.
#pragma once

#include "guards_dict.h"
#include "guards_program.h"

namespace framesmith {

struct Block : StepData {
  struct Deposit {
    int at;           // the register
    PyObject* value;  // borrowed from the dict
  };
  struct Size {
    int at;           // the register of an exact dict
    bool empty;       // what was assumed
    PyObject* value;  // borrowed
  };
  bool attributes = false;  // of the read object's instance dict; else of the read object itself
  std::vector<Step> steps;
  std::vector<Deposit> deposits;  // registers that steps outside read
  std::vector<Size> sizes;        // checked even while the version stands
  Step* failed = nullptr;
  ~Block() override {
    for (Step& step : steps) delete step.data;
  }
};

// Runs the steps one by one; remembers the dict's version if all hold, `failed` if not.
bool run_block(Step& step, Run& run);

// True if nothing has changed since the steps held last; then the registers are filled.
inline bool block_stands(const Step& step, Run& run) {
  const auto& block = step.held<const Block>();
  PyObject* dict = subject(step, run);
  if (block.attributes) {
    dict = made_dict(dict);
  } else if (!PyDict_Check(dict)) {
    return false;
  }
  if (!dict || dict_version(dict) != step.version) return false;
  for (const Block::Size& size : block.sizes) {
    if ((PyDict_GET_SIZE(size.value) == 0) != size.empty) return false;
  }
  for (const Block::Deposit& deposit : block.deposits) run.registers[deposit.at] = deposit.value;
  return true;
}

}  // namespace framesmith
