// The head of a sequences section: RFC 8878 section 3.1.1.3.2.1, from the number of sequences to the three
// tables.
#pragma once
#include "fse_avx512.hpp"
#include "sequence_tables.hpp"

namespace native::zstd {

// Section 3.1.1.3.2.1: how many sequences the block has. Moves `at` behind the count.
static inline Error read_sequence_count(const uint8_t*& at, const uint8_t* end, uint32_t& count) {
  const size_t available = size_t(end - at);
  if (available < 1) return Error::sequences_header;
  const unsigned first = at[0];
  const unsigned size = first < 128 ? 1 : first < 255 ? 2 : 3;
  if (available < size) return Error::sequences_header;
  count = first < 128 ? first : first < 255 ? (first - 128) << 8 | at[1] : load<uint16_t>(at + 1) + 0x7F00u;
  at += size;
  return Error::none;
}

static inline void build_fastest(SequenceField field, const Distribution& distribution,
                                 SequenceTable& table) {
#if NATIVE_AVX512
  if (has_wide_layout(distribution)) {
    WideLayout layout;
    lay_out_wide(distribution, layout);
    table.log = distribution.log;
    const auto* symbol_cell = reinterpret_cast<const long long*>(symbol_cells.cell[field]);
    for (unsigned state = 0; state < 1u << table.log; state += 8) {
      const WideSteps steps = wide_steps(layout, state, table.log);
      const __m256i counts =
          _mm256_mullo_epi16(steps.bits, _mm256_set1_epi32(0x0101));  // state_bits and all_bits
      const __m256i state_part = _mm256_or_si256(steps.baseline, _mm256_slli_epi32(counts, 16));
      const __m512i symbol_part = _mm512_i32gather_epi64(wide_symbols(layout, state), symbol_cell, 8);
      _mm512_storeu_si512(&table.cell[state],
                          _mm512_add_epi64(symbol_part, _mm512_cvtepu32_epi64(state_part)));
    }
    return;
  }
#endif
  build_sequence_table(field, distribution, table);
}

// The compression modes byte and the tables behind it. Moves `at` to the bitstream.
static inline Error read_sequence_tables(const uint8_t*& at, const uint8_t* end, SequenceTables& tables) {
  enum Mode : unsigned { predefined, run, compressed, repeat };
  static constexpr unsigned symbols_max[3] = {literal_length_symbols, offset_symbols, match_length_symbols};
  static constexpr unsigned log_max[3] = {literal_length_log_max, offset_log_max, match_length_log_max};
  if (at >= end) return Error::sequences_header;
  const unsigned modes = *at++;
  if (modes & 3) return Error::reserved_bit;
  for (unsigned field = 0; field < 3; field++) {
    SequenceTable& table = tables.table[field];
    switch ((modes >> (6 - 2 * field)) & 3) {
      case predefined:
        table.log = predefined_tables[field].log;
        memcpy(table.cell, predefined_tables[field].cell, sizeof(SequenceCell) << table.log);
        break;
      case run:
        if (at >= end || *at >= symbols_max[field]) return Error::fse_header;
        memcpy(table.cell, &symbol_cells.cell[field][*at++], sizeof *table.cell);
        table.log = 0;
        break;
      case compressed: {
        Distribution distribution;
        const size_t used =
            read_distribution(at, size_t(end - at), symbols_max[field], log_max[field], distribution);
        if (used == 0) return Error::fse_header;
        build_fastest(SequenceField(field), distribution, table);
        at += used;
        break;
      }
      default:
        if (!tables.valid[field]) return Error::fse_missing;
    }
    tables.valid[field] = true;
  }
  return Error::none;
}

}  // namespace native::zstd
