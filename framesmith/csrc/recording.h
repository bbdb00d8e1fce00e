// A recorded call of a compiled graph: kernels and operators at fixed addresses, to be done again (as a CUDA graph).
//
// Memory. What a recording needs in between comes from a pool that it shares with other recordings: each may write
// there whenever it is replayed. Its results have homes, which no other allocation gets while the recording is kept. A
// home that lies where an older recording of the pool writes is in danger from that one; and each replay writes its own
// homes. Before a replay, tensors that are alive in a home that it writes go on in memory of their own. So recordings
// may be replayed in any order. While there are other threads, which may have read a tensor's address and not yet used
// it, nothing is moved: such a call is recorded as a twin, or runs plainly; where results of both twins stay alive, one
// is recorded anew that copies its results: they have memory of their own from the start.
#pragma once
#include "graph_frame.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace framesmith {

constexpr int kTwins = 2;  // recordings of the same inputs

// What a recording is made for besides the addresses of its inputs: the stream in whose order its memory is reused, the
// constants, sizes, and the bits of the numbers that its kernels were given by value.
struct Occasion {
  void* stream = nullptr;
  uint64_t generation = 0;
  std::vector<int64_t> sizes, numbers;
  bool operator==(const Occasion&) const = default;
};

// Memory of results. `counted`: it is of no pool of recordings.
class Home {
 public:
  Home(c10::Storage memory, int device, bool counted);
  ~Home();
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;

  bool alive() const { return given_.use_count() > 0; }  // a tensor that was given out is still there
  c10::Storage give();                                    // for the results that were just written
  void move_out(void* stream);                            // what is alive goes on elsewhere, with its values
  size_t bytes() const { return memory_.nbytes(); }
  const char* start() const { return static_cast<const char*>(memory_.data()); }
  bool retired = false;  // its recording is gone

 private:
  c10::Storage memory_;
  c10::weak_intrusive_ptr<c10::StorageImpl> given_;
  int device_;
  size_t counted_;
};

// Whether a tensor lies in a home: it will be at the same address again.
bool is_at_home(const at::Tensor& t);

// Bytes of homes and of copied inputs on a device, not in pools of recordings; or, `idle`, all in which nothing lives.
int64_t recorded_bytes(int device, bool idle);

struct Segment {
  const char* start;
  size_t bytes;
};

class Recording {
 public:
  // `number`: of the pool, among those for the stream. Twins have the same inputs, but neither homes nor pool.
  Recording(std::unique_ptr<Frame> frame, Occasion occasion, int number);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // While it is made, in this order.
  void place_inputs(const std::vector<bool>& copied);  // by value: inputs with a place in the recording; others stay
  void place_results();                                // memory of kernels' results
  void fill(const Frame& call);                        // copied inputs
  void keep_results();                                 // what the run made becomes the recording's
  void settle(std::vector<Segment> pool, const std::shared_ptr<Recording>& self);  // the pool as it is now

  bool takes(const Frame& call, const Occasion& occasion) const;
  size_t cost() const;         // bytes that a replay would copy
  bool would_move() const;     // a replay would give what is alive other memory: no other thread may be reading it
  int64_t idle_bytes() const;  // held, though no tensor is alive there
  bool is_crowded() const;     // at least half of the results' bytes are alive
  void replay(Frame& call);    // gives `call` its results
  void finish(Frame& call);    // the part of it that follows the launch

  void bring_home();           // where operators run again, in place of a launch: results that they allocated anew

  Frame& frame() { return *frame_; }
  const Occasion& occasion() const { return occasion_; }
  int twin() const { return number_ % kTwins; }
  uint64_t replays = 0, crowded = 0;
  bool copies_results = false;  // a call gets them in memory of their own: nothing of them stays in the homes
  void* executable = nullptr;  // of the driver; or else
  py::object play;             // a callable; it holds the executable in either case

 private:
  struct Copied {
    int value;
    size_t bytes;
    at::Tensor memory;
    bool written;
  };
  struct Given {
    int value, home;  // -1: there is no tensor
    at::ScalarType dtype;
    std::vector<int64_t> size, stride;
    int64_t offset;
  };
  size_t copied_bytes() const;
  void make_room(void* stream);
  void give_results(Frame& call);

  std::unique_ptr<Frame> frame_;
  Occasion occasion_;
  int number_;
  std::vector<std::pair<int, void*>> fixed_;
  std::vector<Copied> copied_;
  std::vector<at::Tensor> windows_;  // without a device: on inputs that are not copied
  std::vector<std::shared_ptr<Home>> homes_, endangered_;  // its own; those of others that it may write
  std::vector<Given> given_;
  std::vector<Segment> pool_;
};

}  // namespace framesmith
