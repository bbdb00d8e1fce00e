// A parser of the JSON that packages have. It refuses input that is malformed, nested too deeply or too large.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace framesmith {

// A value. Accessors throw `Error` if it has another kind.
class Json {
 public:
  enum class Kind : uint8_t { Null, Bool, Integer, Real, String, Array, Object };

  static Json parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool boolean() const;
  int64_t integer() const;
  int64_t integer(int64_t least, int64_t most) const;  // within a range
  const std::string& string() const;
  const std::vector<Json>& array() const;
  const std::vector<std::pair<std::string, Json>>& object() const;
  const Json& operator[](std::string_view key) const;  // of an object that has it
  const Json* find(std::string_view key) const;

 private:
  friend class Parser;
  Kind kind_ = Kind::Null;
  int64_t integer_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> entries_;
};

}  // namespace framesmith
