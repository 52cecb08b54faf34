// Adler-32 of whole buffers, and the sums behind a correction. RFC 1950 section 8.2. Included by one file for
// each instruction set; everything here has internal linkage.
//
// Over a step of n bytes d[0..n), A grows by sum(d) and B by n * A + sum((n - i) * d[i]): so a step needs the
// A before it only times n, and the sum of those is kept apart. Modulo 65521 is taken once in a run of steps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "vector_kernels.hpp"

namespace native {

constexpr uint64_t adler_base = 65521;

struct AdlerRun {
  uint64_t sum;          // of the run's bytes
  uint64_t sums_before;  // the sum of the bytes before each step, summed over steps
  uint64_t weighted;     // of (step - i) * byte
  size_t steps;
};

#if defined(__AVX512BW__)
constexpr size_t adler_step = 64;
static inline AdlerRun adler_run(const uint8_t* data, size_t steps) {
  alignas(64) int8_t weight_bytes[64];
  for (int i = 0; i < 64; i++) weight_bytes[i] = int8_t(64 - i);
  const __m512i weights = _mm512_load_si512(weight_bytes), zero = _mm512_setzero_si512(),
                ones = _mm512_set1_epi16(1);
  __m512i sum = zero, before = zero, weighted = zero;
  for (size_t i = 0; i < steps; i++) {
    const __m512i bytes = _mm512_loadu_si512(data + i * 64);
    before = _mm512_add_epi64(before, sum);
    sum = _mm512_add_epi64(sum, _mm512_sad_epu8(bytes, zero));
    weighted = _mm512_add_epi32(weighted, _mm512_madd_epi16(_mm512_maddubs_epi16(bytes, weights), ones));
  }
  alignas(64) uint32_t lanes[16];
  _mm512_store_si512(lanes, weighted);
  uint64_t weighted_total = 0;
  for (uint32_t lane : lanes) weighted_total += lane;
  return {uint64_t(_mm512_reduce_add_epi64(sum)), uint64_t(_mm512_reduce_add_epi64(before)), weighted_total,
          steps};
}
#elif defined(__AVX2__)
constexpr size_t adler_step = 32;
static inline uint64_t sum_lanes(__m256i lanes) {
  alignas(32) uint64_t lane[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane), lanes);
  return lane[0] + lane[1] + lane[2] + lane[3];
}
static inline AdlerRun adler_run(const uint8_t* data, size_t steps) {
  alignas(32) int8_t weight_bytes[32];
  for (int i = 0; i < 32; i++) weight_bytes[i] = int8_t(32 - i);
  const __m256i weights = _mm256_load_si256(reinterpret_cast<const __m256i*>(weight_bytes));
  const __m256i zero = _mm256_setzero_si256(), ones = _mm256_set1_epi16(1);
  __m256i sum = zero, before = zero, weighted = zero;
  for (size_t i = 0; i < steps; i++) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i * 32));
    before = _mm256_add_epi64(before, sum);
    sum = _mm256_add_epi64(sum, _mm256_sad_epu8(bytes, zero));
    weighted = _mm256_add_epi32(weighted, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, weights), ones));
  }
  const __m256i low = _mm256_and_si256(weighted, _mm256_set1_epi64x(0xFFFFFFFF)),
                high = _mm256_srli_epi64(weighted, 32);
  return {sum_lanes(sum), sum_lanes(before), sum_lanes(_mm256_add_epi64(low, high)), steps};
}
#else
constexpr size_t adler_step = 32;
static inline AdlerRun adler_run(const uint8_t* data, size_t steps) {
  AdlerRun run{0, 0, 0, steps};
  for (size_t i = 0; i < steps; i++, data += adler_step) {
    uint32_t sum = 0, weighted = 0;
    for (unsigned k = 0; k < adler_step; k++) {
      sum += data[k];
      weighted += uint32_t(adler_step - k) * data[k];
    }
    run.sums_before += run.sum;
    run.sum += sum;
    run.weighted += weighted;
  }
  return run;
}
#endif

static inline uint32_t adler32_loop(uint32_t checksum, const uint8_t* data, size_t size) {
  constexpr size_t run_steps_max = 16 << 10;  // 32-bit lanes of the weighted sums hold twice as many
  uint64_t a = checksum & 0xFFFF, b = checksum >> 16;
  while (size >= adler_step) {
    const size_t steps = size / adler_step < run_steps_max ? size / adler_step : run_steps_max;
    const AdlerRun run = adler_run(data, steps);
    b = (b + adler_step * (a * run.steps + run.sums_before) + run.weighted) % adler_base;
    a = (a + run.sum) % adler_base;
    data += steps * adler_step;
    size -= steps * adler_step;
  }
  for (; size > 0; size--) {
    a += *data++;
    b += a;
  }
  return uint32_t(b % adler_base << 16 | a % adler_base);
}

template <class Element>
static inline ChangeSums change_sums_loop(const uint32_t* positions, const void* old_memory,
                                          const void* new_memory, size_t count) {
  const auto* old_values = static_cast<const Element*>(old_memory);
  const auto* new_values = static_cast<const Element*>(new_memory);
  int64_t change_sum = 0, by_lane = 0, by_place = 0;
  uint32_t largest = 0;
  for (size_t i = 0; i < count; i++) {
    int32_t change = 0, weighted = 0;
    for (unsigned lane = 0; lane < sizeof(Element); lane++) {
      const int32_t difference =
          int32_t(uint8_t(new_values[i] >> (8 * lane))) - int32_t(uint8_t(old_values[i] >> (8 * lane)));
      change += difference;
      weighted += int32_t(lane) * difference;
    }
    change_sum += change;
    by_lane += weighted;
    largest = positions[i] > largest ? positions[i] : largest;
    by_place += int64_t(int32_t(positions[i] ^ 0x80000000)) * change;
  }
  return {change_sum, by_lane, by_place, largest};
}

}  // namespace native
