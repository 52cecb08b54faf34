// Lays out FSE tables of up to 128 states with AVX-512: RFC 8878 section 4.1.1. Most blocks of sparse deltas
// bring fresh tables for a few dozen sequences, so that building them takes a third as long as the sequences
// themselves.
//
// Spreading symbols over states is a fixed permutation of their run-length list. A state's place among those
// of its symbol, on which its bits and baseline depend, comes from expanding 0, 1, 2, .. into the lanes that
// hold the symbol.
#pragma once
#include "fse.hpp"
#include "simd.hpp"

#if NATIVE_AVX512

namespace native::zstd {

constexpr unsigned wide_log_min = 5, wide_log_max = 7;

// For each state, where its symbol stands in the list of symbols in order.
struct SpreadOrder {
  alignas(64) uint8_t from[wide_log_max + 1][128];
  constexpr SpreadOrder() : from{} {
    for (unsigned log = wide_log_min; log <= wide_log_max; log++) {
      const unsigned size = 1u << log, step = (size >> 1) + (size >> 3) + 3;
      for (unsigned i = 0; i < size; i++) from[log][(i * step) & (size - 1)] = uint8_t(i);
    }
  }
};
static constexpr SpreadOrder spread_order;

struct WideLayout {
  alignas(64) uint8_t symbol_of[128];
  alignas(64) uint8_t x[128];  // the symbol's probability + the state's place among its states
};

static NATIVE_INLINE bool has_wide_layout(const Distribution& distribution) {
  return distribution.log <= wide_log_max && !distribution.has_less_than_one;
}

static inline void lay_out_wide(const Distribution& distribution, WideLayout& layout) {
  const unsigned log = distribution.log, size = 1u << log;
  alignas(64) uint8_t in_order[128 + 64];
  for (unsigned i = 0, filled = 0; i < distribution.used_count; i++) {
    const unsigned symbol = distribution.used[i], probability = unsigned(distribution.probability[symbol]);
    const __m512i run = _mm512_set1_epi8(char(symbol));
    _mm512_storeu_si512(in_order + filled, run);
    if (NATIVE_UNLIKELY(probability > 64)) _mm512_storeu_si512(in_order + filled + 64, run);
    filled += probability;
  }
  const __m512i low = _mm512_load_si512(in_order), high = _mm512_load_si512(in_order + 64);
  const __m512i iota = _mm512_load_si512(simd::iota);
  for (unsigned half = 0; half < size; half += 64) {
    const __m512i order = _mm512_load_si512(spread_order.from[log] + half);
    _mm512_store_si512(layout.symbol_of + half, _mm512_permutex2var_epi8(low, order, high));
  }
  const __m512i symbols0 = _mm512_load_si512(layout.symbol_of),
                symbols1 = _mm512_load_si512(layout.symbol_of + 64);
  const __mmask64 lanes = low_bits_or_all(~uint64_t(0), size < 64 ? size : 64);
  __m512i x0 = _mm512_setzero_si512(), x1 = x0;
  for (unsigned i = 0; i < distribution.used_count; i++) {
    const unsigned symbol = distribution.used[i], probability = unsigned(distribution.probability[symbol]);
    const __m512i wanted = _mm512_set1_epi8(char(symbol));
    const __mmask64 here = _mm512_mask_cmpeq_epi8_mask(lanes, symbols0, wanted);
    const __m512i first = _mm512_add_epi8(iota, _mm512_set1_epi8(char(probability)));
    x0 = _mm512_or_si512(x0, _mm512_maskz_expand_epi8(here, first));
    if (size <= 64) continue;
    const __m512i rest = _mm512_add_epi8(first, _mm512_set1_epi8(char(__builtin_popcountll(here))));
    x1 = _mm512_or_si512(x1, _mm512_maskz_expand_epi8(_mm512_cmpeq_epi8_mask(symbols1, wanted), rest));
  }
  _mm512_store_si512(layout.x, x0);
  _mm512_store_si512(layout.x + 64, x1);
}

// The bits that each of eight states' successors take, and the baselines of those: in 32-bit lanes.
struct WideSteps {
  __m256i bits, baseline;
};
static NATIVE_INLINE WideSteps wide_steps(const WideLayout& layout, unsigned state, unsigned log) {
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(layout.x + state)));
  const __m256i bits = _mm256_sub_epi32(_mm256_lzcnt_epi32(x), _mm256_set1_epi32(31 - int(log)));
  return {bits, _mm256_sub_epi32(_mm256_sllv_epi32(x, bits), _mm256_set1_epi32(1 << log))};
}
static NATIVE_INLINE __m256i wide_symbols(const WideLayout& layout, unsigned state) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(layout.symbol_of + state)));
}

}  // namespace native::zstd

#endif
