"""Models of the machines that kernels are scheduled for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineModel:
    """`tiles`: kernels are programs over tiles (see `schedule.tiles`): all loops inside of one run over one domain, it
    has no arrays of its own (what a later loop needs is computed again, which costs nothing where a row is one tile),
    and no loop is vectorised around others or cut at conditions. `in_place`: a result lies where a kernel is the last
    to read, under the name of what lay there (see `schedule.inplace`).

    `small_work`: element steps below which a kernel costs no more than its launch. `enough_trips`: independent
    iterations of a kernel that keep the machine busy. `row_bytes`: what one iteration may touch in private loops; with
    `tiles` only where there are not enough iterations. `units`: multiprocessors to be kept busy by long reductions to
    few results, which are done in parts; 0: they are not. `large`: bytes from which scratch memory is allocated for as
    long as it is needed. `little`: bytes of scratch memory that are kept for all of the program where that saves a
    launch. `fused`: of a graph's nests, in order, the first so many may be fused with those before them; None: all.
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
