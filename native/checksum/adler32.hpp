// Adler-32 (RFC 1950 section 8.2): A = 1 + sum of bytes, B = sum of the As, both modulo 65521; packed as B <<
// 16 | A.
#pragma once
#include <cstddef>
#include <cstdint>

namespace native {

constexpr uint32_t adler_modulus = 65521;

// Continues `checksum` (1 for a new one) over `size` bytes.
uint32_t adler32(uint32_t checksum, const uint8_t* data, size_t size);

// The checksum of two concatenated parts, from the parts' checksums and the second part's length.
uint32_t adler32_combine(uint32_t first, uint32_t second, uint64_t second_size_bytes);

// Component-wise sum modulo 65521 of two packed values.
uint32_t adler32_add(uint32_t left, uint32_t right);

// What the change of `count` elements adds to the checksum of a tensor of `size_bytes` bytes. A byte at
// offset i counts once in A and size_bytes - i times in B, so the change of element p from `old_values` to
// `new_values` adds
//   A: sum(d),   B: (size_bytes - p * sizeof(Element)) * sum(d) - sum(lane * d),   d = new byte - old byte of
//   each lane.
// Positions may come in any order, each at most once; all must lie within the tensor.
template <class Position, class Element>
uint32_t adler32_correction(const Position* positions, const Element* old_values, const Element* new_values,
                            size_t count, uint64_t size_bytes);

}  // namespace native
