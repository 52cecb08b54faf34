// Where the frames of a payload lie, found by walking block headers only: RFC 8878 sections 3.1.1.1
// and 3.1.1.2.
#pragma once
#include <cstddef>
#include <vector>

#include "frame.hpp"

namespace native::zstd {

// Consecutive frames that are decoded together.
struct FrameRange {
  size_t offset, size;     // in the payload
  uint64_t content_bytes;  // decoded; as the frames claim
};

// Splits a payload of whole frames into ranges of at least `content_bytes_min` content where frames allow it.
// A single range with content_bytes = `size_bytes` if any frame does not state its content size, or if
// anything is malformed: the decoder will then say what. Skippable frames belong to the range before them.
std::vector<FrameRange> split_frames(const uint8_t* payload, size_t size, uint64_t size_bytes,
                                     uint64_t content_bytes_min);

}  // namespace native::zstd
