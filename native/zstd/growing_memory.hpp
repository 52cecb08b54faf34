// Memory that grows by moving pages instead of copying bytes, so that an array's growth never holds it twice.
// Not part of RFC 8878.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace native::zstd {

#if defined(__linux__)
// A few mappings of results that are not needed any more: the next result finds pages there that the kernel
// need not clear again. Small ones only; for all threads, since the one that drops a result rarely made it.
class FreeMappings {
 public:
  static FreeMappings& instance() {
    static auto* mappings = new FreeMappings;  // never destroyed: results may outlive static objects
    return *mappings;
  }

  void take(uint8_t*& data, size_t& capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (count_ == 0) return;
    count_--;
    data = kept_[count_].data;
    capacity = kept_[count_].capacity;
  }

  void put(uint8_t* data, size_t capacity) {
    if (capacity <= bytes_max) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (count_ < slots) {
        kept_[count_++] = {data, capacity};
        return;
      }
    }
    munmap(data, capacity);
  }

 private:
  static constexpr size_t slots = 8, bytes_max = 1 << 20;
  struct Mapping {
    uint8_t* data;
    size_t capacity;
  };
  std::mutex mutex_;
  Mapping kept_[slots];
  size_t count_ = 0;
};
#endif

class GrowingMemory {
 public:
  GrowingMemory() = default;
  GrowingMemory(GrowingMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  GrowingMemory& operator=(const GrowingMemory&) = delete;
  ~GrowingMemory() { release(); }

  uint8_t* data() const { return data_; }
  size_t capacity() const { return capacity_; }

  // To at least `bytes`, more or fewer; keeps what fits. False: out of memory, nothing is changed.
  bool resize(size_t bytes) {
    if (bytes == 0) {
      release();
      return true;
    }
#if defined(__linux__)
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), rounded = (bytes + page - 1) / page * page;
    if (rounded < bytes) return false;
    if (data_ == nullptr) FreeMappings::instance().take(data_, capacity_);
    if (rounded == capacity_) return true;
    void* now = data_ == nullptr
                    ? mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                    : mremap(data_, capacity_, rounded, MREMAP_MAYMOVE);
    if (now == MAP_FAILED) return false;
    capacity_ = rounded;
#else
    void* now = realloc(data_, bytes);
    if (now == nullptr) return false;
    capacity_ = bytes;
#endif
    data_ = static_cast<uint8_t*>(now);
    return true;
  }

  // Copies [from, from + bytes) to `to` and gives its pages back as it goes: their content is lost.
  void move_out(size_t from, size_t bytes, uint8_t* to) {
    constexpr size_t step = 256 << 10;
    for (size_t done = 0; done < bytes; done += step) {
      const size_t part = bytes - done < step ? bytes - done : step;
      memcpy(to + done, data_ + from + done, part);
#if defined(__linux__)
      const size_t page = size_t(sysconf(_SC_PAGESIZE)), end = (from + done + part) / page * page;
      if (end > 0) madvise(data_, end, MADV_DONTNEED);
#endif
    }
  }

 private:
  uint8_t* data_ = nullptr;
  size_t capacity_ = 0;

  void release() {
#if defined(__linux__)
    if (data_ != nullptr) FreeMappings::instance().put(data_, capacity_);
#else
    free(data_);
#endif
    data_ = nullptr;
    capacity_ = 0;
  }
};

}  // namespace native::zstd
