// Decodes files with the sparse decoder and, where the system's libzstd is at hand, compares with it.
//
//   decoder_check FILE...            each file as it is
//   decoder_check --mutate N SEED FILE...   N mutated copies of each file as well
//
// Built with sanitizers (NATIVE_SANITIZE). Prints one line of counts; exits 1 if both decoders accept an
// input and differ.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "differential.hpp"

namespace {

using native::fuzz::Depth;
using native::fuzz::Outcome;

std::vector<uint8_t> read_file(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(2);
  }
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::vector<uint8_t> mutate(std::vector<uint8_t> data, std::mt19937_64& random) {
  if (data.empty()) return data;
  if (random() % 8 == 0) data.resize(random() % data.size());
  for (uint64_t edits = 1 + random() % 4; edits > 0 && !data.empty(); edits--) {
    const size_t reach = random() % 3 ? data.size() : std::min<size_t>(data.size(), 400);
    uint8_t& byte = data[random() % reach];
    if (random() % 2)
      byte = uint8_t(byte ^ 1u << (random() % 8));
    else
      byte = uint8_t(random());
  }
  return data;
}

}  // namespace

int main(int argument_count, char** arguments) {
  int first = 1;
  unsigned long mutations = 0, seed = 0;
  if (argument_count > 3 && std::string(arguments[1]) == "--mutate") {
    mutations = strtoul(arguments[2], nullptr, 10);
    seed = strtoul(arguments[3], nullptr, 10);
    first = 4;
  }
  std::mt19937_64 random(seed);
  unsigned long counts[Outcome::kinds] = {};
  std::map<std::string, unsigned long> reasons;  // why one decoder rejects what the other accepts
  for (int i = first; i < argument_count; i++) {
    const std::vector<uint8_t> original = read_file(arguments[i]);
    for (unsigned long round = 0; round <= mutations; round++) {
      const std::vector<uint8_t> input = round == 0 ? original : mutate(original, random);
      const Outcome outcome =
          native::fuzz::decode_both(input.data(), input.size(), Depth::every_element_size);
      counts[outcome.kind]++;
      if (outcome.kind == Outcome::only_ours) reasons["libzstd: " + outcome.detail]++;
      if (outcome.kind == Outcome::only_libzstd) reasons["ours: " + outcome.detail]++;
      if (outcome.kind == Outcome::differ)
        printf("%s, mutation %lu: %s\n", arguments[i], round, outcome.detail.c_str());
    }
  }
  for (const auto& [reason, count] : reasons) printf("%6lu rejected only by %s\n", count, reason.c_str());
  printf("agree %lu reject %lu only_ours %lu only_libzstd %lu differ %lu unchecked %lu\n",
         counts[Outcome::agree], counts[Outcome::reject], counts[Outcome::only_ours],
         counts[Outcome::only_libzstd], counts[Outcome::differ], counts[Outcome::unchecked]);
  return counts[Outcome::differ] == 0 ? 0 : 1;
}
