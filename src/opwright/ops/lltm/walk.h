// The walk of one thread through the steps.
#pragma once

#include "steps.h"

namespace lltm {

// A thread owns some hidden units, all three gates of each, or some rows of the batch, or both. In the first case it
// needs what the others have made of the step before, and one barrier a step; in the second nothing.
template <class C>
struct Walk {
    const Steps<C>& q;
    const Tiles<C>& tiles;
    Team& team;
    const int64_t member, H = q.hidden, W = tiles.lanes, blocks = (H + W - 1) / W, pairs = (blocks + 1) / 2;
    int64_t row_groups = 1, unit_groups = 1;

    Walk(const Steps<C>& q, const Tiles<C>& tiles, Team& team, int64_t member)
        : q(q), tiles(tiles), team(team), member(member) {
        choose_grid();
    }

    // Least work for the busiest thread; a share of the weights that its own cache cannot hold counts double, and
    // a barrier as much as a tile.
    void choose_grid() {
        const int64_t rows = (q.batch + tiles.rows - 1) / tiles.rows;
        int64_t least = INT64_MAX;
        for (int64_t groups = 1; groups <= team.size(); ++groups) {
            if (team.size() % groups) continue;
            const int64_t by_rows = team.size() / groups, share = 3 * H * H / groups * int64_t(sizeof(C));
            const int64_t work = (rows + by_rows - 1) / by_rows * ((pairs + groups - 1) / groups);
            const int64_t cost = work * (share > (1 << 20) ? 2 : 1) + (groups > 1);
            if (cost < least) least = cost, row_groups = by_rows, unit_groups = groups;
        }
    }

    // Block u holds, for each k, the weights from h[k] to the three gates of its units.
    void pack() const {
        C* row = q.own + member * q.own_size;
        for (int64_t u = member; u < blocks; u += team.size()) {
            C* to = q.panel + u * H * 3 * W;
            for (int64_t j = 0; j < 3 * W; ++j) {
                const int64_t unit = u * W + j % W;
                if (unit >= H) {
                    for (int64_t k = 0; k < H; ++k) to[k * 3 * W + j] = C(0);
                    continue;
                }
                const char* from = q.weight + (j / W * H + unit) * H * q.bytes;
                const C* numbers = reinterpret_cast<const C*>(from);
                if (!q.direct()) q.convert.widen(reinterpret_cast<char*>(row), from, H), numbers = row;
                for (int64_t k = 0; k < H; ++k) to[k * 3 * W + j] = numbers[k];
            }
        }
    }

    // Pair p holds, for each of the 3 H gates, the weights to the units of two blocks.
    void pack_backward() const {
        for (int64_t p = member; p < pairs; p += team.size()) {
            C* to = q.backward_panel + p * 3 * H * 2 * W;
            const int64_t at = p * 2 * W, n = std::min<int64_t>(2 * W, H - at);
            for (int64_t k = 0; k < 3 * H; ++k, to += 2 * W) {
                const char* from = q.weight + (k * H + at) * q.bytes;
                if (q.direct()) {
                    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(C));
                } else {
                    q.convert.widen(reinterpret_cast<char*>(to), from, n);
                }
                std::fill(to + n, to + 2 * W, C(0));
            }
        }
    }

    // One step of this thread's rows and units, of which there are `units` in all.
    void step(int64_t which, int64_t units, C* own) const {
        const int64_t n = q.active[which], group = member / row_groups;
        const int64_t begin = units * group / unit_groups, end = units * (group + 1) / unit_groups;
        for (int64_t u = begin; u < end; ++u) {
            for (int64_t first = member % row_groups * tiles.rows; first < n; first += row_groups * tiles.rows) {
                const int64_t last = std::min(first + tiles.rows, n), left = last - first;
                (left == 1 ? tiles.one : left <= 4 ? tiles.four : tiles.many)(&q, which, first, last, u, own);
            }
        }
        if (unit_groups > 1) team.wait();
    }

    void forward() const {
        pack();
        team.wait();
        for (int64_t s = 0; s < q.steps; ++s) step(s, blocks, nullptr);
    }

    void backward() const {
        pack_backward();
        if (q.recompute) pack();
        team.wait();
        for (int64_t s = q.steps - 1; s >= 0; --s) step(s, pairs, q.own + member * q.own_size);
    }
};

}  // namespace lltm
