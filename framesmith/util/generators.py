"""The states of random generators, restored where eager runs again what a failed computation has drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

States = list[tuple[torch.Generator, torch.Tensor]]


def default_generators() -> list[torch.Generator]:
    """Return the default generators of the devices in use; what a stream captures draws when it is replayed."""
    cuda = torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()
    return [torch.default_generator, *(torch.cuda.default_generators if cuda else ())]


def states_of(generators: Iterable[torch.Generator]) -> States:
    return [(generator, generator.get_state()) for generator in generators]


def restore(states: States) -> None:
    for generator, state in states:
        generator.set_state(state)


@contextmanager
def rewound_on_error(*own: torch.Generator) -> Iterator[None]:
    """Restore the default generators, and the program's `own`, if the block raises, so that eager, which runs instead,
    draws the same numbers."""
    states = states_of([*default_generators(), *own])
    try:
        yield
    except BaseException:
        restore(states)
        raise
