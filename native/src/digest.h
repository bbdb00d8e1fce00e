// SHA-256 (FIPS 180-4) and the CRC-32 of zip files.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace framesmith {

std::string sha256(std::string_view bytes);  // in hexadecimal digits
uint32_t crc32(std::string_view bytes);

}  // namespace framesmith
