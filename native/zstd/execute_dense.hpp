// Executes sequences over bytes: RFC 8878 section 3.1.1.4, for blocks with many nonzero bytes.
#pragma once
#include "literals.hpp"
#include "sequence_bitstream.hpp"
#include "simd.hpp"
#include "workspace.hpp"

namespace native::zstd {

// Copies in steps of 16 bytes, so up to 31 more than asked. Most copies need one step: a wider one would
// often wait for bytes just written that it does not need. The target starts at least 16 bytes behind the
// source.
static NATIVE_INLINE void copy_ahead(uint8_t* to, const uint8_t* from, size_t size) {
  memcpy(to, from, 16);
  for (size_t done = 16; NATIVE_UNLIKELY(done < size); done += 32) {
    memcpy(to + done, from + done, 16);
    memcpy(to + done + 16, from + done + 16, 16);
  }
}

// The same in wider steps, so up to 63 bytes more, for targets at least 64 bytes behind the source.
static NATIVE_INLINE void copy_far(uint8_t* to, const uint8_t* from, size_t size) {
  memcpy(to, from, 32);
  for (size_t done = 32; NATIVE_UNLIKELY(done < size); done += 64) memcpy(to + done, from + done, 64);
}

// A match whose offset is less than a step: the first bytes by hand, until the distance holds a multiple of
// the offset that is at least 16; then the pattern repeats itself in steps of 16 bytes.
static inline void copy_overlapping(uint8_t* to, uint32_t offset, size_t size) {
  const uint8_t* from = to - offset;
  if (offset == 1) {
    memset(to, *from, size);
    return;
  }
  const size_t distance = (15 / offset + 1) * offset;
  const size_t by_hand = distance - offset < size ? distance - offset : size;
  for (size_t i = 0; i < by_hand; i++) to[i] = from[i];
  for (size_t done = by_hand; done < size; done += 16) memcpy(to + done, to + done - distance, 16);
}

// A match that starts before the window's memory: the far part is read from the output. False: before the
// frame's start.
static __attribute__((noinline)) bool copy_from_output(const Workspace& workspace, uint8_t* match,
                                                       uint32_t offset, size_t size) {
  const DenseWindow& window = workspace.dense;
  const uint64_t memory_start = workspace.history.frame_offset() - window.end;
  const size_t before = size_t(match - window.memory);
  if (offset > memory_start + before) return false;
  const size_t far = offset - before < size ? offset - before : size;
  workspace.content.read(memory_start + before - offset, far, match);
  for (size_t i = far; i < size; i++) match[i] = window.memory[i - far];
  return true;
}

// Decodes `count` sequences from the bitstream [at, end) and executes them in the workspace's dense window,
// which has room for a block; then appends the literals that are left.
static inline Error execute_dense(Workspace& workspace, const uint8_t* at, const uint8_t* end, uint32_t count,
                                  Literals literals) {
  SequenceReader reader;
  if (count > 0 && !reader.open(workspace.sequences, at, end)) return Error::sequences_stream;
  RepeatOffsets repeat = workspace.repeat;
  DenseWindow& window = workspace.dense;
  uint8_t* out = window.memory + window.end;
  uint8_t* const stop = out + workspace.frame.block_bytes_max;
  const uint64_t window_bytes = workspace.frame.window_bytes;
  const uint8_t* literal = literals.data;
  const uint8_t* const literals_end = literals.data + literals.size;

  for (uint32_t left = count; left > 0; left--) {
    Sequence sequence;
    if (NATIVE_UNLIKELY(!reader.next(sequence))) return Error::sequences_stream;
    uint32_t offset;
    if (sequence.offset_value > 3) {
      offset = repeat.push(sequence.offset_value - 3);
    } else if (NATIVE_LIKELY(sequence.offset_value == 1)) {
      offset = repeat.resolve_one(sequence.literal_length).offset();
    } else {
      offset = repeat.resolve(sequence.offset_value, sequence.literal_length).offset();
    }
    if (NATIVE_UNLIKELY(sequence.literal_length > size_t(literals_end - literal)))
      return Error::literals_exhausted;
    uint8_t* const match = out + sequence.literal_length;
    if (NATIVE_UNLIKELY(size_t(sequence.literal_length) + sequence.match_length > size_t(stop - out))) {
      return Error::block_size;
    }
    if (NATIVE_UNLIKELY((offset == 0) | (offset > window_bytes))) return Error::offset;
    copy_ahead(out, literal, sequence.literal_length);
    literal += sequence.literal_length;
    if (NATIVE_UNLIKELY(offset > size_t(match - window.memory))) {
      if (!copy_from_output(workspace, match, offset, sequence.match_length)) return Error::offset;
    } else if (NATIVE_LIKELY(offset >= 64))
      copy_far(match, match - offset, sequence.match_length);
    else if (offset >= 16)
      copy_ahead(match, match - offset, sequence.match_length);
    else
      copy_overlapping(match, offset, sequence.match_length);
    out = match + sequence.match_length;
  }
  if (count > 0 && !reader.ends_here()) return Error::sequences_stream;
  const size_t rest = size_t(literals_end - literal);
  if (rest > size_t(stop - out)) return Error::block_size;
  memcpy(out, literal, rest);
  workspace.repeat = repeat;
  window.end = size_t(out + rest - window.memory);
  return Error::none;
}

}  // namespace native::zstd
