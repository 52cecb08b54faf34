// Huffman-coded literals: RFC 8878 section 4.2 (4.2.1 tree description, 4.2.2 streams).
#pragma once
#include "backward_bits.hpp"
#include "fse.hpp"
#include "fse_avx512.hpp"
#include "huffman_table.hpp"
#include "simd.hpp"

namespace native::zstd {

// Section 4.2.1.3: from the weights of symbols 0 .. count - 1 to the table; the last symbol's weight is
// implied. `weights` holds 256 bytes, zero from `count` on. Finds the symbols of a weight by comparing 64
// weights at once.
static inline Error build_huffman_table(uint8_t* weights, unsigned count, HuffmanTable& table) {
  if (count == 0 || count >= 256) return Error::huffman_weights;
  uint64_t having[huffman_bits_max + 1][4];  // having[w]: bit s says that symbol s has weight w
  uint32_t total = 0;
  unsigned seen = 0;
  unsigned words = (count + 63) / 64;
  unsigned of_weight[huffman_bits_max + 2] = {};
  for (unsigned word = 0; word < words; word++) {
    for (unsigned weight = 1; weight <= huffman_bits_max; weight++) {
      having[weight][word] = simd::equal_mask(weights + 64 * word, uint8_t(weight));
      of_weight[weight] += unsigned(__builtin_popcountll(having[weight][word]));
    }
    seen += unsigned(__builtin_popcountll(simd::nonzero_mask(weights + 64 * word)));
  }
  for (unsigned weight = 1; weight <= huffman_bits_max; weight++) {
    total += of_weight[weight] << (weight - 1);
    seen -= of_weight[weight];
  }
  if (seen != 0 || total == 0) return Error::huffman_weights;  // a weight above the maximum, or none at all
  const unsigned log = highest_bit(total) + 1;
  if (log > huffman_bits_max) return Error::huffman_weights;
  const uint32_t rest = (1u << log) - total;
  if (rest & (rest - 1)) return Error::huffman_weights;
  const unsigned last_weight = highest_bit(rest) + 1;
  if (count % 64 == 0) {
    for (unsigned weight = 1; weight <= log; weight++) having[weight][words] = 0;
    words++;
  }
  having[last_weight][count / 64] |= uint64_t{1} << (count % 64);
  of_weight[last_weight]++;
  if (of_weight[1] < 2 || of_weight[1] % 2) return Error::huffman_weights;

  uint16_t* cell = table.cell;
  for (unsigned weight = 1; weight <= log; weight++) {
    if (of_weight[weight] == 0) continue;
    const unsigned cells = 1u << (weight - 1), length = log + 1 - weight;
    for (unsigned word = 0; word < words; word++) {
      for (uint64_t left = having[weight][word]; left != 0; left &= left - 1) {
        const unsigned symbol = 64 * word + unsigned(__builtin_ctzll(left));
        simd::fill_cells(cell, uint16_t(symbol | length << 8), cells);
        cell += cells;
      }
    }
  }
  table.log = log;
  table.valid = true;
  return Error::none;
}

// The unread bits at the top of a word, older bytes or zeros below.
static NATIVE_INLINE uint64_t unread_word(const BackwardBits& bits) {
  return bits.word() << (-bits.top() & 63);
}

struct WeightCell {
  uint8_t symbol, bits;
  uint16_t baseline;
};

static inline void build_weight_cells(const Distribution& distribution, WeightCell* cell) {
#if NATIVE_AVX512
  if (has_wide_layout(distribution)) {
    WideLayout layout;
    lay_out_wide(distribution, layout);
    for (unsigned state = 0; state < 1u << distribution.log; state += 8) {
      const WideSteps steps = wide_steps(layout, state, distribution.log);
      const __m256i upper =
          _mm256_or_si256(_mm256_slli_epi32(steps.bits, 8), _mm256_slli_epi32(steps.baseline, 16));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(cell + state),
                          _mm256_or_si256(wide_symbols(layout, state), upper));
    }
    return;
  }
#endif
  build_fse_table(distribution, [&](unsigned state, unsigned symbol, unsigned bits, unsigned baseline) {
    cell[state] = {uint8_t(symbol), uint8_t(bits), uint16_t(baseline)};
  });
}

// Section 4.2.1.2: weights compressed by FSE, two interleaved states. Returns the count of weights, 0 if
// malformed.
static inline unsigned read_fse_weights(const uint8_t* at, size_t size, uint8_t* weights) {
  Distribution distribution;
  const size_t header = read_distribution(at, size, fse_symbols_max, 6, distribution);
  if (header == 0 || header >= size) return 0;
  WeightCell cell[64];
  build_weight_cells(distribution, cell);
  BackwardBits bits;
  if (!bits.open(at + header, size - header)) return 0;
  if (bits.remaining < int64_t(2 * distribution.log)) return 0;
  WeightCell even = cell[bits.read(distribution.log)], odd = cell[bits.read(distribution.log)];
  unsigned count = 0;
  while (bits.remaining >= 56 && count <= 248) {  // eight weights of at most 6 bits out of one word
    uint64_t word = unread_word(bits);
    for (unsigned pair = 0; pair < 4; pair++, count += 2) {
      weights[count] = even.symbol;
      weights[count + 1] = odd.symbol;
      const unsigned even_bits = even.bits, odd_bits = odd.bits;
      even = cell[even.baseline + (word >> 1 >> (63 - even_bits))];
      word <<= even_bits;
      odd = cell[odd.baseline + (word >> 1 >> (63 - odd_bits))];
      word <<= odd_bits;
      bits.remaining -= even_bits + odd_bits;
    }
  }
  for (;;) {
    if (count > 253) return 0;
    weights[count++] = even.symbol;
    if (bits.remaining < even.bits) {
      weights[count++] = odd.symbol;
      break;
    }
    even = cell[even.baseline + bits.read(even.bits)];
    weights[count++] = odd.symbol;
    if (bits.remaining < odd.bits) {
      weights[count++] = even.symbol;
      break;
    }
    odd = cell[odd.baseline + bits.read(odd.bits)];
  }
  return count;
}

