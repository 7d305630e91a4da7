// Steps that are alike, as a CUDA graph. Launched one by one they are bound by the host, which takes longer for a
// step's calls than a GPU for their work. The graph is of a few steps and of this call alone, replayed for the others
// and thrown away: it knows no address of another call. Within a capture, which a graph cannot hold another of, the
// host launches.
#pragma once

#include <opwright/aten.h>

#include <map>
#include <mutex>

namespace lltm {

constexpr int64_t per_graph = 16;       // steps; even, since two numbers of the step take turns
constexpr int64_t least_replayed = 48;  // to make a graph takes about as long as 40 steps one by one

// A function of PyTorch's CUDA part, against which this need not have been linked; or null.
template <class F>
F torch_function(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        if (void* torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(torch, name);
    }
    return reinterpret_cast<F>(found);
}

// While it lives PyTorch's current stream is one that can be captured, which the default stream cannot. It begins when
// the stream before has come so far, and that goes on when it has ended.
class Aside {
  public:
    static bool possible() {
        cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusActive;
        cudaStreamIsCapturing(stream(), &capturing);
        return capturing == cudaStreamCaptureStatusNone && enter() && leave();
    }

    Aside() : device_(ow_inner::OnDevice::current().index), before_(stream()), aside_(take(device_)) {
        follow(before_, aside_);
        TORCH_ERROR_CODE_CHECK(enter()(aside_, device_, &guard_));
    }
    ~Aside() {
        leave()(guard_);
        follow(aside_, before_);
        const std::lock_guard<std::mutex> mine(turn());
        idle()[device_].push_back(aside_);
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

  private:
    int32_t device_;
    cudaStream_t before_, aside_;
    void* guard_ = nullptr;

    using Enter = AOTITorchError (*)(void*, int32_t, void**);
    using Leave = AOTITorchError (*)(void*);
    static Enter enter() {
        static const Enter found = torch_function<Enter>("aoti_torch_create_cuda_stream_guard");
        return found;
    }
    static Leave leave() {
        static const Leave found = torch_function<Leave>("aoti_torch_delete_cuda_stream_guard");
        return found;
    }

    // Streams that no call uses now. PyTorch keeps memory for its products by stream, so that they are few.
    static std::mutex& turn() {
        static std::mutex one;
        return one;
    }
    static std::map<int32_t, std::vector<cudaStream_t>>& idle() {
        static std::map<int32_t, std::vector<cudaStream_t>> streams;
        return streams;
    }
    static cudaStream_t take(int32_t device) {
        const std::lock_guard<std::mutex> mine(turn());
        auto& streams = idle()[device];
        if (streams.empty()) {
            cudaStream_t fresh;
            ow_inner::cuda_check(cudaStreamCreateWithFlags(&fresh, cudaStreamNonBlocking), "making a stream");
            return fresh;
        }
        const cudaStream_t found = streams.back();
        streams.pop_back();
        return found;
    }
    static void follow(cudaStream_t first, cudaStream_t second) {
        cudaEvent_t event;
        if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
            cudaStreamSynchronize(first);
            return;
        }
        cudaEventRecord(event, first);
        cudaStreamWaitEvent(second, event, 0);
        cudaEventDestroy(event);
    }
};

// What `body` launches on the current stream; nothing where that cannot be captured.
class Graph {
  public:
    template <class Body>
    explicit Graph(const Body& body) {
        if (cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
            forget();
            return;
        }
        bool whole = true;
        try {
            body();
        } catch (...) {
            whole = false;  // what is wrong with it shows without a graph
        }
        cudaGraph_t graph = nullptr;
        if (cudaStreamEndCapture(stream(), &graph) != cudaSuccess || !whole) forget();
        if (whole && graph && cudaGraphInstantiate(&code_, graph, 0) != cudaSuccess) forget();
        if (graph) cudaGraphDestroy(graph);
    }
    ~Graph() {
        if (code_) cudaGraphExecDestroy(code_);  // once what was launched has run
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    explicit operator bool() const { return code_ != nullptr; }
    void launch() const { ow_inner::cuda_check(cudaGraphLaunch(code_, stream()), "launching some steps"); }

  private:
    cudaGraphExec_t code_ = nullptr;

    void forget() {
        code_ = nullptr;
        cudaGetLastError();
    }
};

inline void put_number(int64_t* to, int64_t number) {
    for_each(1, [=] __device__(int64_t) { *to = number; });
}

// each(step, now, next) for `count` steps from `first`, `by` apart. Where `now` is not null it is where a kernel reads
// its step, and writes that of the following one to `next`.
template <class Each>
void for_steps(int64_t first, int64_t count, int64_t by, const Each& each) {
    int64_t done = 0;
    const auto one_by_one = [&](int64_t until) {
        for (; done < until; ++done) each(first + by * done, static_cast<const int64_t*>(nullptr), nullptr);
    };
    if (count < least_replayed || !Aside::possible()) return one_by_one(count);
    const Aside aside;
    one_by_one(1);  // with it PyTorch makes what its products need, which is no part of a graph
    const Tensor numbers = empty({2}, DType::Long);
    int64_t* const number = data<int64_t>(numbers);
    put_number(number, first + by);
    const Graph graph([&] {
        for (int64_t i = 0; i < per_graph; ++i) each(first, number + i % 2, number + (i + 1) % 2);
    });
    for (; graph && done + per_graph <= count; done += per_graph) graph.launch();
    one_by_one(count);
}

}  // namespace lltm
