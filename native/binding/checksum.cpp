// Adler-32 and the encoder's XOR pass: what Python sees of them.
#include "../checksum/adler32.hpp"

#include "../kernels/xor_count.hpp"
#include "buffers.hpp"

namespace native::binding {
namespace {

uint32_t adler32_of(py::handle data, uint32_t value) {
  Buffer input(data);
  py::gil_scoped_release release;
  return adler32(value, input.bytes(), input.size_bytes());
}

uint32_t correction(py::handle positions_object, py::handle old_object, py::handle new_object,
                    uint64_t size_bytes) {
  Buffer positions(positions_object), old_values(old_object), new_values(new_object);
  require_positions(positions);
  const size_t count = positions.items();
  if (old_values.item_bytes() != new_values.item_bytes()) {
    throw py::type_error("old and new: expected one dtype, found " + describe_kind(old_values) + " and " +
                         describe_kind(new_values));
  }
  if (old_values.items() != count || new_values.items() != count) {
    throw py::value_error("expected as many old and new values as positions: " + std::to_string(count) +
                          ", found " + std::to_string(old_values.items()) + " and " +
                          std::to_string(new_values.items()));
  }
  const size_t element_size = old_values.item_bytes();
  with_unsigned(element_size, "element size", [](auto*) {});
  uint32_t result = 0;
  const bool inside = with_position(positions.item_bytes(), [&](auto* position) {
    using Position = std::remove_pointer_t<decltype(position)>;
    py::gil_scoped_release release;
    return adler32_correction(reinterpret_cast<const Position*>(positions.bytes()), old_values.bytes(),
                              new_values.bytes(), count, element_size, size_bytes, result);
  });
  if (!inside) {
    throw py::value_error("positions: all must be below the tensor's " +
                          std::to_string(size_bytes / element_size) + " elements");
  }
  return result;
}

py::tuple xor_pass(py::handle parent_object, py::handle new_object, py::handle out_object,
                   unsigned element_size) {
  Buffer parent(parent_object), current(new_object), out(out_object, true);
  if (parent.size_bytes() != current.size_bytes() || out.size_bytes() != current.size_bytes()) {
    throw py::value_error("parent, new and out: expected equal lengths, found " +
                          std::to_string(parent.size_bytes()) + ", " + std::to_string(current.size_bytes()) +
                          " and " + std::to_string(out.size_bytes()) + " bytes");
  }
  with_unsigned(element_size, "element_size", [](auto*) {});
  if (current.size_bytes() % element_size != 0) {
    throw py::value_error("the length of " + std::to_string(current.size_bytes()) +
                          " bytes is not a multiple of element_size " + std::to_string(element_size));
  }
  XorCount result;
  {
    py::gil_scoped_release release;
    result =
        xor_count_adler(parent.bytes(), current.bytes(), out.bytes(), current.size_bytes(), element_size);
  }
  return py::make_tuple(result.changed_elements, result.adler32);
}

}  // namespace

void bind_checksum(py::module_& module) {
  module.def("adler32", &adler32_of, py::arg("data"), py::arg("value"));
  module.def("adler32_combine", &adler32_combine, py::arg("first"), py::arg("second"),
             py::arg("second_size_bytes"), py::call_guard<py::gil_scoped_release>());
  module.def("adler32_add", &adler32_add, py::arg("left"), py::arg("right"),
             py::call_guard<py::gil_scoped_release>());
  module.def("adler32_correction", &correction, py::arg("positions"), py::arg("old"), py::arg("new"),
             py::arg("size_bytes"));
  module.def("xor_count_adler", &xor_pass, py::arg("parent"), py::arg("new"), py::arg("out"),
             py::arg("element_size"));
}

}  // namespace native::binding
