#include "write_tracking.h"

#include <c10/macros/Macros.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>

namespace framesmith {
namespace {

// --------------------------------------------------------------------- what headers older than Linux 6.7 do not define

constexpr int kUserModeOnly = 1;               // UFFD_USER_MODE_ONLY: needs no privilege
constexpr uint64_t kUnpopulated = 1u << 13;    // UFFD_FEATURE_WP_UNPOPULATED
constexpr uint64_t kAsynchronous = 1u << 15;   // UFFD_FEATURE_WP_ASYNC
constexpr uint64_t kProtectFound = 1u << 0;    // PM_SCAN_WP_MATCHING: as they are told, atomically
constexpr uint64_t kRefuseUntracked = 1u << 1; // PM_SCAN_CHECK_WPASYNC
constexpr uint64_t kWritten = 1u << 1;         // PAGE_IS_WRITTEN: not protected

struct Region {  // struct page_region
  uint64_t first, end, categories;
};

struct Scan {  // struct pm_scan_arg
  uint64_t size, flags, first, end, walk_end, regions, capacity, most_pages, inverted, all_of, any_of, returned;
};

#define FRAMESMITH_PAGEMAP_SCAN _IOWR('f', 16, Scan)

// --------------------------------------------------------------------------------------------------------- the process

constexpr Address kGap = 64 * 4096;  // of a span: reading past it costs less than a system call
constexpr size_t kMost = 16384;      // trackings: each may cost two mappings, of 65530
constexpr int kOpenings = 16;        // of descriptors that a program closed under us

Address page() {
  static const auto size = static_cast<Address>(sysconf(_SC_PAGE_SIZE));
  return size;
}

// A word that is zero in a forked child, whose memory is not tracked and whose descriptors are its parent's.
class ForkMark {
 public:
  ForkMark() {
    void* made = mmap(nullptr, page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return;
    if (madvise(made, page(), MADV_WIPEONFORK) == 0) word_ = static_cast<volatile int*>(made);
  }
  bool usable() const { return word_; }
  bool is_set() const { return *word_; }
  void set() { *word_ = 1; }

 private:
  volatile int* word_ = nullptr;
};

class Process {
 public:
  static Process& get() {
    static auto* process = new Process();
    return *process;
  }

  // The trackings that live, to be told of what is found.
  std::vector<Tracked*> all;

  // Written pages of a range, into `found`, and where the next scan goes on. A number below 0: an error.
  template <size_t N>
  long scan(PageRange range, uint64_t flags, std::array<Region, N>& found, Address& walked) {
    const auto place = reinterpret_cast<uint64_t>(found.data());
    Scan scan{sizeof(Scan), flags, range.first, range.end, 0, place, N, 0, 0, kWritten, 0, kWritten};
    const long count = ask(pagemap_, FRAMESMITH_PAGEMAP_SCAN, scan);
    walked = scan.walk_end;
    return count >= 0 && walked > range.first ? count : -1;
  }

  bool enter(PageRange range) {
    uffdio_register entry{{range.first, range.end - range.first}, UFFDIO_REGISTER_MODE_WP, 0};
    return ask(faults_, UFFDIO_REGISTER, entry) == 0;
  }

  void leave(PageRange range) {
    uffdio_range entry{range.first, range.end - range.first};
    if (ready()) ioctl(faults_, UFFDIO_UNREGISTER, &entry);
  }

 private:
  // A call on a descriptor of ours. One that a program closed is left to whoever has it by now.
  template <typename Request> long ask(int& descriptor, unsigned long number, Request& request) {
    long result = -1;
    for (bool again = false; ready(); again = true) {
      result = ioctl(descriptor, number, &request);
      if (result >= 0 || again || (errno != EBADF && errno != ENOTTY)) break;
      descriptor = -1;
    }
    return result;
  }

  bool ready() {
    if (C10_LIKELY(mark_.usable() && mark_.is_set() && pagemap_ >= 0 && faults_ >= 0)) return true;
    if (!mark_.usable()) return false;
    // the first call, or a forked child: the descriptors are its parent's, if they are still open
    if (!mark_.is_set()) {
      faults_ = pagemap_ = -1;
      openings_ = 0;
      mark_.set();
    }
    if (openings_ >= kOpenings) return false;
    openings_++;
    if (faults_ < 0) faults_ = open_faults();
    if (pagemap_ < 0) pagemap_ = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (faults_ >= 0 && pagemap_ >= 0) return true;
    openings_ = kOpenings;
    return false;
  }

