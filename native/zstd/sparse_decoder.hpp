// Frames and blocks of a whole payload: RFC 8878 section 3.1 (frames), 3.1.1.2 (blocks).
#pragma once
#include "block_decoder.hpp"
#include "elements.hpp"
#include "error.hpp"

namespace native::zstd {

// Decodes concatenated frames of parent XOR new into elements. `advance` may be called again and again as
// more of the input arrives at the same address; `finish` says whether what arrived was a whole payload.
class SparseDecoder {
 public:
  SparseDecoder(Workspace& workspace, Elements& elements, uint64_t size_bytes, uint64_t window_bytes_max)
      : blocks_(block_decoder(active_instruction_set())),
        workspace_(workspace),
        elements_(elements),
        size_bytes_(size_bytes),
        window_bytes_max_(window_bytes_max) {}

  // Decodes every complete block among the first `available` bytes. False after a failure.
  bool advance(const uint8_t* input, size_t available);
  // False unless the input ended with a frame and the content has the tensor's length.
  bool finish(size_t available);

  const Failure& failure() const { return failure_; }
  uint64_t decoded_bytes() const { return decoded_bytes_; }
  uint64_t frames() const { return frames_; }
  uint64_t unverified_checksums() const { return unverified_checksums_; }

 private:
  enum class Expect { frame, block, checksum } expect_ = Expect::frame;

  const BlockDecoder& blocks_;
  Workspace& workspace_;
  Elements& elements_;
  const uint64_t size_bytes_, window_bytes_max_;
  const uint8_t* input_ = nullptr;
  size_t offset_ = 0, available_ = 0;
  uint64_t decoded_bytes_ = 0, frame_start_bytes_ = 0, frames_ = 0, unverified_checksums_ = 0;
  Failure failure_;

  Error read_frame_header();
  Error read_block();
  Error decode_block(const BlockHeader& header, const uint8_t* content);
  const uint8_t* with_margins(const uint8_t* content, uint32_t stored_bytes);
  Error end_frame();
  Error fail(Error error, uint64_t expected, uint64_t found);
};

}  // namespace native::zstd
