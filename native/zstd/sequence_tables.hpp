// The header and the three FSE tables of a sequences section: RFC 8878 sections 3.1.1.3.2.1 and 3.1.1.3.2.2.
#pragma once
#include "fse.hpp"
#include "limits.hpp"

namespace native::zstd {

// A state of a sequence table in eight bytes, every field a load of its own: the loop that reads them is
// short of arithmetic, not of loads.
struct SequenceCell {
  uint16_t next;        // baseline of the next state
  uint8_t state_bits;   // to be read and added to it
  uint8_t all_bits;     // state_bits + extra_bits
  uint8_t extra_bits;   // to be read and added to the value's baseline
  uint8_t baseline[3];  // of the value; 0 for offsets, whose baseline is 1 << extra_bits
};
static_assert(sizeof(SequenceCell) == 8);

struct SequenceTable {
  SequenceCell cell[1 << fse_log_max];
  unsigned log;
};

enum SequenceField : unsigned { literal_length_field, offset_field, match_length_field };

// The tables of the block being decoded. They stay where they are, so that the sequence loop addresses all
// three from one pointer; predefined ones are copied in.
struct SequenceTables {
  SequenceTable table[3];
  bool valid[3] = {false, false, false};  // false: nothing to repeat yet
};

// A cell without its state, for each symbol, as a number: section 3.1.1.3.2.1.1, tables 14 and 15, and offset
// codes.
struct SymbolCells {
  uint64_t cell[3][64];
  constexpr SymbolCells() : cell{} {
    uint32_t length = 0;
    for (unsigned symbol = 0; symbol < literal_length_symbols; symbol++) {
      const unsigned extra = symbol < 16    ? 0
                             : symbol < 20  ? 1
                             : symbol < 22  ? 2
                             : symbol < 24  ? 3
                             : symbol == 24 ? 4
                                            : symbol - 19;
      cell[literal_length_field][symbol] = make(extra, length);
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
      cell[match_length_field][symbol] = make(extra, length);
      length += 1u << extra;
    }
    for (unsigned symbol = 0; symbol < offset_symbols; symbol++) cell[offset_field][symbol] = make(symbol, 0);
  }
  static constexpr uint64_t make(unsigned extra_bits, uint32_t baseline) {
    return uint64_t(extra_bits) << 24 | uint64_t(extra_bits) << 32 | uint64_t(baseline) << 40;
  }
};
inline constexpr SymbolCells symbol_cells;

static inline void build_sequence_table(SequenceField field, const Distribution& distribution,
                                        SequenceTable& table) {
  const uint64_t* symbol_cell = symbol_cells.cell[field];
  table.log = distribution.log;
  build_fse_table(distribution, [&](unsigned state, unsigned symbol, unsigned bits, unsigned baseline) {
    const uint64_t cell = symbol_cell[symbol] + (baseline | bits << 16 | bits << 24);
    memcpy(&table.cell[state], &cell, sizeof cell);
  });
}

// Section 3.1.1.3.2.2. Built once, in sequence_tables.cpp.
extern const SequenceTable predefined_tables[3];

}  // namespace native::zstd
