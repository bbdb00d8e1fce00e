// Writes to memory by the operating system's account, which no way of writing gets past. Linux (6.7) protects pages and
// lifts the protection at a first write by itself (userfaultfd, asynchronous); which pages are unprotected, it tells in
// one system call (PAGEMAP_SCAN).
//
// A page's protection is one state for the whole process, so trackings of the same pages tell each other what they
// find. The interpreter's lock is held in all of this.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace framesmith {

using Address = uintptr_t;

struct PageRange {
  Address first, end;
  bool empty() const { return first >= end; }
  bool meets(PageRange other) const { return !empty() && first < other.end && other.first < end; }
};

// Memory whose writes are tracked. Its first and its last page may hold other data as well: the edges.
struct Tracked {
  Tracked(Address first, Address end);
  ~Tracked();
  Tracked(const Tracked&) = delete;
  Tracked& operator=(const Tracked&) = delete;

  const PageRange inner, outer;  // pages of nothing else; with the edges
  uint64_t writes = 0;           // how often inner pages were found written
  bool edges_written = false;    // by anybody: from then on they are not tracked
  bool lost = false;             // the system tracks it no more
  PageRange pages() const { return edges_written ? inner : outer; }
};

// Begins to track memory. (It reads the process's mappings once.)
class WriteTracker {
 public:
  // A write from now on is found. Null where the system cannot tell: shared memory, no such calls, or none allowed.
  std::shared_ptr<Tracked> track(const void* data, size_t bytes);

 private:
  bool is_private(PageRange range);
  std::vector<PageRange> private_;
  bool read_ = false;
};

// Trackings that are looked at together, in few system calls.
class TrackedSet {
 public:
  TrackedSet() = default;
  explicit TrackedSet(std::vector<std::shared_ptr<Tracked>> tracked);
  void look() const;  // brings `writes`, `edges_written` and `lost` up to date

 private:
  void look_at(PageRange written) const;
  std::vector<std::shared_ptr<Tracked>> tracked_;  // in the order of addresses
  std::vector<Address> ends_;                      // the furthest end of each and those before it
  std::vector<PageRange> spans_;                   // that hold them, with narrow gaps
};

}  // namespace framesmith
