"""Coalescing of tensors that live as long as a graph into few allocations: PyTorch's CUDA allocator rounds each one up,
by as much as a mebibyte."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch

ROUNDED = range((1 << 20) + 1, 10 << 20)
"""Bytes of a tensor of which much would be rounded up."""
PIECE = 32 << 20
ALIGNED = 512


def gather(tensors: list[torch.Tensor], others: Collection[torch.Tensor]) -> None:
    """Move the memory of `tensors` that nothing else shares (nor `others`), in place: each old memory dies when it has
    been moved."""
    kept = {t.untyped_storage().data_ptr() for t in others}
    places: dict[torch.device, dict[int, list[int]]] = {}
    for k, t in enumerate(tensors):
        memory = t.untyped_storage() if t.layout is torch.strided else None
        if memory is not None and memory.data_ptr() not in kept and memory.nbytes() in ROUNDED:
            places.setdefault(t.device, {}).setdefault(memory.data_ptr(), []).append(k)
    for on_device in places.values():
        for group in _pieces(tensors, on_device.values()):
            if len(group) > 1:
                _move(tensors, group)


def _pieces(tensors: list[torch.Tensor], places: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    """Yield groups of tensors whose memory fits into one allocation."""
    group: list[list[int]] = []
    room = PIECE
    for users in places:
        size = _aligned(tensors[users[0]])
        if size > room:
            yield group
            group, room = [], PIECE
        group.append(users)
        room -= size
    yield group


def _aligned(t: torch.Tensor) -> int:
    return -(-t.untyped_storage().nbytes() // ALIGNED) * ALIGNED


def _move(tensors: list[torch.Tensor], group: list[list[int]]) -> None:
    """Move a group of tensors, given by places, that share memory."""
    piece = torch.empty(sum(_aligned(tensors[users[0]]) for users in group), dtype=torch.uint8,
                        device=tensors[group[0][0]].device)
    start = 0
    for users in group:
        memory = tensors[users[0]].untyped_storage()
        size = _aligned(tensors[users[0]])
        whole = torch.empty(0, dtype=torch.uint8, device=piece.device).set_(memory, 0, (memory.nbytes(),), (1,))
        piece[start : start + memory.nbytes()].copy_(whole)
        for k in users:
            t = tensors[k]
            offset = start // t.dtype.itemsize + t.storage_offset()
            tensors[k] = torch.empty(0, dtype=t.dtype, device=t.device).set_(piece.untyped_storage(), offset, t.size(),
                                                                             t.stride())
        del memory, whole, t
        start += size
