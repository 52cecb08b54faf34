#include "block_decoder.hpp"

namespace native::zstd {

extern const BlockDecoder block_decoder_portable, block_decoder_avx2, block_decoder_avx512;

const BlockDecoder& block_decoder(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return block_decoder_avx512;
  if (set == InstructionSet::avx2) return block_decoder_avx2;
#endif
  (void)set;
  return block_decoder_portable;
}

}  // namespace native::zstd
