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
    literal_length_state_ = bits_.read(literal_length.log);
    offset_state_ = bits_.read(offset.log);
    match_length_state_ = bits_.read(match_length.log);
    return true;
  }

  // False after an over-read. State updates follow every sequence, so after the last one too many bits were
  // read: `ends_here` allows for them.
  NATIVE_INLINE bool next(Sequence& sequence) {
    if (NATIVE_UNLIKELY(bits_.remaining < 0)) return false;
    const SequenceCell& literal_length = tables_->table[literal_length_field].cell[literal_length_state_];
    const SequenceCell& offset = tables_->table[offset_field].cell[offset_state_];
    const SequenceCell& match_length = tables_->table[match_length_field].cell[match_length_state_];
    sum_ = low_half(literal_length) + low_half(offset) +
           low_half(match_length);  // adds up all_bits and state_bits
    const uint32_t all_bits = sum_ >> 24;
    if (NATIVE_UNLIKELY(all_bits > 56)) {
      const Wide wide = read_wide(bits_, literal_length, offset, match_length);
      sequence = wide.sequence;
      literal_length_state_ = wide.literal_length_state;
      match_length_state_ = wide.match_length_state;
      offset_state_ = wide.offset_state;
      bits_.remaining = wide.remaining;
      return true;
    }
    const uint64_t word = bits_.word();
    uint32_t at = bits_.top();
    // The states' bits lie at the end of the sequence's: reached from there, without waiting for the lengths
    // before.
    const uint32_t offset_at = at - all_bits, match_length_at = offset_at + offset.state_bits;
    sequence.offset_value = uint32_t(1) << offset.extra_bits | cut(word, at, offset.extra_bits);
    sequence.match_length = baseline(match_length) + cut(word, at, match_length.extra_bits);
    sequence.literal_length = baseline(literal_length) + cut(word, at, literal_length.extra_bits);
    literal_length_state_ = literal_length.next + cut(word, at, literal_length.state_bits);
    match_length_state_ =
        match_length.next + low_bits(word >> (match_length_at & 63), match_length.state_bits);
    offset_state_ = offset.next + low_bits(word >> (offset_at & 63), offset.state_bits);
    bits_.remaining -= all_bits;
    return true;
  }

  // Whether the sequence read last was the stream's last, to the bit.
  NATIVE_INLINE bool ends_here() const { return bits_.remaining + ((sum_ >> 16) & 0xFF) == 0; }

 private:
  BackwardBits bits_;
  const SequenceTables* tables_;
  uint64_t literal_length_state_, offset_state_, match_length_state_;
  uint32_t sum_ = 0;

  static NATIVE_INLINE uint32_t low_half(const SequenceCell& cell) {
    return load<uint32_t>(reinterpret_cast<const uint8_t*>(&cell));
  }
  static NATIVE_INLINE uint32_t baseline(const SequenceCell& cell) {
    return load<uint32_t>(reinterpret_cast<const uint8_t*>(&cell) + 4) >> 8;
  }
  // Cuts `count` bits out below bit `at` and moves `at` there; only the low six bits of `at` count.
  static NATIVE_INLINE uint32_t cut(uint64_t word, uint32_t& at, uint32_t count) {
    at -= count;
    return uint32_t(low_bits(word >> (at & 63), count));
  }

  // A sequence of more bits than a word holds for sure: offsets of many extra bits. Apart from the loop,
  // whose registers it would take. An over-read leaves `remaining` negative.
  struct Wide {
    Sequence sequence;
    uint32_t literal_length_state, match_length_state, offset_state;
    int64_t remaining;
  };
  static __attribute__((noinline, cold)) Wide read_wide(BackwardBits bits, SequenceCell literal_length,
                                                        SequenceCell offset, SequenceCell match_length) {
    Wide wide;
    const auto read = [&](uint32_t count) { return bits.remaining < 0 ? 0 : uint32_t(bits.read(count)); };
    wide.sequence.offset_value = uint32_t(1) << offset.extra_bits | read(offset.extra_bits);
    wide.sequence.match_length = baseline(match_length) + read(match_length.extra_bits);
    wide.sequence.literal_length = baseline(literal_length) + read(literal_length.extra_bits);
    const int64_t before_states = bits.remaining;
    wide.literal_length_state = literal_length.next + read(literal_length.state_bits);
    wide.match_length_state = match_length.next + read(match_length.state_bits);
    wide.offset_state = offset.next + read(offset.state_bits);
    wide.remaining = before_states - literal_length.state_bits - match_length.state_bits - offset.state_bits;
    return wide;
  }
};

}  // namespace native::zstd
