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

// What the change of `count` elements of `element_size` bytes (1, 2, 4, 8) adds to the checksum of a tensor
// of `size_bytes` bytes. A byte at offset i counts once in A and size_bytes - i times in B, so the change of
// element p adds
//   A: sum(d),   B: (size_bytes - p * element_size) * sum(d) - sum(lane * d),   d = new byte - old byte of
//   each lane.
// Positions may come in any order, each at most once; false if one lies outside the tensor.
template <class Position>
bool adler32_correction(const Position* positions, const void* old_values, const void* new_values,
                        size_t count, size_t element_size, uint64_t size_bytes, uint32_t& correction);

}  // namespace native
