// LSTM and GRU: the input's product for many time steps at once, then the recurrence, its pointwise part fused in.
//
// The hidden units are cut into panels of W; a panel holds the W columns of every gate side by side, so that one
// register tile (batch rows x gates) yields all gates of W units and the cell is computed from registers. A thread owns
// panels: what it computes of the input's product it alone reads; threads meet once a time step, at a spinning barrier.
#include "rnn.h"

#include <omp.h>
#include <sched.h>

#include <atomic>

#include "tile.h"

namespace framesmith {
namespace {

// rows (time steps x batch) of the input's product that are kept before the recurrence consumes them
constexpr i64 kChunkRows = 256;
constexpr double kParallelWork = 1e5;   // multiply-adds a time step from which a second thread pays for the barrier
constexpr int kSpins = 1 << 12;

// Threads meet here; `generation` rises once all have come. Spins, and gives the core away when the others do not run.
class Barrier {
 public:
  int threads = 1;
  void wait() {
    if (threads == 1) return;
    const int now = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == now; spins++) {
      if (spins < kSpins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

// ---- cells: `start` gives a row's first accumulators, `finish` its new state. `given` is the input's product (with
// its bias), `bias` the part of the bias that stays with the recurrent product.
struct Lstm {
  static constexpr int gates = 4;
  static __attribute__((always_inline)) void start(vf* acc, const float* given, const float*) {
#pragma GCC unroll 4
    for (int j = 0; j < gates; j++) acc[j] = load(given + j * W, full);
  }
  template <class M>
  static __attribute__((always_inline)) vf finish(const vf* acc, const float*, const float*, float* c, M live) {
    const vf next = fs::sigmoid(acc[1]) * load(c, live) + fs::sigmoid(acc[0]) * fs::tanh(acc[2]);
    store(c, next, live);
    return fs::sigmoid(acc[3]) * fs::tanh(next);
  }
};

struct Gru {
  static constexpr int gates = 3;
  static __attribute__((always_inline)) void start(vf* acc, const float* given, const float* bias) {
    acc[0] = load(given, full), acc[1] = load(given + W, full), acc[2] = load(bias + 2 * W, full);
  }
  template <class M>
  static __attribute__((always_inline)) vf finish(const vf* acc, const float* given, const float* h, float*, M live) {
    const vf update = fs::sigmoid(acc[1]), fresh = fs::tanh(load(given + 2 * W, full) + fs::sigmoid(acc[0]) * acc[2]);
    return (load(h, live) - fresh) * update + fresh;
  }
};

// One panel's step for rows of the batch: given_row, h_row, c_row (also of `last`) and out_row lie between the rows.
struct Step {
  const float* given;
  i64 given_row;
  const float* h;
  i64 h_row;
  const float* w;
  const float* bias;
  float* c;
  float* out;
  i64 out_row;
  float* last;  // the final state, or null
  i64 c_row, hidden, first;  // `first`: the panel's first unit
};

template <class Cell, int MR>
__attribute__((noinline)) void step_tile(const Step& s, i64 row) {
  vf acc[MR][Cell::gates];
  const float* given = s.given + row * s.given_row;
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) Cell::start(acc[i], given + i * s.given_row, s.bias);
  if (s.h) fs::multiply<false>(acc, s.h + row * s.h_row, s.h_row, s.w, s.hidden);
  const int live = (int)std::min(s.hidden - s.first, i64(W));
  const float zero[W] = {};
  for (int i = 0; i < MR; i++) {
    const i64 r = row + i;
    const float* h = s.h ? s.h + r * s.h_row + s.first : zero;
    float* c = s.c ? s.c + r * s.c_row + s.first : nullptr;
    const vf next = live == W ? Cell::finish(acc[i], given + i * s.given_row, h, c, full)
                              : Cell::finish(acc[i], given + i * s.given_row, h, c, live);
    auto put = [&](float* p) { live == W ? store(p, next, full) : store(p, next, live); };
    put(s.out + r * s.out_row + s.first);
    if (s.last) put(s.last + r * s.c_row + s.first);
  }
}

// Rows of the input's product: x rows lda apart, results gates * W floats a row, side by side.
template <int NV, int MR>
__attribute__((noinline)) void input_tile(const float* x, i64 lda, const float* w, const float* bias, i64 depth,
                                          float* out) {
  vf acc[MR][NV];
#pragma GCC unroll 8
  for (int j = 0; j < NV; j++)
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) acc[i][j] = load(bias + j * W, full);
  fs::multiply<false>(acc, x, lda, w, depth);
  fs::store_sums(acc, out, NV * W);
}

constexpr int kStepRows = W == 16 ? kRows : 3;
template <class Cell> auto step_of(int rows) {
  return with_constant<kStepRows>(rows, [](auto mr) { return &step_tile<Cell, mr>; });
}
template <int NV> auto input_of(int rows) {
  return with_constant<kRows>(rows, [](auto mr) { return &input_tile<NV, mr>; });
}

// Where the parts of a packed weight begin.
struct Packed {
  i64 panels, tile, h, bias_x, bias_h, size;
  Packed(i64 gates, i64 input, i64 hidden)
      : panels((hidden + W - 1) / W), tile(gates * W), h(panels * tile * input), bias_x(h + panels * tile * hidden),
        bias_h(bias_x + panels * tile), size(bias_h + panels * tile) {}
};

template <class Cell>
class Run {
 public:
  explicit Run(const Recurrence& r)
      : r_(r), panels_((r.hidden + W - 1) / W), chunk_(chunk_steps(r)), given_size_(chunk_ * r.batch * tile),
        scratch_(memory(given_floats() + between_floats())), given_(scratch_.get()),
        between_(given_ + given_floats()) {}

