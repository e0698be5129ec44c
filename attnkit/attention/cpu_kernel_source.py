"""The C++ of `cpu_kernel`, as a text, so that it goes wherever the package goes."""

SOURCE = r"""
// Softmax attention with keys of one width and values of another, forward and backward, in tiles that stay in cache.
//
// Queries and keys are [n, M] and values [n, V] per head, with any strides of batch, head and token. Forward keeps a
// running maximum and sum per query (Milakov 2018) and their log-sum-exp; backward computes each tile's weights again
// (Dao 2022, section 3.1). Every product is made of blocks that fit the registers, ROWS rows of VECTORS vectors: a
// number of one factor times vectors of the other, which lie in memory as they are.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

typedef int64_t Size;

struct Problem {
    Size batch, heads, groups, queries, keys, width, value_width, causal, threads;
    Size query[3], key[3], value[3], mask[3], output[3], gain[3], of_query[3], of_key[3], of_value[3];
    double scale;
};

template <typename T> struct Tensors {
    const T *query, *key, *value;
    const uint8_t *mask;
    T *output, *log_total;
    const T *gain;
    T *of_query, *of_key, *of_value;
};

namespace {

constexpr int ROWS = 6;
constexpr Size QUERIES = 96, KEYS = 192;  // of a tile: multiples of ROWS and, of keys, of PANEL

template <typename T> struct Simd;
template <> struct Simd<float> {
    typedef float Vector __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
    typedef int32_t Integers __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
};
template <> struct Simd<double> {
    typedef double Vector __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
};
template <typename T> using Vector = typename Simd<T>::Vector;
template <typename T> constexpr Size LANES = VECTOR_BYTES / sizeof(T);
template <typename T> constexpr Size PANEL = VECTORS * LANES<T>;
template <typename T> constexpr Size TILE_WIDTH = KEYS + (ROWS + LANES<T>) / LANES<T> * LANES<T>;
template <typename T> constexpr T INFINITE = std::numeric_limits<T>::infinity();

Size whole(Size count, Size of) { return (count + of - 1) / of * of; }
template <typename T> Vector<T> &at(T *place) { return *reinterpret_cast<Vector<T> *>(place); }
template <typename T> const Vector<T> &at(const T *place) { return *reinterpret_cast<const Vector<T> *>(place); }

// e^x = 2^n e^r with |r| <= ln 2 / 2, and e^r by a polynomial (Cephes, expf); 0 below e^-87. NaN stays NaN.
inline Vector<float> exponential(Vector<float> x) {
    const Vector<float> lowest = Vector<float>{} - 87.0f;
    const auto below = x < lowest;
    const Vector<float> y = below ? lowest : x;
    const float shift = 12582912.0f;  // 1.5 * 2^23: the last bits of a sum with it are the nearest whole number
    const Vector<float> shifted = y * 1.44269504088896341f + shift, n = shifted - shift;
    const Vector<float> power = (Vector<float>)(((Simd<float>::Integers)shifted + 127) << 23);
    const Vector<float> r = y - n * 0.693145751953125f - n * 1.42860682030941723212e-6f;
    Vector<float> sum = r * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * r + 8.3334519073e-3f;
    sum = sum * r + 4.1665795894e-2f;
    sum = sum * r + 1.6666665459e-1f;
    sum = sum * r + 5.0000001201e-1f;
    return below ? Vector<float>{} : (sum * (r * r) + r + 1.0f) * power;
}

inline Vector<double> exponential(Vector<double> x) {
    for (Size lane = 0; lane < LANES<double>; lane++) x[lane] = std::exp(x[lane]);
    return x;
}

// A factor of a product whose numbers are read one by one.
template <typename T> struct Left {
    const T *data;
    Size row, step;
};

// A factor that is read in vectors: rows [steps][width], or panels [columns / PANEL][steps][PANEL], whose lines lie
// close together however many columns there are.
template <typename T> struct Right {
    const T *data;
    Size step, panel;
    const T *column(Size number) const { return data + number / PANEL<T> * panel + number % PANEL<T>; }
};
template <typename T> Right<T> as_rows(const T *data, Size width) { return {data, width, PANEL<T>}; }
template <typename T> Right<T> as_panels(const T *data, Size steps) { return {data, PANEL<T>, steps * PANEL<T>}; }

template <typename T, int COUNT, bool ADD, typename Finish>
inline __attribute__((always_inline)) void block(
    Left<T> left, const T *right, Size right_step, T *result, Size width, Size steps, Finish finish) {
    Vector<T> sum[ROWS][COUNT];
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int v = 0; v < COUNT; v++) sum[row][v] = ADD ? at(result + row * width + v * LANES<T>) : Vector<T>{};
    for (Size step = 0; step < steps; step++) {
        Vector<T> line[COUNT];
#pragma GCC unroll 4
        for (int v = 0; v < COUNT; v++) line[v] = at(right + step * right_step + v * LANES<T>);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
            for (int v = 0; v < COUNT; v++) sum[row][v] += left.data[row * left.row + step * left.step] * line[v];
    }
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int v = 0; v < COUNT; v++)
            at(result + row * width + v * LANES<T>) = finish(row, v * LANES<T>, sum[row][v]);
}

// ROWS rows and `columns` columns, a multiple of LANES, of a product. What is stored is finish(row, column, sums).
template <typename T, bool ADD, typename Finish>
inline void product(Left<T> left, Right<T> right, T *result, Size width, Size steps, Size columns, Finish finish) {
    Size column = 0;
    const auto finish_here = [&](Size row, Size lane, Vector<T> sums) { return finish(row, column + lane, sums); };
    for (; column + PANEL<T> <= columns; column += PANEL<T>)
        block<T, VECTORS, ADD>(left, right.column(column), right.step, result + column, width, steps, finish_here);
    for (; column < columns; column += LANES<T>)
        block<T, 1, ADD>(left, right.column(column), right.step, result + column, width, steps, finish_here);
}

template <typename T> void add_product(Left<T> left, const T *right, T *result, Size width, Size steps) {
    const auto sum = [](Size, Size, Vector<T> sums) { return sums; };
    product<T, true>(left, as_rows(right, width), result, width, steps, width, sum);
}

// The tokens of one head.
template <typename T> struct Tokens {
    T *data;
    Size stride, width;
    T *row(Size number) const { return data + number * stride; }
};
template <typename T> Tokens<T> tokens(T *data, const Size *strides, Size batch, Size head, Size width) {
    return {data + batch * strides[0] + head * strides[1], strides[2], width};
}

// Rows [count][padded], with zeros where there is no token or column.
template <typename T>
void copy(Tokens<const T> from, Size first, Size last, T *to, Size count, Size padded, T factor = 1) {
    std::fill(to, to + count * padded, T(0));
    for (Size n = first; n < last; n++)
        for (Size c = 0; c < from.width; c++) to[(n - first) * padded + c] = factor * from.row(n)[c];
}

template <typename T> void copy_back(const T *from, Size padded, Tokens<T> to, Size first, Size last, T factor = 1) {
    for (Size n = first; n < last; n++)
        for (Size c = 0; c < to.width; c++) to.row(n)[c] = factor * from[(n - first) * padded + c];
}

// Panels [count / PANEL][width][PANEL] with a column for each token.
template <typename T> std::vector<T> turned(Tokens<const T> from, Size count) {
    std::vector<T> panels(whole(count, PANEL<T>) * from.width);
    for (Size n = 0; n < count; n++)
        for (Size c = 0; c < from.width; c++)
            panels[(n / PANEL<T> * from.width + c) * PANEL<T> + n % PANEL<T>] = from.row(n)[c];
    return panels;
}

// One key-value head, and what queries from `first` to `last` of one of its query heads may meet.
template <typename T> class Group {
  protected:
    const Problem &p;
    const Tensors<T> &t;
    const Size b, g, padded_value;
    const Tokens<const T> keys, values;
    const std::vector<T> key_panels;
    std::vector<T> queries, tile;
    Size head = 0, first = 0, last = 0, count = 0;  // count is whole blocks of rows
    const uint8_t *mask = nullptr;

    Group(const Problem &problem, const Tensors<T> &tensors, Size item)
        : p(problem), t(tensors), b(item / p.groups), g(item % p.groups), padded_value(whole(p.value_width, LANES<T>)),
          keys(tokens(t.key, p.key, b, g, p.width)), values(tokens(t.value, p.value, b, g, p.value_width)),
          key_panels(turned(keys, p.keys)), queries(QUERIES * whole(p.width, LANES<T>)),
          tile(QUERIES * TILE_WIDTH<T>) {}

    void enter(Size number, Size query) {
        head = number, first = query, last = std::min(query + QUERIES, p.queries), count = whole(last - first, ROWS);
        mask = t.mask ? t.mask + b * p.mask[0] + head * p.mask[1] : nullptr;
    }
    T *log_totals() const { return t.log_total + (b * p.heads + head) * p.queries + first; }
    Size end(Size query) const { return p.causal ? std::min(p.keys, query + 1) : p.keys; }
    Size end_of_rows(Size row, Size start) const {
        return std::max<Size>(0, std::min(KEYS, end(first + row + ROWS - 1) - start));
    }

    __attribute__((noinline)) Vector<T> masked(Size query, Size key, Vector<T> scores) const {
        for (Size lane = 0; lane < LANES<T>; lane++, key++)
            if (query >= p.queries || key >= end(query) || (mask && !mask[query * p.mask[2] + key]))
                scores[lane] = -INFINITE<T>;
        return scores;
    }
    // The scores of ROWS queries, passed through finish(row, column, scores).
    template <typename Finish> void score(Size row, Size start, Size width, Size columns, Finish finish) {
        const auto finish_allowed = [&](Size r, Size c, Vector<T> scores) {
            const Size query = first + row + r, key = start + c;
            const bool all = !mask && key + LANES<T> <= end(query);
            return finish(row + r, c, all ? scores : masked(query, key, scores));
        };
        const Right<T> right = as_panels(&key_panels[start * p.width], p.width);
        const Left<T> left{&queries[row * width], width, 1};
        product<T, false>(left, right, &tile[row * TILE_WIDTH<T>], TILE_WIDTH<T>, p.width, columns, finish_allowed);
    }
};

template <typename T> class Forward : Group<T> {
    using Group<T>::p, Group<T>::t, Group<T>::b, Group<T>::tile, Group<T>::first, Group<T>::last, Group<T>::count;
    const Size width = Group<T>::padded_value;
    std::vector<T> values, sum, highest, total;

  public:
    Forward(const Problem &problem, const Tensors<T> &tensors, Size item)
        : Group<T>(problem, tensors, item), values(whole(p.keys, PANEL<T>) * width), sum(QUERIES * width),
          highest(QUERIES), total(QUERIES) {
        copy(Group<T>::values, 0, p.keys, values.data(), p.keys, width);
    }

    void run(Size head, Size query) {
        this->enter(head, query);
        copy(tokens(t.query, p.query, b, head, p.width), first, last, this->queries.data(), count, p.width, T(p.scale));
        std::fill(highest.begin(), highest.end(), -INFINITE<T>);
        std::fill(total.begin(), total.end(), T(0));
        std::fill(sum.begin(), sum.end(), T(0));
        for (Size start = 0; start < this->end(last - 1); start += KEYS)
            for (Size row = 0; row < count; row += ROWS) add(row, start);
        const Tokens<T> output = tokens(t.output, p.output, b, head, p.value_width);
        for (Size row = 0; row < last - first; row++) {
            const bool empty = total[row] == 0;
            copy_back(&sum[row * width], width, output, first + row, first + row + 1, empty ? T(0) : 1 / total[row]);
            // With an infinite sum all weights of a query without keys are 0 in backward.
            this->log_totals()[row] = empty ? INFINITE<T> : highest[row] + std::log(total[row]);
        }
    }

  private:
    void add(Size row, Size start) {
        const Size end = this->end_of_rows(row, start), columns = whole(end, LANES<T>);
        if (end == 0) return;
        this->score(row, start, p.width, columns, [](Size, Size, Vector<T> scores) { return scores; });
        for (Size r = row; r < row + ROWS; r++) {
            const T shrink = weigh(&tile[r * TILE_WIDTH<T>], columns, highest[r], total[r]);
            for (Size c = 0; c < width; c += LANES<T>) at(&sum[r * width + c]) *= shrink;
        }
        const Left<T> weights{&tile[row * TILE_WIDTH<T>], TILE_WIDTH<T>, 1};
        add_product(weights, &values[start * width], &sum[row * width], width, end);
    }

    // Scores of one query -> weights, added to its sum under the highest score; the factor of what was summed before.
    static T weigh(T *scores, Size columns, T &highest, T &total) {
        Vector<T> top = Vector<T>{} + highest, mass{};
        for (Size c = 0; c < columns; c += LANES<T>) top = top >= at(scores + c) ? top : at(scores + c);
        T higher = highest;
        for (Size lane = 0; lane < LANES<T>; lane++) higher = std::max(higher, top[lane]);
        const T level = higher == -INFINITE<T> ? T(0) : higher;
        for (Size c = 0; c < columns; c += LANES<T>) mass += at(scores + c) = exponential(at(scores + c) - level);
        const T shrink = std::exp(highest - level);
        total *= shrink;
        for (Size lane = 0; lane < LANES<T>; lane++) total += mass[lane];
        highest = higher;
        return shrink;
    }
};

template <typename T> class Backward : Group<T> {
    using Group<T>::p, Group<T>::t, Group<T>::b, Group<T>::g, Group<T>::first, Group<T>::last, Group<T>::count;
    const Size width = whole(p.width, LANES<T>), value_width = Group<T>::padded_value;
    const Size num_keys = whole(p.keys, PANEL<T>) + ROWS;
    const std::vector<T> value_panels;
    std::vector<T> keys, key_sum, value_sum, query_sum, gains, of_scores, mean_gain, log_totals;

  public:
    Backward(const Problem &problem, const Tensors<T> &tensors, Size item)
        : Group<T>(problem, tensors, item), value_panels(turned(Group<T>::values, p.keys)), keys(num_keys * width),
          key_sum(num_keys * width), value_sum(num_keys * value_width), query_sum(QUERIES * width),
          gains(QUERIES * value_width), of_scores(QUERIES * TILE_WIDTH<T>), mean_gain(QUERIES), log_totals(QUERIES) {
        copy(Group<T>::keys, 0, p.keys, keys.data(), p.keys, width);
    }

    void run(Size head, Size query) {
        this->enter(head, query);
        copy(tokens(t.query, p.query, b, head, p.width), first, last, this->queries.data(), count, width, T(p.scale));
        copy(tokens(t.gain, p.gain, b, head, p.value_width), first, last, gains.data(), count, value_width);
        std::fill(query_sum.begin(), query_sum.end(), T(0));
        std::fill(mean_gain.begin(), mean_gain.end(), T(0));
        std::fill(log_totals.begin(), log_totals.end(), INFINITE<T>);
        std::copy_n(Group<T>::log_totals(), last - first, log_totals.begin());
        for (Size row = 0; row < last - first; row++) {
            const T *output = tokens(t.output, p.output, b, head, p.value_width).row(first + row);
            for (Size c = 0; c < p.value_width; c++) mean_gain[row] += output[c] * gains[row * value_width + c];
        }
        for (Size start = 0; start < this->end(last - 1); start += KEYS) {
            for (Size row = 0; row < count; row += ROWS) add_to_queries(row, start);
            for (Size column = 0; column < this->end_of_rows(count - ROWS, start); column += ROWS)
                add_to_keys(column, start);
        }
        const Tokens<T> of_query = tokens(t.of_query, p.of_query, b, head, p.width);
        copy_back(query_sum.data(), width, of_query, first, last, T(p.scale));
    }

    void finish() {
        copy_back(key_sum.data(), width, tokens(t.of_key, p.of_key, b, g, p.width), 0, p.keys);
        copy_back(value_sum.data(), value_width, tokens(t.of_value, p.of_value, b, g, p.value_width), 0, p.keys);
    }

  private:
    void add_to_queries(Size row, Size start) {
        const Size end = this->end_of_rows(row, start), columns = whole(end, LANES<T>);
        T *weights = &this->tile[row * TILE_WIDTH<T>], *gradient = &of_scores[row * TILE_WIDTH<T>];
        this->score(row, start, width, columns, [&](Size r, Size, Vector<T> scores) {
            return exponential(scores - log_totals[r]);
        });
        const Right<T> values = as_panels(&value_panels[start * p.value_width], p.value_width);
        const Left<T> gain{&gains[row * value_width], value_width, 1};
        const auto finish = [&](Size r, Size c, Vector<T> of_weight) {
            return at(weights + r * TILE_WIDTH<T> + c) * (of_weight - mean_gain[row + r]);
        };
        product<T, false>(gain, values, gradient, TILE_WIDTH<T>, p.value_width, columns, finish);
        for (Size r = 0; r < ROWS; r++)  // add_to_keys() reads ROWS columns at a time
            for (Size c = columns; c < columns + ROWS; c++)
                weights[r * TILE_WIDTH<T> + c] = gradient[r * TILE_WIDTH<T> + c] = T(0);
        add_product({gradient, TILE_WIDTH<T>, 1}, &keys[start * width], &query_sum[row * width], width, end);
    }

    void add_to_keys(Size column, Size start) {
        const Size key = start + column;
        const Size row = p.causal ? std::max<Size>(0, key - first) / ROWS * ROWS : 0, steps = count - row;
        const Size place = row * TILE_WIDTH<T> + column;
        const Left<T> weights{&this->tile[place], 1, TILE_WIDTH<T>}, gradient{&of_scores[place], 1, TILE_WIDTH<T>};
        add_product(weights, &gains[row * value_width], &value_sum[key * value_width], value_width, steps);
        add_product(gradient, &this->queries[row * width], &key_sum[key * width], width, steps);
    }
};

template <typename T> void forward(const Problem &p, const Tensors<T> &t) {
#pragma omp parallel for schedule(dynamic) num_threads(p.threads)
    for (Size item = 0; item < p.batch * p.groups; item++) {
        Forward<T> group(p, t, item);
        for (Size share = p.heads / p.groups, h = item % p.groups * share, next = h + share; h < next; h++)
            for (Size query = 0; query < p.queries; query += QUERIES) group.run(h, query);
    }
}

template <typename T> void backward(const Problem &p, const Tensors<T> &t) {
#pragma omp parallel for schedule(dynamic) num_threads(p.threads)
    for (Size item = 0; item < p.batch * p.groups; item++) {
        Backward<T> group(p, t, item);
        for (Size share = p.heads / p.groups, h = item % p.groups * share, next = h + share; h < next; h++)
            for (Size query = 0; query < p.queries; query += QUERIES) group.run(h, query);
        group.finish();
    }
}

}  // namespace

extern "C" {
void forward_float32(const Problem &p, const Tensors<float> &t) { forward(p, t); }
void forward_float64(const Problem &p, const Tensors<double> &t) { forward(p, t); }
void backward_float32(const Problem &p, const Tensors<float> &t) { backward(p, t); }
void backward_float64(const Problem &p, const Tensors<double> &t) { backward(p, t); }
}
"""
