// Functions of single numbers, and rotary positions.

#include <cmath>

#include "elementwise/elementwise_args.h"
#include "selftest.h"

namespace {

struct Named {
    const char* name;
    Function function;
    double (*exact)(double);
};

double gelu_tanh(double x) {
    const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    return x / 2 * (1 + std::tanh(u));
}

const Named functions[] = {
    {"relu", Function::relu, [](double x) { return x > 0 ? x : 0; }},
    {"gelu", Function::gelu, [](double x) { return x / 2 * (1 + std::erf(x * std::sqrt(0.5))); }},
    {"gelu_tanh", Function::gelu_tanh, gelu_tanh},
    {"silu", Function::silu, [](double x) { return x / (1 + std::exp(-x)); }},
    {"relu2", Function::relu2, [](double x) { return x > 0 ? x * x : 0; }},
    {"quick_gelu", Function::quick_gelu, [](double x) { return x / (1 + std::exp(-1.702 * x)); }},
    {"exp", Function::exp, [](double x) { return std::exp(x); }},
    {"tanh", Function::tanh, [](double x) { return std::tanh(x); }},
    {"erf", Function::erf, [](double x) { return std::erf(x); }},
};

}  // namespace

void check_functions(const Subject& subject) {
    Floats numbers = Random(1).normal(1000);
    for (int i = -90; i <= 87; ++i) numbers.push_back(float(i));
    const auto count = int64_t(numbers.size());
    for (const Named& named : functions) {
        Floats out(numbers.size());
        const Mapped mapped = {named.function, count, numbers.data(), out.data()};
        taco_map(subject.pool, &mapped);
        Doubles want;
        for (float x : numbers) want.push_back(named.exact(double(x)));
        subject.report.close(subject.name(named.name), out, want, 5e-7);
    }
    const float limits[] = {INFINITY, -INFINITY, NAN, 0};
    float out[4];
    const Mapped mapped = {Function::exp, 4, limits, out};
    taco_map(subject.pool, &mapped);
    subject.report.check(subject.name("exp of limits"),
                         std::isinf(out[0]) && out[1] == 0 && std::isnan(out[2]) && out[3] == 1);
}

void check_rotary(const Subject& subject) {
    constexpr int64_t tokens = 5, heads = 3, offset = 2, positions = 9;
    for (const int64_t rotary_dim : {2, 30, 64, 80}) {
        for (const auto style : {RotaryStyle::half, RotaryStyle::interleaved}) {
            Random random{uint32_t(rotary_dim)};
            const int64_t half = rotary_dim / 2, head_stride = rotary_dim + 5;
            const int64_t stride = heads * head_stride + 7;
            const Floats before = random.normal(tokens * stride);
            Floats cosines, sines;
            for (float angle : random.normal(positions * half)) {
                cosines.push_back(std::cos(angle));
                sines.push_back(std::sin(angle));
            }
            const int32_t places[tokens] = {8, 0, 3, 3, 1};
            Floats rows = before;
            Doubles want(before.begin(), before.end());
            for (int64_t i = 0; i < tokens * heads * half; ++i) {
                const int64_t token = i / (heads * half), pair = i % half;
                const int64_t head = token * stride + i / half % heads * head_stride + offset;
                const bool is_half = style == RotaryStyle::half;
                const auto first = size_t(head + (is_half ? pair : 2 * pair));
                const auto second = first + size_t(is_half ? half : 1);
                const auto angle = size_t(places[token] * half + pair);
                const double x = before[first], y = before[second];
                want[first] = x * cosines[angle] - y * sines[angle];
                want[second] = y * cosines[angle] + x * sines[angle];
            }
            const Rotation rotation = {style,          heads,        head_stride, rotary_dim,
                                       cosines.data(), sines.data(), 0,           nullptr};
            const RotaryRows rotary = {rotation, tokens, rows.data() + offset, stride, places};
            taco_rotate_rows(subject.pool, &rotary);
            const std::string dim = std::to_string(rotary_dim);
            const char* kind = style == RotaryStyle::half ? " in halves" : " interleaved";
            subject.report.close(subject.name("rotary positions, " + dim + kind), rows, want, 1e-6);
        }
    }
}
