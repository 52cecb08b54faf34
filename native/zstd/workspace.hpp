// What a thread needs to decode blocks; reusable for one payload after the other.
// Holds the state that RFC 8878 section 3.1.1.3 lets a block take over from the blocks before it.
#pragma once
#include "decoded_content.hpp"
#include "dense_window.hpp"
#include "frame.hpp"
#include "history.hpp"
#include "huffman_table.hpp"
#include "repeat_offsets.hpp"
#include "sequence_tables.hpp"

namespace native::zstd {

class Workspace {
  uint8_t literals_memory_[block_size_max + 2 * margin];
  uint8_t block_memory_[block_size_max + 2 * margin];
  alignas(64) uint8_t near_memory_[near_memory_bytes];  // of the history or of the dense window

 public:
  FrameHeader frame;
  HuffmanTable huffman;
  SequenceTables sequences;
  RepeatOffsets repeat;
  DecodedContent content;
  History history;              // where blocks are sparse
  DenseWindow dense;            // where they are not
  size_t nonzero_literals = 0;  // of the block decoded last, at least

  // Leaves memory as it is: touched only where a payload needs it.
  Workspace() : history(&near_memory_[0]), dense(&near_memory_[0]) {}

  uint8_t* literals() { return literals_memory_ + margin; }
  // For a copy of a block that lies too near to an end of the input.
  uint8_t* block() { return block_memory_ + margin; }

  void start_frame(const FrameHeader& header) {
    frame = header;
    huffman.valid = false;
    for (bool& valid : sequences.valid) valid = false;
    repeat = RepeatOffsets{};
    history.start_frame();
    dense.whole_frame = false;
    if (dense.active) dense.start(0);
  }

  void enter_dense_mode() {
    history.forget();
    dense.start(history.frame_offset());
  }
  void leave_dense_mode() {
    dense.active = dense.whole_frame = false;
    history.forget();
    repeat.forget_fingers();
  }
};

}  // namespace native::zstd
