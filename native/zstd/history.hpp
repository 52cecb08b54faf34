// The decoded bytes that are not zero, kept as (position, value) pairs: what a window is to a dense decoder.
//
// RFC 8878 section 3.1.1.1.2 lets a match reach back one window; entries older than that are dropped by
// `slide`. Positions are 32-bit and count from `base`, which moves with `slide`, so frames of any length
// work.
#pragma once
#include <cstdlib>
#include <cstring>

#include "bytes.hpp"
#include "limits.hpp"

namespace native::zstd {

class History {
 public:
  static constexpr unsigned bucket_log = 13;  // one lower bound for every 8 KiB of content

  uint32_t* positions = nullptr;  // ascending
  uint8_t* values = nullptr;      // never 0
  uint32_t* buckets = nullptr;    // entries before buckets[k] lie before k << bucket_log
  size_t size = 0;
  uint64_t base = 0;    // frame offset of position 0
  uint32_t cursor = 0;  // position of the next byte to decode

  History() = default;
  History(const History&) = delete;
  History& operator=(const History&) = delete;
  ~History() {
    free(positions);
    free(values);
    free(buckets);
  }

  // Forgets everything; the cursor is at this offset of the frame.
  void restart(uint64_t frame_offset) {
    size = 0;
    base = frame_offset;
    cursor = 0;
    filled_ = 1;
  }

  uint64_t frame_offset() const { return base + cursor; }
  size_t memory_bytes() const { return capacity_ * (sizeof *positions + sizeof *values); }

  // Makes room for a block of `block_bytes`, every byte of which may become an entry. False: out of memory.
  bool reserve(uint32_t block_bytes, uint64_t window_bytes) {
    const uint32_t slide_at = window_bytes > (16u << 20) ? uint32_t(2 * window_bytes) : 32u << 20;
    if (cursor >= slide_at || size >= slide_entries_) slide(window_bytes);
    if (size + size_t(size) / 2 > slide_entries_) slide_entries_ = 2 * size;
    const size_t entries = size + block_bytes + margin;
    if (entries > capacity_ && !grow(entries)) return false;
    const size_t buckets_needed = ((size_t(cursor) + block_bytes) >> bucket_log) + margin;
    return buckets_needed <= bucket_capacity_ || grow_buckets(buckets_needed);
  }

  // The first entry at or after `position`, for positions up to the cursor.
  NATIVE_INLINE size_t lower_bound(uint32_t position) const {
    size_t low = buckets[position >> bucket_log], high = size;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (positions[middle] < position)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  // Where the next bucket after the cursor's starts.
  NATIVE_INLINE uint32_t bucket_end() const { return filled_ << bucket_log; }

  // Sets the lower bound of every bucket that starts behind the cursor's and up to `position`; returns where
  // the next one starts. To be called before the entries on the way are appended: a bound may be too low,
  // never too high.
  NATIVE_INLINE uint32_t fill_buckets(uint32_t position, size_t entries) {
    uint32_t k = filled_;
    for (; k <= position >> bucket_log; k++) buckets[k] = uint32_t(entries);
    filled_ = k;
    return k << bucket_log;
  }

  // Moves the cursor; before the entries on the way are appended.
  NATIVE_INLINE void advance(uint32_t position) {
    fill_buckets(position, size);
    cursor = position;
  }

 private:
  size_t capacity_ = 0, bucket_capacity_ = 0;
  uint32_t filled_ = 1;  // buckets that have a bound
  size_t slide_entries_ = 64 << 10;

  // Drops what lies more than a window behind the cursor.
  void slide(uint64_t window_bytes) {
    if (cursor <= window_bytes) return;
    const uint32_t cut = uint32_t(cursor - window_bytes) >> bucket_log << bucket_log;
    const size_t dropped = lower_bound(cut);
    size -= dropped;
    for (size_t i = 0; i < size; i++) positions[i] = positions[dropped + i] - cut;
    memmove(values, values + dropped, size);
    const uint32_t first = cut >> bucket_log;
    for (uint32_t k = first; k < filled_; k++) {
      buckets[k - first] = buckets[k] > dropped ? uint32_t(buckets[k] - dropped) : 0;
    }
    filled_ -= first;
    base += cut;
    cursor -= cut;
  }

  bool grow(size_t entries) {
    const size_t capacity = entries + entries / 2;
    auto* positions_now = static_cast<uint32_t*>(realloc(positions, capacity * sizeof *positions));
    if (positions_now != nullptr) positions = positions_now;
    auto* values_now = static_cast<uint8_t*>(realloc(values, capacity));
    if (values_now != nullptr) values = values_now;
    if (positions_now == nullptr || values_now == nullptr) return false;
    capacity_ = capacity;
    return true;
  }

  bool grow_buckets(size_t count) {
    auto* now = static_cast<uint32_t*>(realloc(buckets, 2 * count * sizeof *buckets));
    if (now == nullptr) return false;
    if (bucket_capacity_ == 0) now[0] = 0;
    buckets = now;
    bucket_capacity_ = 2 * count;
    return true;
  }
};

}  // namespace native::zstd
