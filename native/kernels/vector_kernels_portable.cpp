#include "adler32_loop.hpp"
#include "xor_count_loop.hpp"

namespace native {

extern const VectorKernels vector_kernels_portable;
const VectorKernels vector_kernels_portable = {
    adler32_loop,
    {xor_count_loop<uint8_t>, xor_count_loop<uint16_t>, xor_count_loop<uint32_t>, xor_count_loop<uint64_t>},
    {change_sums_loop<uint8_t>, change_sums_loop<uint16_t>, change_sums_loop<uint32_t>,
     change_sums_loop<uint64_t>}};

}  // namespace native
