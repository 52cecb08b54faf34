// XXH64 with seed 0, for content checksums: RFC 8878 section 3.1.1 (Content_Checksum) and its appendix's
// reference to xxHash.
#pragma once
#include "bytes.hpp"

namespace native::zstd {

class Xxh64 {
 public:
  void update(const uint8_t* data, size_t size) {
    total_ += size;
    if (pending_size_ + size < stripe) {
      memcpy(pending_ + pending_size_, data, size);
      pending_size_ += size;
      return;
    }
    if (pending_size_ > 0) {
      const size_t missing = stripe - pending_size_;
      memcpy(pending_ + pending_size_, data, missing);
      consume(pending_);
      data += missing;
      size -= missing;
    }
    for (; size >= stripe; data += stripe, size -= stripe) consume(data);
    memcpy(pending_, data, size);
    pending_size_ = size;
  }

  uint64_t digest() const {
    uint64_t hash = prime5;
    if (total_ >= stripe) {
      hash = rotate(lane_[0], 1) + rotate(lane_[1], 7) + rotate(lane_[2], 12) + rotate(lane_[3], 18);
      for (uint64_t lane : lane_) hash = (hash ^ round(0, lane)) * prime1 + prime4;
    }
    hash += total_;
    const uint8_t* at = pending_;
    size_t left = pending_size_;
    for (; left >= 8; at += 8, left -= 8)
      hash = rotate(hash ^ round(0, load<uint64_t>(at)), 27) * prime1 + prime4;
    for (; left >= 4; at += 4, left -= 4)
      hash = rotate(hash ^ load<uint32_t>(at) * prime1, 23) * prime2 + prime3;
    for (; left > 0; at++, left--) hash = rotate(hash ^ *at * prime5, 11) * prime1;
    hash = (hash ^ hash >> 33) * prime2;
    hash = (hash ^ hash >> 29) * prime3;
    return hash ^ hash >> 32;
  }

 private:
  static constexpr uint64_t prime1 = 0x9E3779B185EBCA87, prime2 = 0xC2B2AE3D27D4EB4F,
                            prime3 = 0x165667B19E3779F9, prime4 = 0x85EBCA77C2B2AE63,
                            prime5 = 0x27D4EB2F165667C5;
  static constexpr size_t stripe = 32;

  uint64_t lane_[4] = {prime1 + prime2, prime2, 0, 0 - prime1};
  uint64_t total_ = 0;
  uint8_t pending_[stripe];
  size_t pending_size_ = 0;

  static uint64_t rotate(uint64_t value, unsigned by) { return value << by | value >> (64 - by); }
  static uint64_t round(uint64_t lane, uint64_t input) { return rotate(lane + input * prime2, 31) * prime1; }
  void consume(const uint8_t* data) {
    for (unsigned i = 0; i < 4; i++) lane_[i] = round(lane_[i], load<uint64_t>(data + 8 * i));
  }
};

}  // namespace native::zstd
