// What a thread needs to decode blocks; reusable for one payload after the other.
// Holds the state that RFC 8878 section 3.1.1.3 lets a block take over from the blocks before it.
#pragma once
#include "dense_window.hpp"
#include "frame.hpp"
#include "history.hpp"
#include "huffman_table.hpp"
#include "repeat_offsets.hpp"
#include "sequence_tables.hpp"

namespace native::zstd {

struct Workspace {
  FrameHeader frame;
  HuffmanTable huffman;
  SequenceTables sequences;
  RepeatOffsets repeat;
  History history;              // where blocks are sparse
  DenseWindow dense;            // where they are not
  size_t nonzero_literals = 0;  // of the block decoded last, at least
  uint8_t literals_memory[block_size_max + 2 * margin];
  uint8_t block_memory[block_size_max +
                       2 * margin];  // a copy of a block that lies too near to an end of the input

  uint8_t* literals() { return literals_memory + margin; }
  uint8_t* block() { return block_memory + margin; }

  // What dense tensors have made it take, beyond its own size.
  size_t memory_bytes() const { return history.memory_bytes() + dense.memory_bytes(); }

  void start_frame(const FrameHeader& header) {
    frame = header;
    huffman.valid = false;
    for (bool& valid : sequences.valid) valid = false;
    repeat = RepeatOffsets{};
    history.restart(0);
    dense.start_frame(header.window_bytes);
  }
};

}  // namespace native::zstd
