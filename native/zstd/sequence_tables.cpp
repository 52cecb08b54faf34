// The predefined tables of sequences: RFC 8878 section 3.1.1.3.2.2.
#include "sequence_tables.hpp"

namespace native::zstd {
namespace {

constexpr Distribution literal_lengths = {{4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                                           2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1},
                                          36,
                                          6,
                                          true,
                                          {},
                                          0};
constexpr Distribution offsets = {
    {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1},
    29,
    5,
    true,
    {},
    0};
constexpr Distribution match_lengths = {
    {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1},
    53,
    6,
    true,
    {},
    0};

SequenceTable build(SequenceField field, Distribution distribution) {
  for (unsigned symbol = 0; symbol < distribution.symbols; symbol++) {
    distribution.used[distribution.used_count++] = uint8_t(symbol);
  }
  SequenceTable table;
  build_sequence_table(field, distribution, table);
  return table;
}

}  // namespace

const SequenceTable predefined_tables[3] = {build(literal_length_field, literal_lengths),
                                            build(offset_field, offsets),
                                            build(match_length_field, match_lengths)};

}  // namespace native::zstd
