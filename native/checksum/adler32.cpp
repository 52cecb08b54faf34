#include "adler32.hpp"

#include <algorithm>

namespace native {

uint32_t adler32(uint32_t checksum, const uint8_t* data, size_t size) {
  constexpr size_t chunk_max = 5552;  // the most bytes before B can exceed 32 bits
  uint32_t a = checksum & 0xFFFF, b = checksum >> 16;
  while (size > 0) {
    const size_t chunk = std::min(size, chunk_max);
    for (size_t i = 0; i < chunk; i++) {
      a += data[i];
      b += a;
    }
    a %= adler_modulus;
    b %= adler_modulus;
    data += chunk;
    size -= chunk;
  }
  return b << 16 | a;
}

uint32_t adler32_combine(uint32_t first, uint32_t second, uint64_t second_size_bytes) {
  const uint64_t first_a = first & 0xFFFF, first_b = first >> 16, second_a = second & 0xFFFF,
                 second_b = second >> 16;
  const uint64_t length = second_size_bytes % adler_modulus;
  // The second part started from A = 1; its bytes come after a first part that left A = first_a.
  const uint64_t a = (first_a + second_a + adler_modulus - 1) % adler_modulus;
  const uint64_t b = (first_b + second_b + length * (first_a + adler_modulus - 1)) % adler_modulus;
  return uint32_t(b << 16 | a);
}

uint32_t adler32_add(uint32_t left, uint32_t right) {
  const uint32_t a = ((left & 0xFFFF) + (right & 0xFFFF)) % adler_modulus;
  const uint32_t b = ((left >> 16) + (right >> 16)) % adler_modulus;
  return b << 16 | a;
}

namespace {

uint32_t positive_modulo(int64_t value) {
  const int64_t rest = value % int64_t(adler_modulus);
  return uint32_t(rest < 0 ? rest + adler_modulus : rest);
}

}  // namespace

template <class Position, class Element>
uint32_t adler32_correction(const Position* positions, const Element* old_values, const Element* new_values,
                            size_t count, uint64_t size_bytes) {
  // |one element's share of B| <= 255 * sizeof(Element) * size_bytes: so many fit into 62 bits without a
  // modulo.
  const uint64_t share_max = 255 * sizeof(Element) * std::max<uint64_t>(size_bytes, 1);
  const size_t chunk_max = size_t(std::max<uint64_t>((uint64_t{1} << 62) / share_max, 1));
  uint32_t result = 0;
  for (size_t start = 0; start < count; start += chunk_max) {
    const size_t stop = std::min(count, start + chunk_max);
    int64_t a = 0, b = 0;
    for (size_t i = start; i < stop; i++) {
      int32_t sum = 0, weighted = 0;
      for (unsigned lane = 0; lane < sizeof(Element); lane++) {
        const int32_t change =
            int32_t(uint8_t(new_values[i] >> (8 * lane))) - int32_t(uint8_t(old_values[i] >> (8 * lane)));
        sum += change;
        weighted += int32_t(lane) * change;
      }
      a += sum;
      b += int64_t(size_bytes - uint64_t(positions[i]) * sizeof(Element)) * sum - weighted;
    }
    result = adler32_add(result, positive_modulo(b) << 16 | positive_modulo(a));
  }
  return result;
}

#define INSTANTIATE(Position, Element)                                                                     \
  template uint32_t adler32_correction<Position, Element>(const Position*, const Element*, const Element*, \
                                                          size_t, uint64_t);
INSTANTIATE(uint32_t, uint8_t)
INSTANTIATE(uint32_t, uint16_t)
INSTANTIATE(uint32_t, uint32_t)
INSTANTIATE(uint32_t, uint64_t)
INSTANTIATE(uint64_t, uint8_t)
INSTANTIATE(uint64_t, uint16_t)
INSTANTIATE(uint64_t, uint32_t)
INSTANTIATE(uint64_t, uint64_t)

}  // namespace native
