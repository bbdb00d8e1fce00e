// Memory of compiled graphs: scratch arenas shared by all graphs of the process, and an allocator for outputs.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>

namespace framesmith {

struct Arena {
  char* base = nullptr;
  size_t bytes = 0;
};

// An arena of at least `bytes` (64-byte aligned). Arenas go back to one pool and are reused last in, first out, so that
// one thread's graphs run in the same memory. Both take the interpreter's lock as their mutual exclusion.
Arena take_arena(size_t bytes);
void give_arena(Arena arena);

// For outputs: as PyTorch's CPU allocator, but memory of 64 KiB and more is of the pool, which keeps freed pages.
c10::Allocator* output_allocator();

// A call keeps so many bytes that an operator returned, or (below 0) no longer does. They count in the pool's peak.
void count_result(ptrdiff_t bytes);

// An operator runs that returns so many bytes: it may need as much again while it runs.
void expect_results(size_t bytes);

// Free what no one uses; returns the bytes freed. Bytes now held idle.
size_t trim_memory();
size_t idle_memory();

}  // namespace framesmith
