// XOR and count of changed elements. Included by one file for each instruction set; internal linkage.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace native {

template <class Element>
static inline uint64_t xor_count_loop(const uint8_t* parent, const uint8_t* current, uint8_t* out,
                                      size_t size) {
  constexpr size_t part_max = 4096;  // counts within it fit the narrow lanes that the vectoriser likes
  uint64_t changed = 0;
  for (size_t start = 0; start < size; start += part_max) {
    const size_t stop = start + part_max < size ? start + part_max : size;
    uint32_t part = 0;
    for (size_t i = start; i < stop; i += sizeof(Element)) {
      Element left, right;
      memcpy(&left, parent + i, sizeof left);
      memcpy(&right, current + i, sizeof right);
      const Element mask = Element(left ^ right);
      memcpy(out + i, &mask, sizeof mask);
      part += mask != 0;
    }
    changed += part;
  }
  return changed;
}

}  // namespace native