  static i64 chunk_steps(const Recurrence& r) {
    return std::min((kChunkRows + r.batch - 1) / r.batch, r.steps);
  }
  i64 given_floats() const { return r_.directions * panels_ * given_size_; }
  i64 between_floats() const { return (r_.layers > 2 ? 2 : r_.layers - 1) * r_.steps * r_.batch * width(); }

  void operator()(int threads) {
    const double work = (double)r_.directions * r_.batch * r_.hidden * r_.hidden * Cell::gates;
    if (work < kParallelWork) threads = 1;
    threads = (int)std::min(i64(threads), panels_ * r_.directions);
    Barrier meeting;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp single
      meeting.threads = omp_get_num_threads();
      thread(omp_get_thread_num(), omp_get_num_threads(), meeting);
    }
  }

 private:
  static constexpr i64 tile = Cell::gates * W;

  // The sequence that a layer reads or writes.
  struct Sequence {
    float* at;
    i64 step, batch;
  };
  i64 width() const { return r_.directions * r_.hidden; }
  Sequence input_of_layer(i64 layer) const {
    if (layer == 0) return {const_cast<float*>(r_.x), r_.x_step, r_.x_batch};
    return output_of_layer(layer - 1);
  }
  Sequence output_of_layer(i64 layer) const {
    if (layer == r_.layers - 1) return {r_.out, r_.out_step, r_.out_batch};
    return {between_ + layer % 2 * r_.steps * r_.batch * width(), r_.batch * width(), width()};
  }

  void thread(int id, int count, Barrier& barrier) {
    const i64 tasks = r_.directions * panels_, begin = share(tasks, id, count), end = share(tasks, id + 1, count);
    for (i64 layer = 0; layer < r_.layers; layer++) {
      for (i64 task = begin; task < end; task++) start_cells(layer, task);
      for (i64 first = 0; first < r_.steps; first += chunk_) {
        const i64 steps = std::min(r_.steps - first, chunk_);
        for (i64 task = begin; task < end; task++) give(layer, task, first, steps);
        for (i64 s = first; s < first + steps; s++) {
          for (i64 task = begin; task < end; task++) advance(layer, task, s, s - first, steps);
          barrier.wait();
        }
      }
    }
  }

  i64 time(i64 direction, i64 s) const { return direction ? r_.steps - 1 - s : s; }

  void start_cells(i64 layer, i64 task) const {
    if (!r_.cn) return;
    const i64 slab = (layer * r_.directions + task / panels_) * r_.batch * r_.hidden, unit = task % panels_ * W;
    const i64 live = std::min(r_.hidden - unit, i64(W));
    for (i64 b = 0; b < r_.batch; b++) {
      float* c = r_.cn + slab + b * r_.hidden + unit;
      if (r_.c0) __builtin_memcpy(c, r_.c0 + (c - r_.cn), live * sizeof(float));
      else __builtin_memset(c, 0, live * sizeof(float));
    }
  }

  // Rows of `given` are (batch, step) or (step, batch), as the input's memory runs. Reversed time is undone on reading.
  bool by_batch(const Sequence& x, i64 steps) const { return x.step != r_.batch * x.batch && steps > r_.batch; }

