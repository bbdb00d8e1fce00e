"""Modules that are called in eager, because their hooks communicate.

Before the `forward` of a module of `fully_shard`, a hook gathers the parameters, which are plain tensors until the hook
behind it frees their memory; a hook of the autograd engine gathers them again before the backward. They stay the same
tensors over all steps, so guards of the compiled `forward` hold.
"""

from __future__ import annotations

from torch import nn

from framesmith.capture.registry import EAGER_MODULES, named


@EAGER_MODULES.append
def _is_sharded(module: nn.Module) -> str | None:
    kind = named("torch.distributed.fsdp.FSDPModule")
    return "hooks of fully_shard gather and free its parameters" if kind and isinstance(module, kind) else None
