// Groups items by a small key, keeping their order within a key: a write plan's elements by destination
// tensor.
#pragma once
#include <cstddef>
#include <cstdint>

namespace native {

// order: the items' indices, key by key; starts[k] .. starts[k + 1]: where key k's lie in it (keys + 1
// numbers). Every key must be below `keys`.
inline void counting_sort(const uint32_t* key, size_t count, uint32_t keys, uint32_t* order,
                          uint64_t* starts) {
  for (uint32_t k = 0; k <= keys; k++) starts[k] = 0;
  for (size_t i = 0; i < count; i++) starts[key[i] + 1]++;
  for (uint32_t k = 0; k < keys; k++) starts[k + 1] += starts[k];
  for (size_t i = 0; i < count; i++) order[starts[key[i]]++] = uint32_t(i);
  for (uint32_t k = keys; k > 0; k--) starts[k] = starts[k - 1];  // each start has moved to its key's end
  starts[0] = 0;
}

}  // namespace native
