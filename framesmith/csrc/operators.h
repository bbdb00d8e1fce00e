// How the operators `framesmith::*` are made of two functions.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <utility>

namespace framesmith {

template <class R> constexpr size_t kResults = std::tuple_size_v<R>;
template <> inline constexpr size_t kResults<at::Tensor> = 1;

// `Empty(arguments...)` gives memory for the results, a tensor or a tuple; `Fill(arguments..., results...)` fills it.
template <auto Empty, auto Fill> struct Operator;
template <class R, class... A, R (*Empty)(A...), auto Fill> struct Operator<Empty, Fill> {
  static constexpr size_t count = kResults<R>;

  static R call(A... a) {
    R made = Empty(a...);
    if constexpr (count == 1) Fill(a..., made);
    else std::apply([&](auto&... results) { Fill(a..., results...); }, made);
    return made;
  }

  template <class... T> struct Planned {
    using Results = std::conditional_t<sizeof...(T) == 1, at::Tensor&, std::tuple<T&...>>;
    static Results call(A... a, T&... results) {
      Fill(a..., results...);
      return {results...};
    }
  };
};

// Defines an operator of `arguments` (as in a schema), and its out= form that fills planned memory.
template <auto Empty, auto Fill>
void define(torch::Library& m, const std::string& name, const std::string& arguments) {
  using Op = Operator<Empty, Fill>;
  std::string results, planned, returned;
  for (size_t i = 0; i < Op::count; i++) {
    const std::string mark = std::string("Tensor(") + static_cast<char>('a' + i) + "!)", comma = i ? ", " : "";
    results += comma + "Tensor";
    planned += ", " + mark + " out" + (Op::count == 1 ? "" : std::to_string(i));
    returned += comma + mark;
  }
  m.def((name + "(" + arguments + ") -> (" + results + ")").c_str());
  m.def((name + ".out(" + arguments + ", *" + planned + ") -> (" + returned + ")").c_str());
  m.impl(name.c_str(), c10::DispatchKey::CPU, &Op::call);
  m.impl(name.c_str(), c10::DispatchKey::Meta, Empty);
  const std::string out = name + ".out";
  using T = at::Tensor;
  if constexpr (Op::count == 1) m.impl(out.c_str(), c10::DispatchKey::CPU, &Op::template Planned<T>::call);
  if constexpr (Op::count == 2) m.impl(out.c_str(), c10::DispatchKey::CPU, &Op::template Planned<T, T>::call);
  if constexpr (Op::count == 3) m.impl(out.c_str(), c10::DispatchKey::CPU, &Op::template Planned<T, T, T>::call);
}

}  // namespace framesmith
