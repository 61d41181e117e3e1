// The last tokens of a sequence, and their keyed hashes.
#pragma once

#include <algorithm>

#include "lookahead/options.h"

inline uint64_t fold_product(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
}

// Keyed hash of contexts. Without the secret a client cannot predict or construct collisions.
struct ContextHash {
    uint64_t secret[2];
    int32_t longest;  // longest context that is hashed

    // Hash of the context that is one token longer, towards the past.
    uint64_t extend(uint64_t hash, int32_t token) const {
        return fold_product(hash ^ secret[0], uint32_t(token) + secret[1]);
    }
};

struct Context {
    int32_t count = 0;
    int32_t tokens[MAX_MATCH];       // newest first
    uint64_t hashes[MAX_MATCH + 1];  // of each length; hashes[0] is the namespace

    void start(uint64_t name_space) {
        count = 0;
        hashes[0] = name_space;
    }
    void push(int32_t token, const ContextHash& hash) { follow(*this, token, hash); }
    // Becomes `other`, which may be this, with `token` appended.
    void follow(const Context& other, int32_t token, const ContextHash& hash) {
        std::copy_backward(other.tokens, other.tokens + hash.longest - 1, tokens + hash.longest);
        tokens[0] = token;
        count = std::min(other.count + 1, hash.longest);
        hashes[0] = other.hashes[0];
        for (int32_t i = 0; i < count; ++i) hashes[i + 1] = hash.extend(hashes[i], tokens[i]);
    }
};
