#include "adler32.hpp"

#include <algorithm>
#include <memory>

#include "../kernels/vector_kernels.hpp"

namespace native {

uint32_t adler32(uint32_t checksum, const uint8_t* data, size_t size) {
  return vector_kernels(active_instruction_set()).adler32(checksum, data, size);
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

uint64_t modulo(int64_t value) {
  const int64_t rest = value % int64_t(adler_modulus);
  return uint64_t(rest < 0 ? rest + adler_modulus : rest);
}

// From sums whose places count from `origin` + 2^31.
uint32_t correction_of(const ChangeSums& sums, size_t element_size, uint64_t size_bytes, uint64_t origin) {
  const uint64_t a = modulo(sums.change);
  const uint64_t place = (origin % adler_modulus + (uint64_t{1} << 31) % adler_modulus) % adler_modulus;
  const uint64_t by_place = (modulo(sums.change_by_place) + place * a) % adler_modulus;
  const uint64_t taken = (by_place * element_size + modulo(sums.change_by_lane)) % adler_modulus;
  const uint64_t b = (size_bytes % adler_modulus * a + adler_modulus - taken) % adler_modulus;
  return uint32_t(b << 16 | a);
}

}  // namespace

template <class Position>
bool adler32_correction(const Position* positions, const void* old_values, const void* new_values,
                        size_t count, size_t element_size, uint64_t size_bytes, uint32_t& correction) {
  const uint64_t elements = size_bytes / element_size;
  const auto change_sums = vector_kernels(active_instruction_set()).change_sums[size_index(element_size)];
  const auto* old_bytes = static_cast<const uint8_t*>(old_values);
  const auto* new_bytes = static_cast<const uint8_t*>(new_values);
  correction = 0;
  std::unique_ptr<uint32_t[]> narrow;
  if (sizeof(Position) > sizeof(uint32_t)) narrow.reset(new uint32_t[std::min(count, change_sums_count_max)]);
  for (size_t start = 0; start < count;) {
    size_t stop = std::min(count, start + change_sums_count_max);
    uint64_t origin = 0;
    const uint32_t* places;
    if constexpr (sizeof(Position) == sizeof(uint32_t)) {
      places = positions + start;
    } else {  // as far as they lie within 2^32 of the first one's
      origin = positions[start] >> 32 << 32;
      size_t i = start;
      for (; i < stop && positions[i] >> 32 == origin >> 32; i++) narrow[i - start] = uint32_t(positions[i]);
      stop = i;
      places = narrow.get();
    }
    const ChangeSums sums =
        change_sums(places, old_bytes + start * element_size, new_bytes + start * element_size, stop - start);
    if (origin + sums.largest >= elements) return false;
    correction = adler32_add(correction, correction_of(sums, element_size, size_bytes, origin));
    start = stop;
  }
  return true;
}

template bool adler32_correction(const uint32_t*, const void*, const void*, size_t, size_t, uint64_t,
                                 uint32_t&);
template bool adler32_correction(const uint64_t*, const void*, const void*, size_t, size_t, uint64_t,
                                 uint32_t&);

}  // namespace native
