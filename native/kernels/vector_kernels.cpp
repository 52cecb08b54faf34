#include "vector_kernels.hpp"

namespace native {

extern const VectorKernels vector_kernels_portable, vector_kernels_avx2, vector_kernels_avx512;

const VectorKernels& vector_kernels(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return vector_kernels_avx512;
  if (set == InstructionSet::avx2) return vector_kernels_avx2;
#endif
  (void)set;
  return vector_kernels_portable;
}

}  // namespace native
