// The loop nest behind map: walks operands of any strides in blocks that the processor can make vectors of.
#pragma once

#include <opwright/convert.h>
#include <opwright/layout.h>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

constexpr int max_operands = 8;
constexpr int64_t block_bytes = 8192;
// Rows at least this long are walked one by one, so that what is contiguous in them is read in place.
constexpr int64_t long_row = 96;
// Columns of a transposed operand that are turned into rows at once.
constexpr int64_t panel_width = 128;

struct Operand {
    char* data;
    int64_t bytes;   // of an element in memory
    int64_t number;  // of one to compute with
    Conversion convert;
    bool in_place;    // blocks are read or written where they are, not through a buffer
    bool constant;    // one element, repeated
    bool transposed;  // dimension 1 is the contiguous one
};

// Operands, the first of them the result, and their dimensions from the fastest to the slowest. Strides are in bytes.
struct Nest {
    using Body = void (*)(const void* function, char* const* block, int64_t n);

    Body body;
    const void* function;
    int64_t numel;
    int64_t block;  // numbers that fit in a buffer
    int dim;
    int operands;
    bool by_row;
    bool buffered;
    bool transposed;
    Operand operand[max_operands];
    int64_t size[max_dim];
    int64_t stride[max_dim][max_operands];

    bool add(int i, const Tensor& x, const Layout& out, DType numbers, int64_t number);
    void arrange(const Layout& out);
    void flatten(int64_t n);
    void run(int64_t begin, int64_t end) const;

  private:
    struct Buffers;
    void classify();
    void run_buffered(int64_t begin, int64_t end) const;
};

// A position in the nest: the index, and where each operand is.
struct Cursor {
    const Nest& nest;
    char* at[max_operands];
    int64_t index[max_dim];

    Cursor(const Nest& nest, int64_t position) : nest(nest) {
        for (int i = 0; i < nest.operands; ++i) at[i] = nest.operand[i].data;
        for (int k = 0; k < nest.dim; ++k) {
            index[k] = k + 1 < nest.dim ? position % nest.size[k] : position;
            position /= nest.size[k];
            for (int i = 0; i < nest.operands; ++i) at[i] += index[k] * nest.stride[k][i];
        }
    }

    void advance(int64_t n) {
        index[0] += n;
        for (int i = 0; i < nest.operands; ++i) at[i] += n * nest.stride[0][i];
        for (int k = 0; k + 1 < nest.dim && index[k] >= nest.size[k]; ++k) {
            const int64_t carry = index[k] < 2 * nest.size[k] ? 1 : index[k] / nest.size[k];  // a division is slow
            index[k] -= carry * nest.size[k];
            index[k + 1] += carry;
            for (int i = 0; i < nest.operands; ++i) {
                at[i] += carry * (nest.stride[k + 1][i] - nest.stride[k][i] * nest.size[k]);
            }
        }
    }

    // visit(address, done, count, rows) for each stretch of rows among the next n elements of one operand.
    template <class Visit>
    void stretches(int which, int64_t n, const Visit& visit) const {
        char* p = at[which];
        if (nest.dim == 1) return visit(p, int64_t(0), n, int64_t(1));
        int64_t here[max_dim];
        std::copy_n(index, nest.dim, here);
        for (int64_t done = 0; done < n;) {
            const int64_t row = nest.size[0], left = n - done;
            if (here[0] > 0 || left < row) {  // part of a row
                const int64_t count = std::min(left, row - here[0]);
                visit(p, done, count, int64_t(1));
                done += count;
                p += nest.stride[1][which] - here[0] * nest.stride[0][which];
                here[0] = 0, here[1] += 1;
            } else {
                const int64_t rows = nest.dim == 2 ? left / row : std::min(left / row, nest.size[1] - here[1]);
                visit(p, done, row, rows);
                done += rows * row;
                p += rows * nest.stride[1][which];
                here[1] += rows;
            }
            for (int k = 1; k + 1 < nest.dim && here[k] == nest.size[k]; ++k) {
                p += nest.stride[k + 1][which] - nest.size[k] * nest.stride[k][which];
                here[k] = 0, here[k + 1] += 1;
            }
        }
    }
};

inline void Nest::flatten(int64_t n) {
    numel = size[0] = n;
    dim = 1;
    for (int i = 0; i < operands; ++i) stride[0][i] = operand[i].bytes;
    classify();
}

struct Nest::Buffers {
    const Nest& nest;
    char* block[max_operands];  // what the body gets
    alignas(64) char numbers[max_operands][block_bytes];
    alignas(64) char elements[max_operands][block_bytes];

