// Tasks of grids, run by threads that stay: events count arrivals, tickets give out tasks.
//
// The tasks of a table are numbered in a topological order. A worker takes the next number, waits
// for the events of that task, runs it, and notifies its events; so the earliest task that is not
// done can always run. Events count on from run to run: in the n-th, a wait is for n times its count.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>

namespace events {

// Event `first` + step0 * i + step1 * j, and the arrivals of one run that task (i, j) waits for.
struct Wait {
  int64_t first, step0, step1, count;
};

// Event `first` + step0 * (i / block0) + step1 * (j / block1), which task (i, j) notifies.
struct Note {
  int64_t first, step0, block0, step1, block1;
};

// The events `first` + step0 * i + step1 * j + along * n for each of the numbers n in row i, which a
// task that the waiting one waits for has written.
struct Chosen {
  int64_t first, step0, step1, count, along;
  const int64_t *numbers;
  int64_t each; // numbers of a row
};

struct Grid {
  int64_t rows, columns; // of tasks
  std::vector<Wait> waits;
  std::vector<Note> notes;
  std::vector<Chosen> chosen; // read after the waits

  int64_t size() const { return rows * columns; }
};

struct Table {
  std::vector<Grid> grids; // in a topological order
  int64_t events;

  int64_t tasks() const {
    int64_t count = 0;
    for (const Grid &grid : grids)
      count += grid.size();
    return count;
  }
};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

constexpr int SPINS = 2000; // looks at memory before a thread lets others run

// Wait until `done` is true. More threads than processors are slow, but end.
template <class F> void spin(const F &done) {
  for (int64_t n = 0; !done(); ++n)
    n < SPINS ? pause() : std::this_thread::yield();
}

// What the workers of one table share, kept from run to run.
class Run {
public:
  explicit Run(const Table &table)
      : tasks(table.tasks()), counters(new std::atomic<int64_t>[table.events]), events(table.events) {
    clear();
  }

  // Called by one thread, before the others enter.
  void begin() {
    if (failed.load(std::memory_order_relaxed))
      clear();
    ++epoch;
    next.store(0, std::memory_order_relaxed);
  }

  // Called by one thread, after the others have left.
  void end() {
    if (error)
      std::rethrow_exception(error);
  }

  template <class F> void work(const Table &table, const F &body) {
    size_t at = 0;
    int64_t first = 0; // number of the first task of grid `at`
    for (;;) {
      const int64_t ticket = next.fetch_add(1, std::memory_order_relaxed);
      if (ticket >= tasks)
        return;
      while (ticket - first >= table.grids[at].size())
        first += table.grids[at++].size();
      const Grid &grid = table.grids[at];
      const int64_t i = (ticket - first) / grid.columns, j = (ticket - first) % grid.columns;
      for (const Wait &wait : grid.waits)
        await(wait.first + wait.step0 * i + wait.step1 * j, epoch * wait.count);
      if (failed.load(std::memory_order_relaxed)) // numbers may be missing, too
        return;
      for (const Chosen &each : grid.chosen)
        for (int64_t n = 0; n < each.each; ++n)
          await(each.first + each.step0 * i + each.step1 * j +
                    each.along * each.numbers[i * each.each + n],
                epoch * each.count);
      if (failed.load(std::memory_order_relaxed))
        return;
      try {
        body(at, i, j);
      } catch (...) {
        fail();
        return;
      }
      for (const Note &note : grid.notes)
        notify(note.first + note.step0 * (i / note.block0) + note.step1 * (j / note.block1));
    }
  }

private:
  void await(int64_t event, int64_t count) {
    const std::atomic<int64_t> &counter = counters[event];
    spin([&] {
      return counter.load(std::memory_order_acquire) >= count ||
             failed.load(std::memory_order_relaxed);
    });
  }

  void notify(int64_t event) { counters[event].fetch_add(1, std::memory_order_release); }

  void fail() {
    const std::lock_guard<std::mutex> lock(guard);
    if (!error)
      error = std::current_exception();
    failed.store(true, std::memory_order_relaxed);
  }

