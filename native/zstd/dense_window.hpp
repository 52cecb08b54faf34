// The bytes decoded last, as a dense decoder keeps them: RFC 8878 section 3.1.1.1.2.
//
// Where nonzero bytes are many, executing sequences over bytes and scanning the result is faster than
// executing them over (position, value) pairs. Only the last few blocks are kept; what matches reach behind
// them is read from the output (decoded_content.hpp).
#pragma once
#include <cstring>

#include "limits.hpp"
#include "xxh64.hpp"

namespace native::zstd {

class DenseWindow {
 public:
  static constexpr size_t overshoot = 2 * margin;  // bytes behind `end` that loops may overwrite or read

  uint8_t* const memory;
  size_t end = 0;            // the frame's last bytes: memory[0, end)
  bool active = false;       // whether the next block is decoded into this window
  bool whole_frame = false;  // whether all of the frame so far was, so that its checksum can be verified
  Xxh64 checksum;

  // Uses the `near_memory_bytes` at `memory`.
  explicit DenseWindow(uint8_t* memory) : memory(memory) {}
  DenseWindow(const DenseWindow&) = delete;
  DenseWindow& operator=(const DenseWindow&) = delete;

  // From here on the frame's blocks are decoded densely.
  void start(uint64_t frame_offset) {
    active = true;
    end = 0;
    whole_frame = frame_offset == 0;
    checksum = Xxh64{};
  }

  // Room for one more block behind what is kept.
  void make_room() {
    if (end + block_size_max <= capacity) return;
    memmove(memory, memory + end - kept, kept);
    end = kept;
  }

 private:
  static constexpr size_t kept = 2 * block_size_max, capacity = 5 * block_size_max;
  static_assert(capacity + overshoot <= near_memory_bytes);
};

}  // namespace native::zstd
