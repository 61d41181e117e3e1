// Estimates the duration of a step from its number of tokens, learned from measured steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/types.h"

// Step time by number of tokens. Old measurements fade, since contexts grow and machines are
// shared.
class StepTimes {
public:
    // Buckets: 1 to 8 one by one, then four per doubling.
    StepTimes() {
        for (int64_t size = 1; size < 8; ++size) sizes_.push_back(size);
        for (int quarter = 12; quarter <= 60; ++quarter) {
            sizes_.push_back(std::llrint(std::exp2(quarter / 4.0)));
        }
        sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
        seconds_.assign(sizes_.size(), 0);
    }

    // Whether any step has been measured.
    bool is_ready() const {
        return std::any_of(seconds_.begin(), seconds_.end(), [](double s) { return s > 0; });
    }

    void observe(int64_t num_tokens, double seconds) {
        const size_t place = nearest(num_tokens);
        double& known = seconds_[place];
        known = known > 0 ? known + WEIGHT * (std::min(seconds, MAX_OUTLIER * known) - known)
                          : std::max(seconds, 1e-9);
        drift(place);
    }

    // Writes the expected seconds of steps of `first`, `first` + 1, … tokens; they never decrease.
    void estimate(int64_t first, int64_t count, double* seconds) {
        curve_.clear();
        for (size_t i = 0; i < sizes_.size(); ++i) {
            if (seconds_[i] <= 0) continue;
            const double highest = curve_.empty() ? 0 : curve_.back().seconds;
            curve_.push_back({sizes_[i], std::max(highest, seconds_[i])});
        }
        const Point last = curve_.back();
        double slope = ASSUMED_SLOPE * last.seconds;
        if (curve_.size() > 1) {
            const Point before = curve_[curve_.size() - 2];
            slope = std::max(slope, (last.seconds - before.seconds) / (last.size - before.size));
        }
        size_t above = 0;  // first point of at least this size
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
                seconds[i] = std::min(between, high.seconds);  // not above it by rounding
            }
        }
    }

private:
    struct Point {
        int64_t size;
        double seconds;
    };

    // Assumed cost of each token beyond the next smaller measured size, as a share of that size's
    // step time. Low, so that larger steps are tried.
    static constexpr double ASSUMED_SLOPE = 0.02;
    static constexpr double WEIGHT = 0.2;  // of the newest step
    // A slow outlier counts as at most this many times the expected time.
    static constexpr double MAX_OUTLIER = 1.5;
    // Unmeasured larger sizes drift towards the assumed time by this share per step, so that they
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

    // Larger steps that have not run lately may have become cheaper.
    void drift(size_t fresh) {
        for (size_t i = fresh + 1; i < sizes_.size(); ++i) {
            const int64_t beyond = sizes_[i] - sizes_[fresh];
            if (beyond > DRIFT_REACH + sizes_[fresh]) break;
            if (seconds_[i] <= 0) continue;
            const double assumed = seconds_[fresh] * (1 + ASSUMED_SLOPE * beyond);
            seconds_[i] += DRIFT * (assumed - seconds_[i]);
        }
    }

    std::vector<int64_t> sizes_;
    std::vector<double> seconds_;  // 0: not measured
    std::vector<Point> curve_;
};
