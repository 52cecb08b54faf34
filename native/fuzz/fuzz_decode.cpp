// libFuzzer target: one input through every instruction set, and through libzstd.
#include <cstdio>
#include <cstdlib>

#include "differential.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const native::fuzz::Outcome outcome =
      native::fuzz::decode_both(data, size, native::fuzz::Depth::one_element_size);
  if (outcome.kind == native::fuzz::Outcome::differ) {
    fprintf(stderr, "%s\n", outcome.detail.c_str());
    abort();
  }
  return 0;
}