    explicit Buffers(const Nest& nest, int64_t n) : nest(nest) {
        for (int i = 1; i < nest.operands; ++i) {
            const Operand& o = nest.operand[i];
            block[i] = numbers[i];
            if (!o.constant) continue;
            gather(o.convert.widen ? elements[i] : numbers[i], o.data, 0, o.bytes, n);
            if (o.convert.widen) o.convert.widen(numbers[i], elements[i], n);
        }
    }

    void load(int i, const char* from, int64_t stride, int64_t done, int64_t n, int64_t step = 0, int64_t rows = 1) {
        const Operand& o = nest.operand[i];
        char* to = numbers[i] + done * o.number;
        if (!o.convert.widen) return gather(to, from, stride, o.bytes, n, step, rows);
        if (stride != o.bytes || rows > 1) {
            gather(elements[i], from, stride, o.bytes, n, step, rows);
            from = elements[i];
        }
        o.convert.widen(to, from, n * rows);
    }

    void store(char* to, int64_t stride, int64_t done, int64_t n, int64_t step = 0, int64_t rows = 1) {
        const Operand& o = nest.operand[0];
        const char* from = numbers[0] + done * o.number;
        if (!o.convert.narrow) return scatter(to, from, stride, o.bytes, n, step, rows);
        if (stride == o.bytes && rows == 1) return o.convert.narrow(to, from, n);
        o.convert.narrow(elements[0], from, n * rows);
        scatter(to, elements[0], stride, o.bytes, n, step, rows);
    }

    // The next n elements, which lie in one row when the nest goes by rows.
    void step(const Cursor& cursor, int64_t n) {
        for (int i = 0; i < nest.operands; ++i) {
            if (nest.operand[i].in_place) {
                block[i] = cursor.at[i];
            } else if (i > 0 && !nest.operand[i].constant) {
                block[i] = numbers[i];
                cursor.stretches(i, n, [&](const char* from, int64_t done, int64_t count, int64_t rows) {
                    load(i, from, nest.stride[0][i], done, count, nest.stride[1][i], rows);
                });
            }
        }
        if (nest.operand[0].in_place) return nest.body(nest.function, block, n);
        block[0] = numbers[0];
        nest.body(nest.function, block, n);
        cursor.stretches(0, n, [&](char* to, int64_t done, int64_t count, int64_t rows) {
            store(to, nest.stride[0][0], done, count, nest.stride[1][0], rows);
        });
    }

    // A number of whole rows, in panels as wide as the buffers.
    void panels(const Cursor& cursor, int64_t rows) {
        for (int64_t from = 0; from < nest.size[0]; from += panel_width) {
            const int64_t n = std::min(panel_width, nest.size[0] - from);
            const auto address = [&](int i) { return cursor.at[i] + from * nest.stride[0][i]; };
            for (int i = 1; i < nest.operands; ++i) {
                if (!nest.operand[i].transposed) continue;
                transpose(elements[i], panel_width, address(i), nest.stride[0][i], nest.operand[i].bytes, rows, n);
            }
            for (int64_t r = 0; r < rows; ++r) {
                for (int i = 0; i < nest.operands; ++i) {
                    const Operand& o = nest.operand[i];
                    char* row =
                        o.transposed ? elements[i] + r * panel_width * o.bytes : address(i) + r * nest.stride[1][i];
                    if (o.in_place || (o.transposed && !o.convert.widen)) {
                        block[i] = row;
                    } else if (i > 0 && !o.constant) {
                        block[i] = numbers[i];
                        load(i, row, o.transposed ? o.bytes : nest.stride[0][i], 0, n);
                    }
                }
                const bool in_place = nest.operand[0].in_place;
                if (!in_place) block[0] = numbers[0];
                nest.body(nest.function, block, n);
                if (!in_place) store(address(0) + r * nest.stride[1][0], nest.stride[0][0], 0, n);
            }
        }
    }
};

}  // namespace ow_inner
#ifndef OPWRIGHT_APART

