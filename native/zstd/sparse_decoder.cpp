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
    const FrameHeader& frame = header.frame;
    if (frame.window_bytes > window_bytes_max_) {
      return fail(Error::window_limit, window_bytes_max_, frame.window_bytes);
    }
    if (frame.has_content_bytes && frame.content_bytes > size_bytes_ - decoded_bytes_) {
      return fail(Error::output_size, size_bytes_ - decoded_bytes_, frame.content_bytes);
    }
    workspace_.start_frame(frame);
    frame_start_bytes_ = decoded_bytes_;
    expect_ = Expect::block;
  }
  offset_ += header.size;
  return Error::none;
}

Error SparseDecoder::read_block() {
  const FrameHeader& frame = workspace_.frame;
  const size_t left = available_ - offset_;
  if (left < BlockHeader::bytes) return Error::need_input;
  const BlockHeader header = BlockHeader::read(input_ + offset_);
  if (header.type == BlockHeader::reserved) return Error::block_type;
  if (header.size > frame.block_bytes_max) return fail(Error::block_size, frame.block_bytes_max, header.size);
  if (left - BlockHeader::bytes < header.stored_bytes()) return Error::need_input;

  History& history = workspace_.history;
  const uint64_t base = history.base;
  if (!history.reserve(frame.block_bytes_max, frame.window_bytes)) return Error::out_of_memory;
  if (history.base != base) workspace_.repeat.forget_fingers();
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
    if (frame.has_content_bytes && frame.content_bytes != content_bytes) {
      return fail(Error::content_size, frame.content_bytes, content_bytes);
    }
    expect_ = Expect::checksum;
  }
  offset_ += BlockHeader::bytes + header.stored_bytes();
  return Error::none;
}

Error SparseDecoder::decode_block(const BlockHeader& header, const uint8_t* content) {
  History& history = workspace_.history;
  switch (header.type) {
    case BlockHeader::raw:
      blocks_.append_bytes(history, with_margins(content, header.size), header.size);
      return Error::none;
    case BlockHeader::run:
      if (*content == 0) {
        history.advance(history.cursor + header.size);
      } else {
        memset(workspace_.literals(), *content, header.size);
        blocks_.append_bytes(history, workspace_.literals(), header.size);
      }
      return Error::none;
    default: {
      const uint8_t* at = with_margins(content, header.size);
      return blocks_.decode_compressed(workspace_, at, at + header.size);
    }
  }
}

// The block itself or, where it lies too near to an end of the input, a copy.
const uint8_t* SparseDecoder::with_margins(const uint8_t* content, uint32_t stored_bytes) {
  const size_t before = size_t(content - input_), after = available_ - before - stored_bytes;
  if (before >= margin && after >= margin) return content;
  memcpy(workspace_.block(), content, stored_bytes);
  return workspace_.block();
}

Error SparseDecoder::end_frame() {
  const size_t checksum_bytes = workspace_.frame.has_checksum ? 4 : 0;
  if (available_ - offset_ < checksum_bytes) return Error::need_input;
  offset_ += checksum_bytes;
  unverified_checksums_ += workspace_.frame.has_checksum;
  frames_++;
  expect_ = Expect::frame;
  return Error::none;
}

}  // namespace native::zstd
