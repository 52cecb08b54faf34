// The literals section of a compressed block: RFC 8878 section 3.1.1.3.1.
#pragma once
#include "huffman.hpp"

namespace native::zstd {

struct Literals {
  const uint8_t* data;  // `margin` bytes beyond either end are readable
  size_t size;
};

// Reads the section at `at` and moves `at` behind it. `buffer` holds block_size_max + margin bytes; raw
// literals are left in place. The block must have `margin` readable bytes on both sides.
static inline Error read_literals(const uint8_t*& at, const uint8_t* end, uint32_t size_max,
                                  HuffmanTable& table, uint8_t* buffer, Literals& out) {
  enum Type : unsigned { raw, run, compressed, treeless };
  if (at >= end) return Error::literals_header;
  const unsigned type = at[0] & 3, size_format = (at[0] >> 2) & 3;
  const uint64_t header = load<uint64_t>(at);
  const size_t available = size_t(end - at);

  if (type == raw || type == run) {
    const unsigned header_size = size_format == 1 ? 2 : size_format == 3 ? 3 : 1;
    if (available < header_size) return Error::literals_header;
    out.size =
        header_size == 1 ? (header & 0xFF) >> 3 : (header & (header_size == 2 ? 0xFFFF : 0xFFFFFF)) >> 4;
    const size_t stored = type == raw ? out.size : 1;
    if (out.size > size_max || available - header_size < stored) return Error::literals_size;
    if (type == raw) {
      out.data = at + header_size;
    } else {
      memset(buffer, at[header_size], out.size);
      out.data = buffer;
    }
    at += header_size + stored;
    return Error::none;
  }

  const unsigned header_size = size_format < 2 ? 3 : size_format + 2;
  const unsigned size_bits = size_format < 2 ? 10 : size_format == 2 ? 14 : 18;
  if (available < header_size) return Error::literals_header;
  out.size = low_bits(header >> 4, size_bits);
  size_t stored = low_bits(header >> (4 + size_bits), size_bits);
  if (out.size > size_max || stored > available - header_size) return Error::literals_size;
  const uint8_t* stream = at + header_size;
  at = stream + stored;
  if (type == compressed) {
    size_t tree_size;
    if (Error error = read_huffman_table(stream, stored, table, tree_size); error != Error::none)
      return error;
    stream += tree_size;
    stored -= tree_size;
  } else if (!table.valid) {
    return Error::huffman_missing;
  }
  const bool decoded = size_format == 0
                           ? decode_huffman_stream(table, stream, stored, buffer, out.size)
                           : decode_four_huffman_streams(table, stream, stored, buffer, out.size);
  out.data = buffer;
  return decoded ? Error::none : Error::huffman_stream;
}

}  // namespace native::zstd
