// The few vector operations that the decoder's loops are written in, for the instruction set that the
// including file is compiled for: AVX-512 (with VBMI2), AVX2 with BMI2, NEON, or plain C++. All give the same
// results. Not part of RFC 8878.
#pragma once
#include "bytes.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512VBMI2__) && defined(__AVX512VBMI__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#define NATIVE_AVX512 1
#endif

namespace native::zstd::simd {

#if NATIVE_AVX512
alignas(64) static constexpr uint8_t iota[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
#endif

// Bit i: byte i of the 64 at `data` is not zero.
static NATIVE_INLINE uint64_t nonzero_mask(const uint8_t* data) {
#if NATIVE_AVX512
  const __m512i bytes = _mm512_loadu_si512(data);
  return _mm512_test_epi8_mask(bytes, bytes);
#elif defined(__AVX2__)
  const __m256i zero = _mm256_setzero_si256();
  const auto zeros = [&](const uint8_t* at) {
    return uint32_t(_mm256_movemask_epi8(
        _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), zero)));
  };
  return ~(zeros(data) | uint64_t(zeros(data + 32)) << 32);
#elif defined(__aarch64__)
  const uint8x16_t weight = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  uint8x16_t part[4];
  for (int i = 0; i < 4; i++) {
    const uint8x16_t bytes = vld1q_u8(data + 16 * i);
    part[i] = vandq_u8(vtstq_u8(bytes, bytes), weight);
  }
  const uint8x16_t halves = vpaddq_u8(vpaddq_u8(part[0], part[1]), vpaddq_u8(part[2], part[3]));
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(halves, halves)), 0);
#else
  uint64_t mask = 0;
  for (unsigned i = 0; i < 64; i += 8) {
    const uint64_t word = load<uint64_t>(data + i);
    const uint64_t low = 0x7F7F7F7F7F7F7F7F;
    const uint64_t high_bits = (((word & low) + low) | word) & ~low;  // bit 7 of each byte that is not zero
    mask |= ((high_bits >> 7) * 0x0102040810204080 >> 56) << i;
  }
  return mask;
#endif
}

static NATIVE_INLINE bool all_zero256(const uint8_t* data) {
#if NATIVE_AVX512
  const __m512i first = _mm512_or_si512(_mm512_loadu_si512(data), _mm512_loadu_si512(data + 64));
  const __m512i second = _mm512_or_si512(_mm512_loadu_si512(data + 128), _mm512_loadu_si512(data + 192));
  const __m512i all = _mm512_or_si512(first, second);
  return _mm512_test_epi64_mask(all, all) == 0;
#else
  uint64_t all = 0;
  for (unsigned i = 0; i < 256; i += 8) all |= load<uint64_t>(data + i);
  return all == 0;
#endif
}

// Bit i: byte i of the 64 at `data` equals `value`.
static NATIVE_INLINE uint64_t equal_mask(const uint8_t* data, uint8_t value) {
#if NATIVE_AVX512
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(data), _mm512_set1_epi8(char(value)));
#elif defined(__AVX2__)
  const __m256i wanted = _mm256_set1_epi8(char(value));
  const auto equal = [&](const uint8_t* at) {
    return uint32_t(_mm256_movemask_epi8(
        _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), wanted)));
  };
  return equal(data) | uint64_t(equal(data + 32)) << 32;
#else
  uint8_t difference[64];
  for (unsigned i = 0; i < 64; i++) difference[i] = data[i] ^ value;
  return ~nonzero_mask(difference);
#endif
}

// Fills `count` 16-bit cells; may write up to the next multiple of 32.
static NATIVE_INLINE void fill_cells(uint16_t* cells, uint16_t value, unsigned count) {
  for (unsigned done = 0; done < count; done += 32) {
#if NATIVE_AVX512
    _mm512_storeu_si512(cells + done, _mm512_set1_epi16(int16_t(value)));
#else
    for (unsigned i = 0; i < 32; i++) cells[done + i] = value;
#endif
  }
}

