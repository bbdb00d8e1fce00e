"""The contenders of the committed benchmarks: framesmith's table of peers, and JAX for the models that are written in
it, too."""

from __future__ import annotations

from typing import Any

import framesmith
from benchmarks import jax_models
from framesmith import peers
from framesmith.peers import Call, Peer, flat_tensors

__all__ = ["ABLATIONS", "PEERS", "Call", "build", "flat_tensors", "installed", "takes"]


def _tuned(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    compiled = framesmith.compile(model, mode="max-autotune")
    return lambda: compiled(*args, **kwargs)


PEERS: dict[str, Peer] = peers.PEERS | {
    "framesmith, max-autotune": Peer(_tuned, 'framesmith.compile(model, mode="max-autotune")', peers.GUARDED),
    "jax": Peer(jax_models.call_of, "jax.jit(forward)(weights, *inputs)", peers.READ, ("jax", "jaxlib"))}

ON_CPU = (*peers.PEERS, "jax")
ON_CUDA = ("eager", "framesmith", "framesmith, max-autotune", "torch.compile", "jax")
"""Who is timed on a kind of device; `benchmarks.gpu` has the modes of torch.compile."""

# Which single option each ablation turns off.
ABLATIONS: dict[str, dict[str, Any]] = {
    "all on": {},
    "no fusion": {"fusion": False},
    "no library choice": {"library_choice": False},
    "no packing": {"packing": False},
    "no vectors": {"vectorize": False},
}


def installed(name: str) -> bool:
    """Whether the peer's package can be imported here."""
    return PEERS[name].installed


def takes(name: str, model: Any) -> bool:
    """Whether the peer has this model: JAX has those that were written in it."""
    return name != "jax" or jax_models.has(model)


def build(name: str, model: Any, args: tuple[Any, ...], **options: Any) -> Call:
    """The peer's callable; options are framesmith's alone."""
    return peers.framesmith_call(model, args, {}, **options) if options else PEERS[name].build(model, args, {})
