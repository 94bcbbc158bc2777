// Runs tables by the workers of `pypm/events/workers.h`, for the sanitizer of threads.
//
// Arguments: threads, the number of a schedule, that of a mutant, which the test writes into copies of
// those files, and how often layers are run; with 0, tables are read instead, and their queues printed.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "mutable.h"
#include "workers.h"

using events::Grid;
using events::Note;
using events::Schedule;
using events::Wait;

constexpr int64_t ROWS = 2, COLUMNS = 4, LAYERS = 6;

int64_t numbers[LAYERS][ROWS]; // of a row of the layer before, for each row

// Layers of two grids: one reads a row of the layer before, and another one that this row chooses; the
// other grid reads a pair of columns of the first.
events::Table layers() {
  events::Table made{{}, 0};
  for (int64_t layer = 0; layer < LAYERS; ++layer) {
    const int64_t rows = made.events, pairs = rows + ROWS;
    Grid wide{ROWS, COLUMNS, {}, {Note{pairs, 2, 1, 1, 2}}, {}};
    Grid narrow{ROWS, 2, {}, {Note{rows, 1, 1, 0, 1}}, {}};
    if (layer) {
      wide.waits.push_back(Wait{rows - 3 * ROWS, 1, 0, 2});
      wide.chosen.push_back(
          events::Chosen{rows - 3 * ROWS, 0, 0, 2, 1, numbers[layer - 1], 1, ROWS});
    }
    narrow.waits.push_back(Wait{pairs, 2, 1, 2});
    made.grids.push_back(wide);
    made.grids.push_back(narrow);
    made.events += 3 * ROWS;
  }
  return made;
}

// Runs tables on threads, of which some are late: some runs have one worker, or half of them.
struct Runner {
  int64_t threads, runs = 0;
  std::atomic<bool> crowded{false}; // more threads than were asked for

  template <class F> void operator()(events::Run &run, const F &body) {
    const int64_t workers = runs % 2 ? (threads + 1) / 2 : threads;
    const int64_t in_time = runs % 3 == 0 ? workers : runs % 3 == 1 ? 1 : (workers + 1) / 2;
    std::atomic<int64_t> entered{0};
    run.begin(workers);
    events::Pool::current().run(workers, [&] {
      const int64_t place = entered.fetch_add(1, std::memory_order_relaxed);
      if (place >= workers)
        crowded.store(true, std::memory_order_relaxed);
      if (place < in_time)
        run.work(body);
    });
    ++runs;
    run.end();
  }
};

int run_layers(Runner &runner, Schedule schedule, int64_t count) {
  const events::Table given = layers();
  events::Run run(given, schedule);
  int64_t wide[LAYERS][ROWS][COLUMNS], narrow[LAYERS][ROWS][2], expected = -1, failures = 0;
  for (int64_t n = 0; n < count; ++n) {
    const bool fails = n % 16 == 5;
    const auto body = [&](size_t grid, int64_t i, int64_t j) {
      const size_t layer = grid / 2;
      if (fails && grid == 7 && i == 1)
        throw std::runtime_error("a task fails");
      if ((grid + i + j + n) % 3 == 0)
        std::this_thread::yield(); // others may come first
      if (grid % 2 == 0)
        wide[layer][i][j] =
            j + (layer ? narrow[layer - 1][i][0] * 3 + narrow[layer - 1][numbers[layer - 1][i]][1] : i);
      else
        narrow[layer][i][j] = (wide[layer][i][2 * j] + wide[layer][i][2 * j + 1] * 5) % 1009;
      if (grid % 2 == 1 && j == 0)
        numbers[layer][i] = (i + 1 + narrow[layer][i][0] % 7 / 6) % ROWS;
    };
    try {
      runner(run, body);
    } catch (const std::runtime_error &) {
      ++failures;
      continue;
    }
    int64_t sum = 0;
    for (const auto &row : narrow[LAYERS - 1])
      sum += row[0] * 31 + row[1];
    if (expected >= 0 && sum != expected)
      return std::puts("results differ"), 3;
    expected = sum;
  }
  std::printf("%d failures, result %d\n", int(failures), int(expected));
  return 0;
}

int64_t read() {
  int64_t found;
  std::cin >> found;
  return found;
}

// A table: events N  grids N (rows columns cost  waits N (first step step count)*
// notes N (first step block step block)*)*  and for each task  N task*, those before it.
int run_table(Runner &runner, Schedule schedule) {
  events::Table table{{}, read()};
  std::vector<int64_t> firsts;
  int64_t count = 0;
  for (int64_t n = read(); n > 0; --n) {
    Grid grid{read(), read(), {}, {}, {}, read()};
    for (int64_t m = read(); m > 0; --m)
      grid.waits.push_back(Wait{read(), read(), read(), read()});
    for (int64_t m = read(); m > 0; --m)
      grid.notes.push_back(Note{read(), read(), read(), read(), read()});
    firsts.push_back(count);
    count += grid.size();
    table.grids.push_back(grid);
  }
  std::vector<std::vector<int64_t>> before(count);
  std::vector<int64_t> values(count), expected(count);
  const auto value = [&](const std::vector<int64_t> &from, int64_t task) {
    int64_t sum = task;
    for (const int64_t other : before[task])
      sum += 3 * from[other];
    return sum % 10007;
  };
  for (int64_t task = 0; task < count; ++task) {
    for (int64_t n = read(); n > 0; --n)
      before[task].push_back(read());
    expected[task] = value(expected, task);
  }
  events::Run run(table, schedule);
  for (int64_t n = 0; n < 4; ++n) {
    std::fill(values.begin(), values.end(), -1);
    runner(run, [&](size_t grid, int64_t i, int64_t j) {
      const int64_t task = firsts[grid] + i * table.grids[grid].columns + j;
      if (values[task] != -1)
        throw std::runtime_error("a task runs twice");
      values[task] = value(values, task);
    });
    if (values != expected)
      return std::puts("results differ"), 3;
  }
  const events::Queues made = events::queues(table, runner.threads);
  for (const auto &queue : made.of) {
    for (const int64_t place : queue) {
      const events::Task &task = made.order[place];
      std::printf("%d ", int(firsts[task.grid] + task.i * table.grids[task.grid].columns + task.j));
    }
    std::puts("");
  }
  return 0;
}

int main(int, char **arguments) {
  Runner runner{std::atoi(arguments[1])};
  const Schedule schedule = Schedule(std::atoi(arguments[2]));
  mutant = std::atoi(arguments[3]);
  const int64_t count = std::atoi(arguments[4]);
  int status = count ? run_layers(runner, schedule, count) : 0;
  for (int64_t n = count ? 0 : read(); n > 0 && !status; --n)
    status = run_table(runner, schedule);
  return runner.crowded.load() ? 4 : status;
}
