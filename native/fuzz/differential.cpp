#include "differential.hpp"

#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <vector>

#include "../zstd/sparse_decoder.hpp"

namespace native::fuzz {
namespace {

constexpr size_t content_bytes_max = 1 << 20;

// The few functions of libzstd's stable interface that the oracle needs; loaded at run time, so no header is
// needed.
struct Libzstd {
  size_t (*decompress)(void*, size_t, const void*, size_t) = nullptr;
  unsigned (*is_error)(size_t) = nullptr;
  const char* (*error_name)(size_t) = nullptr;

  Libzstd() {
    void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    decompress = reinterpret_cast<decltype(decompress)>(dlsym(library, "ZSTD_decompress"));
    is_error = reinterpret_cast<decltype(is_error)>(dlsym(library, "ZSTD_isError"));
    error_name = reinterpret_cast<decltype(error_name)>(dlsym(library, "ZSTD_getErrorName"));
  }
};

struct Decoded {
  bool accepted = false;
  std::vector<uint8_t> content;
  std::string problem;
};

Decoded decode_with_libzstd(const Libzstd& libzstd, const uint8_t* input, size_t size) {
  static std::vector<uint8_t> content(content_bytes_max);
  Decoded result;
  const size_t written = libzstd.decompress(content.data(), content.size(), input, size);
  result.accepted = !libzstd.is_error(written);
  if (result.accepted)
    result.content.assign(content.begin(), content.begin() + ptrdiff_t(written));
  else
    result.problem = libzstd.error_name(written);
  return result;
}

// The length is not known beforehand here, so the decoder runs with the largest and must fail on nothing but
// that.
Decoded decode_sparsely(const uint8_t* input, size_t size, unsigned element_size, InstructionSet set) {
  use_instruction_set(set);
  // An exact copy on the heap, so that the address sanitizer sees every access beyond it.
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
  memcpy(copy.get(), input, size);
  static const auto workspace = std::make_unique<zstd::Workspace>();
  zstd::Elements elements(content_bytes_max, element_size);
  zstd::SparseDecoder decoder(*workspace, elements, content_bytes_max, 1 << 30);
  Decoded result;
  result.accepted = decoder.advance(copy.get(), size);
  if (result.accepted && !decoder.finish(size))
    result.accepted = decoder.failure().error == zstd::Error::output_size;
  if (!result.accepted) {
    result.problem = zstd::describe(decoder.failure().error);
    return result;
  }
  result.content.resize(decoder.decoded_bytes() + element_size);
  for (size_t i = 0; i < elements.size(); i++) {
    const uint32_t position = static_cast<const uint32_t*>(elements.positions())[i];
    memcpy(&result.content[size_t(position) * element_size],
           static_cast<const uint8_t*>(elements.masks()) + i * element_size, element_size);
  }
  result.content.resize(decoder.decoded_bytes());
  return result;
}

}  // namespace

Outcome decode_both(const uint8_t* input, size_t size, Depth depth) {
  static const Libzstd libzstd;
  const Decoded ours = decode_sparsely(input, size, 1, InstructionSet::portable);
  for (unsigned set = 0; set < instruction_sets; set++) {
    if (!is_available(InstructionSet(set))) continue;
    for (unsigned step = 0; step < 4; step++) {
      // One size for each input and instruction set covers all of them soon; the check program takes all at
      // once.
      if (depth == Depth::one_element_size && step != (size + set) % 4) continue;
      const unsigned element_size = 1u << step;
      const Decoded other = decode_sparsely(input, size, element_size, InstructionSet(set));
      if (other.accepted != ours.accepted || other.content != ours.content || other.problem != ours.problem) {
        return {Outcome::differ, std::string(instruction_set_names[set]) + " with elements of " +
                                     std::to_string(element_size) +
                                     " bytes decodes differently from portable"};
      }
    }
  }
  if (libzstd.decompress == nullptr)
    return {ours.accepted ? Outcome::unchecked : Outcome::reject, ours.problem};
  const Decoded theirs = decode_with_libzstd(libzstd, input, size);
  if (!ours.accepted && !theirs.accepted) return {Outcome::reject, ours.problem};
  if (ours.accepted && !theirs.accepted) return {Outcome::only_ours, theirs.problem};
  if (!ours.accepted) return {Outcome::only_libzstd, ours.problem};
  if (ours.content == theirs.content) return {Outcome::agree, ""};
  return {Outcome::differ, "contents of " + std::to_string(ours.content.size()) + " and " +
                               std::to_string(theirs.content.size()) + " bytes differ"};
}

}  // namespace native::fuzz
