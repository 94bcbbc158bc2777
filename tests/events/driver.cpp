// Runs tables by the workers of `pypm/events/workers.h`, for the sanitizer of threads.
//
// Arguments: threads, and the number of a mutant, which the test writes into a copy of that file.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "mutable.h"
#include "workers.h"

using events::Grid;
using events::Note;
using events::Wait;

constexpr int64_t ROWS = 2, COLUMNS = 4, LAYERS = 6, RUNS = 60;

int64_t numbers[LAYERS][ROWS]; // of a row of the layer before, for each row

// Layers of two grids: one reads a row of the layer before, and another one that this row chooses; the
// other grid reads a pair of columns of the first.
events::Table table() {
  events::Table made{{}, 0};
  for (int64_t layer = 0; layer < LAYERS; ++layer) {
    const int64_t rows = made.events, pairs = rows + ROWS;
    Grid wide{ROWS, COLUMNS, {}, {Note{pairs, 2, 1, 1, 2}}}, narrow{ROWS, 2, {}, {Note{rows, 1, 1, 0, 1}}};
    if (layer) {
      wide.waits.push_back(Wait{rows - 3 * ROWS, 1, 0, 2});
      wide.chosen.push_back(events::Chosen{rows - 3 * ROWS, 0, 0, 2, 1, numbers[layer - 1], 1});
    }
    narrow.waits.push_back(Wait{pairs, 2, 1, 2});
    made.grids.push_back(wide);
    made.grids.push_back(narrow);
    made.events += 3 * ROWS;
  }
  return made;
}

int main(int, char **arguments) {
  const int64_t threads = std::atoi(arguments[1]);
  mutant = std::atoi(arguments[2]);
  const events::Table given = table();
  events::Run run(given);
  int64_t wide[LAYERS][ROWS][COLUMNS], narrow[LAYERS][ROWS][2], expected = -1, failures = 0;
  for (int64_t n = 0; n < RUNS; ++n) {
    const bool fails = n % 16 == 5;
    const auto body = [&](size_t grid, int64_t i, int64_t j) {
      const size_t layer = grid / 2;
      if (fails && grid == 7 && i == 1)
        throw std::runtime_error("a task fails");
      if (grid % 2 == 0)
        wide[layer][i][j] =
            j + (layer ? narrow[layer - 1][i][0] * 3 + narrow[layer - 1][numbers[layer - 1][i]][1] : i);
      else
        narrow[layer][i][j] = (wide[layer][i][2 * j] + wide[layer][i][2 * j + 1] * 5) % 1009;
      if (grid % 2 == 1 && j == 0)
        numbers[layer][i] = (i + 1 + narrow[layer][i][0] % 7 / 6) % ROWS;
    };
    run.begin();
    events::Pool::current().run(threads, [&] { run.work(given, body); });
    try {
      run.end();
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
