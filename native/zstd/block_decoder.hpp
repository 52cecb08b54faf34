// One block at a time, compiled once for each instruction set: RFC 8878 section 3.1.1.2.
#pragma once
#include "../cpu.hpp"
#include "workspace.hpp"

namespace native::zstd {

struct BlockDecoder {
  // The content of a compressed block (section 3.1.1.3) appended to the dense window if that is active, else
  // to the history; either has room for it. `margin` bytes on both sides of [at, end) are readable.
  Error (*decode_compressed)(Workspace&, const uint8_t* at, const uint8_t* end);
  // Bytes appended to the history, which has room for them; `margin` bytes behind them are readable.
  void (*append_bytes)(History&, const uint8_t* data, uint32_t length);
  // The nonzero ones of `length` bytes, as positions from `start` on and values, from index `size` on; the
  // new size. `margin` bytes behind the data are readable, as many entries behind the result are written.
  size_t (*append_run)(uint32_t* positions, uint8_t* values, size_t size, const uint8_t* data,
                       uint32_t length, uint32_t start);
};

const BlockDecoder& block_decoder(InstructionSet);

}  // namespace native::zstd
