// The trainer's side: XOR of parent and new bytes, changed elements and Adler-32 of the new bytes in one
// pass.
#pragma once
#include <cstddef>
#include <cstdint>

namespace native {

struct XorCount {
  uint64_t changed_elements;
  uint32_t adler32;  // of the new bytes
};

// Writes parent XOR new to `out` (which may be either of them). `size` is a multiple of element_size: 1, 2, 4
// or 8.
XorCount xor_count_adler(const uint8_t* parent, const uint8_t* current, uint8_t* out, size_t size,
                         unsigned element_size);

}  // namespace native
