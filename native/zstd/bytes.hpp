// Unaligned little-endian loads (RFC 8878 section 2: every multi-byte field is little-endian) and bit
// counting.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native core assumes a little-endian machine"
#endif

#define NATIVE_INLINE inline __attribute__((always_inline))
#define NATIVE_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define NATIVE_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

namespace native {

template <class Integer>
static NATIVE_INLINE Integer load(const uint8_t* at) {
  Integer value;
  memcpy(&value, at, sizeof value);
  return value;
}

static NATIVE_INLINE uint32_t load24(const uint8_t* at) { return at[0] | at[1] << 8 | at[2] << 16; }

// Index of the highest set bit; `value` must not be 0.
static NATIVE_INLINE unsigned highest_bit(uint32_t value) { return 31 - __builtin_clz(value); }

static NATIVE_INLINE uint64_t low_bits(uint64_t value, unsigned count) {  // count < 64
#if defined(__BMI2__)
  return __builtin_ia32_bzhi_di(value, count);
#else
  return value & ((uint64_t{1} << count) - 1);
#endif
}

static NATIVE_INLINE uint64_t low_bits_or_all(uint64_t value, unsigned count) {  // count <= 64
  return count < 64 ? low_bits(value, count) : value;
}

static NATIVE_INLINE uint32_t min_of(uint32_t left, uint32_t right) { return left < right ? left : right; }

}  // namespace native
