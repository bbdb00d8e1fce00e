// Counts the live bytes of the process's heap, exactly: loaded before the C library (LD_PRELOAD), it stands in the place of malloc and its
// kin, and of mmap where a program takes pages of a range that it has reserved, or gives them back (MAP_FIXED). All memory of a step goes
// through them: tensors, scratch of the math libraries, what compiled code keeps. (glibc only.)
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

static std::atomic<long> live{0}, high{0};

static void add(long bytes) {
  long now = live.fetch_add(bytes) + bytes, seen = high.load();
  while (now > seen && !high.compare_exchange_weak(seen, now)) {}
}

static void* counted(void* p) {
  if (p) add(static_cast<long>(malloc_usable_size(p)));
  return p;
}

extern "C" {
void* malloc(size_t n) { return counted(__libc_malloc(n)); }
void* calloc(size_t n, size_t size) { return counted(__libc_calloc(n, size)); }
void* memalign(size_t to, size_t n) { return counted(__libc_memalign(to, n)); }
void* aligned_alloc(size_t to, size_t n) { return counted(__libc_memalign(to, n)); }

int posix_memalign(void** out, size_t to, size_t n) {
  void* p = counted(__libc_memalign(to, n));
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}

void* realloc(void* old, size_t n) {
  long before = old ? static_cast<long>(malloc_usable_size(old)) : 0;
  void* p = __libc_realloc(old, n);
  if (p || n == 0) add((p ? static_cast<long>(malloc_usable_size(p)) : 0) - before);
  return p;
}

void free(void* p) {
  if (p) live -= static_cast<long>(malloc_usable_size(p));
  __libc_free(p);
}

void* mmap(void* at, size_t n, int access, int flags, int file, off_t offset) {
  void* p = reinterpret_cast<void*>(syscall(SYS_mmap, at, n, access, flags, file, offset));
  if (p != MAP_FAILED && flags & MAP_FIXED && flags & MAP_ANONYMOUS) add(access & PROT_WRITE ? static_cast<long>(n) : -static_cast<long>(n));
  return p;
}

// Pages that move to where none were: what is mapped over their old place is then subtracted, so it is added before.
void* mremap(void* at, size_t n, size_t size, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  void* p = reinterpret_cast<void*>(syscall(SYS_mremap, at, n, size, flags, va_arg(rest, void*)));
  va_end(rest);
  if (p != MAP_FAILED && flags & MREMAP_DONTUNMAP) live += static_cast<long>(n);
  return p;
}

long heap_live() { return live; }
long heap_high() { return high; }
void heap_mark() { high = live.load(); }
}
