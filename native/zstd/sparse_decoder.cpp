#include "sparse_decoder.hpp"

namespace native::zstd {

bool SparseDecoder::advance(const uint8_t* input, size_t available) {
  input_ = input;
  available_ = available;
  Error error = failure_.error;
  while (error == Error::none && (expect_ != Expect::frame || offset_ < available_)) {
    switch (expect_) {
      case Expect::frame: error = read_frame_header(); break;
      case Expect::block: error = read_block(); break;
      case Expect::checksum: error = end_frame(); break;
    }
  }
  if (error == Error::none || error == Error::need_input) return true;
  if (failure_.error == Error::none) fail(error, 0, 0);
  return false;
}

bool SparseDecoder::finish(size_t available) {
  if (failure_.error != Error::none) return false;
  if (expect_ != Expect::frame || offset_ != available)
    fail(Error::need_input, 0, 0);
  else if (decoded_bytes_ != size_bytes_)
    fail(Error::output_size, size_bytes_, decoded_bytes_);
  return failure_.error == Error::none;
}

Error SparseDecoder::fail(Error error, uint64_t expected, uint64_t found) {
  failure_ = {error, offset_, expected, found};
  return error;
}

Error SparseDecoder::read_frame_header() {
  Header header;
  const Error error = read_header(input_ + offset_, available_ - offset_, header);
  if (error != Error::none) return error;
  if (!header.skippable) {
    frame_ = header.frame;
    if (frame_.window_bytes > window_bytes_max_)
      return fail(Error::window_limit, window_bytes_max_, frame_.window_bytes);
    if (frame_.has_content_bytes && frame_.content_bytes > size_bytes_ - decoded_bytes_) {
      return fail(Error::output_size, size_bytes_ - decoded_bytes_, frame_.content_bytes);
    }
    workspace_.history.start_frame();
    workspace_.huffman.valid = false;
    for (auto& table : workspace_.sequences.current) table = nullptr;
    repeat_ = RepeatOffsets{};
    frame_start_bytes_ = decoded_bytes_;
    expect_ = Expect::block;
  }
  offset_ += header.size;
  return Error::none;
}

Error SparseDecoder::read_block() {
  const size_t left = available_ - offset_;
  if (left < BlockHeader::bytes) return Error::need_input;
  const BlockHeader header = BlockHeader::read(input_ + offset_);
  if (header.type == BlockHeader::reserved) return Error::block_type;
  if (header.size > frame_.block_bytes_max)
    return fail(Error::block_size, frame_.block_bytes_max, header.size);
  if (left - BlockHeader::bytes < header.stored_bytes()) return Error::need_input;

  History& history = workspace_.history;
  if (!history.reserve(frame_.block_bytes_max, frame_.window_bytes)) return Error::out_of_memory;
  const size_t first_entry = history.size;
  const uint64_t before = history.base + history.cursor;
  if (Error error = decode_block(header, input_ + offset_ + BlockHeader::bytes); error != Error::none)
    return error;

  const uint64_t block_bytes = history.base + history.cursor - before;
  if (block_bytes > size_bytes_ - decoded_bytes_) {
    return fail(Error::output_size, size_bytes_, decoded_bytes_ + block_bytes);
  }
  decoded_bytes_ += block_bytes;
  if (!elements_.append(history.positions + first_entry, history.values + first_entry,
                        history.size - first_entry, frame_start_bytes_ + history.base)) {
    return Error::out_of_memory;
  }
  if (header.last) {
    const uint64_t content_bytes = decoded_bytes_ - frame_start_bytes_;
    if (frame_.has_content_bytes && frame_.content_bytes != content_bytes) {
      return fail(Error::content_size, frame_.content_bytes, content_bytes);
    }
    expect_ = Expect::checksum;
  }
  offset_ += BlockHeader::bytes + header.stored_bytes();
  return Error::none;
}

Error SparseDecoder::decode_block(const BlockHeader& header, const uint8_t* content) {
  History& history = workspace_.history;
  switch (header.type) {
    case BlockHeader::raw: append_literals(history, content, header.size); return Error::none;
    case BlockHeader::run:
      if (*content == 0) {
        history.advance(history.cursor + header.size);
      } else {
        memset(workspace_.literals, *content, header.size);
        append_literals(history, workspace_.literals, header.size);
      }
      return Error::none;
    default: {
      const size_t before = size_t(content - input_), after = available_ - before - header.size;
      if (before >= margin && after >= margin) return decode_compressed_block(content, header.size);
      uint8_t* copy = workspace_.block + margin;
      memcpy(copy, content, header.size);
      return decode_compressed_block(copy, header.size);
    }
  }
}

// Section 3.1.1.3. `margin` bytes on both sides of the block are readable.
Error SparseDecoder::decode_compressed_block(const uint8_t* at, uint32_t stored_bytes) {
  const uint8_t* end = at + stored_bytes;
  Literals literals;
  Error error = read_literals(at, end, frame_.block_bytes_max, workspace_.huffman,
                              workspace_.literals + margin, literals);
  if (error != Error::none) return error;
  uint32_t count;
  error = read_sequence_count(at, end, count);
  if (error == Error::none && count > 0) error = read_sequence_tables(at, end, workspace_.sequences);
  if (error == Error::none && count == 0 && at != end) error = Error::sequences_header;
  if (error != Error::none) return error;
  return execute_sparse(workspace_.sequences, at, end, count, literals, frame_.block_bytes_max,
                        frame_.window_bytes, repeat_, workspace_.history);
}

Error SparseDecoder::end_frame() {
  const size_t checksum_bytes = frame_.has_checksum ? 4 : 0;
  if (available_ - offset_ < checksum_bytes) return Error::need_input;
  offset_ += checksum_bytes;
  unverified_checksums_ += frame_.has_checksum;
  frames_++;
  expect_ = Expect::frame;
  return Error::none;
}

}  // namespace native::zstd
