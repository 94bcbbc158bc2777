// Tasks of grids, run by threads that stay: events count arrivals, tickets or queues give out tasks.
//
// The tasks of a table are numbered in a topological order. A worker takes the next number, waits
// for the events of that task, runs it, and notifies its events; so the earliest task that is not
// done can always run. Events count on from run to run: in the n-th, a wait is for n times its count.
//
// Queues are parts of one topological order, each in that order. A worker that enters takes the next
// queue. While it waits for a task, it runs tasks of queues that no worker has taken yet, if they
// come before that task; once its queue is done, any of them. So the earliest task that is not done
// can always run, here too: it is held by a worker, which holds no earlier one, so that its inputs
// are there; or it is the next of the queue of a worker that waits for no other task, since those
// before it in its queue are done; or it is the next of a queue without a worker, and each worker
// that waits holds a later task, and will find it.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>

#include "tables.h"

namespace events {

enum class Schedule {
  TICKETS,  // the next task of the table for the worker that is free
  QUEUES,   // lists that are made before
  BARRIERS, // as tickets, where a grid begins when all grids before it have ended; without events
};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

constexpr int SPINS = 2000; // looks at memory before a thread lets others run

// The looks of one of some threads: with more threads than processors, others run at once.
inline int spins_of(int64_t threads) {
  static const int64_t processors = std::thread::hardware_concurrency();
  return threads > processors && processors > 0 ? 1 : SPINS;
}

// Wait until `done` is true; call `idle` between two looks, which returns whether it did something.
template <class F, class G> void spin(int spins, const F &done, const G &idle) {
  for (int64_t n = 0; !done(); ++n)
    if (!idle())
      n < spins ? pause() : std::this_thread::yield();
}

// What the workers of one table share, kept from run to run.
class Run {
public:
  explicit Run(const Table &table, Schedule schedule = Schedule::TICKETS)
      : table(table), schedule(schedule), tasks(table.tasks().size()),
        counters(new std::atomic<int64_t>[table.events]) {
    if (schedule == Schedule::BARRIERS)
      starts = barriers(table);
    clear();
  }

  // Called by one thread, before others enter: so many, or less.
  void begin(int64_t workers) {
    if (failed.load(std::memory_order_relaxed))
      clear();
    if (schedule == Schedule::QUEUES)
      lists = &prepared(workers);
    spins = spins_of(workers);
    ++epoch;
    ended.store(0, std::memory_order_relaxed);
    next.store(0, std::memory_order_relaxed);
  }

  // Called by one thread, after the others have left.
  void end() {
    if (error)
      std::rethrow_exception(error);
  }

  template <class F> void work(const F &body) {
    schedule == Schedule::QUEUES ? by_queues(body) : by_tickets(body);
  }

private:
  static constexpr int64_t ALL = std::numeric_limits<int64_t>::max();

  struct alignas(64) Head {
    std::atomic<int64_t> next; // place in the queue
  };

  struct Lists {
    Queues queues;
    std::unique_ptr<Head[]> heads;
  };

  template <class F> void by_tickets(const F &body) {
    size_t at = 0;
    int64_t first = 0; // number of the first task of grid `at`
    for (;;) {
      const int64_t ticket = next.fetch_add(1, std::memory_order_relaxed);
      if (ticket >= tasks)
        return;
      while (ticket - first >= table.grids[at].size())
        first += table.grids[at++].size();
      const int64_t columns = table.grids[at].columns;
      if (!perform({at, (ticket - first) / columns, (ticket - first) % columns}, body,
                   [] { return false; }))
        return;
    }
  }

  template <class F> void by_queues(const F &body) {
    const int64_t own = next.fetch_add(1, std::memory_order_relaxed);
    if (own < int64_t(lists->queues.of.size()))
      for (int64_t place; take(own, ALL, &place);)
        if (!perform_of_queue(place, body))
          return;
    while (help(ALL, body)) {
    }
  }

  // Take the next task of a queue, if it comes before a place in the order.
  bool take(int64_t queue, int64_t before, int64_t *place) {
    const std::vector<int64_t> &places = lists->queues.of[queue];
    std::atomic<int64_t> &head = lists->heads[queue].next;
    int64_t at = head.load(std::memory_order_relaxed);
    while (at < int64_t(places.size()) && places[at] < before)
      if (head.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
        *place = places[at];
        return true;
      }
    return false;
  }

  // Run a task of a queue that no worker has taken, if one comes before a place in the order.
  template <class F> bool help(int64_t before, const F &body) {
    const int64_t count = lists->queues.of.size();
    for (int64_t queue = next.load(std::memory_order_relaxed), place; queue < count; ++queue)
      if (take(queue, before, &place))
        return perform_of_queue(place, body);
    return false;
  }

  template <class F> bool perform_of_queue(int64_t place, const F &body) {
    return perform(lists->queues.order[place], body, [&] { return help(place, body); });
  }

  // Wait for a task, and run it; false if the run has failed. `idle` is called while it waits.
  template <class F, class G> bool perform(const Task &task, const F &body, const G &idle) {
    const Grid &grid = table.grids[task.grid];
    const int64_t i = task.i, j = task.j;
    const bool by_events = schedule != Schedule::BARRIERS;
    if (!by_events)
      await(ended, starts[task.grid], idle);
    for (size_t n = 0; by_events && n < grid.waits.size(); ++n)
      await(counters[grid.waits[n].event(i, j)], epoch * grid.waits[n].count, idle);
    if (failed.load(std::memory_order_relaxed)) // numbers may be missing, too
      return false;
    for (size_t c = 0; by_events && c < grid.chosen.size(); ++c) {
      const Chosen &each = grid.chosen[c];
      for (int64_t n = 0; n < each.each; ++n)
        await(counters[each.event(i, j, each.numbers[i * each.each + n])], epoch * each.count, idle);
    }
    if (failed.load(std::memory_order_relaxed))
      return false;
    try {
      body(task.grid, i, j);
    } catch (...) {
      fail();
      return false;
    }
    if (!by_events)
      notify(ended);
    for (size_t n = 0; by_events && n < grid.notes.size(); ++n)
      notify(counters[grid.notes[n].event(i, j)]);
    return true;
  }

