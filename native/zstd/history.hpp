// The nonzero ones of the bytes decoded last, kept as (position, value) pairs: what a window is to a dense
// decoder. RFC 8878 section 3.1.1.1.2 lets a match reach back one window; what lies before `oldest` is read
// from the output instead (decoded_content.hpp), so that memory is bounded.
//
// Positions are 32-bit and count from `base`, which stays at least the largest window behind.
#pragma once
#include <algorithm>
#include <cstring>

#include "bytes.hpp"
#include "limits.hpp"

namespace native::zstd {

class History {
 public:
  static constexpr unsigned bucket_log = 13;  // one lower bound for every 8 KiB of content
  // Entries, apart from what vector stores may write behind them.
  static constexpr size_t capacity = near_memory_bytes / (sizeof(uint32_t) + sizeof(uint8_t)) - 2 * margin;

  uint32_t* const positions;  // ascending
  uint8_t* const values;      // never 0
  size_t size = 0;
  uint64_t base = 0;    // frame offset of position 0
  uint32_t cursor = 0;  // position of the next byte to decode
  uint32_t oldest = 0;  // every nonzero byte from here to the cursor has its entry

  // Lays itself out in the `near_memory_bytes` at `memory`.
  explicit History(uint8_t* memory)
      : positions(reinterpret_cast<uint32_t*>(memory)),
        values(memory + (capacity + 2 * margin) * sizeof *positions) {}
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  uint64_t frame_offset() const { return base + cursor; }

  void start_frame() {
    base = cursor = 0;
    forget();
  }

  // Drops all entries: the memory may now be used for something else.
  void forget() {
    size = 0;
    oldest = cursor;
    filled_ = (cursor >> bucket_log) + 1;
    bucket(cursor) = 0;
  }

  // Moves the cursor over content that gets no entries; nothing before may have any.
  void skip(uint32_t length) {
    cursor += length;
    rebase();
    forget();
  }

  // To be called before every block. Drops old entries where there are many; returns whether it did, or moved
  // the base.
  bool make_room() {
    const bool many = size > capacity / 2 || cursor - oldest > span_max;
    if (many) drop(std::min(size, capacity / 4), span_max / 2);
    return rebase() || many;
  }

  // Entries before this one lie before the position's bucket; for positions from `oldest` to the cursor's
  // bucket.
  NATIVE_INLINE uint32_t& bucket(uint32_t position) {
    return buckets_[(position >> bucket_log) % bucket_count];
  }
  NATIVE_INLINE uint32_t bucket(uint32_t position) const {
    return buckets_[(position >> bucket_log) % bucket_count];
  }

  // Where the next bucket after the cursor's starts.
  NATIVE_INLINE uint32_t bucket_end() const { return filled_ << bucket_log; }

  // Sets the lower bound of every bucket that starts behind the cursor's and up to `position`; returns where
  // the next one starts. To be called before the entries on the way are appended: a bound may be too low,
  // never too high.
  NATIVE_INLINE uint32_t fill_buckets(uint32_t position, size_t entries) {
    uint32_t k = filled_;
    for (; k <= position >> bucket_log; k++) buckets_[k % bucket_count] = uint32_t(entries);
    filled_ = k;
    return k << bucket_log;
  }

  // Moves the cursor; before the entries on the way are appended.
  NATIVE_INLINE void advance(uint32_t position) {
    fill_buckets(position, size);
    cursor = position;
  }

 private:
  static constexpr uint32_t bucket_count = 1 << 13;
  static constexpr uint32_t bucket_span = bucket_count << bucket_log;  // 64 MiB
  static constexpr uint32_t span_max = bucket_span - 4 * block_size_max;
  static constexpr uint32_t rebase_at = 3u << 30;

  uint32_t filled_ = 1;  // the first bucket without a bound
  uint32_t buckets_[bucket_count] = {};

  // Keeps at most so many entries, and none further behind the cursor than `span`.
  void drop(size_t entries, uint32_t span) {
    size_t dropped = size - entries;
    if (cursor - oldest > span) oldest = cursor - span;
    if (dropped > 0) oldest = std::max(oldest, positions[dropped - 1] + 1);
    while (dropped < size && positions[dropped] < oldest) dropped++;
    size -= dropped;
    memmove(positions, positions + dropped, size * sizeof *positions);
    memmove(values, values + dropped, size);
    for (uint32_t& bound : buckets_) bound = bound > dropped ? uint32_t(bound - dropped) : 0;
  }

  // Keeps positions in 32 bits; by whole rounds of the buckets, so that these stay where they are.
  bool rebase() {
    if (cursor < rebase_at) return false;
    const uint32_t cut = (cursor - window_bytes_limit - bucket_span) / bucket_span * bucket_span;
    for (size_t i = 0; i < size; i++) positions[i] -= cut;
    base += cut;
    cursor -= cut;
    oldest -= cut;
    filled_ -= cut >> bucket_log;
    return true;
  }
};

}  // namespace native::zstd
