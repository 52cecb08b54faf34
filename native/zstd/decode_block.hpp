// A compressed block: RFC 8878 section 3.1.1.3. Included by one file for each instruction set; everything
// that this file includes has internal linkage or is always inlined, so that code for one processor never
// serves another.
#pragma once
#include "block_decoder.hpp"
#include "execute_dense.hpp"
#include "execute_sparse.hpp"
#include "literals.hpp"
#include "sequences_header.hpp"

namespace native::zstd {

static inline size_t count_nonzero(Literals literals) {
  size_t count = 0, done = 0;
  for (; literals.size - done >= 64; done += 64) {
    count += size_t(__builtin_popcountll(simd::nonzero_mask(literals.data + done)));
  }
  return count + size_t(__builtin_popcountll(
                     low_bits(simd::nonzero_mask(literals.data + done), unsigned(literals.size - done))));
}

static Error decode_compressed_block(Workspace& workspace, const uint8_t* at, const uint8_t* end) {
  const uint32_t block_bytes_max = workspace.frame.block_bytes_max;
  Literals literals;
  Error error = read_literals(at, end, block_bytes_max, workspace.huffman, workspace.literals(), literals);
  if (error != Error::none) return error;
  workspace.nonzero_literals = count_nonzero(literals);
  uint32_t count;
  error = read_sequence_count(at, end, count);
  if (error == Error::none && count > 0) error = read_sequence_tables(at, end, workspace.sequences);
  if (error == Error::none && count == 0 && at != end) error = Error::sequences_header;
  if (error != Error::none) return error;
  return workspace.dense.active ? execute_dense(workspace, at, end, count, literals)
                                : execute_sparse(workspace, at, end, count, literals);
}

}  // namespace native::zstd