  template <class G>
  void await(const std::atomic<int64_t> &counter, int64_t count, const G &idle) {
    const auto done = [&] {
      return counter.load(std::memory_order_acquire) >= count ||
             failed.load(std::memory_order_relaxed);
    };
    spin(spins, done, idle);
  }

  void notify(std::atomic<int64_t> &counter) { counter.fetch_add(1, std::memory_order_release); }

  void fail() {
    const std::lock_guard<std::mutex> lock(guard);
    if (!error)
      error = std::current_exception();
    failed.store(true, std::memory_order_relaxed);
  }

  void clear() { // arrivals of a run that failed are not known
    for (int64_t i = 0; i < table.events; ++i)
      counters[i].store(0, std::memory_order_relaxed);
    epoch = 0;
    error = nullptr;
    failed.store(false, std::memory_order_relaxed);
  }

  // The queues for some workers, none of which has begun.
  Lists &prepared(int64_t workers) {
    Lists &found = known[workers];
    if (!found.heads) {
      found.queues = queues(table, workers);
      found.heads.reset(new Head[workers]);
    }
    for (int64_t n = 0; n < workers; ++n)
      found.heads[n].next.store(0, std::memory_order_relaxed);
    return found;
  }

  const Table &table;
  const Schedule schedule;
  const int64_t tasks;
  std::vector<int64_t> starts; // of each grid, how many tasks end before
  const std::unique_ptr<std::atomic<int64_t>[]> counters;
  std::map<int64_t, Lists> known; // by the number of workers
  Lists *lists = nullptr;
  int spins = SPINS;
  int64_t epoch = 0;
  std::exception_ptr error;
  std::mutex guard;
  std::atomic<bool> failed{false};
  alignas(64) std::atomic<int64_t> next{0}; // ticket, or queue
  alignas(64) std::atomic<int64_t> ended{0}; // tasks of this run, with barriers
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
  // `work` may not throw.
  template <class F> void run(int64_t workers, const F &work) {
    grow(workers - 1);
    call = [](const void *with) { (*static_cast<const F *>(with))(); };
    argument = &work;
    most = std::min<int64_t>(workers - 1, threads.size());
    ++generation;
    door.fetch_add(OPEN, std::memory_order_release);
    for (int64_t n = 0; n < most; ++n)
      threads[n]->wake(generation, spins_of(workers));
    work();
    door.fetch_sub(OPEN, std::memory_order_relaxed);
    spin(spins_of(workers), [&] { return door.load(std::memory_order_acquire) == 0; },
         [] { return false; });
  }

private:
  static constexpr int64_t OPEN = int64_t(1) << 32; // the rest of `door` counts threads inside
  static constexpr int YIELDS = 200;                // before a thread that has nothing to do sleeps

  // What a thread waits for.
  class alignas(64) Bell {
  public:
    void wake(int64_t number, int looks) {
      spins.store(looks, std::memory_order_relaxed);
      generation.store(number, std::memory_order_seq_cst);
      if (!asleep.load(std::memory_order_seq_cst))
        return;
      const std::lock_guard<std::mutex> lock(guard);
      woken.notify_one();
    }

    // Wait for a later generation than the one that was seen, and return it.
    int64_t heard(int64_t seen) {
      const int looks = spins.load(std::memory_order_relaxed);
      for (int n = 0; n < looks + YIELDS; ++n) {
        const int64_t now = generation.load(std::memory_order_acquire);
        if (now > seen)
          return now;
        n < looks ? pause() : std::this_thread::yield();
      }
      std::unique_lock<std::mutex> lock(guard);
      asleep.store(true, std::memory_order_seq_cst);
      woken.wait(lock, [&] { return generation.load(std::memory_order_seq_cst) > seen; });
      asleep.store(false, std::memory_order_relaxed);
      return generation.load(std::memory_order_acquire);
    }

  private:
    std::atomic<int64_t> generation{0};
    std::atomic<int> spins{SPINS};
    std::atomic<bool> asleep{false};
    std::mutex guard;
    std::condition_variable woken;
  };

  static std::atomic<Pool *> &present() {
    static std::atomic<Pool *> pool{nullptr};
    return pool;
  }

  void grow(int64_t wanted) {
    try {
      while (int64_t(threads.size()) < wanted) {
        auto made = std::make_unique<Bell>();
        threads.reserve(wanted); // so that nothing is thrown once the thread runs
        std::thread([this, bell = made.get(), number = int64_t(threads.size())] {
          stay(*bell, number);
        }).detach();
        threads.push_back(std::move(made));
      }
    } catch (const std::system_error &) { // the machine has no more: fewer threads do the work
    }
  }

  void stay(Bell &bell, int64_t number) {
    for (int64_t seen = 0;;) {
      seen = bell.heard(seen);
      if (!enter())
        continue;
      seen = generation; // it may have been woken for a run before this one, and is not to come again
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

  std::atomic<bool> taken{false};
  void (*call)(const void *) = nullptr;
  const void *argument = nullptr;
  std::vector<std::unique_ptr<Bell>> threads; // never destroyed, as the pool
  int64_t most = 0, generation = 0;
  alignas(64) std::atomic<int64_t> door{0};
};

} // namespace events
