// What a call of axpby costs from C++, against at::add, on 16 elements: without a gradient, and recorded for one.
// Prints nanoseconds, the best of interleaved rounds.

#include <ATen/ATen.h>
#include <called/operators.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace {

template <class F>
double nanoseconds(F&& call) {
    constexpr int calls = 4000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    return took.count() / calls;
}

void compare(const char* what, const at::Tensor& x, const at::Tensor& y) {
    double ours = 1e9, theirs = 1e9;
    for (int round = 0; round < 60; ++round) {
        theirs = std::min(theirs, nanoseconds([&] { return at::add(x, y, 2); }));
        ours = std::min(ours, nanoseconds([&] { return opwright::axpby(x, y, {.b = 2}); }));
    }
    std::printf("%s %.1f %.1f\n", what, ours, theirs);
}

}  // namespace

int main() {
    const at::Tensor x = at::ones({16}), y = at::ones({16});
    compare("call", x, y);
    compare("recorded", at::ones({16}).requires_grad_(), y);
}
