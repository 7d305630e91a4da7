// What the kernels of every device ask before they update anything.
#pragma once

#include <dlfcn.h>
#include <opwright/kernel.h>

#pragma GCC visibility push(hidden)

// Whether a backward pass is under way in this thread, which means that the forward is run again. PyTorch's stable ABI
// does not tell, so its own function is looked up; a torch without one updates always.
inline bool recomputing() {
    using Ask = int (*)();
    static const Ask ask =
        reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "_ZN5torch8autograd25get_current_graph_task_idEv"));
    return ask && ask() != -1;
}

// In the reference's words.
inline void expect(const std::optional<Tensor>& batches, const std::optional<Tensor>& count, int64_t values,
                   const std::optional<double>& momentum) {
    check(momentum || given(batches), "track_statistics: momentum can be None only with batches to count");
    check(values >= 0 && (given(count) || values != 1),
          "track_statistics: values must say of how many the statistics are, got ", values);
}

#pragma GCC visibility pop
