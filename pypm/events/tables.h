// Tables of tasks with the events that order them, and what is made of a table before it runs.

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace events {

// Event `first` + step0 * i + step1 * j, and the arrivals of one run that task (i, j) waits for.
struct Wait {
  int64_t first, step0, step1, count;

  int64_t event(int64_t i, int64_t j) const { return first + step0 * i + step1 * j; }
};

// Event `first` + step0 * (i / block0) + step1 * (j / block1), which task (i, j) notifies.
struct Note {
  int64_t first, step0, block0, step1, block1;

  int64_t event(int64_t i, int64_t j) const {
    return first + step0 * (i / block0) + step1 * (j / block1);
  }
};

// The events `first` + step0 * i + step1 * j + along * n for each of the numbers n in row i, which a
// task that the waiting one waits for has written.
struct Chosen {
  int64_t first, step0, step1, count, along;
  const int64_t *numbers;
  int64_t each;  // numbers of a row
  int64_t below; // what all numbers are less than

  int64_t event(int64_t i, int64_t j, int64_t n) const {
    return first + step0 * i + step1 * j + along * n;
  }
};

struct Grid {
  int64_t rows, columns; // of tasks
  std::vector<Wait> waits;
  std::vector<Note> notes;
  std::vector<Chosen> chosen; // read after the waits
  int64_t cost = 1;           // of a task, beside those of others

  int64_t size() const { return rows * columns; }

  // Calls `f` with each event that task (i, j) waits for, whatever numbers choose.
  template <class F> void each_wait(int64_t i, int64_t j, const F &f) const {
    for (const Wait &wait : waits)
      f(wait.event(i, j));
    for (const Chosen &each : chosen)
      for (int64_t n = 0; n < each.below; ++n)
        f(each.event(i, j, n));
  }
};

struct Task {
  size_t grid;
  int64_t i, j;
};

struct Table {
  std::vector<Grid> grids; // in a topological order
  int64_t events;

  // All tasks in order.
  std::vector<Task> tasks() const {
    std::vector<Task> found;
    for (size_t at = 0; at < grids.size(); ++at)
      for (int64_t n = 0; n < grids[at].size(); ++n)
        found.push_back({at, n / grids[at].columns, n % grids[at].columns});
    return found;
  }
};

// For each grid, how many tasks have to end before one of it begins, where it waits for all grids
// before it but those beside it, none of which waits for another.
inline std::vector<int64_t> barriers(const Table &table) {
  std::vector<int64_t> found, stages(table.events, -1); // of what notifies each event
  int64_t stage = 0, before = 0, all = 0;
  for (const Grid &grid : table.grids) {
    bool waits = false;
    for (int64_t n = 0; n < grid.size(); ++n)
      grid.each_wait(n / grid.columns, n % grid.columns,
                     [&](int64_t event) { waits = waits || stages[event] == stage; });
    if (waits)
      ++stage, before = all;
    for (int64_t n = 0; n < grid.size(); ++n)
      for (const Note &note : grid.notes)
        stages[note.event(n / grid.columns, n % grid.columns)] = stage;
    found.push_back(before);
    all += grid.size();
  }
  return found;
}

// Queues of tasks for workers, each a list of places in one order of all tasks, which rise.
struct Queues {
  std::vector<Task> order; // topological
  std::vector<std::vector<int64_t>> of;
};

// The worker that is free first gets, of the tasks whose inputs are there, the one before the longest
// chain by costs. `schedules.queues` in Python finds the same.
inline Queues queues(const Table &table, int64_t workers) {
  const std::vector<Task> tasks = table.tasks();
  const int64_t count = tasks.size();
  std::vector<int64_t> arrivals(table.events), missing(count), left(count), chain(table.events);
  std::vector<std::vector<int64_t>> waiting(table.events);
  for (int64_t n = count; n-- > 0;) { // all that waits for a task comes after it
    const Task &task = tasks[n];
    const Grid &grid = table.grids[task.grid];
    for (const Note &note : grid.notes) {
      const int64_t event = note.event(task.i, task.j);
      ++arrivals[event];
      left[n] = std::max(left[n], chain[event]);
    }
    left[n] += grid.cost;
    grid.each_wait(task.i, task.j, [&](int64_t event) {
      ++missing[n];
      waiting[event].push_back(n);
      chain[event] = std::max(chain[event], left[n]);
    });
  }
  typedef std::tuple<int64_t, int64_t, int64_t> End; // time, task, worker
  std::priority_queue<std::pair<int64_t, int64_t>> ready;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> idle;
  std::priority_queue<End, std::vector<End>, std::greater<>> running;
  const auto begin = [&](int64_t n) { ready.push({left[n], -n}); };
  for (int64_t n = 0; n < count; ++n)
    if (!missing[n])
      begin(n);
  for (int64_t worker = 0; worker < workers; ++worker)
    idle.push(worker);
  Queues found;
  found.of.resize(workers);
  for (int64_t now = 0; !ready.empty() || !running.empty();) {
    for (; !ready.empty() && !idle.empty(); ready.pop(), idle.pop()) {
      const int64_t n = -ready.top().second, worker = idle.top();
      found.of[worker].push_back(found.order.size());
      found.order.push_back(tasks[n]);
      running.push({now + table.grids[tasks[n].grid].cost, n, worker});
    }
    const auto [end, n, worker] = running.top();
    running.pop();
    now = end;
    idle.push(worker);
    for (const Note &note : table.grids[tasks[n].grid].notes) {
      const int64_t event = note.event(tasks[n].i, tasks[n].j);
      if (--arrivals[event] == 0)
        for (const int64_t other : waiting[event])
          if (--missing[other] == 0)
            begin(other);
    }
  }
  return found;
}

} // namespace events
