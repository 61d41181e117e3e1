#include "collective/schedule.h"

#include <algorithm>

namespace taco::collective {
namespace {

constexpr uint32_t kGatherTag = 128;

int index_in(const Level& level, int rank) {
    const auto found = std::find(level.ranks.begin(), level.ranks.end(), rank);
    return static_cast<int>(found - level.ranks.begin());
}

// Without empty messages: both ends know the lengths.
void add(std::vector<Transfer>& transfers, int rank, Range range) {
    if (range.length() > 0) transfers.push_back({rank, range});
}

Steps make_ring(const Level& level, int rank, size_t length) {
    const int size = static_cast<int>(level.ranks.size()), index = index_in(level, rank);
    const int next = level.ranks[(index + 1) % size];
    const int previous = level.ranks[(index + size - 1) % size];
    const auto segment = [&](int i) {
        return part_of({0, length}, ((i % size) + size) % size, size);
    };
    Steps steps;
    for (int t = 0; t < 2 * (size - 1); ++t) {
        const bool reduces = t < size - 1;
        Step step{
            reduces ? Step::Kind::reduce : Step::Kind::gather, static_cast<uint32_t>(t), {}, {}};
        add(step.sends, next, segment(index - t));
        add(step.receives, previous, segment(index - t - 1));
        steps.steps.push_back(std::move(step));
    }
    steps.num_reductions = size - 1;
    steps.owned = segment(index + 1);
    return steps;
}

}  // namespace

Range part_of(Range range, size_t index, size_t num_parts) {
    const size_t length = range.length();
    return {range.begin + length * index / num_parts,
            range.begin + length * (index + 1) / num_parts};
}

Steps make_steps(const Schedule& schedule, int rank, size_t length, bool exchange_all) {
    Steps steps;
    steps.owned = {0, length};
    if (schedule.is_ring) return make_ring(schedule.levels[0], rank, length);
    std::vector<Step> gathers;
    for (size_t k = 0; k < schedule.levels.size(); ++k) {
        const Level& level = schedule.levels[k];
        const size_t index = index_in(level, rank), num_owners = level.num_owners;
        const Range range = steps.owned;
        if (exchange_all && k + 1 == schedule.levels.size() && num_owners == level.ranks.size()) {
            Step step{Step::Kind::reduce_all, static_cast<uint32_t>(k), {}, {}};
            for (int other : level.ranks) {
                if (other == rank) continue;
                add(step.sends, other, range);
                add(step.receives, other, range);
            }
            steps.steps.push_back(std::move(step));
            steps.order = level.ranks;
            break;
        }
        const bool owns = index < num_owners;
        const Range own = owns ? part_of(range, index, num_owners) : Range{};
        Step reduce{Step::Kind::reduce, static_cast<uint32_t>(k), {}, {}};
        Step gather{Step::Kind::gather, kGatherTag + static_cast<uint32_t>(k), {}, {}};
        for (size_t j = 0; j < level.ranks.size(); ++j) {
            if (j == index) continue;
            const Range part = j < num_owners ? part_of(range, j, num_owners) : Range{};
            add(reduce.sends, level.ranks[j], part);
            add(reduce.receives, level.ranks[j], own);
            add(gather.sends, level.ranks[j], own);
            add(gather.receives, level.ranks[j], part);
        }
        steps.steps.push_back(std::move(reduce));
        gathers.push_back(std::move(gather));
        steps.owned = own;
        if (!owns) break;
    }
    steps.num_reductions = steps.steps.size();
    steps.steps.insert(steps.steps.end(), std::make_move_iterator(gathers.rbegin()),
                       std::make_move_iterator(gathers.rend()));
    return steps;
}

}  // namespace taco::collective
