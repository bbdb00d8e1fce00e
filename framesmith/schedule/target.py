"""Models of the machines that kernels are scheduled for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineModel:
    """`tiles`: kernels are programs over tiles (see `schedule.tiles`): all inner loops of a kernel have one domain, it
    has no local arrays (values that a later loop needs are recomputed, which is free if a row is one tile), and no loop
    is vectorised around others or split at conditions. `in_place`: a result reuses the memory and name of an operand
    that the kernel is the last to read (see `schedule.inplace`).

    `small_work`: element steps below which a kernel costs no more than its launch. `enough_trips`: independent
    iterations of a kernel that keep the machine busy. `row_bytes`: bytes that one iteration may access in private
    loops; with `tiles` only if there are not enough iterations. `units`: multiprocessors to be occupied by splitting
    long reductions to few results; 0: no splitting. `large`: bytes from which scratch memory is allocated for as long
    as it is needed. `little`: bytes of scratch memory that may stay live for all of the program to save a launch.
    `fused`: of a graph's nests, in order, the first so many may be fused with those before them; None: all.
    """

    tiles: bool = False
    in_place: bool = False
    small_work: int = 1 << 15
    enough_trips: int = 8
    row_bytes: int = 1 << 20
    units: int = 0
    large: int = 1 << 12
    little: int = 64
    fused: int | None = None


CPU = MachineModel()
# Of 108 to 148 multiprocessors, each goes through some 8,000 elements in the time that a launch takes.
GPU = MachineModel(tiles=True, in_place=True, small_work=1 << 13, enough_trips=128, row_bytes=1 << 17, units=132,
                   large=1 << 20, little=1 << 14)
