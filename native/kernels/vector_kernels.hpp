// The loops over whole arrays that are compiled once for each instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../cpu.hpp"

namespace native {

// Sums over changed elements, from which adler32_correction follows. `lane` counts an element's bytes from 0.
struct ChangeSums {
  int64_t change = 0;           // sum of new byte - old byte
  int64_t change_by_lane = 0;   // sum of lane * (new byte - old byte)
  int64_t change_by_place = 0;  // sum of (position - 2^31) * (new byte - old byte)
  uint32_t largest = 0;         // of the positions
};

constexpr size_t change_sums_count_max = 1 << 20;  // elements a call, so that no sum overflows

struct VectorKernels {
  uint32_t (*adler32)(uint32_t checksum, const uint8_t* data, size_t size);
  // XOR of both to `out`; returns how many elements of the index's size (1, 2, 4, 8 bytes) differ. `size` in
  // bytes.
  uint64_t (*xor_count[4])(const uint8_t* parent, const uint8_t* current, uint8_t* out, size_t size);
  // By element size likewise; at most change_sums_count_max elements.
  ChangeSums (*change_sums[4])(const uint32_t* positions, const void* old_values, const void* new_values,
                               size_t count);
};

const VectorKernels& vector_kernels(InstructionSet);

// 1, 2, 4, 8 -> 0, 1, 2, 3
constexpr unsigned size_index(size_t element_size) {
  return element_size == 1 ? 0 : element_size == 2 ? 1 : element_size == 4 ? 2 : 3;
}

}  // namespace native
