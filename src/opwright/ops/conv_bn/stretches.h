// How the CPU's passes cut tensors up, read them and hold the numbers of channels.
#pragma once

#include <opwright/kernel.h>

#include <memory>

#include "loops.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

using ow_inner::conversion;

// So many numbers at a time.
constexpr int64_t room = 4096;

// How a tensor's numbers are cut up: units that threads take, the same whatever their number, in stretches.
struct Cut {
    const Planes& planes;
    int64_t rows;  // of a stretch, where channels lie last
    static constexpr int64_t stretches = 16;

    explicit Cut(const Planes& planes)
        : planes(planes), rows(std::max<int64_t>(1, room / std::max<int64_t>(planes.channels, 1))) {}
    int64_t units() const {
        const int64_t all = planes.images * planes.places, unit = rows * stretches;
        return planes.last ? (all + unit - 1) / unit : planes.images * planes.channels;
    }
    int64_t longest() const { return planes.last ? rows * planes.channels : std::min(room, planes.places); }
    // Values of a channel in a unit.
    int64_t values(int64_t unit) const {
        if (!planes.last) return planes.places;
        return std::min(rows * stretches, planes.images * planes.places - unit * rows * stretches);
    }
    template <class Body>
    void each(int64_t unit, const Body& body) const {
        if (planes.last) {
            const int64_t begin = unit * rows * stretches, end = begin + values(unit);
            for (int64_t row = begin; row < end; row += rows) {
                body(Stretch{row * planes.channels, 0, std::min(rows, end - row), planes.channels});
            }
        } else {
            for (int64_t i = 0; i < planes.places; i += room) {
                body(Stretch{unit * planes.places + i, unit % planes.channels, 1, std::min(room, planes.places - i)});
            }
        }
    }
};

// Elements as numbers, a stretch at a time.
template <class C>
class Reader {
  public:
    Reader(const void* data, DType dtype) : data_(static_cast<char*>(const_cast<void*>(data))) {
        convert_ = conversion(dtype, dtype_of<C>);
        bytes_ = convert_.widen ? 2 : int64_t(sizeof(C));
    }
    const C* load(const Stretch& s, C* scratch) const {
        const char* from = data_ + s.at * bytes_;
        if (!convert_.widen) return reinterpret_cast<const C*>(from);
        convert_.widen(reinterpret_cast<char*>(scratch), from, s.size());
        return scratch;
    }
    // Where to compute what is stored.
    C* place(const Stretch& s, C* scratch) const {
        return convert_.narrow ? scratch : reinterpret_cast<C*>(data_ + s.at * bytes_);
    }
    void store(const Stretch& s, const C* numbers) const {
        char* to = data_ + s.at * bytes_;
        if (convert_.narrow) return convert_.narrow(to, reinterpret_cast<const char*>(numbers), s.size());
        if (to != reinterpret_cast<const char*>(numbers)) std::memcpy(to, numbers, size_t(s.size()) * sizeof(C));
    }
    explicit operator bool() const { return data_ != nullptr; }

  private:
    char* data_;
    ow_inner::Conversion convert_;
    int64_t bytes_;
};

template <class C>
using Loop = void (*)(int64_t, const C*, const C*, C, C*);

// Numbers for each channel, as they enter the loops.
template <class C>
struct Prepared {
    std::vector<C> mean, scale, gamma, beta, factor, offset, p, shift, root;
    DType own;

    C number(const Numbers& of, int64_t c, C otherwise) const {
        if (!of.data) return otherwise;
        if (of.wide) return static_cast<const C*>(of.data)[c];
        return own == DType::Half ? static_cast<C>(static_cast<float>(static_cast<const Half*>(of.data)[c]))
                                  : static_cast<C>(static_cast<float>(static_cast<const BFloat16*>(of.data)[c]));
    }
    void put(const Numbers& of, int64_t c, C value) const {
        if (!of.data) return;
        if (of.wide) {
            static_cast<C*>(of.data)[c] = value;
        } else if (own == DType::Half) {
            static_cast<Half*>(of.data)[c] = static_cast<Half>(static_cast<float>(value));
        } else {
            static_cast<BFloat16*>(of.data)[c] = static_cast<BFloat16>(static_cast<float>(value));
        }
    }

    Prepared(const Channels& c, int64_t channels, DType own) : own(own) {
        for (auto* each : {&mean, &scale, &gamma, &beta, &factor, &offset, &p, &shift, &root}) {
            each->resize(size_t(channels));
        }
        for (int64_t i = 0; i < channels; ++i) {
            const auto k = static_cast<size_t>(i);
            mean[k] = number(c.mean, i, 0) - number(c.bias, i, 0);
            root[k] = C(1) / std::sqrt(number(c.var, i, 0) + static_cast<C>(c.eps));
            gamma[k] = number(c.gamma, i, 1);
            scale[k] = root[k] * gamma[k];
            beta[k] = number(c.beta, i, 0);
            factor[k] = C(1), offset[k] = -mean[k];
        }
    }
    void invert() {
        for (size_t k = 0; k < mean.size(); ++k) factor[k] = C(1) / scale[k], offset[k] = -beta[k] / scale[k];
    }
};

}  // namespace conv_bn

#pragma GCC visibility pop
