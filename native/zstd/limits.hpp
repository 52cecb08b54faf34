// Sizes that RFC 8878 fixes, and the margins that let the hot loops load and store whole vectors.
#pragma once
#include <cstddef>
#include <cstdint>

namespace native::zstd {

constexpr uint32_t block_size_max = 128 << 10;    // section 3.1.1.2.4, Block_Maximum_Size
constexpr uint32_t frame_magic = 0xFD2FB528;      // section 3.1.1
constexpr uint32_t skippable_magic = 0x184D2A50;  // section 3.1.2, low four bits free
constexpr unsigned huffman_bits_max = 11;         // section 4.2.1
constexpr unsigned literal_length_symbols = 36, offset_symbols = 32, match_length_symbols = 53;
constexpr unsigned literal_length_log_max = 9, offset_log_max = 8,
                   match_length_log_max = 9;  // section 3.1.1.3.2.1.1

// Ours: windows beyond this are refused, and a decoding thread keeps no more than so much of what it decoded
// last.
constexpr uint32_t window_bytes_limit = 1 << 30;
constexpr size_t near_memory_bytes = 5 * block_size_max + 128;

// Vector loops may read this far beyond either end of a block or of the literals, and write this far beyond a
// count.
constexpr size_t margin = 64;

}  // namespace native::zstd
