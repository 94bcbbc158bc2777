// One step of a decoder as one kernel: the grids of a program, run by threads that stay.
//
// A program is a text, which `pypm.events.program` prints: tokens between spaces. A number is `3`,
// `2b` or `3+2b`, with b for the rows of the batch. A place in memory is `t3`, an operand, `s3`, a
// buffer of the program, `r`, the result, or `-` for none.
//
//   elements N  buffers N width*  choices N (top count)*  events N  layers N  groups N  size N
//   grids N grid*
//   grid: KIND rows columns  waits N (first step step count)*  notes N (first step block step block)*
//         chosen N (first step step count along choice)*
//         and what the body reads, in the order of its fields here

#include <map>
#include <sstream>
#include <string>
#include <variant>

#include "experts.h"
#include "operators.h"
#include "workers.h"

namespace {

using operators::ScalarType;
using operators::Tensor;

struct Place {
  char kind = '-';
  int64_t index = 0;
};

struct Matrix {
  Place values, bias;
  int64_t turned, first; // of its outputs
};

struct NormFields {
  int64_t kind; // 0 none, 1 by the root of the mean square, 2 centered, 3 as 1, rounded before weights
  Place weight, bias;
  double epsilon, offset;
  Place added; // to epsilon
};

struct ProductBody {
  Place x, residual, out;
  NormFields norm;
  Matrix weight, gate;
  int64_t activation, size, columns, block;
};

struct AttentionBody {
  Place q, k, v, cos, sin, keys, values, mask, position, out;
  int64_t layer, groups, heads, size;
  double scale;
};

struct RouteBody {
  Place x;
  NormFields norm;
  Matrix router;
  int64_t size, is_normalized, choice;
};

struct HiddenBody {
  Place x, out;
  NormFields norm;
  Matrix up, gate;
  int64_t activation, size, columns, block, choice;
};

struct SumBody {
  Place x, residual, out;
  Matrix down;
  int64_t size, columns, block, choice;
};

typedef std::variant<ProductBody, AttentionBody, RouteBody, HiddenBody, SumBody> Body;

// Reads a program for a number of rows.
class Reader {
public:
  Reader(const std::string &text, int64_t batch) : from(text), batch(batch) {}

  std::string word() {
    std::string found;
    REQUIRE(from >> found);
    return found;
  }

  void expect(const char *wanted) { REQUIRE(word() == wanted); }

  int64_t number() {
    const std::string token = word();
    const char *at = token.c_str();
    int64_t total = 0;
    for (bool more = true; more;) {
      char *end;
      const int64_t part = std::strtoll(at, &end, 10);
      REQUIRE(end != at);
      total += *end == 'b' ? part * batch : part;
      end += *end == 'b';
      more = *end == '+';
      at = end + more;
    }
    REQUIRE(*at == 0);
    return total;
  }

  int64_t count(const char *name) {
    expect(name);
    const int64_t found = number();
    REQUIRE(found >= 0);
    return found;
  }

  double real() { return std::strtod(word().c_str(), nullptr); }

  Place place() {
    const std::string token = word();
    return {token[0], token.size() > 1 ? std::strtoll(token.c_str() + 1, nullptr, 10) : 0};
  }

  Matrix matrix() {
    const Place values = place(), bias = place();
    const int64_t turned = number();
    return {values, bias, turned, number()};
  }

  NormFields norm() {
    NormFields n;
    n.kind = number(), n.weight = place(), n.bias = place();
    n.epsilon = real(), n.offset = real(), n.added = place();
    return n;
  }

