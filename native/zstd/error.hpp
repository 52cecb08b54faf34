// What can be wrong with a zstd stream. Inside the core errors are return codes; the binding makes
// exceptions.
#pragma once
#include <cstdint>

namespace native::zstd {

enum class Error : uint8_t {
  none = 0,
  need_input,  // the input ends before the structure that starts at the failure's offset does
  magic,
  reserved_bit,
  dictionary,
  window_limit,
  block_type,
  block_size,
  literals_header,
  literals_size,
  huffman_missing,
  huffman_header,
  huffman_weights,
  huffman_stream,
  fse_header,
  fse_missing,
  sequences_header,
  sequences_stream,
  literals_exhausted,
  offset,
  content_size,
  output_size,
  content_checksum,
  trailing_partial_element,
  out_of_memory,
  crowded,  // never reported: the block has more nonzero bytes than the sparse history holds
};

constexpr const char* describe(Error error) {
  switch (error) {
    case Error::none: return "no error";
    case Error::need_input: return "the input is truncated";
    case Error::magic: return "expected a zstd or skippable frame's magic number";
    case Error::reserved_bit: return "a reserved bit is set";
    case Error::dictionary: return "the frame needs a dictionary, which deltas never use";
    case Error::window_limit: return "the frame's window is larger than the limit";
    case Error::block_type: return "reserved block type";
    case Error::block_size: return "a block is larger than the frame's maximum block size";
    case Error::literals_header: return "malformed literals section header";
    case Error::literals_size: return "literals sizes do not fit their block";
    case Error::huffman_missing: return "treeless literals without an earlier Huffman table";
    case Error::huffman_header: return "malformed Huffman tree description";
    case Error::huffman_weights: return "Huffman weights do not form a complete code of at most 11 bits";
    case Error::huffman_stream: return "a Huffman stream does not end with its last symbol";
    case Error::fse_header: return "malformed FSE table description";
    case Error::fse_missing: return "repeated FSE table without an earlier one";
    case Error::sequences_header: return "malformed sequences section header";
    case Error::sequences_stream: return "the sequences bitstream does not end with its last sequence";
    case Error::literals_exhausted: return "sequences use more literals than the block holds";
    case Error::offset: return "a match offset is zero, beyond the window, or before the frame's start";
    case Error::content_size: return "the frame's decoded length differs from its content size field";
    case Error::output_size: return "the decoded length differs from the tensor's length";
    case Error::content_checksum: return "the frame's content checksum does not match";
    case Error::trailing_partial_element: return "the tensor's length is not a multiple of its element size";
    case Error::out_of_memory: return "out of memory";
    case Error::crowded: break;
  }
  return "unknown error";
}

// Where decoding stopped: `offset` counts bytes from the start of the input and points at the frame, block or
// field that is wrong. `expected` and `found` carry the numbers behind size errors (both 0 elsewhere).
struct Failure {
  Error error = Error::none;
  uint64_t offset = 0;
  uint64_t expected = 0;
  uint64_t found = 0;
};

}  // namespace native::zstd
