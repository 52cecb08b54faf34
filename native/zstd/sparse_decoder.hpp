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
  // The content is that of a tensor's bytes [start_bytes, start_bytes + size_bytes).
  SparseDecoder(Workspace& workspace, Elements& elements, uint64_t size_bytes, uint64_t window_bytes_max,
                uint64_t start_bytes = 0)
      : blocks_(block_decoder(active_instruction_set())),
        workspace_(workspace),
        elements_(elements),
        size_bytes_(size_bytes),
        start_bytes_(start_bytes),
        window_bytes_max_(window_bytes_max) {
    workspace_.dense.active = false;  // what came before must not show
  }

  // Decodes every complete block among the first `available` bytes. False after a failure.
  bool advance(const uint8_t* input, size_t available);
  // False unless the input ended with a frame and the content has the tensor's length.
  bool finish(size_t available);

  const Failure& failure() const { return failure_; }
  uint64_t decoded_bytes() const { return decoded_bytes_; }
  uint64_t frames() const { return frames_; }
  // Content checksums of frames: verified where all of a frame was decoded densely, else skipped.
  uint64_t verified_checksums() const { return verified_checksums_; }
  uint64_t unverified_checksums() const { return unverified_checksums_; }

 private:
  enum class Expect { frame, block, checksum } expect_ = Expect::frame;

  const BlockDecoder& blocks_;
  Workspace& workspace_;
  Elements& elements_;
  const uint64_t size_bytes_, start_bytes_, window_bytes_max_;
  const uint8_t* input_ = nullptr;
  size_t offset_ = 0, available_ = 0;
  uint64_t decoded_bytes_ = 0, frame_start_bytes_ = 0, frames_ = 0;
  uint64_t nonzero_bytes_ = 0;  // of the block decoded last
  uint64_t late_bytes_ = 0,
           late_copied_ = 0;  // of the blocks of late, and the nonzero bytes that matches copied
  uint64_t verified_checksums_ = 0, unverified_checksums_ = 0;
  Failure failure_;

  Error read_frame_header();
  Error read_block();
  Error decode_sparsely(const BlockHeader& header, const uint8_t* content);
  Error decode_densely(const BlockHeader& header, const uint8_t* content);
  Error accept(uint64_t bytes);
  Error accept_entries(size_t first, uint64_t bytes);
  Error append_elements(const uint32_t* positions, const uint8_t* values, size_t count, uint64_t base,
                        uint64_t frame_offset);
  void choose_mode(uint64_t block_bytes);
  const uint8_t* with_margins(const uint8_t* content, uint32_t stored_bytes);
  Error end_frame();
  Error fail(Error error, uint64_t expected, uint64_t found);
};

}  // namespace native::zstd
