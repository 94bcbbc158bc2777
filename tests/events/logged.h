// Logs of runs of the workers, in the words of the judge: `tests/events/logs.py` puts calls of these
// functions into a copy of `pypm/events/workers.h`. A lock makes each of them one step.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

namespace logged {

static std::mutex guard;
static std::string words, queues, ranks;
static int64_t entered = 0;
static thread_local int64_t worker = 0;

inline void put(const char *kind, int64_t a, int64_t b = -1) {
  words += std::string(kind) + std::to_string(worker) + ":" + std::to_string(a);
  words += (b < 0 ? "" : ":" + std::to_string(b)) + " ";
}

inline void say(const char *kind, int64_t a, int64_t b = -1) {
  const std::lock_guard<std::mutex> lock(guard);
  put(kind, a, b);
}

// The number of a task in the table.
template <class T, class U> int64_t number(const T &table, const U &task) {
  int64_t first = 0;
  for (size_t at = 0; at < task.grid; ++at)
    first += table.grids[at].size();
  return first + task.i * table.grids[task.grid].columns + task.j;
}

inline void begin() { words.clear(), queues.clear(), ranks.clear(), entered = 0; }

template <class T, class Q> void prepared(const T &table, const Q &made) {
  for (const auto &places : made.of) {
    std::string list;
    for (const int64_t place : places)
      list += (list.empty() ? "" : ",") + std::to_string(number(table, made.order[place]));
    queues += (list.empty() ? "-" : list) + " ";
  }
  for (const auto &task : made.order)
    ranks += std::to_string(number(table, task)) + " ";
}

inline void end() {
  std::printf("log\t%d\t%s\t%s\t%s\n", int(entered), queues.c_str(), ranks.c_str(), words.c_str());
}

inline int64_t enter(std::atomic<int64_t> &next, bool takes_queue) {
  const std::lock_guard<std::mutex> lock(guard);
  worker = entered++;
  const int64_t queue = takes_queue ? next.fetch_add(1) : 0;
  put("E", queue);
  return queue;
}

inline int64_t ticket(std::atomic<int64_t> &next, int64_t tasks) {
  const std::lock_guard<std::mutex> lock(guard);
  const int64_t found = next.fetch_add(1);
  if (found < tasks)
    put("T", 0, found);
  return found;
}

inline bool take(std::atomic<int64_t> &head, int64_t &at, int64_t queue, int64_t task) {
  const std::lock_guard<std::mutex> lock(guard);
  const bool taken = head.compare_exchange_strong(at, at + 1);
  if (taken)
    put("T", queue, task);
  return taken;
}

} // namespace logged
