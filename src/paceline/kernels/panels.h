// A product's work, cut into (panel of outputs, range of rows) for the threads.
#pragma once
#include <cstdint>
#include <omp.h>

constexpr int ROW_CHUNK = 32;      // rows that stay together when a call is split over rows as well
constexpr double SERIAL_US = 5.0;  // a parallel region costs a few us; below this one thread is faster

// body(panel, from, to) for every panel and every range of rows; `us` is what the whole call takes one thread.
template <typename Body> static inline void for_panels(int64_t panels, int64_t rows, double us, const Body& body) {
  const int threads = us < SERIAL_US ? 1 : omp_get_max_threads();
  const int64_t chunks = (rows + ROW_CHUNK - 1) / ROW_CHUNK, items = panels * chunks;
  auto work = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
      const int64_t chunk = i % chunks;
      body(i / chunks, rows * chunk / chunks, rows * (chunk + 1) / chunks);
    }
  };
  if (threads == 1) return work(0, items);
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), n = omp_get_num_threads();
    work(items * t / n, items * (t + 1) / n);  // the same panels for the same core in every call: they stay in its L2
  }
}
