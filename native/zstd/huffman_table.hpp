// The decoding table of Huffman-coded literals: RFC 8878 section 4.2.1.
#pragma once
#include "limits.hpp"

namespace native::zstd {

struct HuffmanTable {
  // Indexed by the next `log` bits: symbol | code length << 8. The tail absorbs whole-vector stores.
  uint16_t cell[(1 << huffman_bits_max) + 64];
  unsigned log;
  bool valid = false;
};

}  // namespace native::zstd
