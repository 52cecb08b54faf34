#include "frame_index.hpp"

namespace native::zstd {
namespace {

// The whole length of the frame at `at`, 0 if it is malformed or truncated.
size_t frame_size(const uint8_t* at, size_t available, const Header& header) {
  if (header.skippable) return size_t(header.size);
  size_t offset = size_t(header.size);
  for (bool last = false; !last;) {
    if (available - offset < BlockHeader::bytes) return 0;
    const BlockHeader block = BlockHeader::read(at + offset);
    offset += BlockHeader::bytes;
    if (block.type == BlockHeader::reserved || available - offset < block.stored_bytes()) return 0;
    offset += block.stored_bytes();
    last = block.last;
  }
  const size_t checksum_bytes = header.frame.has_checksum ? 4 : 0;
  return available - offset < checksum_bytes ? 0 : offset + checksum_bytes;
}

}  // namespace

std::vector<FrameRange> split_frames(const uint8_t* payload, size_t size, uint64_t size_bytes,
                                     uint64_t content_bytes_min) {
  const std::vector<FrameRange> whole{{0, size, size_bytes}};
  std::vector<FrameRange> ranges;
  uint64_t total = 0;
  for (size_t offset = 0; offset < size;) {
    Header header;
    if (read_header(payload + offset, size - offset, header) != Error::none) return whole;
    const size_t length = frame_size(payload + offset, size - offset, header);
    if (length == 0 || (!header.skippable && !header.frame.has_content_bytes)) return whole;
    const uint64_t content = header.skippable ? 0 : header.frame.content_bytes;
    if (content > size_bytes - total) return whole;
    total += content;
    if (ranges.empty() || (ranges.back().content_bytes >= content_bytes_min && !header.skippable)) {
      ranges.push_back({offset, 0, 0});
    }
    ranges.back().size += length;
    ranges.back().content_bytes += content;
    offset += length;
  }
  return ranges.empty() || total != size_bytes ? whole : ranges;
}

}  // namespace native::zstd
