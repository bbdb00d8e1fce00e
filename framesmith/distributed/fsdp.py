"""Modules of `fully_shard`: their hooks run in eager, between the compiled forwards and backwards.

The hook before `forward` gathers the parameters, which are plain tensors until the hook behind it frees their memory;
a hook of the autograd engine gathers them again before the backward. Parameters stay the same tensors over all steps,
so their guards hold.
"""

from framesmith.capture.registry import EAGER_MODULES

EAGER_MODULES["torch.distributed.fsdp.FSDPModule"] = (
    "hooks of fully_shard gather and free its parameters")
