#include "json.h"

#include <charconv>

#include "error.h"

namespace framesmith {

constexpr int kDeepest = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  Json whole() {
    Json v = value(0);
    space();
    if (at_ != end_) damaged("text behind JSON");
    return v;
  }

 private:
  void space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) at_++;
  }
  char peek() {
    space();
    return at_ == end_ ? '\0' : *at_;
  }
  bool take(char c) { return peek() == c ? (at_++, true) : false; }
  void expect(char c) {
    if (!take(c)) damaged(std::string("JSON without '") + c + "'");
  }

  Json value(int depth) {
    if (depth > kDeepest) damaged("JSON that is nested too deep");
    switch (peek()) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': {
        Json v;
        v.kind_ = Json::Kind::String;
        v.string_ = text();
        return v;
      }
      case 't': return word("true", Json::Kind::Bool, 1);
      case 'f': return word("false", Json::Kind::Bool, 0);
      case 'n': return word("null", Json::Kind::Null, 0);
      default: return number();
    }
  }

  Json word(std::string_view word, Json::Kind kind, int64_t value) {
    const std::string_view rest(at_, static_cast<size_t>(end_ - at_));
    if (rest.substr(0, word.size()) != word) damaged("a word in JSON");
    at_ += word.size();
    Json v;
    v.kind_ = kind;
    v.integer_ = value;
    return v;
  }

  Json number() {
    Json v;
    const char* first = at_;
    while (at_ != end_ && (std::string_view("+-.eE").find(*at_) != std::string_view::npos ||
                           (*at_ >= '0' && *at_ <= '9')))
      at_++;
    if (first == at_) damaged("a character in JSON");
    const auto [stop, error] = std::from_chars(first, at_, v.integer_);
    v.kind_ = error == std::errc() && stop == at_ ? Json::Kind::Integer : Json::Kind::Real;
    if (error == std::errc::result_out_of_range) damaged("a number in JSON that is too large");
    return v;
  }

  Json array(int depth) {
    Json v;
    v.kind_ = Json::Kind::Array;
    expect('[');
    if (take(']')) return v;
    do v.items_.push_back(value(depth + 1));
    while (take(','));
    expect(']');
    return v;
  }

  Json object(int depth) {
    Json v;
    v.kind_ = Json::Kind::Object;
    expect('{');
    if (take('}')) return v;
    do {
      if (peek() != '"') damaged("a key in JSON");
      std::string key = text();
      expect(':');
      v.entries_.emplace_back(std::move(key), value(depth + 1));
    } while (take(','));
    expect('}');
    return v;
  }

  std::string text() {
    std::string out;
    for (at_++; at_ != end_ && *at_ != '"'; at_++) {
      if (static_cast<unsigned char>(*at_) < 0x20) damaged("a control character in JSON");
      if (*at_ != '\\') out += *at_;
      else escape(out);
    }
    if (at_ == end_) damaged("JSON that ends in a string");
    at_++;
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (++at_ == end_) damaged("JSON that ends in a string");
    if (const size_t k = from.find(*at_); k != std::string_view::npos) {
      out += to[k];
      return;
    }
    unsigned code = 0;
    if (*at_ != 'u' || end_ - at_ < 5 || std::from_chars(at_ + 1, at_ + 5, code, 16).ptr != at_ + 5)
      damaged("an escape in JSON");
    at_ += 4;
    if (code < 0x80) out += static_cast<char>(code);
    else if (code < 0x800) (out += static_cast<char>(0xc0 | code >> 6)) += static_cast<char>(0x80 | (code & 63));
    else  // surrogates stay unpaired: only names are text
      ((out += static_cast<char>(0xe0 | code >> 12)) += static_cast<char>(0x80 | (code >> 6 & 63))) +=
          static_cast<char>(0x80 | (code & 63));
  }

  const char *at_, *end_;
};

Json Json::parse(std::string_view text) { return Parser(text).whole(); }

bool Json::boolean() const { return kind_ == Kind::Bool ? integer_ != 0 : (damaged("a bool is missing"), false); }
int64_t Json::integer() const { return kind_ == Kind::Integer ? integer_ : (damaged("a number is missing"), 0); }
int64_t Json::integer(int64_t least, int64_t most) const {
  const int64_t n = integer();
  return n >= least && n <= most ? n : (damaged("the number " + std::to_string(n) + " is out of range"), 0);
}
const std::string& Json::string() const {
  if (kind_ != Kind::String) damaged("a string is missing");
  return string_;
}
const std::vector<Json>& Json::array() const {
  if (kind_ != Kind::Array) damaged("an array is missing");
  return items_;
}
const std::vector<std::pair<std::string, Json>>& Json::object() const {
  if (kind_ != Kind::Object) damaged("an object is missing");
  return entries_;
}
const Json* Json::find(std::string_view key) const {
  for (const auto& [name, value] : object())
    if (name == key) return &value;
  return nullptr;
}
const Json& Json::operator[](std::string_view key) const {
  const Json* found = find(key);
  if (!found) damaged("there is no \"" + std::string(key) + "\"");
  return *found;
}

}  // namespace framesmith
