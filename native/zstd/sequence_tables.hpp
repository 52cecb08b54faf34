// The header and the three FSE tables of a sequences section: RFC 8878 sections 3.1.1.3.2.1 and 3.1.1.3.2.2.
#pragma once
#include "fse.hpp"
#include "limits.hpp"

namespace native::zstd {

// A state of a sequence table in eight bytes: the next state's baseline (bits 0-15) and bit count (16-23),
// the value's extra bit count (24-31) and baseline (32-63). The sum of three cells holds all bit counts of a
// sequence at once.
using SequenceCell = uint64_t;

struct SequenceTable {
  SequenceCell cell[1 << fse_log_max];
  unsigned log;
};

enum SequenceField : unsigned { literal_length_field, offset_field, match_length_field };

struct SequenceTables {
  SequenceTable own[3];
  const SequenceTable* current[3] = {nullptr, nullptr, nullptr};  // nullptr: nothing to repeat yet
};

// The value part of a cell for each symbol: section 3.1.1.3.2.1.1, tables 14, 15 and offset codes.
struct SymbolValues {
  SequenceCell value[3][64];
  constexpr SymbolValues() : value{} {
    uint32_t length = 0;
    for (unsigned symbol = 0; symbol < literal_length_symbols; symbol++) {
      const unsigned extra = symbol < 16    ? 0
                             : symbol < 20  ? 1
                             : symbol < 22  ? 2
                             : symbol < 24  ? 3
                             : symbol == 24 ? 4
                                            : symbol - 19;
      value[literal_length_field][symbol] = uint64_t(extra) << 24 | uint64_t(length) << 32;
      length += 1u << extra;
    }
    length = 3;
    for (unsigned symbol = 0; symbol < match_length_symbols; symbol++) {
      const unsigned extra = symbol < 32    ? 0
                             : symbol < 36  ? 1
                             : symbol < 38  ? 2
                             : symbol < 40  ? 3
                             : symbol < 42  ? 4
                             : symbol == 42 ? 5
                                            : symbol - 36;
      value[match_length_field][symbol] = uint64_t(extra) << 24 | uint64_t(length) << 32;
      length += 1u << extra;
    }
    for (unsigned symbol = 0; symbol < offset_symbols; symbol++) {
      value[offset_field][symbol] = uint64_t(symbol) << 24 | uint64_t(1u << symbol) << 32;
    }
  }
};
inline constexpr SymbolValues symbol_values;

inline void build_sequence_table(SequenceField field, const Distribution& distribution,
                                 SequenceTable& table) {
  const SequenceCell* value = symbol_values.value[field];
  table.log = distribution.log;
  build_fse_table(distribution, [&](unsigned state, unsigned symbol, unsigned bits, unsigned baseline) {
    table.cell[state] = value[symbol] | baseline | bits << 16;
  });
}

// Section 3.1.1.3.2.2: the predefined tables.
inline const SequenceTable* predefined_tables() {
  static const struct Predefined {
    SequenceTable table[3];
    Predefined() {
      static const Distribution distributions[3] = {
          {{4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
            2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1},
           36,
           6,
           true},
          {{1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1},
           29,
           5,
           true},
          {{1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1},
           53,
           6,
           true}};
      for (unsigned field = 0; field < 3; field++) {
        build_sequence_table(SequenceField(field), distributions[field], table[field]);
      }
    }
  } predefined;
  return predefined.table;
}

// Section 3.1.1.3.2.1: how many sequences the block has. Moves `at` behind the count.
inline Error read_sequence_count(const uint8_t*& at, const uint8_t* end, uint32_t& count) {
  const size_t available = size_t(end - at);
  if (available < 1) return Error::sequences_header;
  const unsigned first = at[0];
  const unsigned size = first < 128 ? 1 : first < 255 ? 2 : 3;
  if (available < size) return Error::sequences_header;
  count = first < 128 ? first : first < 255 ? (first - 128) << 8 | at[1] : load<uint16_t>(at + 1) + 0x7F00u;
  at += size;
  return Error::none;
}

// The compression modes byte and the tables behind it. Moves `at` to the bitstream.
inline Error read_sequence_tables(const uint8_t*& at, const uint8_t* end, SequenceTables& tables) {
  enum Mode : unsigned { predefined, run, compressed, repeat };
  static constexpr unsigned symbols_max[3] = {literal_length_symbols, offset_symbols, match_length_symbols};
  static constexpr unsigned log_max[3] = {literal_length_log_max, offset_log_max, match_length_log_max};
  if (at >= end) return Error::sequences_header;
  const unsigned modes = *at++;
  if (modes & 3) return Error::reserved_bit;
  for (unsigned field = 0; field < 3; field++) {
    SequenceTable& own = tables.own[field];
    switch ((modes >> (6 - 2 * field)) & 3) {
      case predefined: tables.current[field] = &predefined_tables()[field]; break;
      case run:
        if (at >= end || *at >= symbols_max[field]) return Error::fse_header;
        own.cell[0] = symbol_values.value[field][*at++];
        own.log = 0;
        tables.current[field] = &own;
        break;
      case compressed: {
        Distribution distribution;
        const size_t used =
            read_distribution(at, size_t(end - at), symbols_max[field], log_max[field], distribution);
        if (used == 0) return Error::fse_header;
        build_sequence_table(SequenceField(field), distribution, own);
        at += used;
        tables.current[field] = &own;
        break;
      }
      default:
        if (tables.current[field] == nullptr) return Error::fse_missing;
    }
  }
  return Error::none;
}

}  // namespace native::zstd
