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
    constexpr int64_t tokens = 5, heads = 3;
    for (const int64_t head_dim : {2, 30, 64, 80}) {
        Random random{uint32_t(head_dim)};
        const int64_t half = head_dim / 2, stride = heads * head_dim + 7;
        const Floats before = random.normal(tokens * stride);
        const Floats angles = random.normal(tokens * half);
        Floats cosines, sines;
        for (float angle : angles) {
            cosines.push_back(std::cos(angle));
            sines.push_back(std::sin(angle));
        }
        Floats rows = before;
        Doubles want(before.begin(), before.end());
        for (int64_t i = 0; i < tokens * heads * half; ++i) {
            const int64_t token = i / (heads * half), pair = i % half;
            const int64_t at = token * stride + i / half % heads * head_dim + pair;
            const double cosine = cosines[size_t(token * half + pair)];
            const double sine = sines[size_t(token * half + pair)];
            const double x = before[size_t(at)], y = before[size_t(at + half)];
            want[size_t(at)] = x * cosine - y * sine;
            want[size_t(at + half)] = y * cosine + x * sine;
        }
        const RotaryRows rotary = {tokens, heads,          head_dim,    rows.data(),
                                   stride, cosines.data(), sines.data()};
        taco_rotate_rows(subject.pool, &rotary);
        subject.report.close(subject.name("rotary positions, head_dim " + std::to_string(head_dim)),
                             rows, want, 1e-6);
    }
}
