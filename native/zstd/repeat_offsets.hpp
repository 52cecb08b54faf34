// Repeat offsets: RFC 8878 section 3.1.1.5.
#pragma once
#include "bytes.hpp"

namespace native::zstd {

// An offset, and how far the history has been walked with it: no entry before `finger` lies at or after the
// source of the next match with this offset. (While an offset is repeated its source only moves forward.)
struct TrackedOffset {
  uint64_t packed;  // offset | finger << 32: one select moves both

  static NATIVE_INLINE TrackedOffset make(uint32_t offset, uint64_t finger) {
    return {offset | finger << 32};
  }
  NATIVE_INLINE uint32_t offset() const { return uint32_t(packed); }
  NATIVE_INLINE size_t finger() const { return size_t(packed >> 32); }
};

struct RepeatOffsets {
  TrackedOffset recent[3] = {{1}, {4}, {8}};  // what a frame starts with

  // After entries were dropped from the history's front.
  void forget_fingers() {
    for (TrackedOffset& tracked : recent) tracked.packed = tracked.offset();
  }

  // A new offset, which the caller has told apart.
  NATIVE_INLINE uint32_t push(uint32_t offset) {
    recent[2] = recent[1];
    recent[1] = recent[0];
    recent[0].packed = offset;
    return offset;
  }

  // The same for offset value 1, by far the most frequent one in sparse deltas: the most recent offset or,
  // behind an empty literal run, the one before.
  NATIVE_INLINE TrackedOffset resolve_one(uint32_t literal_length) {
    const uint64_t swapped = (recent[0].packed ^ recent[1].packed) & -uint64_t(literal_length == 0);
    recent[0].packed ^= swapped;
    recent[1].packed ^= swapped;
    return recent[0];
  }

  // Makes the offset behind a coded offset value the most recent one; 0 if the stream is corrupt. A new
  // offset comes without a finger. Selects by masks: which offset repeats is close to random, and so are its
  // branches.
  NATIVE_INLINE TrackedOffset resolve(uint32_t value, uint32_t literal_length) {
    const bool repeats = value <= 3;
    const uint32_t index = repeats ? value - 1 + (literal_length == 0) : 3;
    const uint64_t other =
        repeats ? recent[0].packed - 1 : value - 3;  // a smaller offset's source lies further on
    const uint64_t odd = -uint64_t(index & 1), high = -uint64_t(index >> 1), moves = -uint64_t(index != 0);
    const uint64_t r0 = recent[0].packed, r1 = recent[1].packed, r2 = recent[2].packed;
    const uint64_t chosen = select(select(r0, r1, odd), select(r2, other, odd), high);
    recent[2].packed = select(r2, r1, high);
    recent[1].packed = select(r1, r0, moves);
    recent[0].packed = chosen;
    return {chosen};
  }

 private:
  static NATIVE_INLINE uint64_t select(uint64_t if_zeros, uint64_t if_ones, uint64_t mask) {
    return if_zeros ^ ((if_zeros ^ if_ones) & mask);
  }
};

}  // namespace native::zstd
