// Executes sequences over a sparse history: RFC 8878 section 3.1.1.4, without writing the bytes that are
// zero.
//
// A literal run appends its nonzero bytes. A match appends the nonzero entries of its source, moved by the
// offset; in a sparse delta nearly every match copies only zeros. Nearly every offset repeats an earlier one,
// too, and while it does its source only moves forward: so each recent offset keeps a finger on the history
// (repeat_offsets.hpp), which is a few entries behind at most, and one compare with the entry there decides.
// New offsets start from a bucket's bound. What lies before the history's entries is read from the output.
#pragma once
#include "literals.hpp"
#include "sequence_bitstream.hpp"
#include "simd.hpp"
#include "workspace.hpp"

namespace native::zstd {

// Appends the nonzero ones of any number of bytes, whole vectors at a time; returns the new size. Asks for
// zeros in groups of four vectors, not in each: where this is used about every other vector holds a nonzero
// byte, and a branch on that would be guessed wrong most often.
static inline size_t append_run(uint32_t* positions, uint8_t* values, size_t size, const uint8_t* data,
                                uint32_t length, uint32_t start) {
  const auto append_vector = [&](uint32_t at, uint64_t mask) {
    size += simd::compress64(data + at, mask, start + at, positions + size, values + size);
  };
  uint32_t done = 0;
  for (; length - done >= 256; done += 256) {
    if (simd::all_zero256(data + done)) continue;
    for (uint32_t at = done; at < done + 256; at += 64) append_vector(at, simd::nonzero_mask(data + at));
  }
  for (; length - done >= 64; done += 64) append_vector(done, simd::nonzero_mask(data + done));
  append_vector(done, low_bits(simd::nonzero_mask(data + done), length - done));
  return size;
}

static inline void append_bytes(History& history, const uint8_t* data, uint32_t length) {
  const uint32_t start = history.cursor;
  history.advance(start + length);
  history.size = append_run(history.positions, history.values, history.size, data, length, start);
}

// Ends the positions for readers that look a few entries ahead.
static NATIVE_INLINE void append_sentinels(uint32_t* positions) {
  memset(positions, 0xFF, 4 * sizeof *positions);
}

// The first entry at or after `source`, given a lower bound for it that may be far behind.
static inline __attribute__((noinline)) size_t search(const History& history, size_t first, size_t size,
                                                      uint32_t source) {
  unsigned near = simd::count_below(history.positions + first, size - first, source);
  if (near < 16) return first + near;
  first += 16;
  const size_t bound = history.bucket(source);
  if (bound > first) {
    first = bound;
    near = simd::count_below(history.positions + first, size - first, source);
    if (near < 16) return first + near;
    first += 16;
  }
  while (first < size) {
    const size_t middle = (first + size) / 2;
    if (history.positions[middle] < source)
      first = middle + 1;
    else
      size = middle;
  }
  return first;
}

// Larger pieces stop here; what is decoded four literals at a time up to the next look at the boundary, less
// than a bucket's bytes, then still fits.
constexpr size_t crowded_size = History::capacity - (size_t(1) << History::bucket_log);

// Appends the entries from `first` on that land before `end`, while there is room. An overlapping match
// (offset < length) finds the entries that it has just appended itself, and so repeats them as a dense copy
// would. Moves `first` behind the last one copied.
static NATIVE_INLINE size_t append_entries(uint32_t* positions, uint8_t* values, size_t& first, size_t size,
                                           uint32_t offset, uint32_t end) {
  for (; first < size && size < crowded_size; first++) {
    const uint32_t position = positions[first] + offset;
    if (position >= end) break;
    positions[size] = position;
    values[size] = values[first];
    size++;
  }
  append_sentinels(positions + size);
  return size;
}

// Appends `length` bytes of content that lie before the history's entries, while there is room; returns the
// new size, at least `crowded_size` where there is none.
static __attribute__((noinline)) size_t append_far(const Workspace& workspace, size_t size, uint32_t source,
                                                   uint32_t length, uint32_t start) {
  const History& history = workspace.history;
  constexpr uint32_t part_max = 512;
  uint8_t bytes[part_max + margin];
  for (uint32_t done = 0; done < length; done += part_max) {
    const uint32_t part = min_of(length - done, part_max);
    if (size + part > crowded_size) return crowded_size;
    workspace.content.read(history.base + source + done, part, bytes);
    size = append_run(history.positions, history.values, size, bytes, part, start + done);
  }
  append_sentinels(history.positions + size);
  return size;
}

// Decodes `count` sequences from the bitstream [at, end) and executes them; then appends the literals that
// are left. Error::crowded: there are too many nonzero bytes for the history, which is left as it was.
static inline Error execute_sparse(Workspace& workspace, const uint8_t* at, const uint8_t* end,
                                   uint32_t count, Literals literals) {
  SequenceReader reader;
  if (count > 0 && !reader.open(workspace.sequences, at, end)) return Error::sequences_stream;
  History& history = workspace.history;
  RepeatOffsets repeat = workspace.repeat;
  uint32_t* const positions = history.positions;
  uint8_t* const values = history.values;
  size_t size = history.size;
  uint32_t cursor = history.cursor;
  const uint32_t oldest = history.oldest;
  const uint32_t stop = cursor + workspace.frame.block_bytes_max;
  const uint64_t window_bytes = workspace.frame.window_bytes;
  const uint8_t* literal = literals.data;
  const uint8_t* const literals_end = literals.data + literals.size;
  uint32_t boundary = min_of(history.bucket_end(), stop + 1);  // the next position that needs a slow look
  append_sentinels(positions + size);

  for (uint32_t left = count; left > 0; left--) {
    Sequence sequence;
    if (NATIVE_UNLIKELY(!reader.next(sequence))) return Error::sequences_stream;
    const uint32_t match_start = cursor + sequence.literal_length;
    const uint32_t match_end = match_start + sequence.match_length;
    if (NATIVE_LIKELY(sequence.offset_value == 1)) {
      repeat.resolve_one(sequence.literal_length);
    } else {
      const uint32_t offset = repeat.resolve(sequence.offset_value, sequence.literal_length).offset();
      if (offset == 0 || offset > window_bytes || offset > match_start) return Error::offset;
      if (sequence.offset_value > 3) {
        const uint32_t source = match_start - offset;
        repeat.recent[0] = TrackedOffset::make(
            offset, source < oldest   ? 0
                    : source < cursor ? search(history, history.bucket(source), size, source)
                                      : size);
      }
    }
    const TrackedOffset tracked = repeat.recent[0];
    const uint32_t offset = tracked.offset();
    if (NATIVE_UNLIKELY(offset > match_start)) return Error::offset;
    if (NATIVE_UNLIKELY(match_end >= boundary)) {
      if (match_end > stop) return Error::block_size;
      if (size > crowded_size) return Error::crowded;
      boundary = min_of(history.fill_buckets(match_end, size), stop + 1);
    }
    if (NATIVE_LIKELY(sequence.literal_length <= 4)) {
      size += simd::compress4(literal, sequence.literal_length, cursor, positions + size, values + size);
    } else {
      if (sequence.literal_length > size_t(literals_end - literal)) return Error::literals_exhausted;
      if (size + sequence.literal_length > crowded_size) return Error::crowded;
      size = append_run(positions, values, size, literal, sequence.literal_length, cursor);
      append_sentinels(positions + size);
    }
    literal += sequence.literal_length;
    if (NATIVE_UNLIKELY(literal > literals_end)) return Error::literals_exhausted;
    cursor = match_end;

    const uint32_t source = match_start - offset;
    if (NATIVE_UNLIKELY(source < oldest)) {
      const uint32_t length = min_of(sequence.match_length, oldest - source);
      size = append_far(workspace, size, source, length, match_start);
      size_t first = 0;
      size = append_entries(positions, values, first, size, offset, match_end);
      if (size >= crowded_size) return Error::crowded;
      repeat.recent[0] = TrackedOffset::make(offset, 0);
      continue;
    }
    size_t first = tracked.finger();  // most often right, or a few entries behind
    const uint32_t* ahead = positions + first;
    first += (ahead[0] < source) + (ahead[1] < source) + (ahead[2] < source) + (ahead[3] < source);
    if (NATIVE_UNLIKELY(positions[first] < source)) first = search(history, first, size, source);
    if (NATIVE_UNLIKELY(positions[first] - source < sequence.match_length)) {
      size = append_entries(positions, values, first, size, offset, match_end);
      if (NATIVE_UNLIKELY(size >= crowded_size)) return Error::crowded;
    }
    repeat.recent[0] = TrackedOffset::make(offset, first);
  }
  if (count > 0 && !reader.ends_here()) return Error::sequences_stream;
  if (literals_end - literal > ptrdiff_t(stop - cursor)) return Error::block_size;
  if (size + size_t(literals_end - literal) > History::capacity) return Error::crowded;
  workspace.repeat = repeat;
  history.size = size;
  history.cursor = cursor;
  append_bytes(history, literal, uint32_t(literals_end - literal));
  return Error::none;
}

}  // namespace native::zstd
