// Python buffers without copies, and C arrays handed to numpy.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace native::binding {

namespace py = pybind11;

// A C-contiguous buffer, held for the life of this object. BufferError from Python if `object` has none.
class Buffer {
 public:
  explicit Buffer(py::handle object, bool writable = false) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }  // with the GIL held

  uint8_t* bytes() const { return static_cast<uint8_t*>(view_.buf); }
  size_t size_bytes() const { return size_t(view_.len); }
  size_t item_bytes() const { return size_t(view_.itemsize); }
  size_t items() const { return size_bytes() / item_bytes(); }
  char kind() const {  // the struct module's format letter
    const char* format = view_.format == nullptr ? "B" : view_.format;
    while (*format == '<' || *format == '=' || *format == '@') format++;
    return *format;
  }

 private:
  Py_buffer view_;
};

inline std::string describe_kind(const Buffer& buffer) {
  return std::string(1, buffer.kind()) + " of " + std::to_string(buffer.item_bytes()) + " bytes";
}

// Sorted or unsorted element positions: 32- or 64-bit integers, taken as unsigned.
inline void require_positions(const Buffer& positions) {
  const bool integer = std::string("iIlLqQ").find(positions.kind()) != std::string::npos;
  if (!integer || (positions.item_bytes() != 4 && positions.item_bytes() != 8)) {
    throw py::type_error("positions: expected 32- or 64-bit integers, found " + describe_kind(positions));
  }
}

// Calls `function` with a null pointer of the unsigned integer type of so many bytes (1, 2, 4 or 8).
template <class Function>
auto with_unsigned(size_t bytes, const char* what, Function function) {
  switch (bytes) {
    case 1: return function(static_cast<uint8_t*>(nullptr));
    case 2: return function(static_cast<uint16_t*>(nullptr));
    case 4: return function(static_cast<uint32_t*>(nullptr));
    case 8: return function(static_cast<uint64_t*>(nullptr));
    default:
      throw py::value_error(std::string(what) + ": expected 1, 2, 4 or 8 bytes, found " +
                            std::to_string(bytes));
  }
}

template <class Function>
auto with_position(size_t bytes, Function function) {
  return bytes == 4 ? function(static_cast<uint32_t*>(nullptr)) : function(static_cast<uint64_t*>(nullptr));
}

inline py::dtype unsigned_dtype(size_t bytes) { return py::dtype("u" + std::to_string(bytes)); }

// A numpy array that owns `data`, which came from malloc; no data for no items.
inline py::array adopt(void* data, size_t items, size_t item_bytes) {
  if (data == nullptr) return py::array(unsigned_dtype(item_bytes), std::vector<size_t>{0});
  py::capsule owner(data, [](void* memory) { free(memory); });
  return py::array(unsigned_dtype(item_bytes), {items}, {item_bytes}, data, owner);
}

}  // namespace native::binding
