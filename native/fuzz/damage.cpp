// The reader on damaged files: damage model.fsm [files] [seed]. Each is the package with some bytes changed, cut,
// repeated or moved; of half of them neither checksum nor digests are looked at, so that what stands behind them is
// reached. The reader must answer each with an error or with a model; code is never loaded. Built with sanitizers.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "archive.h"
#include "digest.h"
#include "error.h"
#include "frame.h"
#include "plan.h"

using namespace framesmith;

namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return n ? random() % n : 0; }

// Numbers and places where a reader may go wrong.
void damage(std::string& bytes, Random& random) {
  static const uint64_t odd[] = {0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 0xffffffffffffffff, 1ull << 63};
  const size_t at = below(random, bytes.size());
  switch (below(random, 7)) {
    case 0: bytes[at] = static_cast<char>(random()); break;
    case 1: bytes[at] ^= static_cast<char>(1 << below(random, 8)); break;
    case 2: bytes.resize(at); break;
    case 3: bytes.erase(at, below(random, 64)); break;
    case 4: bytes.insert(at, bytes.substr(below(random, bytes.size()), below(random, 256))); break;
    case 5: {
      const uint64_t n = odd[below(random, std::size(odd))];
      for (size_t k = 0; k < 8 && at + k < bytes.size() && k < (size_t{1} << below(random, 4)); k++)
        bytes[at + k] = static_cast<char>(n >> 8 * k);
      break;
    }
    default: {  // a digit, a bracket or a sign of JSON
      const char signs[] = "0123456789-[]{},:\"enft.\\u";
      bytes[at] = signs[below(random, sizeof signs - 1)];
    }
  }
}

// What loading does, but for loading code: the plan, and the geometry of each value.
void read(std::string_view bytes, bool checked) {
  const Archive archive(Bytes::of_memory(bytes));
  const std::string_view head = checked ? archive.checked_member("manifest.json") : archive.member("manifest.json");
  const Json manifest = Json::parse(head);
  for (const Json& target : manifest["targets"].array()) {
    has_features(target["features"].array());
    const std::string& name = target["plan"].string();
    const std::string_view text = archive.member(name);
    if (checked && sha256(text) != manifest["digests"][name].string()) damaged("a digest");
    const Plan plan(manifest, Json::parse(text));
    std::vector<std::string_view> constants;
    for (const std::string& constant : plan.constants) constants.push_back(archive.member(constant));
    const State state(plan, archive);
    Frame frame(plan, Functions{}, constants, state);
    std::vector<int64_t> sizes;
    for (const Dimension& d : plan.dimensions) sizes.push_back(d.least);
    std::vector<framesmith_tensor> inputs(plan.inputs.size());
    frame.bind(sizes.data(), inputs.data());
    frame.bind(inputs.data(), static_cast<int>(inputs.size()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "damage model.fsm [files] [seed]\n"), 1;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const long files = argc > 2 ? std::atol(argv[2]) : 1000;
  Random random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  long refused = 0;
  read(whole, true);
  for (long k = 0; k < files; k++) {
    std::string bytes = whole;
    for (size_t n = 1 + below(random, 3); n-- && !bytes.empty();) damage(bytes, random);
    try {
      read(bytes, k % 2 == 0);
    } catch (const Error&) {
      refused++;
    } catch (const std::bad_alloc&) {
      refused++;
    }
  }
  std::printf("%ld files, %ld refused\n", files, refused);
}
