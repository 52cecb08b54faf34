#include "differential.hpp"

#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <vector>

#include "../zstd/sparse_decoder.hpp"

namespace native::fuzz {
namespace {

constexpr size_t content_bytes_max = 256 << 10;

// The few functions of libzstd's stable interface that the oracle needs; loaded at run time, so no header is
// needed.
struct Libzstd {
  size_t (*decompress)(void*, void*, size_t, const void*, size_t) = nullptr;
  unsigned (*is_error)(size_t) = nullptr;
  const char* (*error_name)(size_t) = nullptr;
  void* context = nullptr;

  Libzstd() {
    void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    decompress = reinterpret_cast<decltype(decompress)>(dlsym(library, "ZSTD_decompressDCtx"));
    is_error = reinterpret_cast<decltype(is_error)>(dlsym(library, "ZSTD_isError"));
    error_name = reinterpret_cast<decltype(error_name)>(dlsym(library, "ZSTD_getErrorName"));
    context = reinterpret_cast<void* (*)()>(dlsym(library, "ZSTD_createDCtx"))();
  }
};

// Content lies in a buffer of the decoder's own that the next call overwrites.
struct Decoded {
  bool accepted = false;
  const uint8_t* content = nullptr;
  size_t size = 0;
  std::string problem;

  bool operator==(const Decoded& other) const {
    return accepted == other.accepted && problem == other.problem && size == other.size &&
           (size == 0 || memcmp(content, other.content, size) == 0);
  }
};

Decoded decode_with_libzstd(const Libzstd& libzstd, const uint8_t* input, size_t size) {
  static std::vector<uint8_t> content(content_bytes_max);
  Decoded result;
  const size_t written = libzstd.decompress(libzstd.context, content.data(), content.size(), input, size);
  result.accepted = !libzstd.is_error(written);
  result.content = content.data();
  if (result.accepted)
    result.size = written;
  else
    result.problem = libzstd.error_name(written);
  return result;
}

// The length is not known beforehand here, so the decoder runs with the largest and must fail on nothing but
// that.
Decoded decode_sparsely(const uint8_t* input, size_t size, unsigned element_size, InstructionSet set,
                        std::vector<uint8_t>& content) {
  use_instruction_set(set);
  static const auto workspace = std::make_unique<zstd::Workspace>();
  zstd::Elements elements(content_bytes_max, element_size);
  zstd::SparseDecoder decoder(*workspace, elements, content_bytes_max, 1 << 30);
  Decoded result;
  result.accepted = decoder.advance(input, size);
  if (result.accepted && !decoder.finish(size))
    result.accepted = decoder.failure().error == zstd::Error::output_size;
  if (!result.accepted) {
    result.problem = zstd::describe(decoder.failure().error);
    return result;
  }
  content.assign(decoder.decoded_bytes() + element_size, 0);
  for (size_t i = 0; i < elements.size(); i++) {
    const uint32_t position = static_cast<const uint32_t*>(elements.positions())[i];
    memcpy(&content[size_t(position) * element_size],
           static_cast<const uint8_t*>(elements.masks()) + i * element_size, element_size);
  }
  result.content = content.data();
  result.size = decoder.decoded_bytes();
  return result;
}

}  // namespace

Outcome decode_both(const uint8_t* input, size_t size, Depth depth) {
  static const Libzstd libzstd;
  static std::vector<uint8_t> content, other_content;
  // An exact copy on the heap, so that the address sanitizer sees every access beyond it.
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
  memcpy(copy.get(), input, size);
  const Decoded ours = decode_sparsely(copy.get(), size, 1, InstructionSet::portable, content);
  for (unsigned set = 0; set < instruction_sets; set++) {
    if (!is_available(InstructionSet(set))) continue;
    for (unsigned step = 0; step < 4; step++) {
      // One size for each input and instruction set covers all of them soon; the check program takes all at
      // once.
      if (depth == Depth::one_element_size && step != (size + set) % 4) continue;
      if (!(decode_sparsely(copy.get(), size, 1u << step, InstructionSet(set), other_content) == ours)) {
        return {Outcome::differ, std::string(instruction_set_names[set]) + " with elements of " +
                                     std::to_string(1u << step) + " bytes decodes differently from portable"};
      }
    }
  }
  if (libzstd.decompress == nullptr)
    return {ours.accepted ? Outcome::unchecked : Outcome::reject, ours.problem};
  const Decoded theirs = decode_with_libzstd(libzstd, input, size);
  if (!ours.accepted && !theirs.accepted) return {Outcome::reject, ours.problem};
  if (ours.accepted && !theirs.accepted) return {Outcome::only_ours, theirs.problem};
  if (!ours.accepted) return {Outcome::only_libzstd, ours.problem};
  if (ours == theirs) return {Outcome::agree, ""};
  return {Outcome::differ, "contents of " + std::to_string(ours.size) + " and " +
                               std::to_string(theirs.size) + " bytes differ"};
}

}  // namespace native::fuzz
