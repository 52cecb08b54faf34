// Bitstreams that are read from their end (RFC 8878 section 4.1, and 3.1.1.3.2.1.2 for the final 1 bit).
//
// The reader keeps no bit container: `remaining` is the absolute count of unread bits, and a field is cut out
// of the eight bytes around that bit. So there is no refill, and one compare of `remaining` with 0 detects an
// over-read.
#pragma once
#include "bytes.hpp"

namespace native::zstd {

struct BackwardBits {
  const uint8_t* word_origin;  // start of the stream - 7
  int64_t remaining;           // unread bits; negative after an over-read

  // False if there is no final 1 bit. The 7 bytes before `start` must be readable.
  NATIVE_INLINE bool open(const uint8_t* start, size_t size) {
    if (size == 0 || start[size - 1] == 0) return false;
    word_origin = start - 7;
    remaining = int64_t(size) * 8 - 8 + highest_bit(start[size - 1]);
    return true;
  }

  // The 64 bits in which bit number `remaining` sits at index `top()`: at least 56 unread bits, fewer near
  // the start.
  NATIVE_INLINE uint64_t word() const { return load<uint64_t>(word_origin + (remaining >> 3)); }
  // Only its low six bits count.
  NATIVE_INLINE uint32_t top() const { return uint32_t(remaining) | 56; }

  // At most 56 bits. Only after remaining >= 0 was checked; the result is meaningless once remaining is
  // negative.
  NATIVE_INLINE uint64_t read(unsigned count) {
    const uint64_t value = low_bits(word() >> ((top() - count) & 63), count);
    remaining -= count;
    return value;
  }
};

}  // namespace native::zstd