// Writes the nonzero ones among `count` <= 4 bytes to `values`, and `position` + their index to `positions`;
// returns how many. Four positions of all ones follow. Reads 8 bytes and writes up to 8 entries in any case.
static NATIVE_INLINE unsigned compress4(const uint8_t* data, unsigned count, uint32_t position,
                                        uint32_t* positions, uint8_t* values) {
#if NATIVE_AVX512
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
  const __mmask16 keep = _mm_mask_test_epi8_mask(__mmask16(low_bits(0xFF, count)), bytes, bytes);
  const __m256i index =
      _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(int(position)));
  // Into a register, then stored: the memory form of vpcompress is microcoded on Zen 4.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions),
                      _mm256_mask_compress_epi32(_mm256_set1_epi32(-1), __mmask8(keep), index));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(values), _mm_maskz_compress_epi8(keep, bytes));
  return unsigned(_mm_popcnt_u32(_cvtmask16_u32(keep)));
#elif defined(__AVX2__)
  const uint64_t bytes = low_bits(load<uint64_t>(data), 8 * count);
  const uint64_t low = 0x7F7F7F7F7F7F7F7F;
  const uint64_t high_bits = (((bytes & low) + low) | bytes) & ~low;
  const uint64_t keep = (high_bits >> 7) * 0xFF;
  const __m128i index = _mm_cvtsi32_si128(int(_pext_u64(0x03020100, keep)));
  const unsigned kept = unsigned(__builtin_popcountll(high_bits));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(positions),
                   _mm_add_epi32(_mm_cvtepu8_epi32(index), _mm_set1_epi32(int(position))));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(positions + kept), _mm_set1_epi32(-1));
  const uint32_t values_kept = uint32_t(_pext_u64(bytes, keep));
  memcpy(values, &values_kept, 4);
  return kept;
#else
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    positions[kept] = position + i;
    values[kept] = data[i];
    kept += data[i] != 0;
  }
  memset(positions + kept, 0xFF, 4 * sizeof *positions);
  return kept;
#endif
}

// The same for the bytes of `mask` among the 64 at `data`. May write 64 entries in any case.
static NATIVE_INLINE unsigned compress64(const uint8_t* data, uint64_t mask, uint32_t position,
                                         uint32_t* positions, uint8_t* values) {
  const unsigned count = unsigned(__builtin_popcountll(mask));
#if NATIVE_AVX512
  _mm512_storeu_si512(values, _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(data)));
  __m512i index = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(iota));
  const __m512i base = _mm512_set1_epi32(int(position));
  _mm512_storeu_si512(positions, _mm512_add_epi32(base, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(index))));
  for (unsigned done = 16; NATIVE_UNLIKELY(done < count); done += 16) {
    index = _mm512_shuffle_i64x2(index, index, 0x39);
    _mm512_storeu_si512(positions + done,
                        _mm512_add_epi32(base, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(index))));
  }
#else
  for (unsigned kept = 0; mask != 0; mask &= mask - 1) {
    const unsigned at = unsigned(__builtin_ctzll(mask));
    positions[kept] = position + at;
    values[kept++] = data[at];
  }
#endif
  return count;
}

// How many of the first `count` (at most 16) of ascending numbers are below `limit`. Reads 16 numbers in any
// case.
static NATIVE_INLINE unsigned count_below(const uint32_t* ascending, size_t count, uint32_t limit) {
  const uint32_t valid = uint32_t(low_bits(0xFFFF, count < 16 ? unsigned(count) : 16));
#if NATIVE_AVX512
  const uint32_t below =
      _mm512_cmplt_epu32_mask(_mm512_loadu_si512(ascending), _mm512_set1_epi32(int(limit)));
#elif defined(__AVX2__)
  // Unsigned compares are signed ones of shifted values.
  const auto below8 = [&](const uint32_t* at) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i shifted = _mm256_xor_si256(numbers, _mm256_set1_epi32(INT32_MIN));
    const __m256i bound = _mm256_set1_epi32(int(limit ^ 0x80000000));
    return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(bound, shifted))));
  };
  const uint32_t below = below8(ascending) | below8(ascending + 8) << 8;
#else
  uint32_t below = 0;
  for (unsigned i = 0; i < 16; i++) below |= uint32_t(ascending[i] < limit) << i;
#endif
  return unsigned(__builtin_popcount(below & valid));
}

}  // namespace native::zstd::simd
