// The Python module native._core. Each part binds itself; the core below knows nothing of Python.
#include <pybind11/pybind11.h>

namespace native::binding {
void bind_decode(pybind11::module_& module);
void bind_checksum(pybind11::module_& module);
void bind_map(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
}  // namespace native::binding

PYBIND11_MODULE(_core, module) {
  module.doc() = "The native core: sparse zstd decoding, Adler-32, layout mapping.";
  native::binding::bind_decode(module);
  native::binding::bind_checksum(module);
  native::binding::bind_map(module);
  native::binding::bind_memory(module);
}
