// A tree of drafts, and the evidence classes of its nodes.
#pragma once

#include <algorithm>

#include "lookahead/options.h"

// Evidence class of a node: its source, the length of the match behind it, and for the first two
// sources its share of the weight of all candidates.
constexpr int32_t FROM_TABLE = 0, FROM_SEQUENCE = 1, FROM_RAW = 2;
constexpr int32_t NUM_LENGTHS = 6, NUM_SHARES = 4;
constexpr int32_t NUM_CLASSES = 2 * NUM_LENGTHS * NUM_SHARES + NUM_LENGTHS;

// Lengths 1, 2, 3 to 4, 5 to 6, 7 to 15, and more.
inline int32_t length_class(int32_t length) {
    return (length > 1) + (length > 2) + (length > 4) + (length > 6) + (length > 15);
}

// Shares of at least 4/5, 1/2, 1/5, and less. One unseen token is added to `total`, so that a token
// that followed once, and is the only one, has 1/2.
inline int32_t share_class(int64_t weight, int64_t total) {
    total += WEIGHT_ONE;
    return (5 * weight < 4 * total) + (2 * weight < total) + (5 * weight < total);
}

inline int32_t evidence_class(int32_t source, int32_t length, int32_t share) {
    return (source * NUM_LENGTHS + length_class(length)) * NUM_SHARES + share;
}
inline int32_t raw_class(int32_t length) {
    return FROM_RAW * NUM_LENGTHS * NUM_SHARES + length_class(length);
}

struct DraftTree {
    int32_t count = 0;
    int32_t tokens[MAX_TREE];
    int32_t classes[MAX_TREE];
    int32_t parents[MAX_TREE];  // -1 is the root

    int32_t add(int32_t parent, int32_t token, int32_t kind) {
        tokens[count] = token;
        classes[count] = kind;
        parents[count] = parent;
        return count++;
    }
    // Index of the child of `parent` with this token, or -1.
    int32_t find(int32_t parent, int32_t token) const {
        for (int32_t i = parent + 1; i < count; ++i) {
            if (parents[i] == parent && tokens[i] == token) return i;
        }
        return -1;
    }

    // Writes the nodes in depth-first order, siblings in the order of insertion.
    void write(int32_t* token_ids, int32_t* out_parents, int32_t* out_classes) const {
        int32_t first_child[MAX_TREE + 1], last_child[MAX_TREE + 1], sibling[MAX_TREE];
        std::fill_n(first_child, count + 1, -1);  // of node i at i + 1
        for (int32_t i = 0; i < count; ++i) {
            int32_t* const first = first_child + parents[i] + 1;
            *(*first < 0 ? first : sibling + last_child[parents[i] + 1]) = i;
            last_child[parents[i] + 1] = i;
            sibling[i] = -1;
        }
        int32_t places[MAX_TREE + 1];
        places[0] = -1;
        int32_t node = first_child[0];
        for (int32_t place = 0; place < count; ++place) {
            places[node + 1] = place;
            token_ids[place] = tokens[node];
            out_parents[place] = places[parents[node] + 1];
            out_classes[place] = classes[node];
            int32_t next = first_child[node + 1];
            for (int32_t above = node; next < 0 && above >= 0; above = parents[above]) {
                next = sibling[above];
            }
            node = next;
        }
    }
};
