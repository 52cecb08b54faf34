// Finite state entropy tables: RFC 8878 section 4.1 (4.1.1 for the table description).
#pragma once
#include "bytes.hpp"
#include "error.hpp"

namespace native::zstd {

constexpr unsigned fse_log_max = 9;
constexpr unsigned fse_symbols_max = 256;

// Probabilities of symbols 0 .. symbols - 1 in units of 1 / 2^log; -1 stands for "less than one".
struct Distribution {
  int16_t probability[fse_symbols_max];
  unsigned symbols;
  unsigned log;
  bool has_less_than_one;
};

// Section 4.1.1. Returns the bytes used, or 0 if the description is malformed or needs more than `size`
// bytes. Reads at most 8 bytes beyond `size`.
inline size_t read_distribution(const uint8_t* at, size_t size, unsigned symbols_max, unsigned log_max,
                                Distribution& out) {
  if (size == 0) return 0;
  const size_t bit_limit = size * 8;
  out.log = (at[0] & 15) + 5;
  if (out.log > log_max) return 0;
  size_t bit = 4;
  unsigned symbol = 0;
  int points = (1 << out.log) + 1;  // what is left to give out, plus one
  out.has_less_than_one = false;
  while (points > 1) {
    if (symbol >= symbols_max || bit >= bit_limit) return 0;
    const uint32_t word = uint32_t(load<uint64_t>(at + (bit >> 3)) >> (bit & 7));
    // Values 0 .. points need `width` bits; the smallest `short_values` of them are written in one bit less.
    const unsigned width = highest_bit(uint32_t(points)) + 1;
    const int half = 1 << (width - 1);
    const int short_values = 2 * half - 1 - points;
    int value = int(word & uint32_t(half - 1));
    if (value < short_values) {
      bit += width - 1;
    } else {
      value = int(word & uint32_t(2 * half - 1));
      if (value >= half) value -= short_values;
      bit += width;
    }
    const int probability = value - 1;
    points -= probability < 0 ? 1 : probability;
    out.has_less_than_one |= probability < 0;
    out.probability[symbol++] = int16_t(probability);
    if (probability != 0) continue;
    for (bool more = true; more;) {  // two-bit repeat flags: how many further symbols have probability 0
      if (bit >= bit_limit) return 0;
      const unsigned flag = (load<uint64_t>(at + (bit >> 3)) >> (bit & 7)) & 3;
      bit += 2;
      more = flag == 3;
      if (symbol + flag > symbols_max) return 0;
      for (unsigned i = 0; i < flag; i++) out.probability[symbol++] = 0;
    }
  }
  if (points != 1 || bit > bit_limit) return 0;
  out.symbols = symbol;
  return (bit + 7) >> 3;
}

// Lays the symbols out over the 2^log states in the order of section 4.1.1 and calls
// `set(state, symbol, bits, baseline)` for each state: the next state is baseline + that many bits read.
template <class Set>
NATIVE_INLINE void build_fse_table(const Distribution& distribution, Set set) {
  const unsigned log = distribution.log, size = 1u << log, mask = size - 1;
  const unsigned step = (size >> 1) + (size >> 3) + 3;
  uint8_t symbol_of[1 << fse_log_max];
  uint16_t next[fse_symbols_max];
  unsigned high = size;  // states from here on belong to "less than one" symbols
  for (unsigned symbol = 0; symbol < distribution.symbols; symbol++) {
    const int probability = distribution.probability[symbol];
    next[symbol] = uint16_t(probability < 0 ? 1 : probability);
    if (probability < 0) symbol_of[--high] = uint8_t(symbol);
  }
  unsigned position = 0;
  for (unsigned symbol = 0; symbol < distribution.symbols; symbol++) {
    for (int i = 0; i < distribution.probability[symbol]; i++) {
      symbol_of[position] = uint8_t(symbol);
      do position = (position + step) & mask;
      while (position >= high);
    }
  }
  for (unsigned state = 0; state < size; state++) {
    const unsigned symbol = symbol_of[state], x = next[symbol]++;
    const unsigned bits = log - highest_bit(x);
    set(state, symbol, bits, (x << bits) - size);
  }
}

}  // namespace native::zstd
