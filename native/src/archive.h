// A package as a mapped zip file whose members are stored, not compressed.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace framesmith {

// The bytes of a file, mapped privately; or a buffer of the caller's.
class Bytes {
 public:
  static Bytes of_file(const std::string& path);
  static Bytes of_memory(std::string_view bytes);
  std::string_view view() const { return bytes_; }

 private:
  std::string_view bytes_;
  std::shared_ptr<void> mapping_;
};

class Archive {
 public:
  static constexpr size_t kAlignment = 64;

  // Parses the zip directory; throws `Error` if the file is malformed.
  explicit Archive(Bytes bytes);

  std::string_view member(std::string_view name) const;  // in the mapping, at a multiple of kAlignment
  std::string_view checked_member(std::string_view name) const;  // verified by its CRC-32
  size_t size() const { return members_.size(); }

 private:
  struct Member {
    std::string_view bytes;
    uint32_t crc;
  };
  const Member& at(std::string_view name) const;
  Bytes bytes_;
  std::map<std::string, Member, std::less<>> members_;
};

}  // namespace framesmith
