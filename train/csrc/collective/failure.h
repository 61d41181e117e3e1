// The exception that ends an operation; the C ABI turns it into a code, a rank and a message.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace taco::collective {

// The numbers are part of the C ABI.
enum class Code : int32_t { ok, closed, silent, mismatch, aborted, broken };

class Failure : public std::exception {
public:
    // `rank`: the rank that is gone, silent or disagrees; -1 if unknown.
    Failure(Code code, int rank, std::string message)
        : code(code), rank(rank), message(std::move(message)) {}
    const char* what() const noexcept override { return message.c_str(); }

    Code code;
    int rank;
    std::string message;
};

}  // namespace taco::collective
