#include "sparse_decoder.hpp"

namespace native::zstd {
namespace {

// Measured (native.bench, 1% to 10%, levels 1 to 9): both modes take 13 ns a sequence; sparse execution adds
// 35 ns for every nonzero byte that a match copies, dense execution 16 us for every 128 KiB, most of it for
// copying zeros and for finding the nonzero bytes again. So blocks are cheaper densely from about one copied
// byte in 285 on. After a change of mode the window is read from the output for a while, so it goes by the
// blocks of late, the last one counting a sixteenth, and with a margin between entering and leaving.
constexpr uint64_t enter_dense_ratio = 256, leave_dense_ratio = 400;

// Bytes become elements in parts of this size; the output's marks (decoded_content.hpp) are as far apart.
constexpr uint32_t bytes_part = 1 << DecodedContent::grain_log_min;

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
    workspace_.content.start_frame(elements_, start_bytes_ + frame_start_bytes_, frame.window_bytes);
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

  const uint64_t before = decoded_bytes_;
  workspace_.nonzero_literals = header.size;
  nonzero_bytes_ = 0;
  const uint8_t* content = input_ + offset_ + BlockHeader::bytes;
  Error error = workspace_.dense.active ? decode_densely(header, content) : decode_sparsely(header, content);
  if (error == Error::crowded) {
    workspace_.enter_dense_mode();
    error = decode_densely(header, content);
  }
  if (error != Error::none) return error;

  choose_mode(decoded_bytes_ - before);
  if (header.last) {
    const uint64_t frame_bytes = workspace_.history.frame_offset();
    if (frame.has_content_bytes && frame.content_bytes != frame_bytes) {
      return fail(Error::content_size, frame.content_bytes, frame_bytes);
    }
    expect_ = Expect::checksum;
  }
  offset_ += BlockHeader::bytes + header.stored_bytes();
  return Error::none;
}

// Before `bytes` more of the content are added to the output.
Error SparseDecoder::accept(uint64_t bytes) {
  const uint64_t frame_bytes = decoded_bytes_ - frame_start_bytes_ + bytes;
  if (frame_bytes > workspace_.frame.content_bytes) {
    return fail(Error::content_size, workspace_.frame.content_bytes, frame_bytes);
  }
  if (bytes > size_bytes_ - decoded_bytes_) {
    return fail(Error::output_size, size_bytes_, decoded_bytes_ + bytes);
  }
  decoded_bytes_ += bytes;
  return Error::none;
}

// `positions` count from the frame's byte `base`; the content has come to the frame's byte `frame_offset`.
Error SparseDecoder::append_elements(const uint32_t* positions, const uint8_t* values, size_t count,
                                     uint64_t base, uint64_t frame_offset) {
  nonzero_bytes_ += count;
  workspace_.content.advance(frame_offset);
  return elements_.append(positions, values, count, start_bytes_ + frame_start_bytes_ + base)
             ? Error::none
             : Error::out_of_memory;
}

Error SparseDecoder::decode_sparsely(const BlockHeader& header, const uint8_t* content) {
  History& history = workspace_.history;
  if (history.make_room()) workspace_.repeat.forget_fingers();
  if (header.type == BlockHeader::compressed) {
    const size_t first = history.size;
    const uint64_t before = history.frame_offset();
    const uint8_t* at = with_margins(content, header.size);
    const Error error = blocks_.decode_compressed(workspace_, at, at + header.size);
    return error == Error::none ? accept_entries(first, history.frame_offset() - before) : error;
  }
  const bool run = header.type == BlockHeader::run;
  if (run && *content == 0) {
    history.advance(history.cursor + header.size);
    return accept_entries(history.size, header.size);
  }
  uint8_t bytes[bytes_part + margin];
  if (run) memset(bytes, *content, bytes_part);
  for (uint32_t done = 0; done < header.size; done += bytes_part) {
    const uint32_t part = min_of(header.size - done, bytes_part);
    if (!run) memcpy(bytes, content + done, part);
    if (done > 0 && history.make_room()) workspace_.repeat.forget_fingers();
    const size_t first = history.size;
    blocks_.append_bytes(history, bytes, part);
    if (const Error error = accept_entries(first, part); error != Error::none) return error;
  }
  return Error::none;
}

// The history's entries from `first` on are those of `bytes` more of the content, up to its cursor.
Error SparseDecoder::accept_entries(size_t first, uint64_t bytes) {
  const History& history = workspace_.history;
  const Error error = accept(bytes);
  if (error != Error::none) return error;
  return append_elements(history.positions + first, history.values + first, history.size - first,
                         history.base, history.frame_offset());
}

Error SparseDecoder::decode_densely(const BlockHeader& header, const uint8_t* content) {
  DenseWindow& dense = workspace_.dense;
  dense.make_room();
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
  const uint8_t* bytes = dense.memory + begin;
  const uint32_t size = uint32_t(dense.end - begin);
  if (const Error error = accept(size); error != Error::none) return error;
  if (workspace_.frame.has_checksum && dense.whole_frame) dense.checksum.update(bytes, size);

  uint32_t positions[bytes_part + margin];
  uint8_t values[bytes_part + margin];
  for (uint32_t done = 0; done < size; done += bytes_part) {
    const uint32_t part = min_of(size - done, bytes_part);
    const size_t count = blocks_.append_run(positions, values, 0, bytes + done, part, 0);
    const uint64_t base = workspace_.history.frame_offset() + done;
    const Error error = append_elements(positions, values, count, base, base + part);
    if (error != Error::none) return error;
  }
  workspace_.history.skip(size);
  return Error::none;
}

// The next block will be about as those of late.
void SparseDecoder::choose_mode(uint64_t block_bytes) {
  const uint64_t literals = workspace_.nonzero_literals;
  const uint64_t copied = nonzero_bytes_ > literals ? nonzero_bytes_ - literals : 0;
  late_bytes_ += block_bytes - late_bytes_ / 16;
  late_copied_ += copied - late_copied_ / 16;
  const bool dense = workspace_.dense.active;
  if (dense && late_copied_ * leave_dense_ratio < late_bytes_) workspace_.leave_dense_mode();
  if (!dense && late_copied_ * enter_dense_ratio > late_bytes_) workspace_.enter_dense_mode();
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