  Body body(const std::string &kind) {
    if (kind == "product") {
      ProductBody b;
      b.x = place(), b.residual = place(), b.out = place(), b.norm = norm();
      b.weight = matrix(), b.gate = matrix(), b.activation = number();
      b.size = number(), b.columns = number(), b.block = number();
      REQUIRE(b.block > 0);
      return b;
    }
    if (kind == "route") {
      RouteBody b;
      b.x = place(), b.norm = norm(), b.router = matrix(), b.size = number();
      b.is_normalized = number(), b.choice = number();
      return b;
    }
    if (kind == "hidden") {
      HiddenBody b;
      b.x = place(), b.out = place(), b.norm = norm(), b.up = matrix(), b.gate = matrix();
      b.activation = number(), b.size = number(), b.columns = number(), b.block = number();
      b.choice = number();
      REQUIRE(b.block > 0);
      return b;
    }
    if (kind == "sum") {
      SumBody b;
      b.x = place(), b.residual = place(), b.out = place(), b.down = matrix();
      b.size = number(), b.columns = number(), b.block = number(), b.choice = number();
      REQUIRE(b.block > 0);
      return b;
    }
    REQUIRE(kind == "attention");
    AttentionBody b;
    for (Place *each : {&b.q, &b.k, &b.v, &b.cos, &b.sin, &b.keys, &b.values, &b.mask, &b.position,
                        &b.out})
      *each = place();
    b.layer = number(), b.groups = number(), b.heads = number(), b.size = number();
    b.scale = real();
    return b;
  }

private:
  std::istringstream from;
  const int64_t batch;
};

// A program for a number of rows, and its memory, kept from call to call.
struct Step {
  int64_t batch, elements, layers, groups, size;
  std::vector<int64_t> widths;
  std::vector<std::vector<float>> buffers; // of a type that is no wider
  std::vector<experts::Choice> choices;
  events::Table table;
  std::vector<Body> bodies;
  std::unique_ptr<events::Run> run;

  Step(const std::string &text, int64_t batch) : batch(batch) {
    Reader reader(text, batch);
    elements = reader.count("elements");
    for (int64_t n = reader.count("buffers"); n > 0; --n) {
      widths.push_back(reader.number());
      buffers.emplace_back(widths.back() * batch);
    }
    for (int64_t n = reader.count("choices"); n > 0; --n) {
      const int64_t top = reader.number(), count = reader.number();
      REQUIRE(0 < top && top <= count);
      choices.push_back({top, count, std::vector<int64_t>(top * batch), std::vector<float>(top * batch)});
    }
    table.events = reader.count("events");
    layers = reader.count("layers"), groups = reader.count("groups"), size = reader.count("size");
    for (int64_t n = reader.count("grids"); n > 0; --n) {
      const std::string kind = reader.word();
      events::Grid grid;
      grid.rows = reader.number(), grid.columns = reader.number();
      for (int64_t m = reader.count("waits"); m > 0; --m) {
        events::Wait wait;
        for (int64_t *each : {&wait.first, &wait.step0, &wait.step1, &wait.count})
          *each = reader.number();
        inside(wait.first + wait.step0 * (grid.rows - 1) + wait.step1 * (grid.columns - 1));
        grid.waits.push_back(wait);
      }
      for (int64_t m = reader.count("notes"); m > 0; --m) {
        events::Note note;
        for (int64_t *each : {&note.first, &note.step0, &note.block0, &note.step1, &note.block1})
          *each = reader.number();
        REQUIRE(note.block0 > 0 && note.block1 > 0);
        inside(note.first + note.step0 * ((grid.rows - 1) / note.block0) +
               note.step1 * ((grid.columns - 1) / note.block1));
        grid.notes.push_back(note);
      }
      for (int64_t m = reader.count("chosen"); m > 0; --m) {
        events::Chosen each;
        for (int64_t *field : {&each.first, &each.step0, &each.step1, &each.count, &each.along})
          *field = reader.number();
        const experts::Choice &by = choice(reader.number());
        REQUIRE(grid.rows == batch);
        inside(each.first + each.step0 * (grid.rows - 1) + each.step1 * (grid.columns - 1) +
               each.along * (by.count - 1));
        each.numbers = by.numbers.data(), each.each = by.top;
        grid.chosen.push_back(each);
      }
      table.grids.push_back(grid);
      bodies.push_back(reader.body(kind));
      std::visit([&](const auto &body) { check(grid, body); }, bodies.back());
    }
    run = std::make_unique<events::Run>(table);
  }

  experts::Choice &choice(int64_t number) {
    REQUIRE(0 <= number && number < int64_t(choices.size()));
    return choices[number];
  }

private:
  void check(const events::Grid &grid, const ProductBody &b) {
    REQUIRE(grid.rows == 1 && (grid.columns - 1) * b.block < b.columns);
  }
  void check(const events::Grid &grid, const AttentionBody &b) {
    REQUIRE(grid.rows == batch && grid.columns == b.groups);
  }
  void check(const events::Grid &grid, const RouteBody &b) {
    choice(b.choice);
    REQUIRE(grid.rows == 1 && grid.columns == batch);
  }
  void check(const events::Grid &grid, const HiddenBody &b) {
    REQUIRE(grid.rows == choice(b.choice).count && (grid.columns - 1) * b.block < b.columns);
  }
  void check(const events::Grid &grid, const SumBody &b) {
    choice(b.choice);
    REQUIRE(grid.rows == batch && (grid.columns - 1) * b.block < b.columns);
  }