namespace ow_inner {

// Takes an operand; whether it could be walked as one row, in the order of its dimensions.
OPWRIGHT_NOINLINE bool Nest::add(int i, const Tensor& x, const Layout& out, DType numbers, int64_t number) {
    Operand& o = operand[i];
    o.data = static_cast<char*>(i == 0 ? x.mutable_data_ptr() : const_cast<void*>(x.const_data_ptr()));
    o.convert = conversion(dtype(x), numbers);
    o.number = number;
    o.bytes = o.convert.widen ? 2 : number;
    o.transposed = false;
    const Layout own(x);
    bool fits = own.dim <= out.dim;
    for (int d = 0; d < out.dim; ++d) {
        const int e = d - (out.dim - own.dim);
        fits = fits && (e < 0 || own.size[e] == 1 || own.size[e] == out.size[d]);
        stride[d][i] = broadcast_stride(own, out, d) * o.bytes;
    }
    check(fits, "map: input ", i, " must broadcast to the result, got ", shape(x));
    return own.row_major() && own.same_shape(out);
}

// Orders the dimensions by the strides of the result, drops those of size 1 and merges neighbours that every operand
// steps through alike. `stride` comes in with the order of `out`.
OPWRIGHT_NOINLINE void Nest::arrange(const Layout& out) {
    int order[max_dim];
    int kept = 0;
    numel = 1;
    for (int d = out.dim - 1; d >= 0; --d) {
        if (out.size[d] == 1) continue;
        numel *= out.size[d];
        int at = kept++;
        for (; at > 0 && stride[order[at - 1]][0] > stride[d][0]; --at) order[at] = order[at - 1];
        order[at] = d;
    }
    int64_t step[max_dim][max_operands];
    dim = 0;
    for (int k = 0; k < kept; ++k) {
        const int d = order[k];
        bool merges = dim > 0;
        for (int i = 0; merges && i < operands; ++i) merges = stride[d][i] == step[dim - 1][i] * size[dim - 1];
        if (merges) {
            size[dim - 1] *= out.size[d];
        } else {
            std::copy_n(stride[d], operands, step[dim]);
            size[dim++] = out.size[d];
        }
    }
    if (dim == 0) {
        for (int i = 0; i < operands; ++i) step[0][i] = operand[i].bytes;
        size[dim++] = 1;
    }
    for (int k = 0; k < dim; ++k) std::copy_n(step[k], operands, stride[k]);
    classify();
}

OPWRIGHT_NOINLINE void Nest::classify() {
    transposed = false;
    for (int i = 1; i < operands; ++i) {
        Operand& o = operand[i];
        o.transposed = dim > 1 && stride[1][i] == o.bytes && stride[0][i] > o.bytes && o.bytes <= 8 && size[0] >= 16 &&
                       size[1] >= 4;
        transposed = transposed || o.transposed;
    }
    by_row = transposed || (dim > 1 && size[0] >= long_row);
    buffered = false;
    for (int i = 0; i < operands; ++i) {
        Operand& o = operand[i];
        bool linear = stride[0][i] == o.bytes;
        bool constant = i > 0;
        for (int k = 0; k < dim; ++k) {
            constant = constant && stride[k][i] == 0;
            if (k > 0 && !by_row) linear = linear && stride[k][i] == stride[k - 1][i] * size[k - 1];
        }
        o.constant = constant;
        o.in_place = linear && !o.convert.widen;
        buffered = buffered || !o.in_place;
    }
}

// The elements from begin to end, counted in the order of the nest.
OPWRIGHT_NOINLINE void Nest::run(int64_t begin, int64_t end) const {
    if (buffered) return run_buffered(begin, end);
    Cursor cursor(*this, begin);
    for (int64_t left = end - begin; left > 0;) {
        int64_t n = left;
        if (by_row && cursor.index[0] == 0 && left >= size[0]) {
            const int64_t rows = std::min(left / size[0], size[1] - cursor.index[1]);
            char* at[max_operands];
            std::copy_n(cursor.at, operands, at);
            for (int64_t r = 0; r < rows; ++r) {
                body(function, at, size[0]);
                for (int i = 0; i < operands; ++i) at[i] += stride[1][i];
            }
            n = rows * size[0];
        } else {
            if (by_row) n = std::min(n, size[0] - cursor.index[0]);
            body(function, cursor.at, n);
        }
        left -= n;
        if (left > 0) cursor.advance(n);
    }
}

OPWRIGHT_NOINLINE void Nest::run_buffered(int64_t begin, int64_t end) const {
    Buffers buffers(*this, std::min(block, end - begin));
    Cursor cursor(*this, begin);
    // As many rows as a buffer holds, which are about as many as a cache line has elements.
    const int64_t panel_rows = block / panel_width;
    for (int64_t left = end - begin; left > 0;) {
        int64_t n = std::min(left, block);
        if (by_row) n = std::min(n, size[0] - cursor.index[0]);
        const int64_t rows = transposed ? std::min({panel_rows, size[1] - cursor.index[1], left / size[0]}) : 0;
        if (rows > 1 && cursor.index[0] == 0) {
            buffers.panels(cursor, rows);
            n = rows * size[0];
        } else {
            buffers.step(cursor, n);
        }
        left -= n;
        if (left > 0) cursor.advance(n);
    }
}

}  // namespace ow_inner

#endif

}  // namespace opwright

#pragma GCC visibility pop
