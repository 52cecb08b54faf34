// decode_sparse: what Python sees of the sparse decoder.
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "../zstd/sparse_decoder.hpp"
#include "buffers.hpp"

namespace native::binding {
namespace {

struct DecodeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string message(const zstd::Failure& failure) {
  std::string text = "at byte " + std::to_string(failure.offset) + ": " + zstd::describe(failure.error);
  if (failure.expected != failure.found) {
    text +=
        " (expected " + std::to_string(failure.expected) + ", found " + std::to_string(failure.found) + ")";
  }
  return text;
}

zstd::Workspace& thread_workspace() {
  thread_local std::unique_ptr<zstd::Workspace> workspace = std::make_unique<zstd::Workspace>();
  return *workspace;
}

py::tuple decode_sparse(py::handle payload, uint64_t size_bytes, unsigned element_size,
                        uint64_t max_window_bytes) {
  if (element_size != 1 && element_size != 2 && element_size != 4 && element_size != 8) {
    throw py::value_error("element_size: expected 1, 2, 4 or 8, found " + std::to_string(element_size));
  }
  if (max_window_bytes > uint64_t{1} << 30) {
    throw py::value_error("max_window_bytes: at most 2**30, found " + std::to_string(max_window_bytes));
  }
  if (size_bytes % element_size != 0) {
    throw DecodeError("the tensor's length of " + std::to_string(size_bytes) +
                      " bytes is not a multiple of its element size " + std::to_string(element_size));
  }
  Buffer input(payload);
  zstd::Elements elements(size_bytes, element_size);
  zstd::Failure failure;
  {
    py::gil_scoped_release release;
    zstd::SparseDecoder decoder(thread_workspace(), elements, size_bytes, max_window_bytes);
    if (!decoder.advance(input.bytes(), input.size_bytes()) || !decoder.finish(input.size_bytes())) {
      failure = decoder.failure();
    } else if (!elements.resize(elements.size())) {
      failure.error = zstd::Error::out_of_memory;
    }
  }
  if (failure.error == zstd::Error::out_of_memory) throw std::bad_alloc();
  if (failure.error != zstd::Error::none) throw DecodeError(message(failure));
  const size_t size = elements.size();
  void *positions, *masks;
  elements.release(positions, masks);
  py::array position_array = adopt(positions, size, elements.position_size());
  return py::make_tuple(position_array, adopt(masks, size, element_size));
}

std::vector<std::string> available_instruction_sets() {
  std::vector<std::string> names;
  for (unsigned set = 0; set < instruction_sets; set++) {
    if (is_available(InstructionSet(set))) names.emplace_back(instruction_set_names[set]);
  }
  return names;
}

void use_instruction_set_named(const std::string& name) {
  for (unsigned set = 0; set < instruction_sets; set++) {
    if (name == instruction_set_names[set] && is_available(InstructionSet(set))) {
      return use_instruction_set(InstructionSet(set));
    }
  }
  throw py::value_error("instruction set " + name + " is not available on this processor");
}

}  // namespace

void bind_decode(py::module_& module) {
  py::register_exception<DecodeError>(module, "DecodeError", PyExc_ValueError);
  module.def("decode_sparse", &decode_sparse, py::arg("payload"), py::arg("size_bytes"),
             py::arg("element_size"), py::arg("max_window_bytes"));
  module.def("instruction_sets", &available_instruction_sets);
  module.def("use_instruction_set", &use_instruction_set_named, py::arg("name"));
}

}  // namespace native::binding