  void inside(int64_t last) const { REQUIRE(0 <= last && last < table.events); }
};

// The operands and results of one call, by place; tensors that were copied stay alive with it.
template <class T> class Memory {
public:
  Memory(Step &step, const std::vector<Tensor> &operands, const Tensor &out)
      : step(step), operands(operands), out(out) {}

  const Tensor &operand(Place at) const {
    REQUIRE(at.kind == 't' && 0 <= at.index && at.index < int64_t(operands.size()));
    return operands[at.index];
  }

  // So many elements side by side; null for none.
  T *elements(Place at, int64_t count) {
    if (at.kind == '-')
      return nullptr;
    if (at.kind == 'r') {
      REQUIRE(out.numel() == count);
      return operators::written<T>(out);
    }
    if (at.kind == 's') {
      REQUIRE(0 <= at.index && at.index < int64_t(step.buffers.size()));
      REQUIRE(int64_t(step.buffers[at.index].size()) == count);
      return reinterpret_cast<T *>(step.buffers[at.index].data());
    }
    const Tensor &x = side_by_side(operand(at));
    REQUIRE(x.numel() == count);
    return const_cast<T *>(operators::data<T>(x));
  }

  // A number in float32; zero for none.
  float number(Place at) const {
    if (at.kind == '-')
      return 0;
    const Tensor &x = operand(at);
    REQUIRE(x.scalar_type() == ScalarType::Float && x.numel() == 1);
    return *operators::data<float>(x);
  }

  // A cache or a mask, [batch or 1, heads or 1, rows, count].
  template <class E>
  bodies::Strided<E> strided(Place at, int64_t heads, int64_t rows, int64_t count) {
    const Tensor &given = operand(at);
    REQUIRE(given.scalar_type() == operators::TypeOf<E>::value && given.dim() == 4);
    REQUIRE(given.size(2) == rows && given.size(3) == count);
    const Tensor &x = count == 1 || given.stride(3) == 1 ? given : packed(given);
    int64_t steps[2];
    for (int64_t i = 0; i < 2; ++i) {
      REQUIRE(x.size(i) == 1 || x.size(i) == (i ? heads : step.batch));
      steps[i] = x.size(i) == 1 ? 0 : x.stride(i);
    }
    return {operators::data<E>(x), steps[0], steps[1], x.stride(2)};
  }

  bodies::Weight<T> weight(const Matrix &m, int64_t size, int64_t columns) {
    if (m.values.kind == '-')
      return {nullptr, nullptr, true, 0};
    const Tensor &x = side_by_side(operand(m.values));
    REQUIRE(x.dim() == 2 && x.size(m.turned ? 1 : 0) == size);
    const int64_t all = x.size(m.turned ? 0 : 1);
    REQUIRE(0 <= m.first && m.first + columns <= all);
    const bodies::Weight<T> whole = {operators::data<T>(x), elements(m.bias, all), m.turned != 0, all};
    return whole.from(m.first, size);
  }

  // The weight of the first of some experts, [experts, outputs, size], and the elements of each.
  bodies::Weight<T> of_experts(const Matrix &m, int64_t count, int64_t size, int64_t columns,
                               int64_t *step) {
    const Tensor &x = side_by_side(operand(m.values));
    REQUIRE(m.turned && m.bias.kind == '-' && x.dim() == 3 && x.size(0) == count && x.size(2) == size);
    REQUIRE(0 <= m.first && m.first + columns <= x.size(1));
    *step = x.size(1) * size;
    return bodies::Weight<T>{operators::data<T>(x), nullptr, true, x.size(1)}.from(m.first, size);
  }

  bodies::Norm<T> norm(const NormFields &n, int64_t size) {
    const float epsilon = float(n.epsilon) + number(n.added);
    return {n.kind != 0, n.kind == 2, n.kind == 3, elements(n.weight, size), elements(n.bias, size),
            epsilon, float(n.offset)};
  }

private:
  const Tensor &side_by_side(const Tensor &x) {
    REQUIRE(x.scalar_type() == operators::TypeOf<T>::value);
    return packed(x);
  }

  const Tensor &packed(const Tensor &x) {
    if (x.is_contiguous())
      return x;
    auto found = copies.find(&x);
    if (found == copies.end())
      found = copies.emplace(&x, operators::contiguous(x)).first;
    return found->second;
  }

  Step &step;
  const std::vector<Tensor> &operands;
  const Tensor &out;
  std::map<const Tensor *, Tensor> copies;
};

template <class T> struct Kernel {
  typedef std::variant<bodies::Product<T>, bodies::Attention<T>, experts::Route<T>,
                       experts::Hidden<T>, experts::Sum<T>>
      Resolved;
  std::vector<Resolved> grids;
  std::vector<int64_t> blocks;
  int64_t batch;

  Kernel(Step &step, Memory<T> &memory, T *keys, T *values) : batch(step.batch) {
    for (const Body &body : step.bodies)
      std::visit(
          [&](const auto &each) {
            grids.emplace_back(resolved(each, step, memory, keys, values));
            blocks.push_back(block(each));
          },
          body);
  }

  template <class B> static int64_t block(const B &body) { return body.block; }
  static int64_t block(const AttentionBody &) { return 0; }
  static int64_t block(const RouteBody &) { return 0; }

  bodies::Product<T> resolved(const ProductBody &b, Step &, Memory<T> &memory, T *, T *) const {
    bodies::Product<T> p;
    p.x = memory.elements(b.x, batch * b.size);
    p.residual = memory.elements(b.residual, batch * b.columns);
    p.out = memory.elements(b.out, batch * b.columns);
    p.norm = memory.norm(b.norm, b.size);
    p.weight = memory.weight(b.weight, b.size, b.columns);
    p.gate = memory.weight(b.gate, b.size, b.columns);
    p.activation = bodies::Activation(b.activation);
    p.size = b.size, p.columns = b.columns;
    return p;
  }

  bodies::Attention<T> resolved(const AttentionBody &b, Step &step, Memory<T> &memory, T *keys,
                                T *values) const {
    REQUIRE(b.groups == step.groups && b.size == step.size);
    REQUIRE(0 <= b.layer && b.layer < step.layers);
    bodies::Attention<T> a;
    const int64_t inner = batch * b.groups * b.size;
    a.q = memory.elements(b.q, inner * b.heads);
    a.k = memory.elements(b.k, inner), a.v = memory.elements(b.v, inner);
    a.cos = a.sin = nullptr, a.angle = 0;
    if (b.cos.kind != '-') {
      const int64_t angles = memory.operand(b.cos).numel();
      REQUIRE(b.size % 2 == 0 && (angles == b.size || angles == b.size * batch));
      a.cos = memory.elements(b.cos, angles), a.sin = memory.elements(b.sin, angles);
      a.angle = angles == b.size ? 0 : b.size;
    }
    a.count = memory.operand(b.keys).size(2);
    a.keys = memory.template strided<T>(b.keys, b.groups, a.count, b.size);
    a.values = memory.template strided<T>(b.values, b.groups, a.count, b.size);
    a.mask = memory.template strided<float>(b.mask, b.groups * b.heads, 1, a.count);
    const Tensor &position = memory.operand(b.position);
    REQUIRE(position.scalar_type() == ScalarType::Long && position.numel() == 1);
    a.position = *operators::data<int64_t>(position);
    a.position += a.position < 0 ? a.count : 0;
    a.out = memory.elements(b.out, inner * b.heads);
    const int64_t at = b.layer * batch * b.groups * b.size;
    a.new_keys = keys + at, a.new_values = values + at;
    a.groups = b.groups, a.heads = b.heads, a.size = b.size, a.scale = float(b.scale);
    return a;
  }

  experts::Route<T> resolved(const RouteBody &b, Step &step, Memory<T> &memory, T *, T *) const {
    experts::Choice &choice = step.choice(b.choice);
    return {memory.elements(b.x, batch * b.size), memory.norm(b.norm, b.size),
            memory.weight(b.router, b.size, choice.count), b.size, b.is_normalized != 0, &choice};
  }

  experts::Hidden<T> resolved(const HiddenBody &b, Step &step, Memory<T> &memory, T *, T *) const {
    experts::Hidden<T> h;
    const experts::Choice &choice = step.choice(b.choice);
    h.x = memory.elements(b.x, batch * b.size);
    h.out = memory.elements(b.out, batch * choice.top * b.columns);
    h.norm = memory.norm(b.norm, b.size);
    int64_t step_of_gate;
    h.up = memory.of_experts(b.up, choice.count, b.size, b.columns, &h.step);
    h.gate = memory.of_experts(b.gate, choice.count, b.size, b.columns, &step_of_gate);
    REQUIRE(h.step == step_of_gate);
    h.size = b.size, h.columns = b.columns, h.choice = &choice;
    h.activation = bodies::Activation(b.activation);
    return h;
  }

  experts::Sum<T> resolved(const SumBody &b, Step &step, Memory<T> &memory, T *, T *) const {
    experts::Sum<T> s;
    const experts::Choice &choice = step.choice(b.choice);
    s.x = memory.elements(b.x, batch * choice.top * b.size);
    s.residual = memory.elements(b.residual, batch * b.columns);
    s.out = memory.elements(b.out, batch * b.columns);
    s.down = memory.of_experts(b.down, choice.count, b.size, b.columns, &s.step);
    s.size = b.size, s.columns = b.columns, s.choice = &choice;
    return s;
  }

  void operator()(size_t grid, int64_t i, int64_t j) const {
    const auto parts = [&](const auto &body, int64_t of) {
      const int64_t first = j * blocks[grid];
      body(of, first, std::min(first + blocks[grid], body.columns));
    };
    if (const auto *product = std::get_if<bodies::Product<T>>(&grids[grid]))
      parts(*product, batch);
    else if (const auto *hidden = std::get_if<experts::Hidden<T>>(&grids[grid]))
      parts(*hidden, i);
    else if (const auto *sum = std::get_if<experts::Sum<T>>(&grids[grid]))
      parts(*sum, i);
    else if (const auto *route = std::get_if<experts::Route<T>>(&grids[grid]))
      (*route)(j);
    else
      std::get<bodies::Attention<T>>(grids[grid])(i, j);
  }
};

// Steps that were called before, for one pool: a child of a fork begins anew.
class Kept {
public:
  static constexpr size_t MOST = 16;

