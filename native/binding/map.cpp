// map_positions: what Python sees of strided boxes.
#include <pybind11/stl.h>

#include <vector>

#include "../kernels/strided_box.hpp"
#include "buffers.hpp"

namespace native::binding {
namespace {

StridedBox make_box(uint64_t source_offset, uint64_t destination_offset, const std::vector<uint64_t>& extents,
                    const std::vector<uint64_t>& source_strides,
                    const std::vector<int64_t>& destination_strides) {
  const size_t dimensions = extents.size();
  if (source_strides.size() != dimensions || destination_strides.size() != dimensions ||
      dimensions > box_dimensions_max) {
    throw py::value_error("box: expected as many strides as extents, at most " +
                          std::to_string(box_dimensions_max) + ", found " + std::to_string(dimensions) +
                          ", " + std::to_string(source_strides.size()) + " and " +
                          std::to_string(destination_strides.size()));
  }
  StridedBox box{source_offset, destination_offset, unsigned(dimensions), {}, {}, {}};
  for (size_t k = 0; k < dimensions; k++) {
    box.extent[k] = extents[k];
    box.source_stride[k] = source_strides[k];
    box.destination_stride[k] = destination_strides[k];
  }
  if (const char* problem = box.problem()) throw py::value_error(std::string("box: ") + problem);
  return box;
}

py::tuple map_through_box(py::handle positions_object, uint64_t source_offset, uint64_t destination_offset,
                          const std::vector<uint64_t>& extents, const std::vector<uint64_t>& source_strides,
                          const std::vector<int64_t>& destination_strides) {
  Buffer positions(positions_object);
  require_positions(positions);
  const size_t count = positions.items();
  if (count > UINT32_MAX)
    throw py::value_error("positions: at most 2**32 - 1, found " + std::to_string(count));
  const StridedBox box =
      make_box(source_offset, destination_offset, extents, source_strides, destination_strides);
  const size_t destination_bytes = box.destination_last() <= UINT32_MAX ? 4 : 8;
  auto* index = static_cast<uint32_t*>(malloc((count + 1) * sizeof(uint32_t)));
  py::array index_array = adopt(index, count, sizeof(uint32_t));
  void* destination = malloc((count + 1) * destination_bytes);
  py::array destination_array = adopt(destination, count, destination_bytes);
  if (index == nullptr || destination == nullptr) throw std::bad_alloc();
  const size_t written = with_position(positions.item_bytes(), [&](auto* position) {
    using Position = std::remove_pointer_t<decltype(position)>;
    return with_position(destination_bytes, [&](auto* target) {
      using Destination = std::remove_pointer_t<decltype(target)>;
      py::gil_scoped_release release;
      return map_positions(box, reinterpret_cast<const Position*>(positions.bytes()), count, index,
                           static_cast<Destination*>(destination));
    });
  });
  const py::slice inside(0, py::ssize_t(written), 1);
  return py::make_tuple(index_array[inside], destination_array[inside]);
}

}  // namespace

void bind_map(py::module_& module) {
  module.def("map_positions", &map_through_box, py::arg("positions"), py::arg("source_offset"),
             py::arg("destination_offset"), py::arg("extents"), py::arg("source_strides"),
             py::arg("destination_strides"));
}

}  // namespace native::binding
