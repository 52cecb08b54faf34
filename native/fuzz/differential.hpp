// One input through the sparse decoder and through libzstd, for the fuzzers and the decoder check.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace native::fuzz {

struct Outcome {
  enum Kind { agree, reject, only_ours, only_libzstd, differ, unchecked, kinds } kind;
  std::string detail;  // of a difference, or of what only one of the two rejects
};

enum class Depth { one_element_size, every_element_size };

// Decodes with every instruction set at hand; all must agree. Content is bounded to 256 KiB: both decoders
// reject more. What the sparse decoder accepts counts as `unchecked` where no libzstd.so.1 can be loaded.
Outcome decode_both(const uint8_t* input, size_t size, Depth depth);

}  // namespace native::fuzz
