// decode_sparse: what Python sees of the sparse decoder.
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "../zstd/parallel_decode.hpp"
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

[[noreturn]] void raise(const zstd::Failure& failure, const std::string& what = "") {
  if (failure.error == zstd::Error::out_of_memory) throw std::bad_alloc();
  throw DecodeError(what + message(failure));
}

void check_sizes(uint64_t size_bytes, unsigned element_size, uint64_t max_window_bytes,
                 const std::string& what = "") {
  if (element_size != 1 && element_size != 2 && element_size != 4 && element_size != 8) {
    throw py::value_error("element_size: expected 1, 2, 4 or 8, found " + std::to_string(element_size));
  }
  if (max_window_bytes > zstd::window_bytes_limit) {
    throw py::value_error("max_window_bytes: at most 2**30, found " + std::to_string(max_window_bytes));
  }
  if (size_bytes % element_size != 0) {
    throw DecodeError(what + "the tensor's length of " + std::to_string(size_bytes) +
                      " bytes is not a multiple of its element size " + std::to_string(element_size));
  }
}

// An array of the first `items` in `memory`. Small ones are copied: a mapping of their own would be dear.
py::array hand_over(zstd::GrowingMemory& memory, size_t items, size_t item_bytes) {
  constexpr size_t small_bytes = 128 << 10;
  if (items * item_bytes <= small_bytes) {
    py::array copy(unsigned_dtype(item_bytes), std::vector<size_t>{items});
    if (items > 0) memcpy(copy.mutable_data(), memory.data(), items * item_bytes);
    return copy;
  }
  auto owned = std::make_unique<zstd::GrowingMemory>(std::move(memory));
  uint8_t* data = owned->data();
  py::capsule owner(owned.get(), [](void* mapping) { delete static_cast<zstd::GrowingMemory*>(mapping); });
  owned.release();
  return py::array(unsigned_dtype(item_bytes), {items}, {item_bytes}, data, owner);
}

py::tuple hand_over(zstd::Elements& elements) {
  const size_t size = elements.size();
  const py::array positions = hand_over(elements.positions_memory(), size, elements.position_size());
  return py::make_tuple(positions, hand_over(elements.masks_memory(), size, elements.element_size()));
}

// One for each thread that decodes, kept from call to call.
zstd::Workspace& thread_workspace() {
  static thread_local const auto workspace = std::make_unique<zstd::Workspace>();
  return *workspace;
}

py::tuple decode_sparse(py::handle payload, uint64_t size_bytes, unsigned element_size,
                        uint64_t max_window_bytes) {
  check_sizes(size_bytes, element_size, max_window_bytes);
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
  if (failure.error != zstd::Error::none) raise(failure);
  return hand_over(elements);
}

// Jobs are tuples (name, payload, size_bytes, element_size); the name only serves errors.
py::list decode_many(const std::vector<std::tuple<std::string, py::object, uint64_t, unsigned>>& requests,
                     unsigned threads, int niceness, uint64_t max_window_bytes) {
  std::vector<std::unique_ptr<Buffer>> inputs;
  std::vector<zstd::DecodeJob> jobs;
  for (const auto& [name, payload, size_bytes, element_size] : requests) {
    check_sizes(size_bytes, element_size, max_window_bytes, name + ": ");
    inputs.push_back(std::make_unique<Buffer>(payload));
    jobs.push_back(
        {inputs.back()->bytes(), inputs.back()->size_bytes(), size_bytes, element_size, nullptr, {}});
  }
  {
    py::gil_scoped_release release;
    zstd::decode_parallel(jobs, {max_window_bytes, threads, niceness});
  }
  py::list results;
  for (size_t i = 0; i < jobs.size(); i++) {
    if (jobs[i].failure.error != zstd::Error::none) raise(jobs[i].failure, std::get<0>(requests[i]) + ": ");
    const py::tuple arrays = hand_over(*jobs[i].elements);
    results.append(
        py::make_tuple(arrays[0], arrays[1], jobs[i].verified_checksums, jobs[i].unverified_checksums));
  }
  return results;
}

// A payload that is still arriving in a buffer of its final length.
class StreamDecoder {
 public:
  StreamDecoder(py::handle payload, uint64_t size_bytes, unsigned element_size, uint64_t max_window_bytes)
      : input_((check_sizes(size_bytes, element_size, max_window_bytes), payload)),
        elements_(size_bytes, element_size),
        decoder_(workspace_, elements_, size_bytes, max_window_bytes) {}

  uint64_t advance(size_t available) {
    if (available > input_.size_bytes()) {
      throw py::value_error("available: at most the payload's " + std::to_string(input_.size_bytes()) +
                            " bytes, found " + std::to_string(available));
    }
    bool good;
    {
      py::gil_scoped_release release;
      good = decoder_.advance(input_.bytes(), available);
    }
    if (!good) raise(decoder_.failure());
    return decoder_.decoded_bytes();
  }

  py::tuple finish() {
    if (finished_) throw py::value_error("finish: this payload's result was handed over already");
    advance(input_.size_bytes());
    if (!decoder_.finish(input_.size_bytes())) raise(decoder_.failure());
    finished_ = true;
    return hand_over(elements_);
  }

 private:
  bool finished_ = false;
  Buffer input_;
  zstd::Workspace workspace_;
  zstd::Elements elements_;
  zstd::SparseDecoder decoder_;
};

// For the benchmarks: what a dense decode has to be followed by.
size_t scan_nonzero(py::handle data_object, size_t length, py::handle positions_object,
                    py::handle values_object) {
  Buffer data(data_object), positions(positions_object, true), values(values_object, true);
  if (length > UINT32_MAX || data.size_bytes() < length + zstd::margin ||
      positions.size_bytes() < 4 * (length + zstd::margin) || values.size_bytes() < length + zstd::margin) {
    throw py::value_error(
        "scan_nonzero: expected 64 bytes behind the data, and room for as many positions and values");
  }
  py::gil_scoped_release release;
  return zstd::block_decoder(active_instruction_set())
      .append_run(reinterpret_cast<uint32_t*>(positions.bytes()), values.bytes(), 0, data.bytes(),
                  uint32_t(length), 0);
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
  module.def("decode_many", &decode_many, py::arg("jobs"), py::arg("threads"), py::arg("niceness"),
             py::arg("max_window_bytes"));
  py::class_<StreamDecoder>(module, "StreamDecoder")
      .def(py::init<py::handle, uint64_t, unsigned, uint64_t>(), py::arg("payload"), py::arg("size_bytes"),
           py::arg("element_size"), py::arg("max_window_bytes"))
      .def("advance", &StreamDecoder::advance, py::arg("available_bytes"))
      .def("finish", &StreamDecoder::finish);
  module.def("scan_nonzero", &scan_nonzero, py::arg("data"), py::arg("length"), py::arg("positions"),
             py::arg("values"));
  module.def("instruction_sets", &available_instruction_sets);
  module.def("use_instruction_set", &use_instruction_set_named, py::arg("name"));
}

}  // namespace native::binding