  void clear() { // arrivals of a run that failed are not known
    for (int64_t i = 0; i < events; ++i)
      counters[i].store(0, std::memory_order_relaxed);
    epoch = 0;
    error = nullptr;
    failed.store(false, std::memory_order_relaxed);
  }

  const int64_t tasks;
  const std::unique_ptr<std::atomic<int64_t>[]> counters;
  const int64_t events;
  int64_t epoch = 0;
  std::exception_ptr error;
  std::mutex guard;
  std::atomic<bool> failed{false};
  alignas(64) std::atomic<int64_t> next{0};
};

// Threads that wait for work: they spin, then let others run, then sleep.
class Pool {
public:
  // The pool of this process; a child of a fork has none of its parent's threads, and makes its own.
  static Pool &current() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { present().store(nullptr); });
    (void)registered;
    Pool *found = present().load(std::memory_order_acquire);
    if (!found) {
      Pool *made = new Pool; // never destroyed: its threads outlive static objects
      if (present().compare_exchange_strong(found, made))
        return *made;
      delete made;
    }
    return *found;
  }

  // Take the pool, if no other caller has it.
  bool take() { return !taken.exchange(true, std::memory_order_acquire); }
  void give() { taken.store(false, std::memory_order_release); }

  // Calls `work` in up to `workers` threads at once, this one included; only for one that took the
  // pool. It returns when all that entered have left. A thread that wakes too late does not enter.
  template <class F> void run(int64_t workers, const F &work) {
    grow(workers - 1);
    call = [](const void *with) { (*static_cast<const F *>(with))(); };
    argument = &work;
    most = workers - 1;
    door.fetch_add(OPEN, std::memory_order_release);
    generation.fetch_add(1, std::memory_order_seq_cst);
    if (asleep.load(std::memory_order_seq_cst) > 0) {
      const std::lock_guard<std::mutex> lock(guard);
      wake.notify_all();
    }
    work();
    door.fetch_sub(OPEN, std::memory_order_relaxed);
    spin([&] { return door.load(std::memory_order_acquire) == 0; });
  }

private:
  static constexpr int64_t OPEN = int64_t(1) << 32; // the rest of `door` counts threads inside
  static constexpr int YIELDS = 200;                // before a thread that has nothing to do sleeps

  static std::atomic<Pool *> &present() {
    static std::atomic<Pool *> pool{nullptr};
    return pool;
  }

  void grow(int64_t wanted) {
    try {
      for (; threads < wanted; ++threads)
        std::thread([this, number = threads] { stay(number); }).detach();
    } catch (const std::system_error &) { // the machine has no more: fewer threads do the work
    }
  }

  void stay(int64_t number) {
    for (int64_t seen = 0;;) {
      seen = news(seen);
      if (!enter())
        continue;
      if (number < most)
        call(argument);
      door.fetch_sub(1, std::memory_order_release);
    }
  }

  bool enter() {
    int64_t at = door.load(std::memory_order_relaxed);
    while (at >= OPEN)
      if (door.compare_exchange_weak(at, at + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed))
        return true;
    return false;
  }

  // Wait for another generation than the one that was seen, and return it.
  int64_t news(int64_t seen) {
    for (int n = 0; n < SPINS + YIELDS; ++n) {
      const int64_t now = generation.load(std::memory_order_acquire);
      if (now != seen)
        return now;
      n < SPINS ? pause() : std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(guard);
    asleep.fetch_add(1, std::memory_order_seq_cst);
    wake.wait(lock, [&] { return generation.load(std::memory_order_seq_cst) != seen; });
    asleep.fetch_sub(1, std::memory_order_relaxed);
    return generation.load(std::memory_order_acquire);
  }

  std::atomic<bool> taken{false};
  void (*call)(const void *) = nullptr;
  const void *argument = nullptr;
  int64_t most = 0, threads = 0;
  std::mutex guard;
  std::condition_variable wake;
  std::atomic<int64_t> asleep{0};
  alignas(64) std::atomic<int64_t> door{0};
  alignas(64) std::atomic<int64_t> generation{0};
};

} // namespace events
