"""Counter-based random numbers: Philox-4x32 in ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC 2011), and the assignment of its words to elements in eager's CUDA kernels.

A generator has a seed, the key, and an offset, by which it has advanced. In eager's kernels each thread has a sequence
of words of its own: word w of thread t stands at counter (offset / 4 + w // 4, t). Threads take their elements `vector`
by `vector` (a draw's `Order`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDS = 10
GROUP = 4
"""The number of words of one counter."""
_FIRST, _SECOND = 0xD2511F53, 0xCD9E8D57
_KEYS = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def random_bits(seed: Tensor, offset: Tensor, vector: Tensor, threads: Tensor, place: Tensor) -> Tensor:
    """Return words from 0 up to 2**32, as int64, like the arguments, which broadcast: the word of the element at
    `place`, if `threads` threads take `vector` adjacent elements in each round. If they take one, a round is four
    elements, `threads` apart."""
    seed, offset, vector, threads, place = torch.broadcast_tensors(seed, offset, vector, threads, place)
    group = place // vector
    number, turn = group % threads, group // threads
    word = torch.where(vector == 1, turn, turn * vector.clamp_min(GROUP) + place % vector)
    at = (offset >> 2) + (word >> 2)
    a, b, c, d = at & _WORD, at >> 32 & _WORD, number & _WORD, torch.zeros_like(at)
    low, high = seed & _WORD, seed >> 32 & _WORD
    for _ in range(ROUNDS):
        one, two = a * _FIRST, c * _SECOND
        a, b, c, d = two >> 32 & _WORD ^ b ^ low, two & _WORD, one >> 32 & _WORD ^ d ^ high, one & _WORD
        low, high = low + _KEYS[0] & _WORD, high + _KEYS[1] & _WORD
    which = word & 3
    return torch.where(which == 0, a, torch.where(which == 1, b, torch.where(which == 2, c, d)))


def uniform(state: Tensor, shape: Sequence[int], shift: int, vector: int, threads: int, steps: Sequence[int]) -> Tensor:
    """Return numbers above 0 and up to 1, in float32, as cuRAND derives them from a word. `state`: seed and offset, two
    elements of int64; the draw begins `shift` after the offset, and the place of an element is the dot product of its
    indices and `steps`."""
    place = torch.zeros((1,) * len(shape), dtype=torch.int64, device=state.device)
    for k, (size, step) in enumerate(zip(shape, steps, strict=True)):
        place = place + (torch.arange(size, device=state.device) * step).reshape(-1, *(1,) * (len(shape) - k - 1))
    taken, taking = (torch.tensor(n, device=state.device) for n in (vector, threads))
    bits = random_bits(state[0], state[1] + shift, taken, taking, place)
    return (bits.float() * 2.0**-32 + 2.0**-33).reshape(tuple(shape))
