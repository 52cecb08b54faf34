#include "strided_box.hpp"

#include <algorithm>

namespace native {

const char* StridedBox::problem() const {
  int64_t lowest = int64_t(destination_offset);
  for (unsigned k = 0; k < dimensions; k++) {
    if (source_stride[k] == 0) return "a source stride is zero";
    if (extent[k] == 0) return "an extent is zero";
    if (k + 1 < dimensions && source_stride[k] / source_stride[k + 1] < extent[k + 1]) {
      return "dimensions are not sorted by source stride and nested";
    }
    if (destination_stride[k] < 0) lowest += int64_t(extent[k] - 1) * destination_stride[k];
  }
  return lowest < 0 ? "a destination offset is negative" : nullptr;
}

uint64_t StridedBox::source_last() const {
  uint64_t last = source_offset;
  for (unsigned k = 0; k < dimensions; k++) last += (extent[k] - 1) * source_stride[k];
  return last;
}

uint64_t StridedBox::destination_last() const {
  uint64_t last = destination_offset;
  for (unsigned k = 0; k < dimensions; k++) {
    if (destination_stride[k] > 0) last += (extent[k] - 1) * uint64_t(destination_stride[k]);
  }
  return last;
}

template <class Position, class Destination>
size_t map_positions(const StridedBox& box, const Position* positions, size_t count, uint32_t* index,
                     Destination* destination) {
  const uint64_t last = box.source_last();
  const Position* begin = std::lower_bound(positions, positions + count, box.source_offset);
  const Position* end = std::upper_bound(begin, positions + count, last);
  size_t written = 0;
  for (const Position* position = begin; position < end; position++) {
    uint64_t rest = uint64_t(*position) - box.source_offset;
    int64_t target = int64_t(box.destination_offset);
    bool inside = true;
    for (unsigned k = 0; k < box.dimensions; k++) {
      const uint64_t step = rest / box.source_stride[k];
      inside &= step < box.extent[k];
      rest -= step * box.source_stride[k];
      target += int64_t(step) * box.destination_stride[k];
    }
    inside &= rest == 0;
    index[written] = uint32_t(position - positions);
    destination[written] = Destination(target);
    written += inside;
  }
  return written;
}

template size_t map_positions(const StridedBox&, const uint32_t*, size_t, uint32_t*, uint32_t*);
template size_t map_positions(const StridedBox&, const uint32_t*, size_t, uint32_t*, uint64_t*);
template size_t map_positions(const StridedBox&, const uint64_t*, size_t, uint32_t*, uint32_t*);
template size_t map_positions(const StridedBox&, const uint64_t*, size_t, uint32_t*, uint64_t*);

}  // namespace native
