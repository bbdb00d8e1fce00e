#include "guards_block.h"

namespace framesmith {

bool run_block(Step& step, Run& run) {
  auto& block = *static_cast<Block*>(step.data);
  PyObject* dict = run.registers[step.src];
  dict = block.attributes ? instance_dict(dict) : PyDict_Check(dict) ? dict : nullptr;
  const uint64_t version = dict ? dict_version(dict) : 0;
  for (Step& inner : block.steps) {
    if (inner.perform(inner, run)) continue;
    block.failed = &inner;
    return false;
  }
  if (!dict || dict_version(dict) != version) return true;  // a comparison of keys ran user code
  if (!block.attributes && PyODict_Check(dict)) return true;  // its order is no part of the version
  for (Block::Size& size : block.sizes) size.value = run.registers[size.at];
  for (Block::Deposit& deposit : block.deposits) deposit.value = run.registers[deposit.at];
  step.version = version;
  return true;
}

bool is_exact_dict_check(const Step& step) {
  return step.op == Op::type_is && (step.payload == reinterpret_cast<PyObject*>(&PyDict_Type) ||
                                    step.payload == reinterpret_cast<PyObject*>(&PyODict_Type));
}

}  // namespace framesmith
