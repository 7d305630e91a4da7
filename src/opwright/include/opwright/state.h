// State held in C++: a class that Python makes, calls, pickles and passes to operators, and that several threads may
// use.
//
//     #include <opwright/state.h>
//
//     namespace {  // so that no other library's Counter is taken for this one
//     struct Counter : State {
//         int64_t next() { return ++*count.lock(); }
//         Guarded<int64_t> count{0};
//     };
//     }  // namespace
//
//     OPWRIGHT_CLASS(Counter, c) {
//         c.def(torch::init<>()).def("next", &Counter::next);
//     }
//
// ow.load_classes("counter.cpp", name="counting").Counter() makes one. Whoever holds it counts, in Python, in C++ and
// in graphs; the last frees it. Methods take and return what operators do: at::Tensor, int64_t, double, bool,
// std::string, std::vector, std::tuple and std::optional of these, and Held<Class>. They run without Python's lock, so
// that threads meet in them. An operator takes the class as Held<Class>:
//
//     TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m) { m.def("after", [](const Held<Counter>& c) { … }); }
//
// PyTorch's stable ABI has no classes. Such a library serves the torch that it was built for.
#pragma once

#ifndef TORCH_EXTENSION_NAME
#error "opwright/state.h is for files that ow.load_classes or ow.load_extension builds"
#endif

#include <torch/custom_class.h>

#include <mutex>
#include <utility>

namespace torch {
using at::Tensor;  // as those write it who come from torch/extension.h, which declares the same
}

namespace opwright {

// What such a class derives from.
using State = torch::CustomClassHolder;

// What holds one.
template <class Class>
using Held = c10::intrusive_ptr<Class>;

// A value that one thread at a time uses: `auto items = guarded.lock(); items->push_back(x);`, until items goes. Before
// a loop over it, too: in `for (auto& x : *guarded.lock())` the lock is gone when the first turn begins.
template <class T>
class Guarded {
  public:
    class Use {
      public:
        explicit Use(Guarded& of) : lock_(of.mutex_), value_(of.value_) {}
        T* operator->() { return &value_; }
        T& operator*() { return value_; }

      private:
        std::unique_lock<std::mutex> lock_;
        T& value_;
    };

    template <class... A>
    explicit Guarded(A&&... with) : value_(std::forward<A>(with)...) {}
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    Use lock() { return Use(*this); }

  private:
    std::mutex mutex_;
    T value_;
};

}  // namespace opwright

// Makes a class known, by its own name in the namespace of the extension. The block that follows says what it can do.
#define OPWRIGHT_CLASS(Class, c)                                  \
    static void opwright_define_##Class(torch::class_<Class>& c); \
    TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, library) {       \
        auto c = library.class_<Class>(#Class);                   \
        opwright_define_##Class(c);                               \
    }                                                             \
    static void opwright_define_##Class(torch::class_<Class>& c)

using namespace opwright;
