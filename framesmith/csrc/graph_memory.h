// Memory of compiled graphs: scratch arenas shared by all graphs of the process, and an allocator for outputs that keeps big blocks.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>

namespace framesmith {

struct Arena {
  char* base = nullptr;
  size_t bytes = 0;
};

// An arena of at least `bytes` (64-byte aligned). Arenas go back to one pool and are reused last in, first out, so that one thread's graphs run
// in the same memory. Both take the interpreter's lock as their mutual exclusion.
Arena take_arena(size_t bytes);
void give_arena(Arena arena);

// For outputs: as PyTorch's CPU allocator, but memory of 64 KiB and more is kept when freed, cut and merged, and handed out again without page faults.
c10::Allocator* output_allocator();

// Free what no one uses; returns the bytes freed. Bytes now held idle.
size_t trim_memory();
size_t idle_memory();

}  // namespace framesmith
