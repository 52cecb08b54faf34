// Positions of a checkpoint tensor -> positions of a destination tensor, through one strided box of the
// layout map.
#pragma once
#include <cstddef>
#include <cstdint>

namespace native {

constexpr unsigned box_dimensions_max = 16;

// Element (i0, i1, ..) of the box lies at source_offset + sum(i * source_stride) in the checkpoint tensor and
// at destination_offset + sum(i * destination_stride) in the destination. Dimensions are sorted by descending
// source stride and nested: source_stride[k] >= extent[k + 1] * source_stride[k + 1]. All numbers count
// elements.
struct StridedBox {
  uint64_t source_offset, destination_offset;
  unsigned dimensions;
  uint64_t extent[box_dimensions_max], source_stride[box_dimensions_max];
  int64_t destination_stride[box_dimensions_max];

  // Null if the rules above hold, else what is wrong. Also checks that no destination is negative.
  const char* problem() const;
  uint64_t source_last() const;       // the largest source position of the box (extents are not 0)
  uint64_t destination_last() const;  // the largest destination position
};

// For every one of the sorted `positions` inside the box: its index and its destination. Both outputs have
// room for `count` numbers; returns how many were written.
template <class Position, class Destination>
size_t map_positions(const StridedBox& box, const Position* positions, size_t count, uint32_t* index,
                     Destination* destination);

}  // namespace native
