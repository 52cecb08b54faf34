// The last window of decoded bytes, as a dense decoder keeps it: RFC 8878 section 3.1.1.1.2.
//
// Where nonzero bytes are many, executing sequences over bytes and scanning the result is faster than
// executing them over (position, value) pairs. Memory is only taken once that happens: a few windows, or the
// frame's content if smaller.
#pragma once
#include <cstdlib>
#include <cstring>

#include "history.hpp"
#include "limits.hpp"
#include "xxh64.hpp"

namespace native::zstd {

class DenseWindow {
 public:
  static constexpr uint64_t window_bytes_max = 32 << 20;  // beyond it the sparse history serves any density
  static constexpr size_t overshoot = 64;                 // bytes behind `end` that copies may overwrite

  uint8_t* memory = nullptr;
  size_t end = 0;            // the frame's last bytes, at least a window of them: memory[0, end)
  bool active = false;       // whether the next block is decoded into this window
  bool whole_frame = false;  // whether all of the frame so far was, so that its checksum can be verified
  Xxh64 checksum;

  DenseWindow() = default;
  DenseWindow(const DenseWindow&) = delete;
  DenseWindow& operator=(const DenseWindow&) = delete;
  ~DenseWindow() { free(memory); }

  size_t memory_bytes() const { return capacity_; }

  void start_frame(uint64_t window_bytes) {
    active = active && window_bytes <= window_bytes_max;
    whole_frame = active;
    end = 0;
    checksum = Xxh64{};
  }

  // Room for one more block behind the window. False: out of memory.
  bool reserve(uint32_t block_bytes, uint64_t window_bytes, uint64_t content_bytes) {
    const size_t needed = end + block_bytes + overshoot;
    if (needed <= capacity_) return true;
    const size_t roomy = 3 * size_t(window_bytes) + (4 << 20);
    const size_t most = content_bytes < roomy ? size_t(content_bytes) : roomy;
    const size_t wanted = most + block_bytes + overshoot;
    if (wanted > capacity_) {
      auto* grown = static_cast<uint8_t*>(realloc(memory, wanted));
      if (grown == nullptr) return false;
      memory = grown;
      capacity_ = wanted;
      if (needed <= capacity_) return true;
    }
    const size_t kept = end < window_bytes ? end : size_t(window_bytes);
    memmove(memory, memory + end - kept, kept);
    end = kept;
    return end + block_bytes + overshoot <= capacity_;
  }

  // From sparse to dense: writes out the history's last window. False: out of memory.
  bool enter(const History& history, uint64_t window_bytes, uint64_t content_bytes) {
    const size_t span = history.cursor < window_bytes ? history.cursor : size_t(window_bytes);
    end = 0;
    if (!reserve(uint32_t(span), window_bytes, content_bytes)) return false;
    memset(memory, 0, span);
    const uint32_t first = uint32_t(history.cursor - span);
    for (size_t i = history.lower_bound(first); i < history.size; i++) {
      memory[history.positions[i] - first] = history.values[i];
    }
    end = span;
    active = true;
    whole_frame = false;
    return true;
  }

 private:
  size_t capacity_ = 0;
};

}  // namespace native::zstd
