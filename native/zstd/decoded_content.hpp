// What was decoded before, read back from the output. RFC 8878 section 3.1.1.1.2 lets a match reach back one
// window, megabytes; the decoder keeps only the near part of it in a form of its own (history.hpp,
// dense_window.hpp), so that a thread's memory does not grow with windows and densities. The few matches that
// reach further are served from here.
#pragma once
#include "elements.hpp"

namespace native::zstd {

class DecodedContent {
 public:
  static constexpr unsigned grain_log_min = 13;

  // A frame whose content starts at the tensor's byte `start_bytes`.
  void start_frame(const Elements& elements, uint64_t start_bytes, uint64_t window_bytes);

  // To be called before the elements of the content up to `frame_offset` are appended.
  void advance(uint64_t frame_offset) {
    const uint64_t first = elements_->size() > 0 ? elements_->size() - 1 : 0;
    for (; next_ <= frame_offset >> grain_log_; next_++) marks_[next_ % marks] = first;
  }

  // Writes `count` bytes of the frame's content from `frame_offset` on. All of them must have been appended,
  // the first of them at most a window ago.
  void read(uint64_t frame_offset, size_t count, uint8_t* out) const;

 private:
  static constexpr unsigned marks_log = 12;
  static constexpr uint64_t marks = 1 << marks_log;

  const Elements* elements_ = nullptr;
  uint64_t start_bytes_ = 0;
  unsigned grain_log_ = grain_log_min;  // marks are so far apart that they span two windows
  uint64_t next_ = 0;                   // the first grain without a mark
  uint64_t marks_[marks];               // elements before marks_[k % marks] lie before byte k << grain_log_
};

}  // namespace native::zstd
