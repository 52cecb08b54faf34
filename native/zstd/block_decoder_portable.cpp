// RFC 8878 section 3.1.1.3 for any processor.
#include "decode_block.hpp"

namespace native::zstd {

extern const BlockDecoder block_decoder_portable;
const BlockDecoder block_decoder_portable = {decode_compressed_block, append_bytes, append_run};

}  // namespace native::zstd
