// How long a step of so many tokens takes, learned from the steps that ran.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/types.h"

// Seconds by number of tokens; contexts grow and machines are shared, so that it forgets.
class StepTimes {
public:
    // Sizes that are told apart: 1 to 8 one by one, then four to each doubling.
    StepTimes() {
        for (int64_t size = 1; size < 8; ++size) sizes_.push_back(size);
        for (int quarter = 12; quarter <= 60; ++quarter) {
            sizes_.push_back(std::llrint(std::exp2(quarter / 4.0)));
        }
        sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
        seconds_.assign(sizes_.size(), 0);
    }

    // Some step has been measured.
    bool is_ready() const {
        return std::any_of(seconds_.begin(), seconds_.end(), [](double s) { return s > 0; });
    }

    void observe(int64_t num_tokens, double seconds) {
        const size_t place = nearest(num_tokens);
        double& known = seconds_[place];
        known = known > 0 ? known + WEIGHT * (std::min(seconds, MAX_SURPRISE * known) - known)
                          : std::max(seconds, 1e-9);
        drift(place);
    }

    // Of steps of `first`, `first` + 1, … tokens; never falling.
    void estimate(int64_t first, int64_t count, double* seconds) {
        curve_.clear();
        for (size_t i = 0; i < sizes_.size(); ++i) {
            if (seconds_[i] <= 0) continue;
            const double highest = curve_.empty() ? 0 : curve_.back().seconds;
            curve_.push_back({sizes_[i], std::max(highest, seconds_[i])});
        }
        const Point last = curve_.back();
        double slope = BELIEVED_SLOPE * last.seconds;
        if (curve_.size() > 1) {
            const Point before = curve_[curve_.size() - 2];
            slope = std::max(slope, (last.seconds - before.seconds) / (last.size - before.size));
        }
        size_t above = 0;  // the first point that is as large
        for (int64_t i = 0; i < count; ++i) {
            const int64_t size = first + i;
            while (above < curve_.size() && curve_[above].size < size) ++above;
            if (above == curve_.size()) {
                seconds[i] = last.seconds + slope * (size - last.size);
            } else if (above == 0) {
                seconds[i] = curve_[0].seconds;
            } else {
                const Point low = curve_[above - 1], high = curve_[above];
                const double share = double(size - low.size) / (high.size - low.size);
                const double between = low.seconds + share * (high.seconds - low.seconds);
                seconds[i] = std::min(between, high.seconds);  // whatever rounding did
            }
        }
    }

private:
    struct Point {
        int64_t size;
        double seconds;
    };

    // Of a size that has not run: what each token beyond the next smaller size is believed to cost,
    // as a share of that size's step. Low, so that it is tried.
    static constexpr double BELIEVED_SLOPE = 0.02;
    static constexpr double WEIGHT = 0.2;  // of the newest step
    // A step that was held up by something else counts as at most so many times what was expected.
    static constexpr double MAX_SURPRISE = 1.5;
    // Somewhat larger sizes than those that run drift to what was believed of them, so that they
    // are tried again.
    static constexpr double DRIFT = 0.002;
    static constexpr int64_t DRIFT_REACH = 16;

    size_t nearest(int64_t num_tokens) const {
        const auto above = std::lower_bound(sizes_.begin(), sizes_.end(), num_tokens);
        if (above == sizes_.end()) return sizes_.size() - 1;
        const bool is_lower =
            above != sizes_.begin() && num_tokens - above[-1] < *above - num_tokens;
        return above - sizes_.begin() - is_lower;
    }

    // Larger steps that have not run lately may have become cheaper than they once were.
    void drift(size_t fresh) {
        for (size_t i = fresh + 1; i < sizes_.size(); ++i) {
            const int64_t beyond = sizes_[i] - sizes_[fresh];
            if (beyond > DRIFT_REACH + sizes_[fresh]) break;
            if (seconds_[i] <= 0) continue;
            const double believed = seconds_[fresh] * (1 + BELIEVED_SLOPE * beyond);
            seconds_[i] += DRIFT * (believed - seconds_[i]);
        }
    }

    std::vector<int64_t> sizes_;
    std::vector<double> seconds_;  // 0: not known
    std::vector<Point> curve_;
};
