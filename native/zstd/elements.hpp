// From nonzero bytes to elements: the bytes of one element are merged into one little-endian mask.
// Not part of RFC 8878: this is the decoder's output side (see the wire format: content is parent XOR new,
// row-major).
#pragma once
#include "growing_memory.hpp"

namespace native::zstd {

// Growing arrays of sorted element positions (uint32 or uint64) and masks (uint8 .. uint64), owned by the
// caller of the decoder.
class Elements {
 public:
  Elements(uint64_t size_bytes, unsigned element_size)
      : element_size_(element_size), wide_(size_bytes > uint64_t{1} << 32) {}
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;

  size_t size() const { return size_; }
  unsigned element_size() const { return element_size_; }
  unsigned position_size() const { return wide_ ? 8 : 4; }
  const void* positions() const { return positions_.data(); }
  const void* masks() const { return masks_.data(); }

  // Adds `count` nonzero bytes at `offset + position`, all after the bytes added before. False: out of
  // memory.
  bool append(const uint32_t* position, const uint8_t* value, size_t count, uint64_t offset) {
    if (count == 0) return true;
    if (size_ + count > capacity_ && !resize(size_ + count + (size_ + count) / 2 + 4096)) return false;
    return wide_ ? append_by_mask<uint64_t>(position, value, count, offset)
                 : append_by_mask<uint32_t>(position, value, count, offset);
  }

  // Takes over elements of the same tensor that come after these; the first may be another part of the last
  // one. Their memory is given back on the way, so that joining needs little on top of the result. False: out
  // of memory.
  bool take(Elements& other) {
    if (other.size_ == 0) return true;
    if (size_ + other.size_ > capacity_ && !resize(size_ + other.size_)) return false;
    const size_t shared =
        size_ > 0 && memcmp(position_at(size_ - 1), other.position_at(0), position_size()) == 0;
    for (size_t byte = 0; shared != 0 && byte < element_size_; byte++) {
      mask_at(size_ - 1)[byte] |= other.mask_at(0)[byte];
    }
    const size_t added = other.size_ - shared;
    other.positions_.move_out(shared * position_size(), added * position_size(), position_at(size_));
    other.masks_.move_out(shared * element_size_, added * element_size_, mask_at(size_));
    size_ += added;
    other.size_ = 0;
    return true;
  }

  bool resize(size_t capacity) {
    if (!positions_.resize(capacity * position_size()) || !masks_.resize(capacity * element_size_))
      return false;
    const size_t position_capacity = positions_.capacity() / position_size(),
                 mask_capacity = masks_.capacity() / element_size_;
    capacity_ = position_capacity < mask_capacity ? position_capacity : mask_capacity;
    return true;
  }

  // Both arrays, to hand over; this object is not used any more.
  GrowingMemory& positions_memory() { return positions_; }
  GrowingMemory& masks_memory() { return masks_; }

 private:
  GrowingMemory positions_, masks_;
  size_t size_ = 0, capacity_ = 0;
  const unsigned element_size_;
  const bool wide_;

  uint8_t* position_at(size_t index) const { return positions_.data() + index * position_size(); }
  uint8_t* mask_at(size_t index) const { return masks_.data() + index * element_size_; }

  template <class Position>
  bool append_by_mask(const uint32_t* position, const uint8_t* value, size_t count, uint64_t offset) {
    switch (element_size_) {
      case 1: return append_typed<Position, uint8_t>(position, value, count, offset);
      case 2: return append_typed<Position, uint16_t>(position, value, count, offset);
      case 4: return append_typed<Position, uint32_t>(position, value, count, offset);
      default: return append_typed<Position, uint64_t>(position, value, count, offset);
    }
  }

  template <class Position, class Mask>
  bool append_typed(const uint32_t* position, const uint8_t* value, size_t count, uint64_t offset) {
    auto* elements = reinterpret_cast<Position*>(positions_.data());
    auto* masks = reinterpret_cast<Mask*>(masks_.data());
    size_t size = size_;
    if constexpr (sizeof(Mask) == 1) {  // nothing to merge
      for (size_t i = 0; i < count; i++) elements[size + i] = Position(offset + position[i]);
      memcpy(masks + size, value, count);
      size_ = size + count;
      return true;
    }
    for (size_t i = 0; i < count; i++) {
      const uint64_t byte = offset + position[i];
      const Position element = Position(byte / sizeof(Mask));
      const Mask mask = Mask(Mask(value[i]) << (8 * (byte % sizeof(Mask))));
      if (size > 0 && elements[size - 1] == element) {
        masks[size - 1] = Mask(masks[size - 1] | mask);
      } else {
        elements[size] = element;
        masks[size] = mask;
        size++;
      }
    }
    size_ = size;
    return true;
  }
};

}  // namespace native::zstd
