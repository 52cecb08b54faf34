// RFC 8878 section 3.1.1.3 for x86-64 with AVX-512 (F, BW, VL, DQ, VBMI, VBMI2).
#include "decode_block.hpp"

namespace native::zstd {

extern const BlockDecoder block_decoder_avx512;
const BlockDecoder block_decoder_avx512 = {decode_compressed_block, append_bytes, append_run};

}  // namespace native::zstd