// Section 4.2.1. On success `used` is the length of the tree description.
static inline Error read_huffman_table(const uint8_t* at, size_t size, HuffmanTable& table, size_t& used) {
  if (size == 0) return Error::huffman_header;
  uint8_t weights[256 + margin] = {};
  const unsigned header = at[0];
  unsigned count;
  if (header >= 128) {  // section 4.2.1.1: four bits a weight
    count = header - 127;
    used = 1 + (count + 1) / 2;
    if (used > size) return Error::huffman_header;
    for (unsigned i = 0; i < count; i++) weights[i] = i % 2 ? at[1 + i / 2] & 15 : at[1 + i / 2] >> 4;
  } else {
    used = 1 + header;
    if (header == 0 || used > size) return Error::huffman_header;
    count = read_fse_weights(at + 1, header, weights);
    if (count == 0) return Error::huffman_header;
  }
  return build_huffman_table(weights, count, table);
}

constexpr unsigned symbols_a_word = 5;  // of at most 11 bits, out of 56

static NATIVE_INLINE uint8_t next_symbol(const HuffmanTable& table, unsigned log, uint64_t& word,
                                         BackwardBits& bits) {
  const uint16_t cell = table.cell[word >> (64 - log)];
  word <<= cell >> 8;
  bits.remaining -= cell >> 8;
  return uint8_t(cell);
}

// The last `count` symbols of a stream (section 4.2.2): false unless they use its bits to the last one.
static inline bool finish_huffman_stream(const HuffmanTable& table, BackwardBits bits, uint8_t* out,
                                         size_t count) {
  const unsigned log = table.log;
  for (size_t i = 0; i < count;) {
    if (bits.remaining < 0) return false;
    uint64_t word = unread_word(bits);
    const size_t stop = count - i < symbols_a_word ? count : i + symbols_a_word;
    for (; i < stop; i++) out[i] = next_symbol(table, log, word, bits);
  }
  return bits.remaining == 0;
}

static inline bool decode_huffman_stream(const HuffmanTable& table, const uint8_t* at, size_t size,
                                         uint8_t* out, size_t count) {
  BackwardBits bits;
  return bits.open(at, size) && finish_huffman_stream(table, bits, out, count);
}

// Four streams behind a jump table of three 16-bit sizes (section 3.1.1.3.1.6), decoded side by side: each
// symbol waits for the one before it in its stream.
//
// Stricter than libzstd: its fast loops for four streams (1.5.4 to 1.5.7 at least) only check that enough
// symbols came out, so that it accepts streams with unused bits. Section 4.2.2 calls a stream faulty unless
// it is "entirely and exactly consumed"; no encoder writes such streams, damage does.
static inline bool decode_four_huffman_streams(const HuffmanTable& table, const uint8_t* at, size_t size,
                                               uint8_t* out, size_t count) {
  if (size < 10 || count < 6) return false;
  const size_t sizes[3] = {load<uint16_t>(at), load<uint16_t>(at + 2), load<uint16_t>(at + 4)};
  const size_t first_three = sizes[0] + sizes[1] + sizes[2] + 6;
  const size_t quarter = (count + 3) / 4;
  if (first_three >= size || 3 * quarter > count) return false;
  const uint8_t* stream = at + 6;
  BackwardBits bits[4];
  for (unsigned i = 0; i < 4; i++) {
    const size_t stream_size = i < 3 ? sizes[i] : size - first_three;
    if (!bits[i].open(stream, stream_size)) return false;
    stream += stream_size;
  }
  const unsigned log = table.log;
  const size_t shortest = count - 3 * quarter;
  size_t done = 0;
  for (; done + symbols_a_word <= shortest; done += symbols_a_word) {
    if ((bits[0].remaining | bits[1].remaining | bits[2].remaining | bits[3].remaining) < 0) return false;
    uint64_t word[4];
    for (unsigned i = 0; i < 4; i++) word[i] = unread_word(bits[i]);
    for (unsigned k = 0; k < symbols_a_word; k++) {
      for (unsigned i = 0; i < 4; i++)
        out[i * quarter + done + k] = next_symbol(table, log, word[i], bits[i]);
    }
  }
  for (unsigned i = 0; i < 4; i++) {
    const size_t symbols = i < 3 ? quarter : shortest;
    if (!finish_huffman_stream(table, bits[i], out + i * quarter + done, symbols - done)) return false;
  }
  return true;
}

}  // namespace native::zstd
