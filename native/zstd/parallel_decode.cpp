#include "parallel_decode.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "frame_index.hpp"
#include "sparse_decoder.hpp"

namespace native::zstd {
namespace {

constexpr uint64_t range_content_bytes = 8 << 20;  // enough work to be worth a turn

struct Part {
  size_t job;
  FrameRange range;
  uint64_t start_bytes;  // of the range's content in the tensor
  std::unique_ptr<Elements> elements;
  Failure failure;
  uint64_t verified_checksums = 0, unverified_checksums = 0;
};

void lower_priority(int niceness) {
#if defined(__linux__)
  if (niceness == 0) return;
  const auto thread = id_t(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + niceness);
#else
  (void)niceness;
#endif
}

std::vector<Part> split_jobs(const std::vector<DecodeJob>& jobs) {
  std::vector<Part> parts;
  for (size_t job = 0; job < jobs.size(); job++) {
    uint64_t start_bytes = 0;
    for (const FrameRange& range : split_frames(jobs[job].payload, jobs[job].payload_bytes,
                                                jobs[job].size_bytes, range_content_bytes)) {
      parts.push_back({job, range, start_bytes, nullptr, {}});
      start_bytes += range.content_bytes;
    }
  }
  return parts;
}

void decode_part(const DecodeJob& job, const DecodeOptions& options, Workspace& workspace, Part& part) {
  part.elements = std::make_unique<Elements>(job.size_bytes, job.element_size);
  SparseDecoder decoder(workspace, *part.elements, part.range.content_bytes, options.window_bytes_max,
                        part.start_bytes);
  if (!decoder.advance(job.payload + part.range.offset, part.range.size) ||
      !decoder.finish(part.range.size)) {
    part.failure = decoder.failure();
    part.failure.offset += part.range.offset;
  }
  part.verified_checksums = decoder.verified_checksums();
  part.unverified_checksums = decoder.unverified_checksums();
}

// Runs work(index) for 0 .. count - 1 on the option's threads.
template <class Work>
void run_on_threads(const DecodeOptions& options, size_t count, Work work) {
  std::atomic<size_t> next{0};
  const auto loop = [&] {
    lower_priority(options.niceness);
    auto workspace = std::make_unique<Workspace>();
    for (size_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;)
      work(index, *workspace);
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::min<size_t>(std::max(options.threads, 1u), count);
  try {
    for (size_t i = 0; i < wanted; i++) threads.emplace_back(loop);
  } catch (const std::system_error&) {  // no more threads to be had: those that run do the work, or the
                                        // caller's does
    if (threads.empty()) loop();
  }
  for (std::thread& thread : threads) thread.join();
}

// Parts come in the order of their tensor; the earliest failure is the job's.
void join_parts(DecodeJob& job, std::vector<Part*>& parts) {
  size_t total = 0;
  for (const Part* part : parts) {
    job.verified_checksums += part->verified_checksums;
    job.unverified_checksums += part->unverified_checksums;
    total += part->elements->size();
    if (job.failure.error == Error::none) job.failure = part->failure;
  }
  if (job.failure.error != Error::none) return;
  job.elements = std::move(parts[0]->elements);
  bool joined = job.elements->resize(parts.size() == 1 ? job.elements->size() : total);
  for (size_t i = 1; i < parts.size() && joined; i++) {
    joined = job.elements->take(*parts[i]->elements);
    parts[i]->elements.reset();
  }
  if (!joined) job.failure.error = Error::out_of_memory;
}

}  // namespace

void decode_parallel(std::vector<DecodeJob>& jobs, const DecodeOptions& options) {
  std::vector<Part> parts = split_jobs(jobs);
  std::vector<Part*> largest_first;
  std::vector<std::vector<Part*>> parts_of(jobs.size());
  for (Part& part : parts) {
    largest_first.push_back(&part);
    parts_of[part.job].push_back(&part);
  }
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [](const Part* left, const Part* right) { return left->range.size > right->range.size; });
  run_on_threads(options, parts.size(), [&](size_t index, Workspace& workspace) {
    decode_part(jobs[largest_first[index]->job], options, workspace, *largest_first[index]);
  });
  run_on_threads(options, jobs.size(),
                 [&](size_t index, Workspace&) { join_parts(jobs[index], parts_of[index]); });
}

}  // namespace native::zstd
