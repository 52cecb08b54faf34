#include "strided_box.hpp"

#include <algorithm>
#include <vector>

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

namespace {

// Division by a fixed 32-bit divisor: one multiplication by ceil(2^64 / divisor), exact for 32-bit dividends
// (Lemire, Kaser, Kurz, "Faster remainder by direct computation", 2019).
class Divisor32 {
 public:
  explicit Divisor32(uint64_t divisor) : one_(divisor == 1), inverse_(UINT64_MAX / divisor + 1) {}
  uint64_t divide(uint64_t dividend) const {
    return one_ ? dividend : uint64_t((unsigned __int128)(inverse_)*dividend >> 64);
  }

 private:
  bool one_;
  uint64_t inverse_;
};

class Divisor64 {
 public:
  explicit Divisor64(uint64_t divisor) : divisor_(divisor) {}
  uint64_t divide(uint64_t dividend) const { return dividend / divisor_; }

 private:
  uint64_t divisor_;
};

template <class Divisor, class Position, class Destination>
size_t map_range(const StridedBox& box, const Position* positions, size_t first, size_t last, uint32_t* index,
                 Destination* destination) {
  std::vector<Divisor> strides;
  for (unsigned k = 0; k < box.dimensions; k++) strides.emplace_back(box.source_stride[k]);
  size_t written = 0;
  for (size_t i = first; i < last; i++) {
    uint64_t rest = uint64_t(positions[i]) - box.source_offset;
    int64_t target = int64_t(box.destination_offset);
    bool inside = true;
    for (unsigned k = 0; k < box.dimensions; k++) {
      const uint64_t step = strides[k].divide(rest);
      inside &= step < box.extent[k];
      rest -= step * box.source_stride[k];
      target += int64_t(step) * box.destination_stride[k];
    }
    inside &= rest == 0;
    index[written] = uint32_t(i);
    destination[written] = Destination(target);
    written += inside;
  }
  return written;
}

}  // namespace

template <class Position, class Destination>
size_t map_positions(const StridedBox& box, const Position* positions, size_t count, uint32_t* index,
                     Destination* destination) {
  const uint64_t end = box.source_last();
  const auto first = size_t(std::lower_bound(positions, positions + count, box.source_offset) - positions);
  const auto last = size_t(std::upper_bound(positions + first, positions + count, end) - positions);
  bool narrow = end - box.source_offset <= UINT32_MAX;
  for (unsigned k = 0; k < box.dimensions; k++) narrow &= box.source_stride[k] <= UINT32_MAX;
  return narrow ? map_range<Divisor32>(box, positions, first, last, index, destination)
                : map_range<Divisor64>(box, positions, first, last, index, destination);
}

template size_t map_positions(const StridedBox&, const uint32_t*, size_t, uint32_t*, uint32_t*);
template size_t map_positions(const StridedBox&, const uint32_t*, size_t, uint32_t*, uint64_t*);
template size_t map_positions(const StridedBox&, const uint64_t*, size_t, uint32_t*, uint32_t*);
template size_t map_positions(const StridedBox&, const uint64_t*, size_t, uint32_t*, uint64_t*);

}  // namespace native