  Step &find(const std::string &text, int64_t batch) {
    for (auto &[known, step] : steps)
      if (step->batch == batch && known == text)
        return *step;
    auto made = std::make_unique<Step>(text, batch);
    if (steps.size() == MOST)
      steps.erase(steps.begin());
    steps.emplace_back(text, std::move(made));
    return *steps.back().second;
  }

private:
  std::vector<std::pair<std::string, std::unique_ptr<Step>>> steps;
};

struct Taken { // the pool, for one call
  events::Pool &pool;
  ~Taken() { pool.give(); }
};

Kept &kept_by(const events::Pool &pool) {
  static const events::Pool *owner = nullptr;
  static Kept *kept = nullptr;
  if (owner != &pool)
    owner = &pool, kept = new Kept; // a parent may have been amid a step of the old ones
  return *kept;
}

typedef std::tuple<Tensor, Tensor, Tensor> Results;

template <class T>
Results computed(Step &step, const std::vector<Tensor> &operands, int64_t workers) {
  constexpr ScalarType type = operators::TypeOf<T>::value;
  const Tensor out = operators::empty(operators::sizes_of(operands[0]), type);
  const std::vector<int64_t> sizes = {step.layers, step.batch, step.groups, 1, step.size};
  const Tensor keys = operators::empty(sizes, type), values = operators::empty(sizes, type);
  Memory<T> memory(step, operands, out);
  const Kernel<T> kernel(step, memory, operators::written<T>(keys), operators::written<T>(values));
  step.run->begin();
  const auto work = [&] { step.run->work(step.table, kernel); };
  workers > 1 ? events::Pool::current().run(workers, work) : work();
  step.run->end();
  return {out, keys, values};
}

Results decoder_step(const Tensor &given, const std::vector<Tensor> &others,
                     const std::string &program) {
  const Tensor x = operators::contiguous(given);
  REQUIRE(x.dim() > 0 && x.numel() > 0);
  const int64_t batch = x.numel() / x.size(x.dim() - 1);
  std::vector<Tensor> operands = {x};
  operands.insert(operands.end(), others.begin(), others.end());
  const auto compute = [&](Step &step, int64_t workers) {
    return operators::of_type<float, rows::bfloat16>(
        x, [&](auto zero) { return computed<decltype(zero)>(step, operands, workers); });
  };
  events::Pool &pool = events::Pool::current();
  if (!pool.take()) { // another thread computes a step: this one has memory and events of its own
    Step step(program, batch);
    return compute(step, 1);
  }
  const Taken taken{pool};
  Step &step = kept_by(pool).find(program, batch);
  const int64_t useful = std::max<int64_t>(1, step.elements / operators::SMALL);
  return compute(step, std::min<int64_t>(torch::stable::get_num_threads(), useful));
}

} // namespace

OPERATOR(decoder_step_native, "(Tensor x, Tensor[] tensors, str program) -> (Tensor, Tensor, Tensor)",
         decoder_step)