  void give(i64 layer, i64 task, i64 first, i64 steps) const {
    const i64 direction = task / panels_, panel = task % panels_, depth = layer ? width() : r_.input;
    const Packed p(Cell::gates, depth, r_.hidden);
    const float* packed = r_.packed[layer * r_.directions + direction];
    const Sequence x = input_of_layer(layer);
    const float* from = x.at + (direction ? r_.steps - first - steps : first) * x.step;
    float* to = given_ + task * given_size_;
    const bool whole = x.step == r_.batch * x.batch, across = by_batch(x, steps);
    const i64 runs = whole ? 1 : across ? r_.batch : steps, rows = steps * r_.batch / runs;
    const i64 run_stride = across ? x.batch : x.step, lda = across ? x.step : x.batch;
    const Even even(rows, kRows);
    for (i64 run = 0; run < runs; run++)
      for (i64 g = 0; g < even.groups; g++)
        input_of<Cell::gates>(even.size(g))(from + run * run_stride + even.begin(g) * lda, lda,
                                            packed + panel * tile * depth, packed + p.bias_x + panel * tile, depth,
                                            to + (run * rows + even.begin(g)) * tile);
  }

  void advance(i64 layer, i64 task, i64 s, i64 place, i64 steps) const {
    const i64 direction = task / panels_, panel = task % panels_, depth = layer ? width() : r_.input;
    const Packed p(Cell::gates, depth, r_.hidden);
    const float* packed = r_.packed[layer * r_.directions + direction];
    const i64 slab = (layer * r_.directions + direction) * r_.batch * r_.hidden, offset = direction * r_.hidden;
    const Sequence out = output_of_layer(layer);
    const bool across = by_batch(input_of_layer(layer), steps);
    if (direction) place = steps - 1 - place;
    Step step;
    step.given = given_ + task * given_size_ + place * (across ? 1 : r_.batch) * tile;
    step.given_row = (across ? steps : 1) * tile;
    step.h = s ? out.at + time(direction, s - 1) * out.step + offset : r_.h0 ? r_.h0 + slab : nullptr;
    step.h_row = s ? out.batch : r_.hidden;
    step.w = packed + p.h + panel * tile * r_.hidden;
    step.bias = packed + p.bias_h + panel * tile;
    step.c = r_.cn ? r_.cn + slab : nullptr;
    step.out = out.at + time(direction, s) * out.step + offset;
    step.out_row = out.batch;
    step.last = s == r_.steps - 1 ? r_.hn + slab : nullptr;
    step.c_row = step.hidden = r_.hidden;
    step.first = panel * W;
    const Even even(r_.batch, kStepRows);
    for (i64 g = 0; g < even.groups; g++) step_of<Cell>(even.size(g))(step, even.begin(g));
  }

  const Recurrence& r_;
  i64 panels_, chunk_, given_size_;
  Memory scratch_;
  float *given_, *between_;
};

}  // namespace

int64_t packed_recurrence_size(int64_t gates, int64_t input, int64_t hidden) {
  return Packed(gates, input, hidden).size;
}

void pack_recurrence(float* out, int64_t gates, int64_t input, int64_t hidden, const float* w_x, const float* w_h,
                     const float* b_x, const float* b_h) {
  const Packed p(gates, input, hidden);
  auto column = [&](const float* w, i64 depth, i64 unit, i64 gate, i64 k) {
    return unit < hidden && w ? w[(gate * hidden + unit) * depth + k] : 0.0f;
  };
#pragma omp parallel for schedule(static) if (p.size > 100000)
  for (i64 panel = 0; panel < p.panels; panel++)
    for (i64 j = 0; j < p.tile; j++) {
      const i64 unit = panel * W + j % W, gate = j / W;
      for (i64 k = 0; k < input; k++) out[(panel * input + k) * p.tile + j] = column(w_x, input, unit, gate, k);
      for (i64 k = 0; k < hidden; k++)
        out[p.h + (panel * hidden + k) * p.tile + j] = column(w_h, hidden, unit, gate, k);
      // A GRU's new gate scales the recurrent product with its bias; every other bias joins the input's.
      const bool apart = gates == Gru::gates && gate == 2;
      const float bx = column(b_x, 1, unit, gate, 0), bh = column(b_h, 1, unit, gate, 0);
      out[p.bias_x + panel * p.tile + j] = apart ? bx : bx + bh;
      out[p.bias_h + panel * p.tile + j] = apart ? bh : 0;
    }
}

void recur(const Recurrence& r, int threads) {
  if (r.gates == Lstm::gates) Run<Lstm>{r}(threads);
  else Run<Gru>{r}(threads);
}

}  // namespace framesmith
