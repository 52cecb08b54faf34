// Gather, scatter, counting sort and huge pages: what Python sees of them.
#include <algorithm>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "../kernels/counting_sort.hpp"
#include "../kernels/gather.hpp"
#include "buffers.hpp"

namespace native::binding {
namespace {

void require_items(const Buffer& array, size_t items, size_t item_bytes, const char* what) {
  if (array.items() == items && array.item_bytes() == item_bytes) return;
  throw py::value_error(std::string(what) + ": expected " + std::to_string(items) + " items of " +
                        std::to_string(item_bytes) + " bytes, found " + std::to_string(array.items()) +
                        " of " + std::to_string(array.item_bytes()));
}

// Calls function(element, offset) with null pointers of both types once every offset is known to lie in the
// memory.
template <class Function>
void with_offsets(const Buffer& memory, const Buffer& offsets, Function function) {
  require_positions(offsets);
  with_unsigned(memory.item_bytes(), "memory's item size", [&](auto* element) {
    with_position(offsets.item_bytes(), [&](auto* offset) {
      using Offset = std::remove_pointer_t<decltype(offset)>;
      const auto* first = reinterpret_cast<const Offset*>(offsets.bytes());
      uint64_t largest;
      {
        py::gil_scoped_release release;
        largest = largest_offset(first, offsets.items());
      }
      if (offsets.items() > 0 && largest >= memory.items()) {
        throw py::index_error("offsets: expected all below the memory's " + std::to_string(memory.items()) +
                              " elements, found " + std::to_string(largest));
      }
      py::gil_scoped_release release;
      function(element, first);
    });
  });
}

py::array new_array(size_t items, size_t item_bytes) {
  void* data = malloc(std::max<size_t>(items * item_bytes, 1));
  if (data == nullptr) throw std::bad_alloc();
  return adopt(data, items, item_bytes);
}

template <class Element>
Element* items_of(const py::array& array) {
  return static_cast<Element*>(const_cast<void*>(array.data()));
}

py::array gather_from(py::handle memory_object, py::handle offsets_object) {
  Buffer memory(memory_object), offsets(offsets_object);
  py::array values = new_array(offsets.items(), memory.item_bytes());
  with_offsets(memory, offsets, [&](auto* element, auto* offset) {
    using Element = std::remove_pointer_t<decltype(element)>;
    gather(reinterpret_cast<const Element*>(memory.bytes()), offset, offsets.items(),
           items_of<Element>(values));
  });
  return values;
}

py::tuple gather_xor_from(py::handle memory_object, py::handle offsets_object, py::handle masks_object) {
  Buffer memory(memory_object), offsets(offsets_object), masks(masks_object);
  require_items(masks, offsets.items(), memory.item_bytes(), "masks");
  py::array old_values = new_array(offsets.items(), memory.item_bytes());
  py::array new_values = new_array(offsets.items(), memory.item_bytes());
  with_offsets(memory, offsets, [&](auto* element, auto* offset) {
    using Element = std::remove_pointer_t<decltype(element)>;
    gather_xor(reinterpret_cast<const Element*>(memory.bytes()), offset,
               reinterpret_cast<const Element*>(masks.bytes()), offsets.items(),
               items_of<Element>(old_values), items_of<Element>(new_values));
  });
  return py::make_tuple(old_values, new_values);
}

void scatter_to(py::handle memory_object, py::handle offsets_object, py::handle values_object) {
  Buffer memory(memory_object, true), offsets(offsets_object), values(values_object);
  require_items(values, offsets.items(), memory.item_bytes(), "values");
  with_offsets(memory, offsets, [&](auto* element, auto* offset) {
    using Element = std::remove_pointer_t<decltype(element)>;
    scatter(reinterpret_cast<Element*>(memory.bytes()), offset, offsets.items(),
            reinterpret_cast<const Element*>(values.bytes()));
  });
}

py::tuple counting_sort_of(py::handle keys_object, uint32_t key_count) {
  Buffer keys(keys_object);
  if (keys.item_bytes() != sizeof(uint32_t) || (keys.kind() != 'I' && keys.kind() != 'L')) {
    throw py::type_error("keys: expected uint32, found " + describe_kind(keys));
  }
  const auto* key = reinterpret_cast<const uint32_t*>(keys.bytes());
  const size_t count = keys.items();
  if (count > UINT32_MAX) throw py::value_error("keys: at most 2**32 - 1, found " + std::to_string(count));
  py::array order = new_array(count, sizeof(uint32_t)),
            starts = new_array(size_t(key_count) + 1, sizeof(uint64_t));
  uint32_t largest;
  {
    py::gil_scoped_release release;
    largest = largest_offset(key, count);
    if (count == 0 || largest < key_count) {
      counting_sort(key, count, key_count, items_of<uint32_t>(order), items_of<uint64_t>(starts));
    }
  }
  if (count > 0 && largest >= key_count) {
    throw py::index_error("keys: expected all below " + std::to_string(key_count) + ", found " +
                          std::to_string(largest));
  }
  return py::make_tuple(order, starts);
}

bool prefer_huge_pages(py::handle memory_object) {
#if defined(MADV_HUGEPAGE)
  Buffer memory(memory_object);
  const auto page = uintptr_t(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (uintptr_t(memory.bytes()) + page - 1) / page * page;
  const uintptr_t end = (uintptr_t(memory.bytes()) + memory.size_bytes()) / page * page;
  return begin < end && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) == 0;
#else
  (void)memory_object;
  return false;
#endif
}

}  // namespace

void bind_memory(py::module_& module) {
  module.def("gather", &gather_from, py::arg("memory"), py::arg("offsets"));
  module.def("gather_xor", &gather_xor_from, py::arg("memory"), py::arg("offsets"), py::arg("masks"));
  module.def("scatter", &scatter_to, py::arg("memory"), py::arg("offsets"), py::arg("values"));
  module.def("counting_sort", &counting_sort_of, py::arg("keys"), py::arg("key_count"));
  module.def("prefer_huge_pages", &prefer_huge_pages, py::arg("memory"));
}

}  // namespace native::binding
