// Reading and writing scattered elements of plain memory: what staging and committing a write plan come down
// to.
//
// Each access misses every cache, so elements are prefetched a fixed distance ahead; nothing here depends on
// the instruction set. Offsets count elements. All of them must lie within the memory: `largest_offset` is
// there to check.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace native {

constexpr size_t prefetch_distance = 48;  // elements; more does not help, fewer leaves misses exposed

template <class Offset>
Offset largest_offset(const Offset* offsets, size_t count) {
  Offset largest = 0;
  for (size_t i = 0; i < count; i++) largest = std::max(largest, offsets[i]);
  return largest;
}

template <class Element, class Offset>
void gather(const Element* memory, const Offset* offsets, size_t count, Element* values) {
  for (size_t i = 0; i < count; i++) {
    if (i + prefetch_distance < count) __builtin_prefetch(memory + offsets[i + prefetch_distance], 0);
    values[i] = memory[offsets[i]];
  }
}

// old = memory at the offsets, changed = old XOR mask.
template <class Element, class Offset>
void gather_xor(const Element* memory, const Offset* offsets, const Element* masks, size_t count,
                Element* old_values, Element* new_values) {
  for (size_t i = 0; i < count; i++) {
    if (i + prefetch_distance < count) __builtin_prefetch(memory + offsets[i + prefetch_distance], 0);
    const Element value = memory[offsets[i]];
    old_values[i] = value;
    new_values[i] = Element(value ^ masks[i]);
  }
}

template <class Element, class Offset>
void scatter(Element* memory, const Offset* offsets, size_t count, const Element* values) {
  for (size_t i = 0; i < count; i++) {
    if (i + prefetch_distance < count) __builtin_prefetch(memory + offsets[i + prefetch_distance], 1);
    memory[offsets[i]] = values[i];
  }
}

}  // namespace native
