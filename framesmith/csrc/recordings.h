// The recordings of one compiled graph: which of them a call replays, and when one is made.
#pragma once
#include "recording.h"

namespace framesmith {

// What to do with a call: replay, or record, or (neither) run it plainly.
struct Choice {
  std::shared_ptr<Recording> replay;
  bool record = false;
  int twin = 0;
  bool copies_results = false;  // see Recording
};

class Recordings {
 public:
  // `recorder`: see framesmith/runtime/recorder.py. `limit` recordings are kept; the least recently used go first.
  Recordings(py::object recorder, size_t limit) : recorder(std::move(recorder)), limit_(limit) {}

  // A recording is made at a thread's second call of an occasion: what a first one sets up is not recorded.
  Choice choose(const Frame& call, const Occasion& now);
  // Which inputs a recording of `call` copies, by value: those that move, or lie where kernels cannot take them.
  std::vector<bool> copied(const Frame& call) const;
  void add(std::shared_ptr<Recording> made);
  void stop();  // no calls are recorded any more, nor replayed

  bool stopped() const { return stopped_; }
  size_t size() const { return kept_.size(); }
  uint64_t replays() const { return replays_; }

  py::object recorder;
  bool busy = false;            // one is being made
  std::vector<int64_t> tables;  // what a plain run puts on the device: bytes, by slot

 private:
  struct Place {  // of an input
    void* address = nullptr;
    unsigned moves = 0;
    bool known = false;
    bool on_device = false;  // it was there once
  };
  struct Seen {
    Occasion occasion;
    std::vector<uint64_t> threads;  // by a number that none gets again
  };
  bool is_due(const Occasion& now);
  void note_places(const Frame& call);
  bool is_astray(const Frame& call) const;  // an input lies in the CPU's memory that has been on the device

  size_t limit_;
  uint64_t replays_ = 0;
  unsigned wasted_ = 0;  // recordings that made room before they were of use
  bool stopped_ = false;
  std::vector<std::shared_ptr<Recording>> kept_;  // the last used one first
  std::vector<Seen> seen_;                         // the last one first
  std::vector<Place> places_;                      // by value
};

}  // namespace framesmith
