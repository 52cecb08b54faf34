// Finite state entropy tables: RFC 8878 section 4.1 (4.1.1 for the table description).
#pragma once
#include "bytes.hpp"
#include "error.hpp"

namespace native::zstd {

constexpr unsigned fse_log_max = 9;
constexpr unsigned fse_symbols_max = 256;

// Probabilities of symbols in units of 1 / 2^log; -1 stands for "less than one". Set for used symbols only.
struct Distribution {
  int16_t probability[fse_symbols_max];
  unsigned symbols;
  unsigned log;
  bool has_less_than_one;
  uint8_t used[fse_symbols_max];  // the symbols whose probability is not 0, ascending
  unsigned used_count;
};

// Section 4.1.1. Returns the bytes used, or 0 if the description is malformed or needs more than `size`
// bytes. Reads at most 8 bytes beyond `size`.
static inline size_t read_distribution(const uint8_t* at, size_t size, unsigned symbols_max, unsigned log_max,
                                       Distribution& out) {
  if (size == 0) return 0;
  const size_t bit_limit = size * 8;
  out.log = (at[0] & 15) + 5;
  if (out.log > log_max) return 0;
  size_t bit = 4;
  unsigned symbol = 0, used = 0;
  int points = (1 << out.log) + 1;  // what is left to give out, plus one
  int lowest = 0;
  while (points > 1) {
    if (symbol >= symbols_max || bit >= bit_limit) return 0;
    const uint32_t word = uint32_t(load<uint64_t>(at + (bit >> 3)) >> (bit & 7));
    // Values 0 .. points need `width` bits; the smallest `short_values` of them are written in one bit less.
    const unsigned width = highest_bit(uint32_t(points)) + 1;
    const int half = 1 << (width - 1);
    const int short_values = 2 * half - 1 - points;
    const int short_value = int(word & uint32_t(half - 1)), long_value = int(word & uint32_t(2 * half - 1));
    const bool is_short = short_value < short_values;
    const int value = is_short ? short_value : long_value - (long_value >= half ? short_values : 0);
    bit += width - is_short;
    const int probability = value - 1;
    points -= probability < 0 ? 1 : probability;
    lowest = probability < lowest ? probability : lowest;
    out.probability[symbol] = int16_t(probability);
    out.used[used] = uint8_t(symbol++);
    used += probability != 0;
    if (probability != 0) continue;
    for (bool more = true; more;) {  // two-bit repeat flags: how many further symbols have probability 0
      if (bit >= bit_limit) return 0;
      const unsigned flag = (load<uint64_t>(at + (bit >> 3)) >> (bit & 7)) & 3;
      bit += 2;
      more = flag == 3;
      if (symbol + flag > symbols_max) return 0;
      symbol += flag;
    }
  }
  if (points != 1 || bit > bit_limit) return 0;
  out.symbols = symbol;
  out.used_count = used;
  out.has_less_than_one = lowest < 0;
  return (bit + 7) >> 3;
}

// Lays the symbols out over the 2^log states in the order of section 4.1.1.
static inline void spread_symbols(const Distribution& distribution, uint8_t* symbol_of) {
  const unsigned size = 1u << distribution.log, mask = size - 1, step = (size >> 1) + (size >> 3) + 3;
  uint8_t in_order[(1 << fse_log_max) + 16];
  unsigned high = size;  // states from here on belong to "less than one" symbols
  unsigned filled = 0;
  for (unsigned i = 0; i < distribution.used_count; i++) {
    const unsigned symbol = distribution.used[i];
    const int probability = distribution.probability[symbol];
    if (NATIVE_UNLIKELY(probability < 0)) {
      symbol_of[--high] = uint8_t(symbol);
      continue;
    }
    memset(in_order + filled, int(symbol), 16);
    if (NATIVE_UNLIKELY(probability > 16))
      memset(in_order + filled + 16, int(symbol), size_t(probability) - 16);
    filled += unsigned(probability);
  }
  unsigned position = 0;
  if (NATIVE_LIKELY(high == size)) {
    for (unsigned i = 0; i < size; i += 4) {
      symbol_of[position] = in_order[i];
      symbol_of[(position + step) & mask] = in_order[i + 1];
      symbol_of[(position + 2 * step) & mask] = in_order[i + 2];
      symbol_of[(position + 3 * step) & mask] = in_order[i + 3];
      position = (position + 4 * step) & mask;
    }
    return;
  }
  for (unsigned i = 0; i < filled; i++) {
    symbol_of[position] = in_order[i];
    do position = (position + step) & mask;
    while (position >= high);
  }
}

// Calls `set(state, symbol, bits, baseline)` for each state: the next state is baseline + that many bits
// read.
template <class Set>
static NATIVE_INLINE void build_fse_table(const Distribution& distribution, Set set) {
  const unsigned log = distribution.log, size = 1u << log;
  uint8_t symbol_of[1 << fse_log_max];
  uint16_t next[fse_symbols_max];
  spread_symbols(distribution, symbol_of);
  for (unsigned i = 0; i < distribution.used_count; i++) {
    const unsigned symbol = distribution.used[i];
    const int probability = distribution.probability[symbol];
    next[symbol] = uint16_t(probability < 0 ? 1 : probability);
  }
  for (unsigned state = 0; state < size; state++) {
    const unsigned symbol = symbol_of[state], x = next[symbol]++;
    const unsigned bits = log - highest_bit(x);
    set(state, symbol, bits, (x << bits) - size);
  }
}

}  // namespace native::zstd
