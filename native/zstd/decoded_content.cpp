#include "decoded_content.hpp"

#include <algorithm>

#include "limits.hpp"

namespace native::zstd {
namespace {

// The first element in [low, size) whose position is at least `position`, sought from `guess` on in ever
// larger steps; the last few are counted, which costs no guessed branches.
template <class Position>
size_t lower_bound(const Position* positions, size_t low, size_t size, size_t guess, Position position) {
  constexpr size_t near = 16;
  size_t high = size;
  if (guess < size && positions[guess] >= position) {
    high = guess;
    for (size_t step = near; high - low > step; step *= 2) {
      if (positions[high - step] < position) {
        low = high - step;
        break;
      }
      high -= step;
    }
  } else {
    low = std::min(std::max(low, guess), size);
    for (size_t step = near; size - low > step; step *= 2) {
      if (positions[low + step] >= position) {
        high = low + step;
        break;
      }
      low += step;
    }
  }
  if (high - low > 2 * near)
    return size_t(std::lower_bound(positions + low, positions + high, position) - positions);
  size_t below = 0;
  for (size_t i = low; i < high; i++) below += positions[i] < position;
  return low + below;
}

template <class Position, class Mask>
void read_typed(const Elements& elements, size_t low, size_t guess, uint64_t begin, size_t count,
                uint8_t* out) {
  const auto* positions = static_cast<const Position*>(elements.positions());
  const auto* masks = static_cast<const Mask*>(elements.masks());
  const uint64_t end = begin + count;
  memset(out, 0, count);
  for (size_t i = lower_bound(positions, low, elements.size(), guess, Position(begin / sizeof(Mask)));
       i < elements.size(); i++) {
    const uint64_t start = uint64_t{positions[i]} * sizeof(Mask);
    if (start >= end) break;
    for (unsigned byte = 0; byte < sizeof(Mask); byte++) {
      if (start + byte >= begin && start + byte < end)
        out[start + byte - begin] = uint8_t(masks[i] >> (8 * byte));
    }
  }
}

template <class Position>
void read_masks(const Elements& elements, size_t low, size_t guess, uint64_t begin, size_t count,
                uint8_t* out) {
  switch (elements.element_size()) {
    case 1: return read_typed<Position, uint8_t>(elements, low, guess, begin, count, out);
    case 2: return read_typed<Position, uint16_t>(elements, low, guess, begin, count, out);
    case 4: return read_typed<Position, uint32_t>(elements, low, guess, begin, count, out);
    default: return read_typed<Position, uint64_t>(elements, low, guess, begin, count, out);
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
  // Between two marks elements are taken to be spread evenly.
  const uint64_t grain = frame_offset >> grain_log_,
                 within = frame_offset & ((uint64_t{1} << grain_log_) - 1);
  const size_t low = size_t(marks_[grain % marks]);
  const size_t end = grain + 1 < next_ ? size_t(marks_[(grain + 1) % marks]) : elements_->size();
  const size_t guess = low + size_t((end - low) * within >> grain_log_);
  const uint64_t begin = start_bytes_ + frame_offset;
  if (elements_->position_size() == 4)
    read_masks<uint32_t>(*elements_, low, guess, begin, count, out);
  else
    read_masks<uint64_t>(*elements_, low, guess, begin, count, out);
}

}  // namespace native::zstd
