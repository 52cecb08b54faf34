// Sequence decoding and execution over a sparse history: RFC 8878 sections 3.1.1.3.2.1.2, 3.1.1.4
// and 3.1.1.5.
#pragma once
#include "backward_bits.hpp"
#include "history.hpp"
#include "literals.hpp"
#include "sequence_tables.hpp"

namespace native::zstd {

struct RepeatOffsets {
  uint32_t recent[3] = {1, 4, 8};  // section 3.1.1.5: what a frame starts with
};

// Section 3.1.1.5: the offset behind an offset value, and the new order of recent offsets.
static NATIVE_INLINE uint32_t resolve_offset(uint32_t value, uint32_t literal_length, RepeatOffsets& repeat) {
  uint32_t (&recent)[3] = repeat.recent;
  uint32_t offset;
  if (value > 3) {
    offset = value - 3;
    recent[2] = recent[1];
    recent[1] = recent[0];
  } else {
    const unsigned index = value - 1 + (literal_length == 0);
    offset = index == 3 ? recent[0] - 1 : recent[index];
    if (index > 1) recent[2] = recent[1];
    if (index > 0) recent[1] = recent[0];
  }
  recent[0] = offset;
  return offset;
}

static inline void append_literals(History& history, const uint8_t* literals, uint32_t length) {
  const uint32_t start = history.cursor;
  history.advance(start + length);
  for (uint32_t i = 0; i < length; i++) {
    if (literals[i] != 0) history.append(start + i, literals[i]);
  }
}

// A match is the nonzero entries of its source, moved by `offset`. An overlapping match (offset < length)
// finds the entries that it has just appended itself, and so repeats them as a dense copy would.
static inline void append_match(History& history, uint32_t length, uint32_t offset) {
  size_t source = history.lower_bound(history.cursor - offset);
  const uint32_t end = history.cursor + length;
  history.advance(end);
  for (; source < history.size; source++) {
    const uint32_t position = history.positions[source] + offset;
    if (position >= end) break;
    history.append(position, history.values[source]);
  }
}

// Decodes `count` sequences from the bitstream [at, end) and executes them; then appends the literals that
// are left.
inline Error execute_sparse(const SequenceTables& tables, const uint8_t* at, const uint8_t* end,
                            uint32_t count, Literals literals, uint32_t block_size_limit,
                            uint64_t window_bytes, RepeatOffsets& repeat, History& history) {
  const uint32_t stop = history.cursor + block_size_limit;
  if (count > 0) {
    BackwardBits bits;
    if (!bits.open(at, size_t(end - at))) return Error::sequences_stream;
    const SequenceTable &literal_lengths = *tables.current[literal_length_field],
                        &offsets = *tables.current[offset_field],
                        &match_lengths = *tables.current[match_length_field];
    uint64_t literal_state = bits.read(literal_lengths.log);
    if (bits.remaining < 0) return Error::sequences_stream;
    uint64_t offset_state = bits.read(offsets.log);
    if (bits.remaining < 0) return Error::sequences_stream;
    uint64_t match_state = bits.read(match_lengths.log);
    for (uint32_t left = count; left > 0; left--) {
      const SequenceCell literal_cell = literal_lengths.cell[literal_state],
                         offset_cell = offsets.cell[offset_state],
                         match_cell = match_lengths.cell[match_state];
      if (bits.remaining < 0) return Error::sequences_stream;
      const uint32_t offset_value =
          uint32_t(offset_cell >> 32) + uint32_t(bits.read((offset_cell >> 24) & 0xFF));
      if (bits.remaining < 0) return Error::sequences_stream;
      const uint32_t match_length =
          uint32_t(match_cell >> 32) + uint32_t(bits.read((match_cell >> 24) & 0xFF));
      if (bits.remaining < 0) return Error::sequences_stream;
      const uint32_t literal_length =
          uint32_t(literal_cell >> 32) + uint32_t(bits.read((literal_cell >> 24) & 0xFF));
      if (left > 1) {
        if (bits.remaining < 0) return Error::sequences_stream;
        literal_state = (literal_cell & 0xFFFF) + bits.read((literal_cell >> 16) & 0xFF);
        if (bits.remaining < 0) return Error::sequences_stream;
        match_state = (match_cell & 0xFFFF) + bits.read((match_cell >> 16) & 0xFF);
        if (bits.remaining < 0) return Error::sequences_stream;
        offset_state = (offset_cell & 0xFFFF) + bits.read((offset_cell >> 16) & 0xFF);
      }
      const uint32_t offset = resolve_offset(offset_value, literal_length, repeat);
      if (literal_length > literals.size) return Error::literals_exhausted;
      if (uint64_t(history.cursor) + literal_length + match_length > stop) return Error::block_size;
      append_literals(history, literals.data, literal_length);
      literals.data += literal_length;
      literals.size -= literal_length;
      const uint64_t frame_position = history.base + history.cursor;
      if (offset == 0 || offset > window_bytes || offset > frame_position) return Error::offset;
      append_match(history, match_length, offset);
    }
    if (bits.remaining != 0) return Error::sequences_stream;
  }
  if (literals.size > stop - history.cursor) return Error::block_size;
  append_literals(history, literals.data, uint32_t(literals.size));
  return Error::none;
}

}  // namespace native::zstd
