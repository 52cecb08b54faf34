#include "decoded_content.hpp"

#include <algorithm>

#include "limits.hpp"

namespace native::zstd {
namespace {

// The first element from `low` on whose position is at least `position`: gallops, since it is most often
// near.
template <class Position>
size_t lower_bound(const Position* positions, size_t low, size_t size, uint64_t position) {
  size_t high = low;
  for (size_t step = 16; high < size && positions[high] < position; step *= 2) {
    low = high + 1;
    high += step;
  }
  return size_t(std::lower_bound(positions + low, positions + std::min(high, size), position) - positions);
}

template <class Position, class Mask>
void read_typed(const Elements& elements, size_t low, uint64_t begin, size_t count, uint8_t* out) {
  const auto* positions = static_cast<const Position*>(elements.positions());
  const auto* masks = static_cast<const Mask*>(elements.masks());
  const uint64_t end = begin + count;
  memset(out, 0, count);
  for (size_t i = lower_bound(positions, low, elements.size(), begin / sizeof(Mask)); i < elements.size();
       i++) {
    const uint64_t start = uint64_t{positions[i]} * sizeof(Mask);
    if (start >= end) break;
    for (unsigned byte = 0; byte < sizeof(Mask); byte++) {
      if (start + byte >= begin && start + byte < end)
        out[start + byte - begin] = uint8_t(masks[i] >> (8 * byte));
    }
  }
}

template <class Position>
void read_masks(const Elements& elements, size_t low, uint64_t begin, size_t count, uint8_t* out) {
  switch (elements.element_size()) {
    case 1: return read_typed<Position, uint8_t>(elements, low, begin, count, out);
    case 2: return read_typed<Position, uint16_t>(elements, low, begin, count, out);
    case 4: return read_typed<Position, uint32_t>(elements, low, begin, count, out);
    default: return read_typed<Position, uint64_t>(elements, low, begin, count, out);
  }
}

}  // namespace

void DecodedContent::start_frame(const Elements& elements, uint64_t start_bytes, uint64_t window_bytes) {
  elements_ = &elements;
  start_bytes_ = start_bytes;
  grain_log_ = grain_log_min;
  while (marks << grain_log_ < 2 * window_bytes + block_size_max) grain_log_++;
  next_ = 0;
}

void DecodedContent::read(uint64_t frame_offset, size_t count, uint8_t* out) const {
  const size_t low = size_t(marks_[(frame_offset >> grain_log_) % marks]);
  const uint64_t begin = start_bytes_ + frame_offset;
  if (elements_->position_size() == 4)
    read_masks<uint32_t>(*elements_, low, begin, count, out);
  else
    read_masks<uint64_t>(*elements_, low, begin, count, out);
}

}  // namespace native::zstd
