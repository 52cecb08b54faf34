// Frame headers: RFC 8878 section 3.1.1.1, and skippable frames: section 3.1.2.
#pragma once
#include "bytes.hpp"
#include "error.hpp"
#include "limits.hpp"

namespace native::zstd {

struct FrameHeader {
  uint64_t window_bytes;
  uint64_t content_bytes;  // UINT64_MAX unless has_content_bytes
  uint32_t block_bytes_max;
  bool has_content_bytes, has_checksum;
};

struct Header {
  bool skippable;
  uint64_t size;  // of the header; of the whole frame if skippable
  FrameHeader frame;
};

// Reads the header at `at`, of which `available` bytes are there. Error::need_input asks for more of them.
inline Error read_header(const uint8_t* at, size_t available, Header& out) {
  if (available < 4) return Error::need_input;
  const uint32_t magic = load<uint32_t>(at);
  if ((magic & ~15u) == skippable_magic) {
    if (available < 8) return Error::need_input;
    out.skippable = true;
    out.size = 8 + uint64_t(load<uint32_t>(at + 4));
    return available < out.size ? Error::need_input : Error::none;
  }
  if (magic != frame_magic) return Error::magic;
  if (available < 5) return Error::need_input;
  const unsigned descriptor = at[4];
  if (descriptor & 8) return Error::reserved_bit;
  const bool single_segment = descriptor & 32;
  const unsigned dictionary_bytes = (1u << (descriptor & 3)) >> 1;
  const unsigned content_flag = descriptor >> 6;
  const unsigned content_field_bytes = content_flag == 0 ? (single_segment ? 1 : 0) : 1u << content_flag;
  out.skippable = false;
  out.size = 5 + (single_segment ? 0 : 1) + dictionary_bytes + content_field_bytes;
  if (available < out.size) return Error::need_input;
  const uint8_t* field = at + 5;
  uint64_t window = 0;
  if (!single_segment) {
    const unsigned exponent = *field >> 3, mantissa = *field & 7;
    field++;
    window = (uint64_t{1} << (10 + exponent)) / 8 * (8 + mantissa);
  }
  uint32_t dictionary = 0;
  for (unsigned i = 0; i < dictionary_bytes; i++) dictionary |= uint32_t(*field++) << (8 * i);
  if (dictionary != 0) return Error::dictionary;
  uint64_t content = 0;
  for (unsigned i = 0; i < content_field_bytes; i++) content |= uint64_t(*field++) << (8 * i);
  if (content_field_bytes == 2) content += 256;
  out.frame.has_content_bytes = content_field_bytes != 0;
  out.frame.content_bytes = content_field_bytes != 0 ? content : UINT64_MAX;
  out.frame.window_bytes = single_segment ? content : window;
  out.frame.block_bytes_max =
      out.frame.window_bytes < block_size_max ? uint32_t(out.frame.window_bytes) : block_size_max;
  out.frame.has_checksum = descriptor & 4;
  return Error::none;
}

struct BlockHeader {
  enum Type : unsigned { raw, run, compressed, reserved } type;
  bool last;
  uint32_t size;  // content bytes of raw and run blocks, stored bytes of compressed ones

  static constexpr unsigned bytes = 3;  // section 3.1.1.2
  static BlockHeader read(const uint8_t* at) {
    const uint32_t word = load24(at);
    return {Type((word >> 1) & 3), bool(word & 1), word >> 3};
  }
  uint32_t stored_bytes() const { return type == run ? 1 : size; }
};

}  // namespace native::zstd
