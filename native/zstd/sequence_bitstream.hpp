// The sequences bitstream: RFC 8878 section 3.1.1.3.2.1.2 (decoding order: initial states in the order
// literal lengths, offsets, match lengths; then for each sequence the extra bits of offset, match length and
// literal length, and the state updates of literal length, match length and offset; the last sequence has no
// state updates).
#pragma once
#include "backward_bits.hpp"
#include "sequence_tables.hpp"

namespace native::zstd {

struct Sequence {
  uint32_t literal_length, match_length;
  uint32_t offset_value;  // as coded; see repeat_offsets.hpp
};

class SequenceReader {
 public:
  NATIVE_INLINE bool open(const SequenceTables& tables, const uint8_t* at, const uint8_t* end) {
    tables_ = &tables;
    const SequenceTable &literal_length = tables.table[literal_length_field],
                        &offset = tables.table[offset_field],
                        &match_length = tables.table[match_length_field];
    const unsigned state_bits = literal_length.log + offset.log + match_length.log;  // at most 26
    if (!bits_.open(at, size_t(end - at)) || bits_.remaining < int64_t(state_bits)) return false;
    literal_length_state_ = uint32_t(bits_.read(literal_length.log));
    offset_state_ = uint32_t(bits_.read(offset.log));
    match_length_state_ = uint32_t(bits_.read(match_length.log));
    return true;
  }

  // False after an over-read. State updates follow every sequence, so after the last one too many bits were
  // read: `ends_here` allows for them.
  NATIVE_INLINE bool next(Sequence& sequence) {
    const int64_t remaining = bits_.remaining;
    if (NATIVE_UNLIKELY(remaining < 0)) return false;
    const SequenceCell* literal_length = &tables_->table[literal_length_field].cell[literal_length_state_];
    const SequenceCell* offset = &tables_->table[offset_field].cell[offset_state_];
    const SequenceCell* match_length = &tables_->table[match_length_field].cell[match_length_state_];
    sum_ = low_half(literal_length) + low_half(offset) +
           low_half(match_length);  // adds up all_bits and state_bits
    const uint32_t all_bits = sum_ >> 24;
    uint64_t word = bits_.word();
    uint32_t at = bits_.top();
    uint32_t end = at - all_bits;
    if (NATIVE_UNLIKELY(all_bits > 56)) {  // offsets of many extra bits: read in three parts
      sequence.offset_value = cut(word, at, offset->extra_bits) | uint32_t(1) << offset->extra_bits;
      bits_.remaining -= offset->extra_bits;
      if (bits_.remaining < 0) return false;
      word = bits_.word();
      at = bits_.top();
      sequence.match_length = value(match_length, word, at);
      sequence.literal_length = value(literal_length, word, at);
      bits_.remaining -= match_length->extra_bits + literal_length->extra_bits;
      if (bits_.remaining < 0) return false;
      word = bits_.word();
      at = bits_.top();
      end = at - ((sum_ >> 16) & 0xFF);
    } else {
      sequence.offset_value = cut(word, at, offset->extra_bits) | uint32_t(1) << offset->extra_bits;
      sequence.match_length = value(match_length, word, at);
      sequence.literal_length = value(literal_length, word, at);
    }
    // The states' bits lie at the end of the sequence's: reached from there, without waiting for the lengths
    // before them.
    offset_state_ = offset->next + uint32_t(low_bits(word >> (end & 63), offset->state_bits));
    end += offset->state_bits;
    match_length_state_ =
        match_length->next + uint32_t(low_bits(word >> (end & 63), match_length->state_bits));
    literal_length_state_ = literal_length->next + cut(word, at, literal_length->state_bits);
    bits_.remaining = remaining - all_bits;
    return true;
  }

  // Whether the sequence read last was the stream's last, to the bit.
  NATIVE_INLINE bool ends_here() const { return bits_.remaining + ((sum_ >> 16) & 0xFF) == 0; }

 private:
  BackwardBits bits_;
  const SequenceTables* tables_;
  uint32_t literal_length_state_, offset_state_, match_length_state_;
  uint32_t sum_ = 0;

  static NATIVE_INLINE uint32_t low_half(const SequenceCell* cell) {
    return load<uint32_t>(reinterpret_cast<const uint8_t*>(cell));
  }
  // Cuts `count` bits out below bit `at` and moves `at` there; only the low six bits of `at` count.
  static NATIVE_INLINE uint32_t cut(uint64_t word, uint32_t& at, uint32_t count) {
    at -= count;
    return uint32_t(low_bits(word >> (at & 63), count));
  }
  static NATIVE_INLINE uint32_t value(const SequenceCell* cell, uint64_t word, uint32_t& at) {
    const uint32_t high_half = load<uint32_t>(reinterpret_cast<const uint8_t*>(cell) + 4);
    return (high_half >> 8) + cut(word, at, cell->extra_bits);
  }
};

}  // namespace native::zstd
