// Records what each thread of a pool does and when, while the pool is traced.
#pragma once

#include <chrono>
#include <cstdint>

// What a thread does during a span. Spans of one thread nest.
enum class SpanKind : int32_t {
    none = 0,    // an unused entry
    region = 1,  // a parallel region, from its call to the arrival of the last thread
    start = 2,   // from the call of a region until this thread begins it
    op = 3,      // an op of a program for one chunk of rows; index: the op
    logits = 4,  // the logits of hidden states
    part = 5,    // a part of a shared loop; index: its first item
    wait = 6,    // a wait for other threads at a barrier
};

// Times are nanoseconds of the steady clock.
struct TraceSpan {
    int64_t begin, end;
    SpanKind kind;
    int32_t index;
};

inline int64_t trace_clock() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// The spans of one thread, in the order in which they end. Drops spans that do not fit.
class alignas(64) TraceLog {
public:
    TraceLog(TraceSpan* spans, int64_t capacity) : spans_(spans), capacity_(capacity) {}

    void add(SpanKind kind, int64_t index, int64_t begin, int64_t end) {
        if (count_ < capacity_) spans_[count_++] = {begin, end, kind, int32_t(index)};
    }

private:
    TraceSpan* spans_;
    int64_t capacity_, count_ = 0;
};

// Records the time from its construction to its destruction. Costs one branch without a log.
class Span {
public:
    Span(TraceLog* log, SpanKind kind, int64_t index)
        : log_(log), index_(index), begin_(log ? trace_clock() : 0), kind_(kind) {}
    ~Span() {
        if (log_) log_->add(kind_, index_, begin_, trace_clock());
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

private:
    TraceLog* const log_;
    const int64_t index_, begin_;
    const SpanKind kind_;
};
