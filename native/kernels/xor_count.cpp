#include "xor_count.hpp"

#include <algorithm>
#include <cstring>

#include "../checksum/adler32.hpp"

namespace native {
namespace {

template <class Element>
uint64_t xor_count(const uint8_t* parent, const uint8_t* current, uint8_t* out, size_t size) {
  uint64_t changed = 0;
  for (size_t i = 0; i < size; i += sizeof(Element)) {
    Element left, right;
    memcpy(&left, parent + i, sizeof left);
    memcpy(&right, current + i, sizeof right);
    const Element mask = Element(left ^ right);
    memcpy(out + i, &mask, sizeof mask);
    changed += mask != 0;
  }
  return changed;
}

}  // namespace

XorCount xor_count_adler(const uint8_t* parent, const uint8_t* current, uint8_t* out, size_t size,
                         unsigned element_size) {
  constexpr size_t chunk_max = 16 << 10;  // stays in the first-level cache between the two loops
  XorCount result{0, 1};
  for (size_t start = 0; start < size; start += chunk_max) {
    const size_t chunk = std::min(chunk_max, size - start);
    const uint8_t *left = parent + start, *right = current + start;
    result.adler32 = adler32(result.adler32, right, chunk);
    switch (element_size) {
      case 1: result.changed_elements += xor_count<uint8_t>(left, right, out + start, chunk); break;
      case 2: result.changed_elements += xor_count<uint16_t>(left, right, out + start, chunk); break;
      case 4: result.changed_elements += xor_count<uint32_t>(left, right, out + start, chunk); break;
      default: result.changed_elements += xor_count<uint64_t>(left, right, out + start, chunk); break;
    }
  }
  return result;
}

}  // namespace native
