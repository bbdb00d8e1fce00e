"""Random numbers as a function: Philox-4x32 in ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A key of 64 bits, the number of a draw and a place give a word of 32 bits: four places next to each other share a counter.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
_FIRST, _SECOND = 0xD2511F53, 0xCD9E8D57
_KEYS = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def random_bits(key: Tensor, number: Tensor, place: Tensor) -> Tensor:
    """Words from 0 up to 2**32, as int64, like the arguments, which broadcast."""
    key, number, place = torch.broadcast_tensors(key, number, place)
    at = place >> 2
    a, b, c, d = at & _WORD, at >> 32 & _WORD, number & _WORD, torch.zeros_like(at)
    low, high = key & _WORD, key >> 32 & _WORD
    for _ in range(ROUNDS):
        one, two = a * _FIRST, c * _SECOND
        a, b, c, d = two >> 32 & _WORD ^ b ^ low, two & _WORD, one >> 32 & _WORD ^ d ^ high, one & _WORD
        low, high = low + _KEYS[0] & _WORD, high + _KEYS[1] & _WORD
    word = place & 3
    return torch.where(word == 0, a, torch.where(word == 1, b, torch.where(word == 2, c, d)))


def uniform(key: Tensor, shape: tuple[int, ...], number: int) -> Tensor:
    """Multiples of 2**-24 from 0 up to 1, in float32, of a key in a tensor of one element."""
    count = 1
    for size in shape:
        count *= size
    place = torch.arange(count, device=key.device)
    bits = random_bits(key.reshape(()), torch.tensor(number, device=key.device), place)
    return ((bits >> 8).float() * 2.0**-24).reshape(shape)
