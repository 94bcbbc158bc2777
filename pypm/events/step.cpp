// One step of a decoder as one kernel: the grids of a program, run by threads that stay.
//
// A program is a text, which `pypm.events.program` prints: tokens between spaces. A number is `3`,
// `2b` or `3+2b`, with b for the rows of the batch. A place in memory is `t3`, an operand, `s3`, a
// buffer of the program, `r`, the result, or `-` for none.
//
//   elements N buffers N width*  events N  layers N  groups N  size N  grids N grid*
//   grid: KIND rows columns  waits N (first step step count)*  notes N (first step block step block)*
//         and what the body reads, in the order of its fields here

#include <map>
#include <sstream>
#include <string>
#include <variant>

#include "bodies.h"
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

struct ProductBody {
  Place x, residual, out;
  int64_t norm; // 0 none, 1 by the root of the mean square, 2 centered, 3 as 1, rounded before weights
  Place norm_weight, norm_bias;
  double epsilon, offset;
  Place added; // to epsilon
  Matrix weight, gate;
  int64_t activation, size, columns, block;
};

struct AttentionBody {
  Place q, k, v, cos, sin, keys, values, mask, position, out;
  int64_t layer, groups, heads, size;
  double scale;
};

typedef std::variant<ProductBody, AttentionBody> Body;

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

  Body body(const std::string &kind) {
    if (kind == "product") {
      ProductBody b;
      b.x = place(), b.residual = place(), b.out = place(), b.norm = number();
      b.norm_weight = place(), b.norm_bias = place(), b.epsilon = real(), b.offset = real();
      b.added = place();
      b.weight = matrix(), b.gate = matrix(), b.activation = number();
      b.size = number(), b.columns = number(), b.block = number();
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
      table.grids.push_back(grid);
      bodies.push_back(reader.body(kind));
      if (const auto *product = std::get_if<ProductBody>(&bodies.back())) {
        REQUIRE(grid.rows == 1 && (grid.columns - 1) * product->block < product->columns);
      } else {
        REQUIRE(grid.rows == batch && grid.columns == std::get<AttentionBody>(bodies.back()).groups);
      }
    }
    run = std::make_unique<events::Run>(table);
  }

private:
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
  typedef std::variant<bodies::Product<T>, bodies::Attention<T>> Resolved;
  std::vector<Resolved> grids;
  std::vector<int64_t> blocks;
  int64_t batch;

  Kernel(Step &step, Memory<T> &memory, T *keys, T *values) : batch(step.batch) {
    for (const Body &body : step.bodies)
      if (const auto *product = std::get_if<ProductBody>(&body)) {
        grids.emplace_back(resolved(*product, memory));
        blocks.push_back(product->block);
      } else {
        const auto &attention = std::get<AttentionBody>(body);
        REQUIRE(attention.groups == step.groups && attention.size == step.size);
        REQUIRE(0 <= attention.layer && attention.layer < step.layers);
        const int64_t at = attention.layer * batch * step.groups * step.size;
        grids.emplace_back(resolved(attention, memory, keys + at, values + at));
        blocks.push_back(0);
      }
  }

  bodies::Product<T> resolved(const ProductBody &b, Memory<T> &memory) const {
    bodies::Product<T> p;
    const float epsilon = float(b.epsilon) + memory.number(b.added);
    p.x = memory.elements(b.x, batch * b.size);
    p.residual = memory.elements(b.residual, batch * b.columns);
    p.out = memory.elements(b.out, batch * b.columns);
    p.norm = {b.norm != 0, b.norm == 2, b.norm == 3, memory.elements(b.norm_weight, b.size),
              memory.elements(b.norm_bias, b.size), epsilon, float(b.offset)};
    p.weight = memory.weight(b.weight, b.size, b.columns);
    p.gate = memory.weight(b.gate, b.size, b.columns);
    p.activation = bodies::Activation(b.activation);
    p.size = b.size, p.columns = b.columns;
    return p;
  }

  bodies::Attention<T> resolved(const AttentionBody &b, Memory<T> &memory, T *keys,
                             T *values) const {
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
    a.new_keys = keys, a.new_values = values;
    a.groups = b.groups, a.heads = b.heads, a.size = b.size, a.scale = float(b.scale);
    return a;
  }

  void operator()(size_t grid, int64_t i, int64_t j) const {
    if (const auto *product = std::get_if<bodies::Product<T>>(&grids[grid])) {
      const int64_t first = j * blocks[grid];
      (*product)(batch, first, std::min(first + blocks[grid], product->columns));
    } else
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
