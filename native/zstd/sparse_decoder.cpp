#include "sparse_decoder.hpp"

namespace native::zstd {
namespace {

// Measured (native.bench, 1% to 10%, levels 1 to 9): both modes take 13 ns a sequence; sparse execution adds
// 35 ns for every nonzero byte that a match copies, dense execution 16 us for every 128 KiB, most of it for
// copying zeros and for finding the nonzero bytes again. So blocks are cheaper densely from about one copied
// byte in 285 on. A change of mode rewrites the window, about as much work as six blocks: so it goes by the
// blocks of late, the last one counting a sixteenth, and with a margin between entering and leaving.
constexpr uint64_t enter_dense_ratio = 256, leave_dense_ratio = 400;

}  // namespace

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
  const bool dense = workspace_.dense.active;
  const uint64_t before = history.frame_offset(), base = history.base;
  if (dense) history.restart(before);
  if (!history.reserve(frame.block_bytes_max, frame.window_bytes)) return Error::out_of_memory;
  if (history.base != base) workspace_.repeat.forget_fingers();
  const size_t first_entry = history.size;
  const uint8_t* content = input_ + offset_ + BlockHeader::bytes;
  workspace_.nonzero_literals = header.size;
  Error error = dense ? decode_densely(header, content) : decode_sparsely(header, content);
  if (error != Error::none) return error;

  const uint64_t block_bytes = history.frame_offset() - before;
  const size_t entries = history.size - first_entry, literals = workspace_.nonzero_literals;
  const size_t copied = entries > literals ? entries - literals : 0;
  error = accept_block(block_bytes, first_entry);
  if (error == Error::none) error = choose_mode(block_bytes, copied, header.last);
  if (error != Error::none) return error;
  if (header.last) {
    if (frame.has_content_bytes && frame.content_bytes != history.frame_offset()) {
      return fail(Error::content_size, frame.content_bytes, history.frame_offset());
    }
    expect_ = Expect::checksum;
  }
  offset_ += BlockHeader::bytes + header.stored_bytes();
  return Error::none;
}

Error SparseDecoder::accept_block(uint64_t block_bytes, size_t first_entry) {
  const History& history = workspace_.history;
  if (history.frame_offset() > workspace_.frame.content_bytes) {
    return fail(Error::content_size, workspace_.frame.content_bytes, history.frame_offset());
  }
  if (block_bytes > size_bytes_ - decoded_bytes_) {
    return fail(Error::output_size, size_bytes_, decoded_bytes_ + block_bytes);
  }
  decoded_bytes_ += block_bytes;
  const bool appended =
      elements_.append(history.positions + first_entry, history.values + first_entry,
                       history.size - first_entry, start_bytes_ + frame_start_bytes_ + history.base);
  return appended ? Error::none : Error::out_of_memory;
}

Error SparseDecoder::decode_sparsely(const BlockHeader& header, const uint8_t* content) {
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

// In dense mode the history holds the entries of one block only.
Error SparseDecoder::decode_densely(const BlockHeader& header, const uint8_t* content) {
  DenseWindow& dense = workspace_.dense;
  const FrameHeader& frame = workspace_.frame;
  if (!dense.reserve(frame.block_bytes_max, frame.window_bytes, frame.content_bytes))
    return Error::out_of_memory;
  const size_t begin = dense.end;
  switch (header.type) {
    case BlockHeader::raw:
      memcpy(dense.memory + begin, content, header.size);
      dense.end += header.size;
      break;
    case BlockHeader::run:
      memset(dense.memory + begin, *content, header.size);
      dense.end += header.size;
      break;
    default: {
      const uint8_t* at = with_margins(content, header.size);
      const Error error = blocks_.decode_compressed(workspace_, at, at + header.size);
      if (error != Error::none) return error;
    }
  }
  const uint32_t block_bytes = uint32_t(dense.end - begin);
  if (frame.has_checksum && dense.whole_frame) dense.checksum.update(dense.memory + begin, block_bytes);
  blocks_.append_bytes(workspace_.history, dense.memory + begin, block_bytes);
  return Error::none;
}

// The next block will be about as those of late.
Error SparseDecoder::choose_mode(uint64_t block_bytes, size_t copied, bool last) {
  DenseWindow& dense = workspace_.dense;
  const FrameHeader& frame = workspace_.frame;
  late_bytes_ += block_bytes - late_bytes_ / 16;
  late_copied_ += copied - late_copied_ / 16;
  if (dense.active && late_copied_ * leave_dense_ratio < late_bytes_) {
    if (!last) return leave_dense_mode();
    dense.active = false;
  } else if (!dense.active && late_copied_ * enter_dense_ratio > late_bytes_ &&
             frame.window_bytes <= DenseWindow::window_bytes_max) {
    if (last)
      dense.active = true;
    else if (!dense.enter(workspace_.history, frame.window_bytes, frame.content_bytes))
      return Error::out_of_memory;
    dense.whole_frame = false;
  }
  return Error::none;
}

// From dense to sparse: the nonzero bytes of the last window become the history.
Error SparseDecoder::leave_dense_mode() {
  DenseWindow& dense = workspace_.dense;
  History& history = workspace_.history;
  const FrameHeader& frame = workspace_.frame;
  const size_t span = dense.end < frame.window_bytes ? dense.end : size_t(frame.window_bytes);
  history.restart(history.frame_offset() - span);
  for (size_t left = span; left > 0;) {
    const uint32_t part = left < block_size_max ? uint32_t(left) : block_size_max;
    if (!history.reserve(part, frame.window_bytes)) return Error::out_of_memory;
    blocks_.append_bytes(history, dense.memory + dense.end - left, part);
    left -= part;
  }
  workspace_.repeat.forget_fingers();
  dense.active = dense.whole_frame = false;
  return Error::none;
}

// The block itself or, where it lies too near to an end of the input, a copy.
const uint8_t* SparseDecoder::with_margins(const uint8_t* content, uint32_t stored_bytes) {
  const size_t before = size_t(content - input_), after = available_ - before - stored_bytes;
  if (before >= margin && after >= margin) return content;
  memcpy(workspace_.block(), content, stored_bytes);
  return workspace_.block();
}

Error SparseDecoder::end_frame() {
  if (workspace_.frame.has_checksum) {
    if (available_ - offset_ < 4) return Error::need_input;
    if (workspace_.dense.whole_frame) {
      const uint32_t stored = load<uint32_t>(input_ + offset_),
                     found = uint32_t(workspace_.dense.checksum.digest());
      if (stored != found) return fail(Error::content_checksum, stored, found);
      verified_checksums_++;
    } else {
      unverified_checksums_++;
    }
    offset_ += 4;
  }
  frames_++;
  expect_ = Expect::frame;
  return Error::none;
}

}  // namespace native::zstd