  static int open_faults() {
    const int made = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly));
    uffdio_api wanted{UFFD_API, kUnpopulated | kAsynchronous, 0};
    if (made < 0 || ioctl(made, UFFDIO_API, &wanted) == 0) return made;
    close(made);
    return -1;
  }

  ForkMark mark_;
  int faults_ = -1, pagemap_ = -1, openings_ = 0;
};

// Notes that pages were found written, in all trackings of them.
void tell(PageRange written) {
  for (Tracked* t : Process::get().all) {
    const PageRange head{t->outer.first, t->inner.first}, tail{t->inner.end, t->outer.end};
    if (t->inner.meets(written)) t->writes++;
    if (head.meets(written) || tail.meets(written)) t->edges_written = true;
  }
}

// Protects pages again, and tells of those that were written.
bool protect(PageRange range) {
  std::array<Region, 32> found;
  while (!range.empty()) {
    const long count = Process::get().scan(range, kProtectFound | kRefuseUntracked, found, range.first);
    if (count < 0) return false;
    for (long i = 0; i < count; i++) tell({found[i].first, found[i].end});
  }
  return true;
}

void renew(Tracked& t) {
  if (protect(t.pages())) return;
  tell(t.outer);  // the process is a child, or the memory was mapped anew, or what was found is not known
  t.lost = !Process::get().enter(t.outer) || !protect(t.pages());
}

Address down(Address at) { return at / page() * page(); }
Address up(Address at) { return down(at + page() - 1); }

}  // namespace

// ----------------------------------------------------------------------------------------------------------- trackings

Tracked::Tracked(Address first, Address end) : inner{up(first), down(end)}, outer{down(first), up(end)} {}

Tracked::~Tracked() {
  Process& process = Process::get();
  std::erase(process.all, this);
  const auto is_shared = [&](PageRange range) {
    return std::any_of(process.all.begin(), process.all.end(),
                       [&](const Tracked* other) { return other->outer.meets(range); });
  };
  if (!is_shared(outer)) process.leave(outer);
  else if (!is_shared(inner)) process.leave(inner);
}

bool WriteTracker::is_private(PageRange range) {
  if (!read_) {
    read_ = true;
    std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
    Address first, end;
    char kind;
    while (maps && std::fscanf(maps.get(), "%" SCNxPTR "-%" SCNxPTR " %*3c%c%*[^\n]", &first, &end, &kind) == 3) {
      if (kind != 'p') continue;
      if (!private_.empty() && private_.back().end == first) private_.back().end = end;
      else private_.push_back({first, end});
    }
  }
  const auto after = std::upper_bound(private_.begin(), private_.end(), range.first,
                                      [](Address at, PageRange r) { return at < r.first; });
  return after != private_.begin() && range.end <= std::prev(after)->end;
}

std::shared_ptr<Tracked> WriteTracker::track(const void* data, size_t bytes) {
  Process& process = Process::get();
  const auto first = reinterpret_cast<Address>(data);
  auto made = std::make_shared<Tracked>(first, first + bytes);
  if (made->inner.empty() || process.all.size() >= kMost || !is_private(made->outer)) return nullptr;
  if (!process.enter(made->outer) || !protect(made->outer)) return nullptr;
  process.all.push_back(made.get());
  return made;
}

TrackedSet::TrackedSet(std::vector<std::shared_ptr<Tracked>> tracked) : tracked_(std::move(tracked)) {
  std::sort(tracked_.begin(), tracked_.end(),
            [](const auto& a, const auto& b) { return a->outer.first < b->outer.first; });
  for (const auto& t : tracked_) {
    ends_.push_back(ends_.empty() ? t->outer.end : std::max(ends_.back(), t->outer.end));
    if (spans_.empty() || t->outer.first > spans_.back().end + kGap) spans_.push_back(t->outer);
    else spans_.back().end = ends_.back();
  }
}

void TrackedSet::look_at(PageRange written) const {
  auto i = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), written.first) - ends_.begin());
  for (; i < tracked_.size() && tracked_[i]->outer.first < written.end; i++)
    if (tracked_[i]->pages().meets(written)) renew(*tracked_[i]);
}

void TrackedSet::look() const {
  std::array<Region, 64> found;
  for (PageRange span : spans_) {
    while (!span.empty()) {
      const PageRange rest = span;
      const long count = Process::get().scan(rest, 0, found, span.first);
      if (count < 0) {
        look_at(rest);
        break;
      }
      for (long i = 0; i < count; i++)
        look_at({found[i].first, found[i].end});
    }
  }
}

}  // namespace framesmith
