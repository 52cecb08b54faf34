// Several payloads on several threads: ranges of frames are decoded independently and joined per tensor.
// Not part of RFC 8878, which makes frames independent (section 3).
#pragma once
#include <memory>
#include <vector>

#include "elements.hpp"
#include "error.hpp"

namespace native::zstd {

struct DecodeJob {
  const uint8_t* payload;
  size_t payload_bytes;
  uint64_t size_bytes;
  unsigned element_size;
  // Results:
  std::unique_ptr<Elements> elements;
  Failure failure;
  uint64_t verified_checksums = 0, unverified_checksums = 0;
};

struct DecodeOptions {
  uint64_t window_bytes_max;
  unsigned threads;  // at least 1; the caller's thread only waits
  int niceness;      // added to the threads' own, so that serving comes first
};

// Decodes all jobs, each to its elements or its failure. Takes the largest ranges first.
void decode_parallel(std::vector<DecodeJob>& jobs, const DecodeOptions& options);

}  // namespace native::zstd
