#include "xor_count.hpp"

#include <algorithm>

#include "vector_kernels.hpp"

namespace native {
XorCount xor_count_adler(const uint8_t* parent, const uint8_t* current, uint8_t* out, size_t size,
                         unsigned element_size) {
  constexpr size_t chunk_max = 16 << 10;  // stays in the first-level cache between the two loops
  const VectorKernels& kernels = vector_kernels(active_instruction_set());
  XorCount result{0, 1};
  for (size_t start = 0; start < size; start += chunk_max) {
    const size_t chunk = std::min(chunk_max, size - start);
    result.adler32 = kernels.adler32(result.adler32, current + start, chunk);
    result.changed_elements +=
        kernels.xor_count[size_index(element_size)](parent + start, current + start, out + start, chunk);
  }
  return result;
}

}  // namespace native
